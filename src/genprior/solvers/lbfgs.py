"""L-BFGS on the latent, one independent problem per item."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior.generators import Evaluation
from genprior.problem import Problem
from genprior.solvers.base import Common, Evidence, Solver, State, Vjp
from genprior.solvers.curvature_pairs import CurvaturePairs
from genprior.solvers.estimates import curvature_of, lipschitz, noise, secant_of
from genprior.terms import Zero


@dataclass(frozen=True)
class LBFGSState(State):
    """The point of the last accepted step ("base"), the line search from it, the memory. ``at`` is the trial point."""

    v: Tensor
    """The trial point before the prox of H; ``z`` itself where H = 0."""
    base_v: Tensor
    base_z: Tensor
    base_x: Tensor
    base_gradient: Tensor
    base_value: Tensor
    direction: Tensor
    length: Tensor
    low: Tensor
    high: Tensor
    gamma: Tensor
    """Step of the prox of H."""
    trials: Tensor
    """Trials made in this line search; 0 before the very first evaluation."""
    pairs: CurvaturePairs
    residual: Tensor


@dataclass(frozen=True)
class _Search:
    """What the judgement of a trial decides, per item."""

    accepted: Tensor
    ended: Tensor
    """Accepted, or given up: a new direction is due."""
    low: Tensor
    high: Tensor
    gamma: Tensor


@dataclass(frozen=True)
class LBFGS(Solver[LBFGSState]):
    """Limited-memory BFGS, per item: directions, line searches and memories never mix.

    One iteration is one trial of the line search: a backward pass at the trial point, the decision, a forward pass at
    the next trial point.

    *H = 0.* The trial ``z + t d`` is accepted under the weak Wolfe conditions
    ``f(trial) <= f(z) + c1 t <g, d>`` and ``<g(trial), d> >= c2 <g, d>``; else t is bisected, or doubled while it has no
    upper end (Lewis and Overton 2013). After ``max_trials`` the memory is cleared.

    *Otherwise* the method works on the variable v before the prox, ``z = prox_{gamma H}(v)``, so that every trial is
    feasible, and on the residual ``r(v) = v - z + gamma g(z)`` of the proximal gradient iteration in place of the
    gradient. The trial ``v - r + t (d + r)`` runs from the quasi-Newton point (t = 1) to the proximal gradient step
    (t = 0) and is accepted when ``F(trial) <= F(z) - c1/(2 gamma) |trial - z|^2``. When t = 0 fails as well, gamma is
    halved and the memory cleared.

    Parameters
    ----------
    memory
        number of curvature pairs.
    c1, c2
        line search constants, ``0 < c1 < c2 < 1``.
    max_trials
        trials along one direction.

    References
    ----------
    Nocedal and Wright, Numerical Optimization, section 7.2.
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

    @property
    def patience(self) -> int:
        """Less than methods without curvature need: a plateau that still led somewhere had 103 steps at most."""
        return 100

    def start(self, problem: Problem, z: Tensor) -> LBFGSState:
        """The trial point is the start itself; its gradient is taken in the first step."""
        at = problem.generator.evaluate(z)
        point = problem.evaluate(at.x, at.z)
        common = Common.first(problem, at, point, curvature_of(problem, at.x, point.residual))
        zero, flat = common.k, _batch.flat(at.z)
        return LBFGSState(
            common,
            v=flat,
            base_v=flat,
            base_z=flat,
            base_x=at.x,
            base_gradient=torch.zeros_like(flat),
            base_value=point.score,
            direction=torch.zeros_like(flat),
            length=zero,
            low=zero,
            high=torch.full_like(zero, torch.inf),
            gamma=zero,
            trials=zero,
            pairs=CurvaturePairs.none(flat, self.memory),
            residual=point.residual,
        )

    def step(self, problem: Problem, state: LBFGSState) -> LBFGSState:
        """Judge the trial point; then the next trial, along a new direction where this search ended."""
        s, smooth = state, isinstance(problem.on_latent, Zero)
        f = problem.signal_gradient(s.x, s.residual)
        vjp = Vjp.of(s, f)
        z, gradient = _batch.flat(s.z), _batch.flat(vjp.gradient)

        shortest = 1 / lipschitz(s.units.smoothness, vjp.kappa)
        search = self._judge_smooth(s, gradient) if smooth else self._judge_prox(s, s.scale * shortest)
        take = search.accepted[:, None]
        base_z, base_gradient = torch.where(take, z, s.base_z), torch.where(take, gradient, s.base_gradient)
        # Where H = 0, v is z and the residual is the gradient; gamma, which would cancel, is left out.
        fresh_v = z if smooth else torch.where((s.trials == 0)[:, None], z - search.gamma[:, None] * gradient, s.v)
        base_v = torch.where(take, fresh_v, s.base_v)
        old, new = s.base_gradient, base_gradient
        if not smooth:
            base_v = torch.where(
                (search.gamma < s.gamma)[:, None], base_z - search.gamma[:, None] * base_gradient, base_v
            )
            old = s.base_v - s.base_z + s.gamma[:, None] * s.base_gradient
            new = base_v - base_z + search.gamma[:, None] * base_gradient
        learns = search.accepted & (s.trials > 0)
        pairs = s.pairs.extended(learns, base_v - s.base_v, new - old, _batch.norm(base_v)).cleared(
            search.ended & ~search.accepted
        )
        direction = torch.where(search.ended[:, None], pairs.direction(new, shortest if smooth else 1.0), s.direction)
        trials = torch.where(search.ended, 1.0, s.trials + 1)

        if smooth:
            halfway = torch.where(search.high.isinf(), 2 * search.low, (search.low + search.high) / 2)
            length = torch.where(search.ended, s.scale, halfway)
            v = base_v + length[:, None] * direction
            z_next = v.reshape(s.z.shape)
        else:
            length = torch.where(search.ended, s.scale, torch.where(trials >= self.max_trials, 0.0, s.length / 2))
            v = base_v - new + length[:, None] * (direction + new)
            z_next = problem.on_latent.prox(v.reshape(s.z.shape), search.gamma)

        at = problem.generator.evaluate(z_next)
        point = problem.evaluate(at.x, at.z)
        _, secant = s.common.moved(at, problem.generator.spread)
        evidence = Evidence.at(s.z, vjp, self._jac_scale(s, at, vjp)).where(search.accepted, s.evidence)
        return LBFGSState(
            s.common.next(at, point, torch.maximum(vjp.kappa, secant), evidence),
            v=v,
            base_v=base_v,
            base_z=base_z,
            base_x=torch.where(_batch.spread(search.accepted, s.x), s.x, s.base_x),
            base_gradient=base_gradient,
            base_value=torch.where(search.accepted, s.score, s.base_value),
            direction=direction,
            length=length,
            low=search.low,
            high=search.high,
            gamma=search.gamma,
            trials=trials,
            pairs=pairs,
            residual=point.residual,
        )

    @staticmethod
    def _jac_scale(s: LBFGSState, at: Evaluation, vjp: Vjp) -> Tensor:
        """``|DG|`` by the way to this point or the way on, whichever says less: one may be from a steep place, one astray.

        Where both are too short to tell, as it was.
        """
        z, on = _batch.flat(s.z), _batch.flat(at.z)
        ways = ((s.x - s.base_x, z - s.base_z), (at.x - s.x, on - z))
        secants = [secant_of(moved, step, z) for moved, step in ways]
        least = torch.minimum(*secants)
        return torch.maximum(vjp.ratio, torch.where(least.isinf(), s.evidence.jac_scale, least))

    def judged_signal(self, state: LBFGSState) -> Tensor:
        """That of the base."""
        return state.base_x

    def standing(self, state: LBFGSState) -> Tensor:
        """The score of the base: a trial that went astray is no divergence."""
        return state.base_value

    def _judge_smooth(self, s: LBFGSState, gradient: Tensor) -> _Search:
        """The weak Wolfe conditions. Differences below rounding count as no increase."""
        slope = _batch.dot(s.base_gradient, s.direction)
        enough = s.score <= s.base_value + self.c1 * s.length * slope + noise(s.base_value, s.evidence.cotangent, s.x)
        steep = _batch.dot(gradient, s.direction) >= self.c2 * slope
        accepted = (enough & steep) | (s.trials == 0)
        ended = accepted | (s.trials >= self.max_trials)
        low = torch.where(ended, 0.0, torch.where(enough, s.length, s.low))
        high = torch.where(ended, torch.inf, torch.where(enough, s.high, s.length))
        return _Search(accepted, ended, low, high, s.gamma)

    def _judge_prox(self, s: LBFGSState, shortest: Tensor) -> _Search:
        """Sufficient decrease; where even the proximal gradient step has none, a shorter gamma."""
        move = _batch.square(_batch.flat(s.z) - s.base_z)
        enough = s.score <= s.base_value - 0.5 * self.c1 / _batch.above_zero(s.gamma) * move + noise(
            s.base_value, s.evidence.cotangent, s.x
        )
        accepted = enough | (s.trials == 0)
        failed = ~accepted & (s.trials >= self.max_trials)
        gamma = torch.where(s.trials == 0, shortest, torch.where(failed, s.gamma / 2, s.gamma))
        return _Search(accepted, accepted | failed, s.low, s.high, gamma)
