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
from genprior.solvers.estimates import is_long, lipschitz
from genprior.solvers.quadratic import LatentTerm, SecantModel, proximal_direction
from genprior.solvers.trial.engine import (
    BasePoint,
    DescentDirection,
    Direction,
    Trial,
    TrialOutcome,
    TrialState,
    Update,
)


@dataclass(frozen=True)
class SecantState:
    """The pairs, and the first Hessian that they correct."""

    pairs: SecantModel
    """In the coordinates of the basis."""
    basis: Tensor | None
    """Eigenvectors of the first Hessian in columns, ``(B, s, s)``, where items have one each; None: all share one."""
    curvature: Tensor
    """Scale of the first Hessian: that of the function of the signal."""
    accepted: Tensor
    """Accepted steps."""


class FirstHessian(ABC):
    """The first Hessian of a secant model."""

    @abstractmethod
    def eigenvalues(self, problem: Problem, curvature: Tensor) -> Tensor:
        """Per item, ``(B, s)`` or ``(B, 1)``, for a function of the signal of this curvature."""

    @abstractmethod
    def scaled(self, pairs: SecantModel) -> Tensor:
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

    def basis(self, problem: Problem) -> Tensor:
        """The eigenvectors of the preconditioner."""
        return problem.generator.preconditioner().vectors

    def scaled(self, pairs: SecantModel) -> Tensor:
        """``t first``."""
        steps, changes = pairs.pairs()
        measured, predicted = torch.linalg.vecdot(steps, changes), steps.square() @ pairs.first[:, :, None]
        held = predicted[:, :, 0] > 0
        factor = torch.where(held, measured / torch.where(held, predicted[:, :, 0], 1.0), 1.0)
        total = factor.clamp_min(torch.finfo(factor.dtype).tiny).log().sum(dim=1)
        scale = (total / (held.sum(dim=1).to(total) + self.doubt)).exp().clamp(self.least_scale, 1.0)
        return scale[:, None] * pairs.first


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

    def scaled(self, pairs: SecantModel) -> Tensor:
        """From the newest pair."""
        s, y = pairs.steps[:, -1], pairs.changes[:, -1]
        along, across = _batch.above_zero(_batch.norm(s)), _batch.above_zero(_batch.norm(y))
        cosine = _batch.dot(s / along[:, None], y / across[:, None])  # squares of gradients may underflow
        measured = across / along / torch.where(cosine > 0, cosine, 1.0)
        return torch.where((pairs.count == 0)[:, None], pairs.first, measured[:, None])


@dataclass(frozen=True)
class Secant(Direction[SecantState]):
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

    def start(self, problem: Problem, base: BasePoint, common: Common, trial: Trial, curvature: Tensor) -> SecantState:
        """No pair yet."""
        items, size = base.z.shape
        shared = self.first.basis(problem)
        own = None if self.refresh is None or shared is None else shared.expand(items, size, size)
        pairs = SecantModel.fresh(self.first.eigenvalues(problem, curvature), self.memory, size)
        return SecantState(pairs, own, curvature, torch.zeros_like(curvature))

    # -- updates -----------------------------------------------------------------------------------------------------

    def updated(
        self, problem: Problem, s: TrialState[SecantState], base: BasePoint, outcome: TrialOutcome
    ) -> Update[SecantState]:
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
        pairs, changed = model.pairs.updated(informative, into(step / unit), into(change / unit))
        if isinstance(self.first, NewestPair):
            pairs = replace(pairs, first=lipschitz(s.units.smoothness, vjp.kappa)[:, None])
        model = replace(model, pairs=pairs, accepted=model.accepted + outcome.accepted)
        model = self._renewed(problem, model, base, outcome.accepted, s)
        return Update(model, base.gradient, outcome.accepted, outcome.jac_scale, changed)

    def _is_informative(self, accepted: Tensor, step: Tensor, change: Tensor) -> Tensor:
        if self.clear is None:
            return accepted
        return accepted | (_batch.dot(step, change) > self.clear * _batch.norm(step) * _batch.norm(change))

    def _renewed(
        self, problem: Problem, model: SecantState, base: BasePoint, accepted: Tensor, s: TrialState[SecantState]
    ) -> SecantState:
        """The Gauss-Newton matrix at the base, where it is due."""
        if self.refresh is None or model.basis is None:
            return model
        index = (accepted & (model.accepted % self.refresh == 0)).nonzero()[:, 0]
        if len(index) == 0 or not affords_jacobian(problem, len(index), self.refresh_share):
            return model
        try:
            matrices = envelope.gauss_newton(
                problem.rows(index), base.z[index].reshape(-1, *s.z.shape[1:]), s.rho[index]
            )
        except OnlyGradients:
            return model  # BFGS continues without
        return self.replaced(model, index, matrices)

    def replaced(self, model: SecantState, index: Tensor, matrices: Tensor) -> SecantState:
        """Other first Hessians, without pairs, for the items in ``index``.

        Items with a matrix that is not finite, or has underflowed, keep theirs.
        """
        assert isinstance(self.first, Preconditioned), "checked in the constructor"
        assert model.basis is not None, "one basis per item where Gauss-Newton matrices replace it"
        precision = torch.finfo(matrices.dtype)
        clear = matrices.diagonal(dim1=1, dim2=2).amax(dim=1) > precision.tiny / precision.eps
        whole = clear & torch.isfinite(matrices).flatten(1).all(dim=1)
        index, matrices = index[whole], matrices[whole]
        values, vectors = torch.linalg.eigh(matrices.cpu().double())  # small, and not every device has float64
        values = (values.clamp_min(0) + self.first.floor * values[:, -1:]).clamp_min(precision.tiny)
        pairs = model.pairs
        none = pairs.steps.new_zeros(len(index), *pairs.steps.shape[1:])
        return replace(
            model,
            basis=model.basis.index_copy(0, index, vectors.to(model.basis)),
            pairs=SecantModel(
                pairs.first.index_copy(0, index, values.to(pairs.first)),
                pairs.steps.index_copy(0, index, none),
                pairs.changes.index_copy(0, index, none),
                pairs.count.index_fill(0, index, 0.0),
            ),
        )

    def scaled(self, model: SecantState, factor: Tensor) -> SecantState:
        """Pairs and first Hessian of ``factor`` times the function."""
        return replace(model, pairs=model.pairs.scaled(factor), curvature=model.curvature * factor)

    def restarted(self, problem: Problem, model: SecantState, lost: Tensor, s: TrialState[SecantState]) -> SecantState:
        """Back to the first Hessian in the shared basis, divided by the last step length of the failed search."""
        if isinstance(self.first, NewestPair):
            return replace(model, pairs=model.pairs.restarted(lost, model.pairs.first))
        first = self.first.eigenvalues(problem, model.curvature / s.search.length.clamp_min(self.shortest))
        basis, shared = model.basis, self.first.basis(problem)
        if basis is not None and shared is not None:
            basis = torch.where(lost[:, None, None], shared, basis)
        return replace(model, pairs=model.pairs.restarted(lost, first), basis=basis)

    # -- use ---------------------------------------------------------------------------------------------------------

    def descent(
        self, problem: Problem, model: SecantState, base: BasePoint, own: LatentTerm, scale: Tensor
    ) -> DescentDirection[SecantState]:
        """The minimiser of the quadratic model at the base, and the change that its linear part and H predict."""
        pairs, into, out = model.pairs, self._to_eigenbasis(problem, model), self._from_eigenbasis(problem, model)
        first, known = self.first.scaled(pairs), own.curvature(base.energy)
        gradient = base.gradient + own.gradient(base.z)
        inside = into(gradient)
        newton = out(pairs.newton(inside, known, first))
        slope = _batch.dot(gradient, newton)
        if not bool((slope < 0).all()):  # also where the model is lost in rounding
            plain = -out(inside / (first + known[:, None]))
            newton = torch.where((slope < 0)[:, None], newton, plain)
            slope = _batch.dot(gradient, newton)
        if own.is_quadratic:
            return DescentDirection(model, newton, slope)
        times = pairs.hessian(known, first)
        direction = proximal_direction(lambda v: out(times(into(v))), gradient, base.z, newton, own.term, own.shape)
        return DescentDirection(model, direction, _batch.dot(gradient, direction) + own.change(base.z, direction))

    def _to_eigenbasis(self, problem: Problem, model: SecantState) -> Callable[[Tensor], Tensor]:
        """The map to the coordinates of the first Hessian's eigenvectors."""
        own, shared = model.basis, self.first.basis(problem)
        if own is not None:
            return lambda v: (v[:, None] @ own)[:, 0]
        return (lambda v: v) if shared is None else (lambda v: v @ shared)

    def _from_eigenbasis(self, problem: Problem, model: SecantState) -> Callable[[Tensor], Tensor]:
        """The map back to latent coordinates."""
        own, shared = model.basis, self.first.basis(problem)
        if own is not None:
            return lambda v: (v[:, None] @ own.mT)[:, 0]
        return (lambda v: v) if shared is None else (lambda v: v @ shared.mT)

    def takes_jacobians(self) -> bool:
        """For Gauss-Newton matrices."""
        return self.refresh is not None
