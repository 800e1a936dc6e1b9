"""How the term R on the signal enters the function that a curvature method descends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior.problem import Point, Problem
from genprior.solvers import envelope
from genprior.solvers.admm import penalties
from genprior.solvers.admm.exact import inner_error
from genprior.solvers.base import Multiplier
from genprior.solvers.envelope import EnvelopeValue, WarmStart
from genprior.solvers.estimates import curvature_of, hidden_by_rounding
from genprior.solvers.trial.state import M, SplitState, TrialState


class InitialFunction(NamedTuple):
    """The function at the start."""

    value: EnvelopeValue
    split: SplitState | None
    rho: Tensor
    smoothness: Tensor
    """Lipschitz constant of its gradient in the signal, without the penalty."""
    curvature: Tensor
    """Its typical second derivative along such signals: the scale of a first Hessian."""


class MultiplierUpdate(NamedTuple):
    """New multipliers and penalty, and the new function at the trial point."""

    where: Tensor
    factor: Tensor
    """Growth of the penalty, by which the function's curvature grows."""
    rho: Tensor
    split: SplitState
    value: EnvelopeValue


class Constraint(NamedTuple):
    """What splitting adds to the residuals of the optimality conditions."""

    primal_residual: Tensor
    """``|w - G(z)|``, relative."""
    error: Tensor
    """Distance of the multiplier from a subgradient of ``L + R``."""
    size: Tensor
    """``|w|``, or its unit."""
    cotangent: Tensor


class SignalPart(ABC):
    """A rule for the function ``e(x)`` of the signal."""

    @abstractmethod
    def start(self, problem: Problem, x: Tensor, point: Point) -> InitialFunction:
        """At the first signals."""

    @abstractmethod
    def evaluate(
        self, problem: Problem, x: Tensor, point: Point, split: SplitState | None, rho: Tensor, w: Tensor
    ) -> EnvelopeValue:
        """At ``x``; an inner solver may start from ``w``."""

    def updated(self, problem: Problem, s: TrialState[M], accepted: Tensor) -> MultiplierUpdate | None:
        """Update the dual and the penalty where that is due; None: nowhere."""
        return None

    def constraint(self, problem: Problem, s: TrialState[M]) -> Constraint | None:
        """What splitting adds to the residuals; None: nothing is split."""
        return None

    def multiplier(self, s: TrialState[M]) -> Multiplier | None:
        """The dual variable and the penalty; None: nothing is split."""
        return None


@dataclass(frozen=True)
class Subgradients(SignalPart):
    """``e = L + R`` with one of its subgradients; an indicator counts as its exact penalty."""

    def start(self, problem: Problem, x: Tensor, point: Point) -> InitialFunction:
        """At the first signals."""
        zero = torch.zeros_like(point.loss)
        value = self.evaluate(problem, x, point, None, zero, x)
        nu = curvature_of(problem, x, point.residual)
        return InitialFunction(value, None, zero, nu, nu)

    def evaluate(
        self, problem: Problem, x: Tensor, point: Point, split: SplitState | None, rho: Tensor, w: Tensor
    ) -> EnvelopeValue:
        """Value and subgradient."""
        energy = problem.signal_value(x, point.loss)
        return EnvelopeValue(energy, problem.signal_gradient(x, point.residual), x, None, None)


@dataclass(frozen=True)
class Multipliers(SignalPart):
    """The method of multipliers where R is neither zero nor quadratic; otherwise ``e = L + R`` itself, which is smooth.

    ``e(x) = min_w L(w) + R(w) + <w - x, lam> + rho/2 |w - x|^2``: smooth, although R is not. Every ``every`` accepted steps
    ``lam+ = lam + rho (w - x)`` and rho grows by the factor ``growth``: ADMM with a w step after every trial of z.

    Parameters
    ----------
    every, growth
        accepted steps between two updates of the dual, and the growth of rho at each.
    rho
        first penalty; omitted: from the problem's own units.
    spent
        the dual is updated early where the predicted decrease is below this share of ``rho |w - x|^2``.
    together
        primal residual, relative to the signal, below which the penalty no longer grows: a larger one would only shorten
        the steps.
    most_growth
        of the penalty over a run.

    References
    ----------
    Nocedal and Wright, Numerical Optimization, chapter 17.
    """

    every: int = 16
    growth: float = 1.5
    rho: float | None = None
    spent: float = 1e-3
    together: float = 1e-6
    most_growth: float = 1e3

    def __post_init__(self) -> None:
        _validate.whole("every", self.every)
        _validate.number("growth", self.growth, least=1)
        if self.rho is not None:
            _validate.number("rho", self.rho, above=0)
        for name in ("spent", "together"):
            _validate.number(name, getattr(self, name), least=0)
        _validate.number("most_growth", self.most_growth, least=1)

    def start(self, problem: Problem, x: Tensor, point: Point) -> InitialFunction:
        """No multiplier yet."""
        zero, smoothness = torch.zeros_like(point.loss), envelope.smoothness(problem, x)
        if not problem.needs_splitting:
            value = envelope.smooth_value(problem, x, point)
            return InitialFunction(value, None, zero, smoothness, envelope.curvature(problem, x))
        rho = penalties.Constant(self.rho).first(problem, x)
        lam = torch.zeros_like(x)
        value = envelope.evaluate(problem, x, point, lam, rho, None)
        split = SplitState(lam, value.memory, zero, rho, zero, _batch.norm(x))
        return InitialFunction(value, split, rho, smoothness, rho)

    def evaluate(
        self, problem: Problem, x: Tensor, point: Point, split: SplitState | None, rho: Tensor, w: Tensor
    ) -> EnvelopeValue:
        """One exact w step, where R needs it."""
        if split is None:
            return envelope.smooth_value(problem, x, point)
        return envelope.evaluate(problem, x, point, split.lam, rho, WarmStart(w, split.memory))

    def updated(self, problem: Problem, s: TrialState[M], accepted: Tensor) -> MultiplierUpdate | None:
        """``lam+ = lam + rho (w - x)`` and a larger rho, where it is due."""
        split, r = s.split, s.trial.r
        if split is None or r is None:
            return None
        spent = (s.k > 0) & (-s.search.slope < self.spent * s.rho * _batch.square(r))
        due = accepted & ((split.age + 1 >= self.every) | spent)
        if not bool(due.any()):
            return None
        apart = _batch.norm(r) > self.together * torch.maximum(_batch.norm(s.x), 0.1 * split.extent)
        grows = due & apart & (s.rho < self.most_growth * split.first_rho)
        factor = torch.where(grows, self.growth * torch.ones_like(s.rho), 1.0)
        lam = torch.where(_batch.spread(due, r), split.lam + _batch.spread(s.rho, r) * r, split.lam)
        rho = s.rho * factor
        point = Point(s.objective, s.score, s.trial.residual, s.trial.loss)
        value = envelope.evaluate(problem, s.x, point, lam, rho, WarmStart(s.w, split.memory))
        wide = _batch.spread(due, s.x)
        assert value.r is not None, "the envelope has a minimiser of its own"
        kept = EnvelopeValue(
            torch.where(due, value.energy, s.trial.energy),
            torch.where(wide, value.f, s.trial.f),
            torch.where(wide, value.w, s.w),
            torch.where(wide, value.r, r),
            split.memory,
        )
        return MultiplierUpdate(due, factor, rho, replace(split, lam=lam), kept)

    def constraint(self, problem: Problem, s: TrialState[M]) -> Constraint | None:
        """W is exact for the multiplier ``lam + rho (w - x)``: the primal residual and an inner solver's error remain."""
        split, nu = s.split, s.units.smoothness
        if split is None:
            return None
        size = torch.maximum(_batch.norm(s.base.x), 0.1 * split.extent)
        error = inner_error(split.memory, nu, s.rho, size, s.evidence.cotangent)
        error = error + hidden_by_rounding(s.base.primal_residual, s.rho, size, nu)
        cotangent = s.evidence.cotangent
        cotangent = torch.where(nu > 0, cotangent, torch.maximum(cotangent, split.first_cotangent))
        return Constraint(_batch.ratio(s.base.primal_residual, size), error, size, cotangent)

    def multiplier(self, s: TrialState[M]) -> Multiplier | None:
        """The dual variable and the penalty."""
        return None if s.split is None else Multiplier(s.split.lam, s.rho)
