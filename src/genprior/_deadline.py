"""The time limit of a run, for loops that do not pass through G: they stop early, with their last iterate.

Passes are limited by the ``Passes`` that a run's generator holds. Norm estimates, conjugate gradients, inner solvers and
iterative proxes have no generator: they ask here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_left: ContextVar[Callable[[], float] | None] = ContextVar("seconds left", default=None)


@contextmanager
def limiting(left: Callable[[], float]) -> Iterator[None]:
    """Inside the block, in this thread, ``left()`` seconds are left."""
    token = _left.set(left)
    try:
        yield
    finally:
        _left.reset(token)


def seconds_left() -> float:
    """Seconds left of the run that is computing in this thread; infinite where nothing limits it."""
    left = _left.get()
    return math.inf if left is None else left()


def allowance(share: float) -> Callable[[], bool]:
    """A function that is true once this share of the remaining time is used up; never in an unlimited run."""
    left = seconds_left()
    if math.isinf(left):
        return _never
    end = time.perf_counter() + share * left
    return lambda: time.perf_counter() >= end


def _never() -> bool:
    return False
