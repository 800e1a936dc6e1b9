"""A clock that can be stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


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
