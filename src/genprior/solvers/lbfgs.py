"""L-BFGS on the latent, one independent problem per item."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior.problem import Problem
from genprior.solvers.base import Solver, State
from genprior.solvers.estimates import curvature_of, kappa_from_pull, lipschitz, relative_slope
from genprior.terms import Zero


@dataclass(frozen=True)
class CurvaturePairs:
    """Steps ``s``, gradient changes ``y`` and ``1/<s, y>`` (0 in an empty place), newest first, per item."""

    s: Tensor
    y: Tensor
    inverse: Tensor

    @classmethod
    def none(cls, like: Tensor, memory: int) -> CurvaturePairs:
        """No pair yet."""
        zeros = like.new_zeros(like.shape[0], memory, like.shape[1])
        return cls(zeros, zeros, zeros[:, :, 0])

    @property
    def empty(self) -> Tensor:
        """Where there is no pair, per item."""
        return self.inverse[:, 0] == 0

    @property
    def scale(self) -> Tensor:
        """``<s, y>/<y, y>`` of the newest pair, the first guess of the inverse Hessian; 1 where there is none."""
        y = self.y[:, 0]
        return torch.where(self.empty, 1.0, 1 / (self.inverse[:, 0] * _batch.square(y)))

    def extended(self, where: Tensor, s: Tensor, y: Tensor) -> CurvaturePairs:
        """Add the pair for the items in ``where``, if its curvature is positive."""
        curvature = _batch.dot(s, y)
        where = where & (curvature > 1e-10 * _batch.norm(s) * _batch.norm(y))
        pick = where[:, None, None]
        return CurvaturePairs(
            torch.where(pick, torch.cat([s[:, None], self.s[:, :-1]], dim=1), self.s),
            torch.where(pick, torch.cat([y[:, None], self.y[:, :-1]], dim=1), self.y),
            torch.where(pick[:, :, 0], torch.cat([1 / curvature[:, None], self.inverse[:, :-1]], dim=1), self.inverse),
        )

    def cleared(self, where: Tensor) -> CurvaturePairs:
        """Forget everything for the items in ``where``."""
        return CurvaturePairs(self.s, self.y, torch.where(where[:, None], 0.0, self.inverse))

    def direction(self, gradient: Tensor) -> Tensor:
        """The two-loop recursion: minus the inverse Hessian times the gradient; minus the gradient if that ascends."""
        q, shares = gradient, []
        for i in range(self.s.shape[1]):
            share = self.inverse[:, i] * _batch.dot(self.s[:, i], q)
            q = q - share[:, None] * self.y[:, i]
            shares.append(share)
        q = self.scale[:, None] * q
        for i in reversed(range(self.s.shape[1])):
            back = self.inverse[:, i] * _batch.dot(self.y[:, i], q)
            q = q + (shares[i] - back)[:, None] * self.s[:, i]
        return _choose(_batch.dot(q, gradient) > 0, -q, -gradient)


@dataclass(frozen=True)
class LBFGSState(State):
    """The point of the last accepted step, the line search from it, and the curvature pairs. ``at`` is the trial point."""

    base_z: Tensor
    base_gradient: Tensor
    base_value: Tensor
    direction: Tensor
    length: Tensor
    low: Tensor
    high: Tensor
    trials: Tensor
    """Trials made in this line search; 0 before the first evaluation of all."""
    pairs: CurvaturePairs
    residual: Tensor
    nu: Tensor
    kappa: Tensor


@dataclass(frozen=True)
class LBFGS(Solver):
    """Limited-memory BFGS with a weak Wolfe line search, per item: directions, lengths and memories never mix.

    One iteration is one trial of the line search: a backward pass at the trial point, the decision, a forward pass at the
    next trial point. A trial ``z + t d`` is accepted when

        f(trial) <= f(z) + c1 q,   q = <g, trial - z> + H(trial) - H(z) < 0,     and   <g(trial), d> >= c2 <g, d>,

    else the interval for t is halved, or doubled while it has no upper end. With a non-smooth H every trial is passed
    through its prox and the second condition is dropped; when ``max_trials`` fail, the memory is cleared, and the step is
    a proximal gradient step, for which the first condition holds as soon as t is small.

    Parameters
    ----------
    memory: number of curvature pairs.
    c1, c2: line search constants, ``0 < c1 < c2 < 1``.
    max_trials: trials before the memory is cleared.

    References
    ----------
    Nocedal and Wright, Numerical Optimization, section 7.2. Lewis and Overton 2013 for the line search.
    """

    memory: int = 10
    c1: float = 1e-4
    c2: float = 0.9
    max_trials: int = 20

    def __post_init__(self) -> None:
        _validate.whole("memory", self.memory)
        _validate.whole("max_trials", self.max_trials, 2)
        if not 0 < _validate.number("c1", self.c1) < _validate.number("c2", self.c2) < 1:
            raise ValueError(f"line search constants need 0 < c1 < c2 < 1, got c1={self.c1}, c2={self.c2}")

    def start(self, problem: Problem, z: Tensor) -> LBFGSState:
        """The trial point is the start itself; its gradient is taken in the first step."""
        at = problem.generator.evaluate(z)
        point = problem.evaluate(at.x, at.z)
        zero = torch.zeros_like(point.objective)
        origin = torch.zeros_like(_batch.flat(z))
        return LBFGSState(
            at=at,
            w=at.x,
            objective=point.objective,
            score=point.score,
            gap=zero,
            stationarity=torch.full_like(zero, torch.inf),
            rho=zero,
            scale=torch.ones_like(zero),
            base_z=_batch.flat(z),
            base_gradient=origin,
            base_value=point.score,
            direction=origin,
            length=zero,
            low=zero,
            high=torch.full_like(zero, torch.inf),
            trials=zero,
            pairs=CurvaturePairs.none(origin, self.memory),
            residual=point.residual,
            nu=curvature_of(problem, at.x),
            kappa=zero,
        )

    def step(self, problem: Problem, state: LBFGSState) -> LBFGSState:
        """Judge the trial point; then the next trial, along a new direction where this search ended."""
        s = state
        force = problem.signal_gradient(s.x, s.residual)
        pulled = s.at.pull(force)
        kappa = kappa_from_pull(s.kappa, pulled, force)
        trial, gradient = _batch.flat(s.z), _batch.flat(pulled)

        enough, steep = self._wolfe(problem, s, gradient)
        accepted = (enough & steep) | (s.trials == 0)
        failed = ~accepted & (s.trials >= self.max_trials)
        pairs = s.pairs.extended(accepted & (s.trials > 0), trial - s.base_z, gradient - s.base_gradient).cleared(failed)
        base_z = _choose(accepted, trial, s.base_z)
        base_gradient = _choose(accepted, gradient, s.base_gradient)

        new = accepted | failed
        low = torch.where(new, 0.0, torch.where(enough, s.length, s.low))
        high = torch.where(new, torch.inf, torch.where(enough, s.high, s.length))
        direction = _choose(new, pairs.direction(base_gradient), s.direction)
        shortest = s.scale / lipschitz(s.nu, kappa)
        first = torch.where(pairs.empty, shortest, s.scale)
        length = torch.where(new, first, torch.where(high.isinf(), 2 * low, (low + high) / 2))
        ahead = (base_z + length[:, None] * direction).reshape(s.z.shape)
        prox_length = length * torch.where(pairs.empty, 1.0, pairs.scale)
        z = ahead if isinstance(problem.on_latent, Zero) else problem.on_latent.prox(ahead, prox_length)

        at = problem.generator.evaluate(z)
        point = problem.evaluate(at.x, at.z)
        return LBFGSState(
            at=at,
            w=at.x,
            objective=point.objective,
            score=point.score,
            gap=s.gap,
            stationarity=relative_slope(problem, s.at, pulled, force, s.nu, kappa),
            rho=s.rho,
            scale=s.scale,
            base_z=base_z,
            base_gradient=base_gradient,
            base_value=torch.where(accepted, s.score, s.base_value),
            direction=direction,
            length=length,
            low=low,
            high=high,
            trials=torch.where(new, 1.0, s.trials + 1),
            pairs=pairs,
            residual=point.residual,
            nu=s.nu,
            kappa=kappa,
        )

    def _wolfe(self, problem: Problem, s: LBFGSState, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """The two conditions of the line search, per item. Differences below rounding count as no increase."""
        move = _batch.flat(s.z) - s.base_z
        promised = _batch.dot(s.base_gradient, move)
        rounding = 4 * torch.finfo(s.score.dtype).eps * s.base_value.abs()
        if isinstance(problem.on_latent, Zero):
            enough = s.score <= s.base_value + self.c1 * promised + rounding
            return enough, _batch.dot(gradient, s.direction) >= self.c2 * _batch.dot(s.base_gradient, s.direction)
        promised = promised + problem.on_latent(s.z) - problem.on_latent(s.base_z.reshape(s.z.shape))
        enough = (promised < 0) & (s.score <= s.base_value + self.c1 * promised + rounding)
        return enough, torch.ones_like(enough)


def _choose(mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(mask[:, None], yes, no)
