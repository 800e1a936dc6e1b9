"""Damped Gauss-Newton steps: the z subproblem of ADMM is a least-squares problem, whatever R is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior.generators import Evaluation
from genprior.generators.jacobian import Linearised
from genprior.operators.conjugate_gradient import conjugate_gradient
from genprior.problem import Problem
from genprior.solvers.base import State, Vjp
from genprior.solvers.damping import Model
from genprior.solvers.latent_model import proximal_direction
from genprior.solvers.z_steps.base import Advance, Memory, Task, ZStep
from genprior.solvers.z_steps.first_order import Gradient
from genprior.terms import Term, Zero

_LARGEST_DENSE = 2**24
"""Most numbers in the Jacobian of one item; by item, so that a batch and its parts decide alike."""
_LARGEST_LATENT = 2048
_MOST_DAMPING = 1e8
_CG_STEPS = 30
_CG_TOLERANCE = 1e-2
_PROX_STEPS = 10
_NO_LIMIT = 10**9
_LEAST_PASSES = 6, 2
"""Passes, forward and back, of a step with one iteration of conjugate gradients."""
_MOST_OF_BUDGET = 0.5
"""The share of what is left of a limited run that one step may take."""


@dataclass(frozen=True)
class GaussNewton(ZStep):
    """``d = argmin 1/2 |G(z) + J d - v|^2 + mu/2 |d|^2 + H(z + d)/rho`` with ``v = w + lam/rho`` and ``J = DG(z)``, per item.

    A trial is taken when the z subproblem falls; the damping mu follows the ratio of gained to predicted decrease
    (Levenberg-Marquardt). The Jacobian is kept for ``refresh`` trials and corrected by Broyden's rank-one updates, so that
    most trials cost one forward pass and no backward pass.

    Where the Jacobian of an item would have more than 16 million numbers (or s is above 2048), each step is solved by
    conjugate gradients with ``J v`` and ``J^T u`` in place of matrices, and nothing is kept.

    Parameters
    ----------
    inner
        trials per iteration of ADMM.
    refresh
        trials for which a Jacobian is kept, unless three in a row gain little.
    dense
        whether to form Jacobians; omitted: where they fit.
    """

    inner: int = 5
    refresh: int = 10
    dense: bool | None = None

    def __post_init__(self) -> None:
        _validate.whole("inner", self.inner)
        _validate.whole("refresh", self.refresh)
        if not isinstance(self.dense, bool | None):
            raise TypeError(f"dense must be True, False or None, got {self.dense!r} ({type(self.dense).__name__})")

    def start(self, problem: Problem, z: Tensor) -> Memory:
        """No Jacobian yet."""
        if not self._forms(problem, z):
            return {"damping": z.new_zeros(z.shape[0])}
        residual = z.new_zeros(z.shape[0], math.prod(problem.generator.signal_shape))
        return {"model": Model.unknown(residual, z[0].numel())}

    def advance(self, problem: Problem, state: State, task: Task, memory: Memory) -> Advance:
        """``inner`` damped trials."""
        e = _batch.flat(task.cotangent) / task.curvature[:, None]
        term = _over(problem.on_latent, task.curvature)
        if "model" not in memory:
            return self._without_matrix(problem, state, task, e, term, memory["damping"])
        model, fresh = self._renewed(problem, state, memory["model"], e)
        gradient = task.curvature[:, None] * model.vjp(e)
        jac_scale = model.gram.diagonal(dim1=1, dim2=2).amax(dim=1).sqrt()
        at = state.at
        for _ in range(min(self.inner, _affordable(problem, len(e), 1, 0))):
            z = _batch.flat(at.z)
            d = task.shrink[:, None] * model.direction(model.vjp(e), z, term, at.z.shape)
            trial = problem.generator.evaluate((z + d).reshape(at.z.shape), graph=False)
            change = _batch.flat(trial.x - at.x)
            fall, size = _fall(term, e, change, at, trial), _batch.square(e) + torch.nan_to_num(term(at.z), posinf=0.0)
            predicted = _fall(term, e, model.jvp(d), at, trial)
            accepted = fall > 0
            visible = predicted > 64 * torch.finfo(e.dtype).eps * size
            gain = torch.nan_to_num(fall / torch.where(predicted > 0, predicted, 1.0), nan=1.0)
            model = model.updated(d, change, _batch.norm(at.x)).judged(gain, accepted, visible)
            at = at.where(accepted, trial)
            e = torch.where(accepted[:, None], e + change, e)
        return Advance(at, self._vjp(state, task, gradient, jac_scale), {"model": model}, fresh)

    def _forms(self, problem: Problem, z: Tensor) -> bool:
        if self.dense is not None:
            return self.dense
        numbers = z[0].numel() * math.prod(problem.generator.signal_shape)
        return z[0].numel() <= _LARGEST_LATENT and numbers <= _LARGEST_DENSE

    def _renewed(self, problem: Problem, s: State, model: Model, e: Tensor) -> tuple[Model, Tensor]:
        """The exact Jacobian where it is due, or its gradient where it is too dear; and where that was."""
        fresh = model.due(self.refresh)
        index = fresh.nonzero()[:, 0]
        if len(index) == 0:
            return model, fresh
        budget = problem.generator.budget
        if budget is None or budget.share(s.z[0].numel(), 0, len(index)) <= _MOST_OF_BUDGET:
            return model.refreshed(index, problem.generator.jacobian(s.z[index])), fresh
        gradient = _batch.flat(s.at.vjp(e.reshape(s.x.shape)))
        return model.aligned(index, e[index], gradient[index]), fresh

    def _without_matrix(
        self, problem: Problem, s: State, task: Task, e: Tensor, term: Term, damping: Tensor
    ) -> Advance:
        """One damped step by conjugate gradients; a gradient step where a limited run has no time for one product."""
        budget = problem.generator.budget
        if budget is not None and budget.share(*_LEAST_PASSES, len(s.z)) > 1:
            moved = Gradient().advance(problem, s, task, {})
            return Advance(moved.at, moved.vjp, {"damping": damping})
        maps = problem.generator.linearised(s.z)
        gradient = _batch.flat(maps.vjp(e.reshape(s.x.shape)))
        curvature = _batch.ratio(_batch.norm(_push(maps, s.z, gradient)), _batch.norm(gradient)).square()
        damping = torch.where(damping > 0, damping, 1e-3 * curvature)
        d = task.shrink[:, None] * self._solved(
            maps, s.z, gradient, damping, term, _affordable(problem, len(s.z), 2, 1)
        )
        trial = problem.generator.evaluate((_batch.flat(s.z) + d).reshape(s.z.shape), graph=False)
        fall = _fall(term, e, _batch.flat(trial.x - s.x), s.at, trial)
        predicted = _fall(term, e, _push(maps, s.z, d), s.at, trial)
        gain = torch.nan_to_num(fall / torch.where(predicted > 0, predicted, 1.0), nan=1.0)
        accepted = fall > 0
        visible = predicted > 64 * torch.finfo(e.dtype).eps * _batch.square(e)
        changed = torch.where(accepted, torch.where(gain > 0.5, damping / 3, damping), 4 * damping)
        damping = torch.minimum(torch.where(visible, changed, damping), _MOST_DAMPING * curvature)
        at = s.at.where(accepted, trial)
        vjp = self._vjp(s, task, task.curvature[:, None] * gradient, curvature.sqrt())
        return Advance(at, vjp, {"damping": damping})

    @staticmethod
    def _solved(maps: Linearised, z: Tensor, gradient: Tensor, damping: Tensor, term: Term, most: int) -> Tensor:
        """Minimise ``<g, d> + 1/2 |J d|^2 + mu/2 |d|^2 + H(z + d)`` over d, with ``most`` products at the most."""
        weight, centre = term.as_quadratic() or (0.0, 0.0)
        flat = _batch.flat(z)
        own = _batch.spread(weight, flat) * (flat - (_batch.flat(centre) if isinstance(centre, Tensor) else centre))
        add = damping + _batch.column(weight, damping)

        def apply(v: Tensor) -> Tensor:
            pushed = maps.jvp(v.reshape(z.shape))
            return _batch.flat(maps.vjp(pushed)) + add[:, None] * v

        newton = conjugate_gradient(apply, -(gradient + own), None, _CG_TOLERANCE, min(most, _CG_STEPS)).solution
        if term.as_quadratic() is not None:
            return newton
        return proximal_direction(apply, gradient, flat, newton, term, z.shape, steps=min(most, _PROX_STEPS))

    @staticmethod
    def _vjp(s: State, task: Task, gradient: Tensor, jac_scale: Tensor) -> Vjp:
        """With another lower bound of ``|DG|``, because at a solution the cotangent is short."""
        return Vjp.known(s, gradient.reshape(s.z.shape), _batch.norm(task.cotangent), jac_scale)


def _affordable(problem: Problem, rows: int, forwards: float, backwards: float) -> int:
    """How often a step of a limited run can afford so many passes; once in any case."""
    budget = problem.generator.budget
    each = 0.0 if budget is None else budget.share(forwards, backwards, rows)
    return _NO_LIMIT if each == 0 else max(1, int(_MOST_OF_BUDGET / each))


def _push(maps: Linearised, z: Tensor, v: Tensor) -> Tensor:
    return _batch.flat(maps.jvp(v.reshape(z.shape)))


def _over(term: Term, curvature: Tensor) -> Term:
    return term if isinstance(term, Zero) else term * (1 / curvature)


def _fall(term: Term, e: Tensor, change: Tensor, here: Evaluation, there: Evaluation) -> Tensor:
    """How far ``1/2 |e|^2 + H`` falls when e changes by ``change``."""
    fall = -(_batch.dot(e, change) + 0.5 * _batch.square(change))
    return fall if isinstance(term, Zero) else fall + term(here.z) - term(there.z)
