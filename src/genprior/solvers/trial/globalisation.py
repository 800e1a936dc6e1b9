"""What makes a curvature method converge from afar: searches along a direction, and a ridge that fades.

A search says whether a trial is accepted, and how long the next one is. A continuation adds a ridge towards the prior:
the first iterates stay where the generator was trained. All decisions are per item.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior.problem import Problem

# -- searches ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SearchState:
    """The direction, the step length along it, and the bracket of the search."""

    direction: Tensor
    """From the base, flat."""
    slope: Tensor
    """Change of the function that its linear part and H predict for a full step; never above zero."""
    length: Tensor
    """The trial is ``base + length direction``."""
    low: Tensor
    """Longest length found too short, in searches that bracket."""
    high: Tensor
    """Shortest length found too long."""
    trials: Tensor
    """Rejected trials from this base."""

    @classmethod
    def none(cls, z: Tensor) -> SearchState:
        """Before the first step: the start is its own trial."""
        zero = z.new_zeros(len(z))
        return cls(torch.zeros_like(z), zero, zero, zero, torch.full_like(zero, torch.inf), zero)


class Judgement(NamedTuple):
    """The decision about a trial."""

    accepted: Tensor
    lost: Tensor
    """Where the search gives up: the direction's model is reset at the same base."""
    low: Tensor
    high: Tensor


class Search(ABC):
    """A rule for accepting trials and for the length of the next one."""

    needs_gradient: bool = False
    """Whether a trial is judged by its gradient too."""

    @abstractmethod
    def decreased(self, s: SearchState, base: Tensor, trial: Tensor, rounding: Tensor) -> Tensor:
        """Whether the function fell far enough from ``base`` to ``trial``; differences below rounding are no increase."""

    @abstractmethod
    def judged(self, s: SearchState, decreased: Tensor, along: Tensor | None) -> Judgement:
        """Whether the trial is the next base; ``along`` is its derivative along the direction, where H has one."""

    @abstractmethod
    def next(self, s: SearchState, judgement: Judgement, turns: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Where a new direction is taken, and the length of the next trial.

        ``turns``: where a rejected trial has updated the model, so that another direction is worth a trial.
        """


@dataclass(frozen=True)
class Armijo(Search):
    """Sufficient decrease ``phi(trial) <= phi(base) + c t slope``, by backtracking.

    Parameters
    ----------
    c
        share of the predicted decrease that a trial must reach.
    backtrack
        factor on the length after a rejected trial.
    max_trials
        rejected trials after which the direction's model is reset.
    turns
        rejected trials from one base after which a new direction is computed from the updated model; after more, the search
        only shortens the step.
    """

    c: float = 1e-4
    backtrack: float = 0.4
    max_trials: int = 10
    turns: int = 2

    def __post_init__(self) -> None:
        _validate.number("c", self.c, least=0)
        _validate.number("backtrack", self.backtrack, above=0)
        _validate.whole("max_trials", self.max_trials)
        _validate.whole("turns", self.turns, 0)

    def decreased(self, s: SearchState, base: Tensor, trial: Tensor, rounding: Tensor) -> Tensor:
        """By the share c of the decrease that the slope predicts."""
        return trial <= base + self.c * s.length * s.slope + rounding

    def judged(self, s: SearchState, decreased: Tensor, along: Tensor | None) -> Judgement:
        """Decrease is enough."""
        return Judgement(decreased, ~decreased & (s.trials + 1 >= self.max_trials), s.low, s.high)

    def next(self, s: SearchState, judgement: Judgement, turns: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """The full step from a new base, or where a rejected trial has updated the model; else a shorter one."""
        new = judgement.accepted | judgement.lost | (turns & (s.trials < self.turns))
        return new, torch.where(new, scale, self.backtrack * s.length)


@dataclass(frozen=True)
class WeakWolfe(Search):
    """The weak Wolfe conditions ``phi(trial) <= phi(base) + c1 t slope`` and ``<grad phi(trial), d> >= c2 slope``.

    The length is bisected, or doubled while it has no upper end. Where H is not smooth the second condition does not
    apply, and the search only bisects.

    References
    ----------
    Lewis and Overton 2013, Nonsmooth optimization via quasi-Newton methods.
    """

    c1: float = 1e-4
    c2: float = 0.9
    max_trials: int = 20

    needs_gradient = True

    def __post_init__(self) -> None:
        _validate.whole("max_trials", self.max_trials, 2)
        if not 0 < _validate.number("c1", self.c1) < _validate.number("c2", self.c2) < 1:
            raise ValueError(f"line search constants need 0 < c1 < c2 < 1, got c1={self.c1}, c2={self.c2}")

    def decreased(self, s: SearchState, base: Tensor, trial: Tensor, rounding: Tensor) -> Tensor:
        """The first condition."""
        return trial <= base + self.c1 * s.length * s.slope + rounding

    def judged(self, s: SearchState, decreased: Tensor, along: Tensor | None) -> Judgement:
        """Both conditions; the bracket shrinks where one fails."""
        accepted = decreased if along is None else decreased & ((along >= self.c2 * s.slope) | (s.length == 0))
        lost = ~accepted & (s.trials + 1 >= self.max_trials)
        over = accepted | lost
        low = torch.where(over, 0.0, torch.where(decreased, s.length, s.low))
        high = torch.where(over, torch.inf, torch.where(decreased, s.high, s.length))
        return Judgement(accepted, lost, low, high)

    def next(self, s: SearchState, judgement: Judgement, turns: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """A full step from a new base; else between the ends of the bracket."""
        new = judgement.accepted | judgement.lost
        low, high = judgement.low, judgement.high
        return new, torch.where(new, scale, torch.where(high.isinf(), 2 * low, (low + high) / 2))


@dataclass(frozen=True)
class Decrease(Search):
    """Any decrease is enough, and every trial has a new direction: for models that are damped where a trial fails."""

    def decreased(self, s: SearchState, base: Tensor, trial: Tensor, rounding: Tensor) -> Tensor:
        """Below the base."""
        return trial < base + rounding

    def judged(self, s: SearchState, decreased: Tensor, along: Tensor | None) -> Judgement:
        """Decrease is enough; nothing is ever lost."""
        return Judgement(decreased, torch.zeros_like(decreased), s.low, s.high)

    def next(self, s: SearchState, judgement: Judgement, turns: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Always the full step along a new direction."""
        return torch.ones_like(judgement.accepted), scale


# -- continuations -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RidgeState:
    """The weight of the ridge towards the prior."""

    weight: Tensor
    """c in ``c/2 |z - centre|^2``."""
    share: Tensor
    """Share of the first weight that the number of accepted steps allows for."""
    first_weight: Tensor
    first_energy: Tensor


class EnergyChange(NamedTuple):
    """How a trial changed the energy."""

    before: Tensor
    """Energy of the old base."""
    after: Tensor
    """Energy of the new one."""
    predicted: Tensor
    """Decrease predicted for a full step."""
    accepted: Tensor
    same: Tensor
    """Where both energies are of the same function: no multiplier has changed."""


class Continuation(ABC):
    """A rule for the weight c of ``c/2 |z - centre|^2``, which is added to the function and vanishes in the end."""

    @abstractmethod
    def start(self, problem: Problem, curvature: Tensor, energy: Tensor) -> RidgeState | None:
        """At a start of this energy, where the function has this curvature in the signal; None: there is no ridge."""

    @abstractmethod
    def next(self, ridge: RidgeState, change: EnergyChange) -> RidgeState:
        """After a trial."""


@dataclass(frozen=True)
class NoRidge(Continuation):
    """No ridge, from the first step."""

    def start(self, problem: Problem, curvature: Tensor, energy: Tensor) -> RidgeState | None:
        """No ridge."""
        return None

    def next(self, ridge: RidgeState, change: EnergyChange) -> RidgeState:
        """Unchanged."""
        return ridge


@dataclass(frozen=True)
class Ridge(Continuation):
    """The weight falls with the energy or with the steps, whichever is less, and ends at zero.

    At the start it is ``weight u``, where u is the mean of the first Hessian's eigenvalues; reduced by the square of
    ``energy / (far e)`` below one, because good starts must not be left. Here e is the energy between two random signals:
    their total variance times the curvature; u counts for at most ``local e / (s spread^2)``, for latent dimension s, because
    fine detail makes slopes steep where signals hardly move. Then it is the first weight times
    ``min(energy left, share)^power``. The share falls by a factor with every accepted step. The ridge changes the path, not
    the answer.

    Parameters
    ----------
    weight
        at the start, relative to the typical curvature in z; 0: none.
    far
        share of the energy between random signals from which on the ridge has its full weight.
    local
        most that u counts for, relative to that of a linear generator whose signals have the same variance.
    decay, slow_decay, settled_decay
        factors on the share after an accepted step; after one that gained less than ``slow``, because the ridge may be
        what keeps the energy up; after one with a predicted decrease below ``settled``, because the function is then near its
        minimum for this ridge.
    slow, settled
        shares of the energy.
    power
        of the energy: above 1, strong while the image is found, weak while it is refined.
    end
        share at which the ridge ends.
    """

    weight: float = 3.0
    far: float = 0.7
    local: float = 6.0
    decay: float = 0.92
    slow_decay: float = 0.8
    settled_decay: float = 0.3
    slow: float = 0.01
    settled: float = 2e-3
    power: float = 1.2
    end: float = 1e-4

    def __post_init__(self) -> None:
        _validate.number("weight", self.weight, least=0)
        for name in ("far", "local", "decay", "slow_decay", "settled_decay", "slow", "settled", "power", "end"):
            _validate.number(name, getattr(self, name), above=0)

    def start(self, problem: Problem, curvature: Tensor, energy: Tensor) -> RidgeState:
        """Weight zero for the first trial; then the first weight, where the energy of the start is finite."""
        zero = torch.zeros_like(energy)
        first = self._first(problem, curvature, energy)
        return RidgeState(zero, torch.ones_like(zero), first, energy.abs())

    def _first(self, problem: Problem, curvature: Tensor, energy: Tensor) -> Tensor:
        average = problem.generator.preconditioner()
        size = len(average.values) * problem.generator.spread**2
        mean = torch.minimum(average.values.mean(), self.local * average.variance / size)
        far = _batch.ratio(energy.abs(), self.far * curvature * average.variance).clamp_max(1.0)
        return torch.where(energy.isfinite(), self.weight * curvature * mean * far.square(), 0.0)

    def next(self, ridge: RidgeState, change: EnergyChange) -> RidgeState:
        """A smaller share where the trial was accepted, and the weight that goes with it."""
        slow = change.same & (change.before - change.after < self.slow * change.before.abs())
        settled = change.predicted < self.settled * change.before.abs()
        decay = torch.where(settled, self.settled_decay, torch.where(slow, self.slow_decay, self.decay))
        left = _batch.ratio(change.after.clamp_min(0), ridge.first_energy)
        # A large reduction starts from the current weight: the share alone may exceed the energy left.
        current = torch.where(settled, torch.minimum(ridge.share, left), ridge.share)
        share = torch.where(change.accepted, decay.to(ridge.share) * current, ridge.share)
        weight = ridge.first_weight * torch.minimum(left, share) ** self.power
        return replace(ridge, weight=torch.where((share > self.end) & weight.isfinite(), weight, 0.0), share=share)
