"""The number of threads of a command, where none was given: measured when it starts, and again when passes slow down."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from genprior._threads import ThreadsWait, fastest, numbers_up_to
from genprior.generators.derivatives import prepare_gradients

if TYPE_CHECKING:
    from genprior.generators import Generator

_AT_START = 2.0
"""Torch's own number is kept at the start unless another one is so many times faster."""
_LATER = 3.0
"""The number of a job that has begun is kept unless another one is so many times faster: the last bits depend on it."""
_PASS = 0.01
"""Seconds that a measured pass takes with one thread, or as long as one item needs."""
_ITEMS = 64
"""Most items of a measured pass."""
_EVERY = 2.0
"""Least seconds between two looks at the speed of passes."""
_SHARE = 0.01
"""Largest part of the time that looks take."""

Show = Callable[[float, int, str], object]


class Probe:
    """A short pass of a generator, forward and backward."""

    def __init__(self, generator: Generator) -> None:
        from genprior.generators import Passes  # noqa: PLC0415 - slow to import

        prepare_gradients()
        self._generator = generator.counting(Passes())
        self._latents = generator.sample_latent(1)
        self.seconds(1)  # the first passes of a process are slow
        items = int(_PASS / max(self.seconds(1), _PASS / _ITEMS))
        if items > 1:
            self._latents = generator.sample_latent(items)
            self.seconds(1)

    def seconds(self, threads: int) -> float:
        """What the pass takes with so many threads, which stay set; the random numbers of others are not touched."""
        torch.set_num_threads(threads)
        with torch.random.fork_rng(devices=[]):
            begun = time.perf_counter()
            evaluation = self._generator.evaluate(self._latents)
            evaluation.vjp(evaluation.x)
            return time.perf_counter() - begun


def choose(generator: Generator, before: int | None = None) -> Probe | None:
    """Set the number of threads with which passes are fastest; None if there is nothing to choose.

    ``before`` is the number with which the work was begun: it is kept unless that is several times slower.
    """
    most = torch.get_num_threads()
    if most == 1 or generator.device.type != "cpu":
        return None
    usual, factor = (most, _AT_START) if before is None or before > most else (before, _LATER)
    chosen = usual
    try:
        probe = Probe(generator)
        chosen = fastest(probe.seconds, (*dict.fromkeys((*numbers_up_to(most), usual)),), usual=usual, factor=factor)
    except Exception:  # a generator that cannot be evaluated: the command itself says why
        return None
    finally:
        torch.set_num_threads(chosen)
    return probe


class Watch:
    """Chooses the number of threads when a job begins, and again when one thread has become several times faster."""

    def __init__(self, *, fixed: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """With ``fixed`` the number was given, and nothing is measured."""
        self._fixed, self._clock = fixed, clock
        self._probe: Probe | None = None
        self._next = 0.0

    def begin(self, generator: Generator, before: int | None = None) -> None:
        """Before the first batch."""
        if self._fixed:
            return
        self._probe = choose(generator, before)
        self._next = self._clock() + _EVERY
        if self._probe is not None:
            warnings.simplefilter("ignore", ThreadsWait)  # this watches, too, and does something about it

    def showing(self, show: Show) -> Show:
        """The same progress report, with a look now and then."""

        def both(done: float, total: int, note: str) -> None:
            self.look()
            show(done, total, note)

        return both

    def look(self) -> None:
        """Measure, where it is time: a pass with the present number of threads and one with one thread.

        Where one thread is several times faster all numbers are measured anew.
        """
        now, threads = self._clock(), torch.get_num_threads()
        if self._probe is None or threads == 1 or now < self._next:
            return
        torch.set_num_threads(_rechosen(self._probe, threads))
        gone = self._clock()
        self._next = gone + max(_EVERY, (gone - now) / _SHARE)


def _rechosen(probe: Probe, threads: int) -> int:
    """The present number, unless another one is several times faster, twice."""
    try:
        if fastest(probe.seconds, (1, threads), usual=threads, factor=_LATER, limit=0.0) == threads:
            return threads
        return fastest(probe.seconds, numbers_up_to(threads), usual=threads, factor=_LATER)
    except Exception:  # memory is short, for example: the run itself may still fit
        return threads
