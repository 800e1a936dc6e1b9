"""The time of a run: a clock that can be stopped, and the limit for loops that do not pass through G.

Passes are limited by the ``Passes`` that a run's generator holds. Norm estimates, conjugate gradients, inner solvers and
iterative proxes have no generator: they ask here, and stop early with their last iterate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_left: ContextVar[Callable[[], float] | None] = ContextVar("seconds left", default=None)


class Clock:
    """Counts the seconds of computing; what happens inside ``with clock.stopped():`` does not count.

    ``settle`` waits for pending work of the device.
    """

    def __init__(self, seconds: float = 0.0, settle: Callable[[], object] | None = None) -> None:
        self._settle = settle
        self._before = seconds
        self._since: float | None = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return self._before if self._since is None else self._before + time.perf_counter() - self._since

    @contextmanager
    def stopped(self, *, settle: bool = False) -> Iterator[None]:
        """Stop while the block runs; with ``settle`` after pending work is done. Blocks may be nested."""
        if self._since is None:
            yield
            return
        if settle and self._settle is not None:
            self._settle()
        self._before, self._since = self.seconds, None
        try:
            yield
        finally:
            self._since = time.perf_counter()


def queue_of(device: torch.device) -> Callable[[], object] | None:
    """A function that waits for a device's pending work; None for the CPU, which has none."""
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return torch.mps.synchronize if device.type == "mps" else None


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
