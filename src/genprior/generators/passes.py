"""What a run owns of a generator: the counts and limits of its passes, and the preconditioner.

The limits hold for a method's preparations too.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from genprior._clock import Clock

if TYPE_CHECKING:
    from genprior.generators.pool import Pool
    from genprior.generators.preconditioner import Preconditioner, ScaledIdentity

_BACKWARD = 2.0
"""A backward pass takes about as long as so many forward passes."""
_NEXT_TO_NOTHING = 1e-9
"""Least rest of a limit, in seconds or passes, so that shares of it are finite."""


class OutOfTime(Exception):
    """The time limit was reached within a step: the step is dropped, and the run ends at the iterate before it."""


@dataclass(eq=False)
class Passes:
    """Forward and backward passes that were made, and the limits on them: infinite where no stop rule sets one.

    Each run has its own, so that runs of the same generator neither count nor limit each other's passes.
    """

    forwards: int = 0
    backwards: int = 0
    clock: Clock | None = None
    """That of the run."""
    seconds: float = math.inf
    """By this clock."""
    most: float = math.inf
    """Forward and backward passes, added up."""
    rows: float = math.inf
    """Searches of the run, in whose passes preparations are counted. Infinite outside of runs."""
    started: bool = False
    """Whether the starts are evaluated: from then on no pass begins after the time limit."""
    per_item: float = 0.0
    """Least seconds per item of the forward passes so far."""
    preconditioner: Preconditioner | ScaledIdentity | None = None
    """The generator's at its first use in the run: it must not change during the run."""

    @property
    def total(self) -> int:
        """Forward and backward passes, added up."""
        return self.forwards + self.backwards

    @property
    def of_a_run(self) -> bool:
        """Whether these are the passes of a run, which has a clock."""
        return self.clock is not None

    @property
    def limited(self) -> bool:
        """Whether there is a limit at all."""
        return math.isfinite(self.seconds) or math.isfinite(self.most)

    def seconds_left(self) -> float:
        """By the clock of the run."""
        return self.seconds if self.clock is None else self.seconds - self.clock.seconds

    def begin(self) -> float:
        """Before a pass: :class:`OutOfTime` after the time limit, else the present time."""
        if self.started and self.seconds_left() <= 0:
            raise OutOfTime
        return time.perf_counter()

    def forward(self, items: int, begun: float) -> None:
        """After a forward pass."""
        each = (time.perf_counter() - begun) / max(1, items)
        self.per_item = min(self.per_item, each) if self.per_item else each
        self.forwards += 1

    def counts(self) -> tuple[int, int]:
        """Forward and backward passes."""
        return self.forwards, self.backwards

    def recount(self, forwards: int, backwards: int) -> None:
        """Count on from these numbers."""
        self.forwards, self.backwards = forwards, backwards

    def share(self, forwards: float, backwards: float, items: int) -> float:
        """Share of the rest of the limits that these passes of so many items would take; 0 where there is no limit."""
        if not self.limited:
            return 0.0
        seconds = (forwards + _BACKWARD * backwards) * items * self.per_item
        of_time = seconds / max(self.seconds_left(), _NEXT_TO_NOTHING)
        return max(of_time, (forwards + backwards) / max(self.most - self.total, _NEXT_TO_NOTHING))


@dataclass
class Remembered:
    """Cached facts about a module, shared by all copies of its generator."""

    preconditioners: dict[tuple[int, int], Preconditioner | ScaledIdentity] = field(default_factory=dict)
    """By the numbers of points and pullbacks from which they were estimated."""
    contents: str = ""
    """Digest of the module's contents from which they were computed."""
    no_jacobian: str | None = None
    """Why the module has no Jacobian, once known."""
    pool: Pool | None = None
    """Samples of the module."""
    pool_of: tuple[str, int] = ("", 0)
    """Digest of the module's contents, and the seed, with which they were drawn."""
