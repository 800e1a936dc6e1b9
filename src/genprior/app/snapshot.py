"""The state of a race at one moment, as immutable values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum


class Phase(Enum):
    """Phase of a race."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        """Whether the race has ended."""
        return self not in {Phase.WAITING, Phase.RUNNING}


@dataclass(frozen=True)
class Lane:
    """The current state of one solver in the race."""

    name: str
    image: str = ""
    """The best so far, as the source of an image element."""
    points: tuple[tuple[float, float, float], ...] = ()
    """(seconds, error against the truth, objective) of the best so far."""
    steps: int = 0
    passes: int = 0
    status: str = "waiting"
    advice: str = ""
    plan: str = ""
    remark: str = ""
    """Remark of the damage about the recovered image, such as the class a classifier gives it."""
    problem: str = ""
    """Why this solver cannot run, if it cannot."""

    @property
    def over(self) -> bool:
        """Whether this solver has ended."""
        return self.status not in {"waiting", "running"}

    @property
    def seconds(self) -> float:
        """Of computing."""
        return self.points[-1][0] if self.points else 0.0

    @property
    def error(self) -> float:
        """Of the best so far (by objective), against the truth."""
        return self.points[-1][1] if self.points else math.nan

    @property
    def objective(self) -> float:
        """Of the best so far."""
        return self.points[-1][2] if self.points else math.nan


@dataclass(frozen=True)
class Snapshot:
    """Everything that a page shows of a race; ``version`` grows with every change."""

    version: int
    phase: Phase
    lanes: tuple[Lane, ...]
    seen: str = ""
    """The damaged image, as the source of an image element."""
    note: str = ""
    message: str = ""
    """Why the race failed or was stopped, if so."""
