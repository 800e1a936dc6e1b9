"""A clock that can be stopped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Counts the seconds of computing; what happens inside ``with clock.stopped():`` does not count."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._before = seconds
        self._since: float | None = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return self._before if self._since is None else self._before + time.perf_counter() - self._since

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop while the block runs; blocks may be nested."""
        if self._since is None:
            yield
            return
        self._before, self._since = self.seconds, None
        try:
            yield
        finally:
            self._since = time.perf_counter()
