"""A time limit for a series of checks: each is run if its expected time is left, and else reported as not run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from genprior import _validate
from genprior.checks.report import Finding


class Budget:
    """Seconds from now on, and whoever wants to hear what is being done."""

    def __init__(self, seconds: float | None = None, announce: Callable[[str], None] | None = None) -> None:
        self._end = math.inf if seconds is None else time.monotonic() + _validate.number("seconds", seconds, above=0)
        self.begin = announce or (lambda _: None)

    @property
    def left(self) -> float:
        """Seconds that are left, not below zero."""
        return max(0.0, self._end - time.monotonic())

    def fits(self, cost: float, most: int, share: float = 1.0) -> int:
        """How many pieces of ``cost`` seconds fit into this share of what is left, ``most`` at most."""
        room = share * self.left
        return most if cost * most <= room else int(room / cost)

    def lacks(self, cost: float) -> str:
        """Why something that takes ``cost`` seconds (0: nobody knows) is not run; empty if there is time."""
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
