"""Levenberg-Marquardt on ``L(G(z)) + H(z)`` for least squares."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior.generators import Evaluation
from genprior.losses import LeastSquares, SquaredDistance
from genprior.problem import Point, Problem
from genprior.solvers.base import Common, Evidence, Solver, State, Vjp
from genprior.solvers.damping import Model
from genprior.solvers.estimates import noise
from genprior.terms import Zero


@dataclass(frozen=True)
class LevenbergState(State):
    """The last accepted point ("base"), the step from it, and the linear model. ``at`` is the trial point."""

    residual: Tensor
    """``e`` at the trial point, ``(B, m)``."""
    pressure: Tensor
    """``|grad L|`` at the trial point."""
    base_z: Tensor
    base_residual: Tensor
    base_score: Tensor
    first_score: Tensor
    base_pressure: Tensor
    direction: Tensor
    predicted: Tensor
    model: Model


def least_squares_residual(problem: Problem, point: Point) -> Tensor:
    """``e`` with ``L = 1/2 |e|^2``, flat."""
    if isinstance(problem.loss, SquaredDistance):
        weight = _batch.column(2 * problem.loss.weight, point.loss).sqrt()
        return _batch.flat(_batch.spread(weight, point.residual) * point.residual)
    return _batch.flat(point.residual)


def applies_to(problem: Problem) -> bool:
    """Whether L is a sum of squares and R is zero."""
    return isinstance(problem.loss, LeastSquares | SquaredDistance) and isinstance(problem.on_signal, Zero)


@dataclass(frozen=True)
class LevenbergMarquardt(Solver[LevenbergState]):
    """``d = argmin 1/2 |e + M d|^2 + mu/2 |d|^2 + H(z + d)`` with ``e = A G(z) - y`` and ``M = A DG(z)``, per item.

    For ``LeastSquares`` and ``SquaredDistance`` with R = 0. A trial is taken when it lowers the objective; the damping mu
    follows the ratio of gained to predicted decrease. The Jacobian M costs as much as s/3 to s/2 iterations of gradient
    descent, so it is kept for ``refresh`` steps and corrected by Broyden's rank-one update from what each step measures,
    rejected ones too: such a step costs one forward pass and no backward pass.

    Where the limit of a run does not allow for Jacobians, the model starts from the gradient, one backward pass every
    ``refresh`` steps, and learns the rest from the steps.

    Convergence is judged when Jacobian or gradient are new: an updated one is a guess.

    Parameters
    ----------
    refresh
        steps for which a Jacobian is kept, unless three in a row gain little.

    References
    ----------
    Nielsen 1999, Damping parameter in Marquardt's method; Broyden 1965.
    """

    refresh: int = 10

    def __post_init__(self) -> None:
        _validate.whole("refresh", self.refresh)

    @property
    def patience(self) -> int:
        """Less than methods without curvature need: a plateau that still led somewhere had 103 steps at most."""
        return 100

    def start(self, problem: Problem, z: Tensor) -> LevenbergState:
        """The start is the base, and the first trial."""
        if not applies_to(problem):
            raise ValueError(
                f"LevenbergMarquardt needs loss=LeastSquares or SquaredDistance and on_signal=Zero(), got "
                f"{type(problem.loss).__name__} and {problem.on_signal!r}: use gp.Auto() or an ADMM"
            )
        at = problem.generator.evaluate(z, graph=False)
        point = problem.evaluate(at.x, at.z)
        common = Common.first(problem, at, point, problem.loss.curvature(at.x)[1])
        e, pressure = least_squares_residual(problem, point), self._pressure(problem, at, point)
        flat = _batch.flat(at.z)
        return LevenbergState(
            common,
            residual=e,
            pressure=pressure,
            base_z=flat,
            base_residual=e,
            base_score=point.score,
            first_score=point.score.abs(),
            base_pressure=pressure,
            direction=torch.zeros_like(flat),
            predicted=common.k,
            model=Model.unknown(e, flat.shape[1]),
        )

    def step(self, problem: Problem, state: LevenbergState) -> LevenbergState:
        """Judge the trial, renew the model where it is due, try again."""
        s = self._judged(state)
        s, gradient, fresh = self._renewed(problem, s)
        direction = s.model.direction(gradient, s.base_z, problem.on_latent, s.z.shape)
        z = (s.base_z + s.scale[:, None] * direction).reshape(s.z.shape)

        at = problem.generator.evaluate(z, graph=False)
        point = problem.evaluate(at.x, at.z)
        vjp = Vjp.known(s, gradient.reshape(s.z.shape), s.base_pressure)
        _, secant = s.common.moved(at, problem.generator.spread)
        column = (s.model.gram.diagonal(dim1=1, dim2=2).amax(dim=1) / _batch.above_zero(s.units.smoothness)).sqrt()
        jac_scale = torch.maximum(torch.maximum(vjp.ratio, secant), column)
        evidence = Evidence.at(s.base_z.reshape(s.z.shape), vjp, jac_scale).where(fresh, s.evidence)
        taken = s.scale[:, None] * direction
        return replace(
            s,
            common=s.common.next(at, point, torch.maximum(vjp.kappa, secant), evidence),
            residual=least_squares_residual(problem, point),
            pressure=self._pressure(problem, at, point),
            direction=taken,
            predicted=self._predicted(problem, s, taken),
        )

    def _judged(self, s: LevenbergState) -> LevenbergState:
        """Whether the trial is the new base; what it teaches about damping and Jacobian."""
        moved = s.k > 0
        accepted = moved & (s.score < s.base_score + noise(s.base_score, s.base_pressure, s.x))
        expected = torch.where(s.predicted > 0, s.predicted, 1.0)
        gain = torch.nan_to_num((s.base_score - s.score) / expected, nan=1.0)  # inf / inf from an infeasible start
        eps = torch.finfo(s.score.dtype).eps
        size = s.units.smoothness.sqrt() * _batch.norm(s.x)
        visible = s.predicted > 16 * eps * (s.base_score.abs() + eps * s.first_score)
        learned = s.model.updated(s.direction, s.residual - s.base_residual, size).judged(gain, accepted, visible)
        take = accepted[:, None]
        return replace(
            s,
            model=learned,
            base_z=torch.where(take, _batch.flat(s.z), s.base_z),
            base_residual=torch.where(take, s.residual, s.base_residual),
            base_score=torch.where(accepted, s.score, s.base_score),
            base_pressure=torch.where(accepted, s.pressure, s.base_pressure),
        )

    def _renewed(self, problem: Problem, s: LevenbergState) -> tuple[LevenbergState, Tensor, Tensor]:
        """The exact Jacobian where it is due; the model's gradient; and where it is exact."""
        fresh = s.model.due(self.refresh)
        index = fresh.nonzero()[:, 0]
        if len(index):
            part = problem.rows(index)
            base = s.base_z[index].reshape(-1, *s.z.shape[1:])
            if affords_jacobian(problem, len(index)):
                model = s.model.refreshed(index, residual_jacobian(part, base))
            else:
                model = s.model.aligned(index, s.base_residual[index], _batch.flat(_gradient(part, base)))
            s = replace(s, model=model)
        return s, s.model.vjp(s.base_residual), fresh

    def _predicted(self, problem: Problem, s: LevenbergState, d: Tensor) -> Tensor:
        """Decrease of the objective that the model promises."""
        push = s.model.jvp(d)
        change = _batch.dot(s.base_residual, push) + 0.5 * _batch.square(push)
        if isinstance(problem.on_latent, Zero):
            return -change
        there, here = (problem.on_latent(z.reshape(s.z.shape)) for z in (s.base_z + d, s.base_z))
        return here - there - change

    def takes_jacobians(self, problem: Problem) -> bool:
        """It does."""
        return True

    def standing(self, state: LevenbergState) -> Tensor:
        """The score of the base."""
        return state.base_score

    @staticmethod
    def _pressure(problem: Problem, at: Evaluation, point: Point) -> Tensor:
        return _batch.norm(problem.loss.gradient(at.x, point.residual))

    def plan(self, problem: Problem) -> str:
        """In words."""
        return f"Levenberg-Marquardt on L(G(z)): Jacobian by forward mode, kept for {self.refresh} steps with Broyden updates"


def affords_jacobian(problem: Problem, rows: int, share: float = 0.5) -> bool:
    """Whether the Jacobians of so many items take no more than this share of what is left of the run."""
    budget, size = problem.generator.budget, math.prod(problem.generator.latent_shape)
    return budget is None or budget.share(size, 0, rows) <= share


def _gradient(problem: Problem, z: Tensor) -> Tensor:
    """``DG^T grad L`` at z: one pass forward, one back."""
    at = problem.generator.evaluate(z)
    return at.vjp(problem.loss.gradient(at.x, problem.loss.evaluate(at.x)[1]))


def residual_jacobian(problem: Problem, z: Tensor) -> Tensor:
    """``M``: derivative of the least-squares residual, ``(B, m, s)``."""
    loss = problem.loss
    if isinstance(loss, SquaredDistance):
        weight = _batch.column(2 * loss.weight, z).sqrt()
        return weight[:, None, None] * problem.generator.jacobian(z)
    assert isinstance(loss, LeastSquares)  # start() refuses all others
    image = loss.operator if loss.form is None else loss.form.forward
    if loss.operator.batch is None:
        return problem.generator.jacobian(z, image)
    columns = problem.generator.jacobian(z).unbind(dim=2)
    shape = problem.generator.signal_shape
    return torch.stack([_batch.flat(image(column.reshape(-1, *shape))) for column in columns], dim=2)
