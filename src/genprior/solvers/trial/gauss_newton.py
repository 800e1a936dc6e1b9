"""Damped Gauss-Newton directions for sums of squares (Levenberg-Marquardt)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from genprior import _batch
from genprior.problem import Problem
from genprior.solvers import envelope
from genprior.solvers.base import Common
from genprior.solvers.damping import Damping, JacobianModel, affords_jacobian
from genprior.solvers.envelope import Trial
from genprior.solvers.estimates import vjp_ratio
from genprior.solvers.quadratic import LatentTerm
from genprior.solvers.trial.engine import BasePoint, DescentDirection, Direction, TrialOutcome, TrialState, Update


@dataclass(frozen=True)
class DampedState:
    """The linear model of the residual at the base."""

    jacobian: JacobianModel
    residual: Tensor
    """``e`` at the base, ``(B, m)``."""
    predicted: Tensor
    """Decrease that the model predicted for the last trial."""
    first_value: Tensor
    """Of the function at the start: its rounding is that of all later differences."""


@dataclass(frozen=True)
class DampedGaussNewton(Direction[DampedState]):
    """``d = argmin 1/2 |e + M d|^2 + mu/2 |d|^2 + H(z + d)`` with ``e = A G(z) - y`` and ``M = A DG(z)``, per item.

    For losses that are sums of squares, with R = 0. The damping mu follows the ratio of gained to predicted decrease. The
    Jacobian M costs as much as s/3 to s/2 iterations of gradient descent, so it is kept for some steps and corrected by
    Broyden's rank-one update after every trial, rejected ones too: such a step costs one forward pass and no backward pass.
    Where the limit of a run does not allow for Jacobians, the model starts from the gradient (one backward pass), and
    Broyden's updates add the rest.
    """

    damping: Damping = Damping()

    uses_vjp = False

    def start(self, problem: Problem, base: BasePoint, common: Common, trial: Trial, curvature: Tensor) -> DampedState:
        """No Jacobian yet."""
        if not envelope.is_sum_of_squares(problem):
            raise envelope.not_squares(problem, "Gauss-Newton directions need")
        e = problem.loss.squares(base.x, trial.residual)
        zero = torch.zeros_like(trial.loss)
        return DampedState(JacobianModel.unknown(e, base.z.shape[1]), e, zero, common.score.abs())

    def updated(
        self, problem: Problem, s: TrialState[DampedState], base: BasePoint, outcome: TrialOutcome
    ) -> Update[DampedState]:
        """Broyden's update, the damping, and the exact Jacobian where it is due."""
        model, e = s.model, problem.loss.squares(s.x, s.trial.residual)
        step = s.search.length[:, None] * s.search.direction
        size = s.units.smoothness.sqrt() * _batch.norm(s.x)
        eps = torch.finfo(e.dtype).eps
        visible = model.predicted > 16 * eps * (s.base.energy.abs() + eps * model.first_value)
        jacobian = model.jacobian.updated(step, e - model.residual, size)
        jacobian = self.damping.judged(jacobian, outcome.decrease, model.predicted, outcome.accepted, visible)
        residual = torch.where(outcome.accepted[:, None], e, model.residual)
        jacobian, fresh = self._renewed(problem, jacobian, residual, base, s.z.shape)
        gradient = jacobian.vjp(residual)
        column = (jacobian.largest / _batch.above_zero(s.units.smoothness)).sqrt()
        jac_scale = torch.maximum(vjp_ratio(gradient, base.cotangent), column)
        model = replace(model, jacobian=jacobian, residual=residual)
        return Update(model, gradient, fresh, jac_scale, torch.ones_like(fresh))

    def _renewed(
        self, problem: Problem, model: JacobianModel, residual: Tensor, base: BasePoint, shape: torch.Size
    ) -> tuple[JacobianModel, Tensor]:
        """The exact Jacobian where it is due, or the gradient where it is too expensive; and where that was."""
        fresh = self.damping.due(model)
        index = fresh.nonzero()[:, 0]
        if len(index) == 0:
            return model, fresh
        part, z = problem.rows(index), base.z[index].reshape(-1, *shape[1:])
        if affords_jacobian(problem, len(index), self.damping.share):
            return self.damping.refreshed(model, index, envelope.residual_jacobian(part, z, base.x[index])), fresh
        at = problem.generator.evaluate(z)
        gradient = at.vjp(part.loss.gradient(at.x, part.loss.evaluate(at.x)[1]))
        return self.damping.aligned(model, index, residual[index], _batch.flat(gradient)), fresh

    def descent(
        self, problem: Problem, model: DampedState, base: BasePoint, own: LatentTerm, scale: Tensor
    ) -> DescentDirection[DampedState]:
        """The damped minimiser of the linear model, and the predicted decrease."""
        direction = model.jacobian.direction(base.gradient, base.z, own)
        taken = scale[:, None] * direction
        change = model.jacobian.jvp(taken)
        fall = -(_batch.dot(model.residual, change) + 0.5 * _batch.square(change))
        predicted = fall + own.added(torch.zeros_like(fall), base.z) - own.added(torch.zeros_like(fall), base.z + taken)
        slope = _batch.dot(base.gradient + own.gradient(base.z), direction)
        if not own.is_quadratic:
            slope = slope + own.change(base.z, direction)
        return DescentDirection(replace(model, predicted=predicted), direction, slope)

    def takes_jacobians(self) -> bool:
        """Always."""
        return True
