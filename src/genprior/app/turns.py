"""A turn lock: of several threads, one computes at a time, in round-robin order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class TurnLock:
    """A lock passed round-robin between runners. The runner that holds it computes; the others wait.

    Each runner enters once with :meth:`run` and calls :meth:`pass_on` regularly inside.
    """

    def __init__(self, runners: int) -> None:
        self._circle = deque(range(runners))
        self._changed = threading.Condition()

    @contextmanager
    def run(self, runner: int) -> Iterator[None]:
        """Wait for the first turn; leave at the end, even after an error."""
        self._await(runner)
        try:
            yield
        finally:
            with self._changed:
                self._circle.remove(runner)
                self._changed.notify_all()

    def pass_on(self, runner: int) -> None:
        """Let every other runner have a turn, then go on."""
        with self._changed:
            if len(self._circle) == 1:
                return
            self._circle.rotate(-1)
            self._changed.notify_all()
        self._await(runner)

    def _await(self, runner: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._circle[0] == runner)
