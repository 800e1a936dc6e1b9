"""Quasi-Newton directions: BFGS updates a first Hessian by the change of the gradient over each step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior.generators.derivatives import OnlyGradients
from genprior.problem import Problem
from genprior.solvers import envelope
from genprior.solvers.base import Common
from genprior.solvers.damping import affords_jacobian
from genprior.solvers.envelope import Trial
from genprior.solvers.estimates import is_long, lipschitz
from genprior.solvers.quadratic import LatentTerm, SecantModel, proximal_direction
from genprior.solvers.trial.engine import BasePoint, DescentDirection, Direction, TrialOutcome, TrialState, Update


class FirstHessian(ABC):
    """The first Hessian of a secant model."""

    @abstractmethod
    def eigenvalues(self, problem: Problem, curvature: Tensor) -> Tensor:
        """Per item, ``(B, s)`` or ``(B, 1)``, for a function of the signal of this curvature."""

    @abstractmethod
    def scaled(self, model: SecantModel) -> Tensor:
        """The eigenvalues, scaled as the pairs suggest."""

    def basis(self, problem: Problem) -> Tensor | None:
        """The eigenvectors, in columns, the same for all items; None: the coordinates themselves."""
        return None


@dataclass(frozen=True)
class Preconditioned(FirstHessian):
    """``curvature E[DG^T DG]``: strong and weak directions of the generator start at the right scale.

    Its scale t is 1 before the first pair and then follows the measured curvature: the product of the pairs'
    ``<s, y> / <s, first s>`` to the power ``1/(n + doubt)`` for n pairs, within ``least_scale`` and 1. An average over the
    latent distribution exceeds the curvature at most points, and along most directions that steps take.

    Parameters
    ----------
    floor
        eigenvalues are raised by this share of the largest one.
    doubt
        number of pairs at which the measured scale has half its weight, in the logarithm.
    least_scale
        of the first Hessian.
    """

    floor: float = 1e-3
    doubt: float = 5.0
    least_scale: float = 0.25

    def eigenvalues(self, problem: Problem, curvature: Tensor) -> Tensor:
        """Those of the preconditioner, raised by the floor."""
        values = problem.generator.preconditioner().values
        return curvature[:, None] * (values + self.floor * values[-1])

    def basis(self, problem: Problem) -> Tensor | None:
        """The eigenvectors of the preconditioner, where that is a matrix."""
        return problem.generator.preconditioner().vectors

    def scaled(self, model: SecantModel) -> Tensor:
        """``t first``."""
        steps, changes = model.pairs()
        measured, predicted = torch.linalg.vecdot(steps, changes), steps.square() @ model.first[:, :, None]
        held = predicted[:, :, 0] > 0
        factor = torch.where(held, measured / torch.where(held, predicted[:, :, 0], 1.0), 1.0)
        total = factor.clamp_min(torch.finfo(factor.dtype).tiny).log().sum(dim=1)
        scale = (total / (held.sum(dim=1).to(total) + self.doubt)).exp().clamp(self.least_scale, 1.0)
        return scale[:, None] * model.first


@dataclass(frozen=True)
class NewestPair(FirstHessian):
    """A multiple of the identity: ``<y, y> / <s, y>`` of the newest pair; before there is one, ``curvature |DG|^2``.

    References
    ----------
    Nocedal and Wright, Numerical Optimization, section 7.2.
    """

    def eigenvalues(self, problem: Problem, curvature: Tensor) -> Tensor:
        """All equal."""
        return curvature[:, None]

    def scaled(self, model: SecantModel) -> Tensor:
        """From the newest pair."""
        s, y = model.steps[:, -1], model.changes[:, -1]
        along, across = _batch.above_zero(_batch.norm(s)), _batch.above_zero(_batch.norm(y))
        cosine = _batch.dot(s / along[:, None], y / across[:, None])  # squares of gradients may underflow
        measured = across / along / torch.where(cosine > 0, cosine, 1.0)
        return torch.where((model.count == 0)[:, None], model.first, measured[:, None])


@dataclass(frozen=True)
class Secant(Direction[SecantModel]):
    """``d = -B^-1 grad phi``, where B comes from BFGS updates of a first Hessian.

    Updates concern ``e(G(z))`` alone; the curvature of the ridge and of a quadratic H is known, and added. Where H is neither
    zero nor quadratic, the direction minimises the quadratic model with H.

    Parameters
    ----------
    memory
        number of curvature pairs kept, the last ones.
    first
        the first Hessian: :class:`Preconditioned` or :class:`NewestPair`.
    clear
        least cosine between a rejected step and the change of the gradient over it for the pair to update B, because its
        gradient has been computed. None: rejected trials update nothing.
    refresh
        accepted steps between two Gauss-Newton matrices ``DG^T (d2e) DG`` that replace B; omitted: never. Each costs a
        Jacobian. Needs a preconditioned first Hessian.
    refresh_share
        most of what is left of a limited run that such a matrix may take.
    shortest
        after a failed search the first Hessian is divided by the last step length, or by this if that is larger.
    """

    memory: int = 50
    first: FirstHessian = Preconditioned()
    clear: float | None = 1e-3
    refresh: int | None = None
    refresh_share: float = 0.25
    shortest: float = 1e-2

    def __post_init__(self) -> None:
        _validate.whole("memory", self.memory)
        if self.clear is not None:
            _validate.number("clear", self.clear, least=0)
        if self.refresh is not None:
            _validate.whole("refresh", self.refresh)
            if not isinstance(self.first, Preconditioned):
                raise ValueError(
                    f"refresh needs first=Preconditioned(), whose eigenvectors it replaces, got {self.first!r}"
                )
        _validate.number("refresh_share", self.refresh_share, least=0)
        _validate.number("shortest", self.shortest, above=0)

    def start(self, problem: Problem, base: BasePoint, common: Common, trial: Trial, curvature: Tensor) -> SecantModel:
        """No pair yet."""
        items, size = base.z.shape
        shared = self.first.basis(problem)
        own = None if self.refresh is None or shared is None else shared.expand(items, size, size)
        return SecantModel.fresh(self.first.eigenvalues(problem, curvature), self.memory, size, own, curvature)

    # -- updates -----------------------------------------------------------------------------------------------------

    def updated(
        self, problem: Problem, s: TrialState[SecantModel], base: BasePoint, outcome: TrialOutcome
    ) -> Update[SecantModel]:
        """The trial updates the model: an accepted one always, a rejected one where its curvature is clearly positive."""
        vjp, model = outcome.vjp, s.model
        assert vjp is not None, "this direction uses gradients"
        z, gradient = _batch.flat(s.z), _batch.flat(vjp.gradient)
        step, change = z - s.base.z, gradient - s.base.gradient
        informative = (
            self._is_informative(outcome.accepted, step, change) & is_long(step, z) & ~outcome.moved & (s.k > 0)
        )
        unit = _batch.norm(step).clamp_min(torch.finfo(step.dtype).tiny)[:, None]
        into = self._to_eigenbasis(problem, model)
        model, changed = model.updated(informative, into(step / unit), into(change / unit))
        if isinstance(self.first, NewestPair):
            model = replace(model, first=lipschitz(s.units.smoothness, vjp.kappa)[:, None])
        model = replace(model, accepted=model.accepted + outcome.accepted)
        model = self._renewed(problem, model, base, outcome.accepted, s)
        return Update(model, base.gradient, outcome.accepted, outcome.jac_scale, changed)

    def _is_informative(self, accepted: Tensor, step: Tensor, change: Tensor) -> Tensor:
        if self.clear is None:
            return accepted
        return accepted | (_batch.dot(step, change) > self.clear * _batch.norm(step) * _batch.norm(change))

    def _renewed(
        self, problem: Problem, model: SecantModel, base: BasePoint, accepted: Tensor, s: TrialState[SecantModel]
    ) -> SecantModel:
        """The Gauss-Newton matrix at the base, where it is due."""
        if self.refresh is None or model.basis is None:
            return model
        index = (accepted & (model.accepted % self.refresh == 0)).nonzero()[:, 0]
        if len(index) == 0 or not affords_jacobian(problem, len(index), self.refresh_share):
            return model
        try:
            matrices = envelope.gauss_newton(
                problem.rows(index), base.z[index].reshape(-1, *s.z.shape[1:]), base.x[index], s.rho[index]
            )
        except OnlyGradients:
            return model  # BFGS continues without
        return self.replaced(model, index, matrices)

    def replaced(self, model: SecantModel, index: Tensor, matrices: Tensor) -> SecantModel:
        """Other first Hessians, without pairs, for the items in ``index``.

        Items with a matrix that is not finite, or has underflowed, keep theirs.
        """
        assert isinstance(self.first, Preconditioned), "checked in the constructor"
        precision = torch.finfo(matrices.dtype)
        clear = matrices.diagonal(dim1=1, dim2=2).amax(dim=1) > precision.tiny / precision.eps
        whole = clear & torch.isfinite(matrices).flatten(1).all(dim=1)
        index, matrices = index[whole], matrices[whole]
        values, vectors = torch.linalg.eigh(matrices.cpu().double())  # small, and not every device has float64
        values = (values.clamp_min(0) + self.first.floor * values[:, -1:]).clamp_min(precision.tiny)
        return model.replaced(index, values.to(model.first), vectors.to(model.first))

    def scaled(self, model: SecantModel, factor: Tensor) -> SecantModel:
        """That of ``factor`` times the function."""
        return model.scaled(factor)

    def restarted(self, problem: Problem, model: SecantModel, lost: Tensor, s: TrialState[SecantModel]) -> SecantModel:
        """Back to the first Hessian in the shared basis, divided by the last step length of the failed search.

        Where the next search fails too, before anything was learned, it is divided once more, by the square: a start where
        gradients overflow is left within a few searches.
        """
        if isinstance(self.first, NewestPair):
            return model.restarted(lost, model.first)
        length = s.search.length.clamp_min(self.shortest)
        fresh = self.first.eigenvalues(problem, model.curvature / length)
        again = (model.count == 0) & (
            model.first.amax(dim=1) > self.first.eigenvalues(problem, model.curvature).amax(dim=1)
        )
        first = torch.where(again[:, None], model.first / length.square()[:, None], fresh)
        basis, shared = model.basis, self.first.basis(problem)
        if basis is not None and shared is not None:
            basis = torch.where((lost & ~again)[:, None, None], shared, basis)
        return replace(model.restarted(lost, first), basis=basis)

    # -- use ---------------------------------------------------------------------------------------------------------

    def descent(
        self, problem: Problem, model: SecantModel, base: BasePoint, own: LatentTerm, scale: Tensor
    ) -> DescentDirection[SecantModel]:
        """The minimiser of the quadratic model at the base, and the change that its linear part and H predict."""
        into, out = self._to_eigenbasis(problem, model), self._from_eigenbasis(problem, model)
        first, known = self.first.scaled(model), own.curvature(base.energy)
        gradient = base.gradient + own.gradient(base.z)
        inside = into(gradient)
        newton = out(model.newton(inside, known, first))
        slope = _batch.dot(gradient, newton)
        if not bool((slope < 0).all()):  # also where the model is lost in rounding
            plain = -out(inside / (first + known[:, None]))
            newton = torch.where((slope < 0)[:, None], newton, plain)
            slope = _batch.dot(gradient, newton)
        if own.is_quadratic:
            return DescentDirection(model, newton, slope)
        times = model.hessian(known, first)
        direction = proximal_direction(lambda v: out(times(into(v))), gradient, base.z, newton, own.term, own.shape)
        return DescentDirection(model, direction, _batch.dot(gradient, direction) + own.change(base.z, direction))

    def _to_eigenbasis(self, problem: Problem, model: SecantModel) -> Callable[[Tensor], Tensor]:
        """The map to the coordinates of the first Hessian's eigenvectors."""
        own, shared = model.basis, self.first.basis(problem)
        if own is not None:
            return lambda v: (v[:, None] @ own)[:, 0]
        return (lambda v: v) if shared is None else (lambda v: v @ shared)

    def _from_eigenbasis(self, problem: Problem, model: SecantModel) -> Callable[[Tensor], Tensor]:
        """The map back to latent coordinates."""
        own, shared = model.basis, self.first.basis(problem)
        if own is not None:
            return lambda v: (v[:, None] @ own.mT)[:, 0]
        return (lambda v: v) if shared is None else (lambda v: v @ shared.mT)

    def takes_jacobians(self) -> bool:
        """For Gauss-Newton matrices."""
        return self.refresh is not None
