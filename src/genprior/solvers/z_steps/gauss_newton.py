"""Damped Gauss-Newton steps: the z subproblem of ADMM is a least-squares problem, whatever R is."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior.generators.derivatives import Linearised
from genprior.operators.krylov import conjugate_gradient
from genprior.problem import Problem
from genprior.solvers.base import State, Vjp
from genprior.solvers.damping import Damping, JacobianModel, affords_jacobian, gain_of
from genprior.solvers.quadratic import LatentTerm, proximal_direction
from genprior.solvers.z_steps.base import Advance, Task, ZStep
from genprior.solvers.z_steps.first_order import Gradient
from genprior.terms import Term, Zero

_NO_LIMIT = 10**9
"""Products that an unlimited run can afford: more than it will ever make."""
_LEAST_PASSES = 6, 2
"""Forward and backward passes of a step with one iteration of conjugate gradients."""
_VISIBLE = 64
"""Predicted decreases below so many units of rounding are not compared with the actual ones."""


@dataclass(frozen=True)
class MatrixFree:
    """Constants of steps that are solved by conjugate gradients, with ``J v`` and ``J^T u`` in place of matrices.

    Parameters
    ----------
    largest_jacobian, largest_latent
        most numbers in the Jacobian of one item, and largest latent dimension, for which matrices are formed; per item, so
        that the batch size does not matter.
    steps, tolerance
        of conjugate gradients: a rough solution is enough, because the step is judged by its decrease.
    prox_steps
        iterations with H, where that is not quadratic.
    shorter, longer
        factors on the damping after a step that gained more than half of what was predicted, and after a failed one.
    """

    largest_jacobian: int = 2**24
    largest_latent: int = 2048
    steps: int = 30
    tolerance: float = 1e-2
    prox_steps: int = 10
    shorter: float = 1 / 3
    longer: float = 4.0


@dataclass(frozen=True)
class GaussNewton(ZStep[JacobianModel | Tensor]):
    """``d = argmin 1/2 |G(z) + J d - v|^2 + mu/2 |d|^2 + H(z + d)/rho`` with ``v = w + lam/rho`` and ``J = DG(z)``, per item.

    A trial is taken when it lowers the z subproblem; the damping mu follows the ratio of gained to predicted decrease
    (Levenberg-Marquardt). The Jacobian is kept for ``refresh`` trials and corrected by Broyden's rank-one updates, so that
    most trials cost one forward pass and no backward pass.

    Where the Jacobian of an item would have more than 16 million numbers (or s is above 2048), each step is solved by
    conjugate gradients with ``J v`` and ``J^T u`` in place of matrices, and nothing is kept but the damping.

    Parameters
    ----------
    inner
        trials per iteration of ADMM.
    refresh
        trials for which a Jacobian is kept, unless three in a row gain little.
    dense
        whether to form Jacobians; omitted: where they fit.
    damping, matrix_free
        the constants of the two forms.
    """

    inner: int = 5
    refresh: int = 10
    dense: bool | None = None
    damping: Damping = Damping()
    matrix_free: MatrixFree = MatrixFree()

    def __post_init__(self) -> None:
        _validate.whole("inner", self.inner)
        _validate.whole("refresh", self.refresh)
        if not isinstance(self.dense, bool | None):
            raise TypeError(f"dense must be True, False or None, got {self.dense!r} ({type(self.dense).__name__})")

    @property
    def description(self) -> str:
        """In words."""
        return f"{self.inner} damped Gauss-Newton steps per iteration"

    def start(self, problem: Problem, z: Tensor) -> JacobianModel | Tensor:
        """No Jacobian yet; in the matrix-free form, the damping alone."""
        if not self._forms(problem, z):
            return z.new_zeros(z.shape[0])
        residual = z.new_zeros(z.shape[0], math.prod(problem.generator.signal_shape))
        return JacobianModel.unknown(residual, z[0].numel())

    def advance(
        self, problem: Problem, state: State, task: Task, memory: JacobianModel | Tensor
    ) -> Advance[JacobianModel | Tensor]:
        """``inner`` damped trials."""
        e = _batch.flat(task.cotangent) / task.curvature[:, None]
        own = LatentTerm(_over(problem.on_latent, task.curvature), state.z.shape)
        if isinstance(memory, Tensor):
            return self._without_matrix(problem, state, task, e, own, memory)
        rule = replace(self.damping, refresh=self.refresh)
        model, fresh = self._renewed(problem, state, rule, memory, e)
        gradient = task.curvature[:, None] * model.vjp(e)
        jac_scale = model.largest.sqrt()
        at = state.at
        for _ in range(min(self.inner, self._affordable(problem, len(e), 1, 0))):
            z = _batch.flat(at.z)
            d = task.shrink[:, None] * model.direction(model.vjp(e), z, own)
            trial = problem.generator.evaluate((z + d).reshape(at.z.shape), graph=False)
            change = _batch.flat(trial.x - at.x)
            fall, predicted = _fall(own, e, change, z, d), _fall(own, e, model.jvp(d), z, d)
            size = _batch.square(e) + torch.nan_to_num(own.term(at.z), posinf=0.0)
            accepted = fall > 0
            visible = predicted > _VISIBLE * torch.finfo(e.dtype).eps * size
            model = model.updated(d, change, _batch.norm(at.x))
            model = rule.judged(model, fall, predicted, accepted, visible)
            at = at.where(accepted, trial)
            e = torch.where(accepted[:, None], e + change, e)
        return Advance(at, self._vjp(state, task, gradient, jac_scale), model, fresh)

    def _forms(self, problem: Problem, z: Tensor) -> bool:
        if self.dense is not None:
            return self.dense
        numbers = z[0].numel() * math.prod(problem.generator.signal_shape)
        return z[0].numel() <= self.matrix_free.largest_latent and numbers <= self.matrix_free.largest_jacobian

    def _renewed(
        self, problem: Problem, s: State, rule: Damping, model: JacobianModel, e: Tensor
    ) -> tuple[JacobianModel, Tensor]:
        """The exact Jacobian where it is due, or its gradient where it is too expensive; and where that was."""
        fresh = rule.due(model)
        index = fresh.nonzero()[:, 0]
        if len(index) == 0:
            return model, fresh
        if affords_jacobian(problem, len(index), rule.share):
            return rule.refreshed(model, index, problem.generator.jacobian(s.z[index])), fresh
        gradient = _batch.flat(s.at.vjp(e.reshape(s.x.shape)))
        return rule.aligned(model, index, e[index], gradient[index]), fresh

    def _without_matrix(
        self, problem: Problem, s: State, task: Task, e: Tensor, own: LatentTerm, damping: Tensor
    ) -> Advance[JacobianModel | Tensor]:
        """One damped step by conjugate gradients; a gradient step where a limited run cannot afford one product."""
        if problem.generator.passes.share(*_LEAST_PASSES, len(s.z)) > 1:
            moved = Gradient().advance(problem, s, task, None)
            return Advance(moved.at, moved.vjp, damping)
        rule, z = self.matrix_free, _batch.flat(s.z)
        maps = problem.generator.linearised(s.z)
        gradient = _batch.flat(maps.vjp(e.reshape(s.x.shape)))
        curvature = _batch.ratio(_batch.norm(_jvp(maps, s.z, gradient)), _batch.norm(gradient)).square()
        damping = torch.where(damping > 0, damping, self.damping.first * curvature)
        most = self._affordable(problem, len(s.z), 2, 1)
        d = task.shrink[:, None] * self._solved(maps, z, gradient, damping, own, most)
        trial = problem.generator.evaluate((z + d).reshape(s.z.shape), graph=False)
        fall = _fall(own, e, _batch.flat(trial.x - s.x), z, d)
        predicted = _fall(own, e, _jvp(maps, s.z, d), z, d)
        accepted = fall > 0
        visible = predicted > _VISIBLE * torch.finfo(e.dtype).eps * _batch.square(e)
        smaller = torch.where(gain_of(fall, predicted) > 0.5, rule.shorter * damping, damping)
        changed = torch.where(accepted, smaller, rule.longer * damping)
        damping = torch.minimum(torch.where(visible, changed, damping), self.damping.most * curvature)
        at = s.at.where(accepted, trial)
        vjp = self._vjp(s, task, task.curvature[:, None] * gradient, curvature.sqrt())
        return Advance(at, vjp, damping)

    def _solved(
        self, maps: Linearised, z: Tensor, gradient: Tensor, damping: Tensor, own: LatentTerm, most: int
    ) -> Tensor:
        """Minimise ``<g, d> + 1/2 |J d|^2 + mu/2 |d|^2 + H(z + d)`` over d, with at most ``most`` products."""
        rule, add = self.matrix_free, damping + own.curvature(damping)

        def apply(v: Tensor) -> Tensor:
            image = maps.jvp(v.reshape(own.shape))
            return _batch.flat(maps.vjp(image)) + add[:, None] * v

        whole = gradient + own.gradient(z)
        newton = conjugate_gradient(apply, -whole, None, rule.tolerance, min(most, rule.steps)).solution
        if own.is_quadratic:
            return newton
        return proximal_direction(apply, whole, z, newton, own.term, own.shape, steps=min(most, rule.prox_steps))

    def _affordable(self, problem: Problem, rows: int, forwards: float, backwards: float) -> int:
        """How often a step of a limited run can afford these passes; at least once."""
        each = problem.generator.passes.share(forwards, backwards, rows)
        return _NO_LIMIT if each == 0 else max(1, int(self.damping.share / each))

    @staticmethod
    def _vjp(s: State, task: Task, gradient: Tensor, jac_scale: Tensor) -> Vjp:
        """With another lower bound of ``|DG|``, because at a solution the cotangent is near zero."""
        return Vjp.known(s, gradient.reshape(s.z.shape), _batch.norm(task.cotangent), jac_scale)


def _jvp(maps: Linearised, z: Tensor, v: Tensor) -> Tensor:
    return _batch.flat(maps.jvp(v.reshape(z.shape)))


def _over(term: Term, curvature: Tensor) -> Term:
    return term if isinstance(term, Zero) else term * (1 / curvature)


def _fall(own: LatentTerm, e: Tensor, change: Tensor, z: Tensor, d: Tensor) -> Tensor:
    """How far ``1/2 |e|^2 + H`` falls when e changes by ``change`` and z by d."""
    fall = -(_batch.dot(e, change) + 0.5 * _batch.square(change))
    return fall if isinstance(own.term, Zero) else fall - own.change(z, d)
