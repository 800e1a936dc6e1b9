"""Searches: whether a trial is accepted, and how long the next one is. All decisions are per item."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from genprior import _validate
from genprior.solvers.trial.state import SearchState


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
