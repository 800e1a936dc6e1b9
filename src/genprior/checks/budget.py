"""A time limit for a series of checks: each one runs if its expected time is left, and is reported as not run otherwise."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from genprior import _validate
from genprior.checks.report import Finding


class Budget:
    """A time limit that starts now, and a callback that receives the name of each check."""

    def __init__(self, seconds: float | None = None, announce: Callable[[str], None] | None = None) -> None:
        self._end = math.inf if seconds is None else time.monotonic() + _validate.number("seconds", seconds, above=0)
        self.begin = announce or (lambda _: None)

    @property
    def left(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end - time.monotonic())

    def fits(self, cost: float, most: int, share: float = 1.0) -> int:
        """How many tasks of ``cost`` seconds fit into this share of the time left, at most ``most``."""
        available = share * self.left
        return most if cost * most <= available else int(available / cost)

    def lacks(self, cost: float) -> str:
        """Why something that takes ``cost`` seconds (0: unknown) is not run; empty if there is time."""
        left = self.left
        if left == 0:
            return "not run: no time is left"
        if cost <= left:
            return ""
        return f"not run: it takes about {_seconds(cost)}, and {_seconds(left)} are left"

    def within(self, law: str, check: Callable[[], Finding], cost: float = 0.0) -> Finding:
        """The finding of a check, or that there was no time for it."""
        self.begin(law)
        lack = self.lacks(cost)
        return Finding(law, None, lack, "allow more time") if lack else check()


def _seconds(count: float) -> str:
    return f"{count:.0f} s" if count >= 10 else f"{count:.1f} s"
