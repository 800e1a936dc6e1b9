"""What is left of a run: a limit is a promise, whatever a method would like to compute before its first step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from genprior._clock import Clock

_BACKWARD = 2.0
"""A backward pass takes about as long as so many forward passes."""


class OutOfTime(Exception):
    """The time of a run is over, in the middle of a step: the step is dropped, and the run ends where it stood before."""


@dataclass
class Budget:
    """Seconds by the clock of a run, and passes through G; infinite where no stop rule limits them."""

    clock: Clock
    seconds: float = math.inf
    passes: float = math.inf
    made: Callable[[], int] = lambda: 0
    """Forward and backward passes, added up, that the run has made."""
    started: bool = False
    """Whether there is a start to fall back on: from then on no pass begins when the time is over."""
    per_row: float = 0.0
    """Seconds that a forward pass takes for one item, the least seen."""

    @property
    def limited(self) -> bool:
        """Whether there is a limit at all."""
        return math.isfinite(self.seconds) or math.isfinite(self.passes)

    def check(self) -> None:
        """Raise :class:`OutOfTime` where no pass may begin any more."""
        if self.started and self.clock.seconds >= self.seconds:
            raise OutOfTime

    def note(self, rows: int, seconds: float) -> None:
        """A forward pass of so many rows took so long."""
        each = seconds / max(1, rows)
        self.per_row = min(self.per_row, each) if self.per_row else each

    def share(self, forwards: float, backwards: float, rows: int) -> float:
        """The share of what is left that these passes of ``rows`` items would take; 0 where nothing limits them."""
        if not self.limited:
            return 0.0
        seconds = (forwards + _BACKWARD * backwards) * rows * self.per_row
        left = max(self.seconds - self.clock.seconds, 1e-9)
        return max(seconds / left, (forwards + backwards) / max(self.passes - self.made(), 1e-9))
