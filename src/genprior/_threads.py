"""How many threads are fastest, by measuring; and whether torch's threads wait for processors that others use.

Threads that share the work of a pass wait for each other at its every operation. Where one of them is taken off its core by
another process, all others wait until it is back: milliseconds, hundreds of times in a pass, so that two threads can be a
hundred times slower than one.
"""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

_ROUNDS = 3
"""Most passes with each number of threads."""
_LIMIT = 0.3
"""Seconds of passes after which no further one is begun."""
_WINDOW = 2.0
"""Least seconds over which waiting is measured: shorter disturbances do not matter."""
_MUCH = 0.5
"""Seconds of waiting, over all threads, per second: one other busy process on two cores makes 1.0, none makes below 0.05."""
_SHARED = 0.25
"""Seconds of computing or waiting per second from which on other threads count as sharing the work."""
_TASKS = Path("/proc/self/task")


# -- how many threads are fastest --------------------------------------------------------------------------------------


def numbers_up_to(most: int) -> tuple[int, ...]:
    """The numbers of threads to try: one, all, and the powers of two between.

    Examples
    --------
    >>> numbers_up_to(12)
    (1, 12, 2, 4, 8)
    """
    between = [2**power for power in range(1, most.bit_length()) if 2**power < most]
    return (1, most, *between) if most > 1 else (1,)


def fastest(
    seconds_of: Callable[[int], float], numbers: Sequence[int], *, usual: int, factor: float, limit: float = _LIMIT
) -> int:
    """The number of threads with which a pass is fastest; ``usual`` unless another one is ``factor`` times faster.

    ``seconds_of`` makes a pass with so many threads and returns what it took. Numbers take turns, so that a disturbance meets
    all of them; once the passes have taken ``limit`` seconds none is begun, but the first two numbers are tried in any case.

    Examples
    --------
    >>> fastest({1: 0.01, 2: 0.3}.get, (1, 2), usual=2, factor=2.0)
    1
    >>> fastest({1: 0.01, 2: 0.015}.get, (1, 2), usual=2, factor=2.0)
    2
    """
    taken: dict[int, list[float]] = {}
    spent = 0.0
    for number in (*numbers,) * _ROUNDS:
        if spent >= limit and len(taken) >= min(2, len(numbers)):
            break
        seconds = seconds_of(number)
        taken.setdefault(number, []).append(seconds)
        spent += seconds
    typical = {number: median(seconds) for number, seconds in taken.items()}
    best = min(typical, key=lambda number: typical[number])
    return best if typical.get(usual, float("inf")) > factor * typical[best] else usual


# -- whether threads wait ----------------------------------------------------------------------------------------------


class ThreadsWait(RuntimeWarning):
    """Torch's threads stand in each other's way, because other processes use the processors."""


@dataclass(frozen=True)
class Load:
    """What the system has counted of the threads of this process, in seconds since they began."""

    waiting: float
    """For a processor, when they could have run: all threads."""
    helping: float
    """Computing or waiting to: the threads other than the calling one, as those that share its passes."""


def load_now() -> Load | None:
    """The counts up to now; None where the system has none."""
    own = str(threading.get_native_id())
    waiting, helping, seen = 0, 0, False
    with suppress(OSError):
        for task in _TASKS.iterdir():
            with suppress(OSError, IndexError, ValueError):  # a thread that has just ended has no file any more
                ran, waited = map(int, (task / "schedstat").read_bytes().split()[:2])
                waiting, seen = waiting + waited, True
                helping += 0 if task.name == own else ran + waited
    return Load(waiting / 1e9, helping / 1e9) if seen else None


_said = False
"""Whether this process has been warned."""


@dataclass
class Crowding:
    """Warns, once in a process, when more than one thread computes and they mostly wait for processors."""

    clock: Callable[[], float] = time.monotonic
    load: Callable[[], Load | None] = load_now
    _since: float = -math.inf
    """When the present window began."""
    _before: Load | None = None
    """The load then."""

    def look(self) -> None:
        """To be called now and then within a run; next to nothing between two windows."""
        now = self.clock()
        gone = now - self._since
        if gone < _WINDOW or _said or torch.get_num_threads() == 1:
            return
        before, self._before, self._since = self._before, self.load(), now
        if before is not None and self._before is not None and _crowded(before, self._before, gone):
            self._warn()

    def _warn(self) -> None:
        global _said  # noqa: PLW0603 - once in a process
        _said = True
        warnings.warn(
            f"torch computes with {torch.get_num_threads()} threads, which wait for processors that others use, and then for "
            "each other: torch.set_num_threads(1), or another small number, is often many times faster on a busy machine",
            ThreadsWait,
            stacklevel=3,
        )


_local = threading.local()


def crowding() -> Crowding:
    """That of the calling thread, so that windows go on from one run to the next."""
    if not hasattr(_local, "crowding"):
        _local.crowding = Crowding()
    found: Crowding = _local.crowding
    return found


def _crowded(before: Load, now: Load, seconds: float) -> bool:
    """Whether threads that share the work waited: a single one that waits is as slow alone."""
    waiting, helping = now.waiting - before.waiting, now.helping - before.helping
    return waiting >= _MUCH * seconds and helping >= _SHARED * seconds
