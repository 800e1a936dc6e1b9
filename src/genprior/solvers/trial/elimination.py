"""Elimination of the deviation: z moves on ``e(x) = min_v E(x + Psi v) + D(v)``, v follows without a pass through G.

E is the function of the signal that curvature methods descend (:mod:`genprior.solvers.envelope`), so that e is convex in x,
and its gradient is that of E at ``x + Psi v``. Descent in z alone, with the v that belongs to it, needs about as many steps as
without a deviation; v alone is found by accelerated proximal gradient, warm from the last accepted point, and both lower the
same objective (variable projection).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior.generators import Evaluation
from genprior.generators.deviating import Deviating
from genprior.problem import Point, Problem
from genprior.solvers.accelerated import accelerated
from genprior.solvers.base import Common
from genprior.solvers.envelope import SignalPart, SplitState, Trial
from genprior.solvers.estimates import rounding_error
from genprior.solvers.quadratic import LatentTerm
from genprior.solvers.trial.engine import (
    Arrival,
    BasePoint,
    DescentDirection,
    Direction,
    Inner,
    M,
    TrialOutcome,
    TrialState,
    Update,
)
from genprior.terms import Blocks, Term


@dataclass(frozen=True)
class EliminatedDeviation(Inner):
    """Steps in the deviation after every pass through G: accelerated proximal gradient, restarted where it points uphill.

    Parameters
    ----------
    steps
        most steps after one pass. Each costs one application of the operator and the basis, and of their adjoints.
    close
        change of the deviation, relative to its size, at which an item needs no more of them; omitted: the square root of the
        rounding unit, below which a change hardly lowers the objective.
    retries, shorter
        how often steps that end at a larger value are taken again from where they began, each time shorter by this factor.
    """

    steps: int = 100
    close: float | None = None
    retries: int = 6
    shorter: float = 8.0

    def __post_init__(self) -> None:
        _validate.whole("steps", self.steps)
        if self.close is not None:
            _validate.number("close", self.close, least=0)
        _validate.whole("retries", self.retries, 0)
        _validate.number("shorter", self.shorter, least=1)

    def arrived(
        self,
        problem: Problem,
        multipliers: SignalPart,
        at: Evaluation,
        nu: Tensor,
        split: SplitState | None,
        rho: Tensor,
        w: Tensor,
    ) -> Arrival:
        """The point with the deviation moved, never to a larger value of the function."""
        deviation = _Deviation.at(problem, multipliers, at, split, rho, w)
        v, generator = deviation.v, deviation.generator
        start = deviation.value(v)
        own = nu if split is None else rho if problem.loss.convex else rho + nu
        own = _batch.above_zero(own * generator.basis_norm**2)
        close = torch.finfo(v.dtype).eps ** 0.5 if self.close is None else self.close

        def gradient(ahead: Tensor) -> Tensor:
            trial = start if ahead is v else deviation.value(ahead)
            inside = _batch.spread(trial.energy.isfinite(), trial.f)
            return generator.coefficients_gradient(torch.where(inside, trial.f, torch.nan))

        before = start.energy + deviation.term(v)
        rounding = rounding_error(before, _batch.norm(start.f), at.x)
        for _ in range(self.retries + 1):
            new = accelerated(gradient, deviation.term.prox, v, own, self.steps, close)
            arrival = deviation.arrival(at, new)
            energy = arrival.trial.energy + deviation.term(new)
            higher = ~(energy <= before + rounding) & before.isfinite()
            if not bool(higher.any()):
                break
            own = torch.where(higher, self.shorter * own, own)
        worse = ~(energy <= before)
        if not bool(worse.any()):
            return arrival
        return deviation.arrival(at, torch.where(_batch.spread(worse, v), v, new))


class _Deviation(NamedTuple):
    """The function of the coefficients at a fixed ``G(z)``."""

    problem: Problem
    generator: Deviating
    term: Term
    """D."""
    multipliers: SignalPart
    z: Tensor
    """Flat."""
    x: Tensor
    """``G(z)``."""
    v: Tensor
    """The coefficients that the point came with."""
    split: SplitState | None
    rho: Tensor
    w: Tensor

    @classmethod
    def at(
        cls,
        problem: Problem,
        multipliers: SignalPart,
        at: Evaluation,
        split: SplitState | None,
        rho: Tensor,
        w: Tensor,
    ) -> _Deviation:
        generator, term = problem.generator, problem.on_latent
        assert isinstance(generator, Deviating) and isinstance(term, Blocks), "a problem with a deviation"
        v = generator.split(at.z)[1]
        x = at.x - generator.deviation(v)
        return cls(problem, generator, term.parts[1], multipliers, at.z[:, : generator.size], x, v, split, rho, w)

    def value(self, v: Tensor) -> Trial:
        """E and its gradient at ``x + Psi v``."""
        x = self.x + self.generator.deviation(v)
        loss, residual = self.problem.loss.evaluate(x)
        return self.multipliers.evaluate(
            self.problem, x, Point(loss, loss, residual, loss), self.split, self.rho, self.w
        )[0]

    def arrival(self, at: Evaluation, v: Tensor) -> Arrival:
        """The point with these coefficients."""
        x = self.x + self.generator.deviation(v)
        entries = self.generator.blocks[1].entries(v)
        at = at.moved(torch.cat([self.z, entries], dim=1), x)
        point = self.problem.evaluate(at.x, at.z)
        return Arrival(at, point, *self.multipliers.evaluate(self.problem, x, point, self.split, self.rho, self.w))


@dataclass(frozen=True)
class InRange(Direction[M]):
    """Another direction for z alone, with the deviation eliminated: it sees the problem, the points and the gradients of G."""

    direction: Direction[M]

    def __post_init__(self) -> None:
        if not self.direction.uses_vjp:
            raise ValueError(
                f"{type(self.direction).__name__} does not know that the deviation moves too: use Secant(), as gp.Auto() does"
            )

    def start(self, problem: Problem, base: BasePoint, common: Common, trial: Trial, curvature: Tensor) -> M:
        """That of the direction."""
        return self.direction.start(problem.in_range, _base(problem, base), common, trial, curvature)

    def updated(self, problem: Problem, s: TrialState[M], base: BasePoint, outcome: TrialOutcome) -> Update[M]:
        """The model after the trial."""
        vjp = outcome.vjp
        assert vjp is not None, "the direction uses gradients"
        outcome = outcome._replace(vjp=replace(vjp, gradient=_of_range(problem, vjp.gradient)))
        update = self.direction.updated(problem.in_range, _state(problem, s), _base(problem, base), outcome)
        return update._replace(gradient=base.gradient)

    def descent(
        self, problem: Problem, model: M, base: BasePoint, own: LatentTerm, scale: Tensor
    ) -> DescentDirection[M]:
        """The direction in z; the deviation does not move along it."""
        inner, part = problem.in_range, _base(problem, base)
        shape = torch.Size((len(base.z), *inner.generator.latent_shape))
        descent = self.direction.descent(inner, model, part, LatentTerm.of(inner, shape, own.ridge), scale)
        still = base.z.new_zeros(len(base.z), base.z.shape[1] - part.z.shape[1])
        return descent._replace(direction=torch.cat([descent.direction, still], dim=1))

    def scaled(self, model: M, factor: Tensor) -> M:
        """As the direction does."""
        return self.direction.scaled(model, factor)

    def restarted(self, problem: Problem, model: M, lost: Tensor, s: TrialState[M]) -> M:
        """As the direction does."""
        return self.direction.restarted(problem.in_range, model, lost, _state(problem, s))

    def takes_jacobians(self) -> bool:
        """As the direction does."""
        return self.direction.takes_jacobians()


def _of_range(problem: Problem, latent: Tensor) -> Tensor:
    """The entries of z."""
    generator = problem.generator
    assert isinstance(generator, Deviating), "a problem with a deviation"
    return latent[:, : generator.size]


def _base(problem: Problem, base: BasePoint) -> BasePoint:
    return replace(base, z=_of_range(problem, base.z), gradient=_of_range(problem, base.gradient))


def _state(problem: Problem, s: TrialState[M]) -> TrialState[M]:
    inner = problem.in_range.generator
    z = _of_range(problem, s.z).reshape(len(s.z), *inner.latent_shape)
    common = replace(s.common, at=Evaluation.known(inner, z, s.x))
    return replace(s, common=common, base=_base(problem, s.base))
