"""Give a batch to a worker, take the answer: whatever happens to workers, every batch is answered exactly once."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic

from genprior.engines.base import Answer, Answers, Batches, Blind, Crew, EngineError, Poisoned, Task
from genprior.engines.pool import Answered, Event, Failed, Gone, Pool, Ready

_WAIT = 0.5
"""Longest time between two reports, in seconds."""
_TRY_AGAIN = 60.0
"""Seconds after which a worker is started again where several in a row could not, while others work."""


@dataclass(frozen=True)
class Patience:
    """When a worker counts as hung, a batch as poisoned, and an engine as unable to start."""

    deaths: int = 3
    """So many workers may a batch take with it before it is set aside."""
    poisoned: int = 3
    """So many batches may be set aside before the first is answered: then it is not the batches."""
    in_a_row: int = 5
    """So many batches may be set aside in a row, later on."""
    starts: int = 3
    """So many workers in a row may die while they start: then the others do the work, or where there are none the job ends."""
    start_seconds: float = 300.0
    """So long may no worker at all be ready."""
    batch_seconds: float | None = None
    """So long may a batch take; None: as long as its own time limit and this much more, or where it has no limit, ``slower``
    times as long as the longest batch so far; before the first answer, for ever."""
    grace: float = 120.0
    """Seconds above a batch's own limit, and the least limit there is without one: five times this."""
    slower: float = 20.0
    longer: float = 4.0
    """So many times as long as before may a batch take when it is repeated, as it may be slower than the others."""

    def limit(self, own: float | None, longest: float, deaths: int = 0) -> float:
        """Seconds after which a batch with this limit of its own, which workers were lost with, counts as hung."""
        if self.batch_seconds is not None:
            return self.batch_seconds
        if own is not None:
            return own + max(self.grace, own)
        return max(5 * self.grace, self.slower * longest) * self.longer**deaths if longest else math.inf


@dataclass
class _Running:
    """A batch that a worker has."""

    number: int
    since: float
    limit: float | None
    whole: bool


def dispatch(
    pool: Pool,
    batches: Batches[Task, Answer],
    workers: int,
    patience: Patience = Patience(),  # noqa: B008 - frozen
    clock: Callable[[], float] = time.monotonic,
) -> Answers[Answer]:
    """Number and answer of every batch, as they come; closes the pool at the end, however that comes.

    Each worker has one batch at a time. When a worker is lost, its batch goes to the next one that is free, and a new
    worker is started in its place; a batch that three workers were lost with is answered by :class:`Poisoned`.
    """
    run = _Dispatch(pool, batches, workers, patience, clock)
    try:
        yield from run.answers()
    finally:
        pool.close()


@dataclass
class _Dispatch(Generic[Task, Answer]):
    pool: Pool
    batches: Batches[Task, Answer]
    workers: int
    patience: Patience
    clock: Callable[[], float]
    again: deque[int] = field(default_factory=deque)
    """Batches to be handed out again, before all others."""
    next: int | None = None
    """The first number that no worker has had yet; None at the end."""
    busy: dict[int, _Running] = field(default_factory=dict)
    starting: set[int] = field(default_factory=set)
    free: deque[int] = field(default_factory=deque)
    blind: set[int] = field(default_factory=set)
    """Workers that do not see the inputs."""
    deaths: dict[int, int] = field(default_factory=dict)
    """Of each batch that workers were lost with."""
    failures: int = 0
    """Workers that were lost in a row while they started, the last of them at ``failed``."""
    failed: float = 0.0
    born: int = 0
    longest: float = 0.0
    """Seconds of the longest batch so far; 0 before the first answer."""
    in_a_row: int = 0
    """Batches that were set aside since the last answer."""

    def __post_init__(self) -> None:
        self.numbers = iter(self.batches.numbers)
        self.crew = Crew(self.pool.name, self.workers, notes=list(self.pool.notes))

    def answers(self) -> Answers[Answer]:
        self.next = next(self.numbers, None)
        alone_since = self.clock()
        while self.next is not None or self.again or self.busy:
            self._staff()
            self._report()
            asked = self.clock()  # what happened before is among the events, however long it takes to use the answers
            for event in self.pool.events(_WAIT):
                yield from self._heard(event)
            yield from self._stopped(asked)
            if self.busy or self.free:
                alone_since = self.clock()
            elif asked - alone_since > self.patience.start_seconds:
                raise EngineError(
                    f"no worker of {self.pool.name} was ready within {self.patience.start_seconds:g} s: there is no room for "
                    "one, or its machine does not answer; what was finished is kept"
                )
        self._report()

    def _heard(self, event: Event) -> Answers[Answer]:
        worker = event.worker
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Ready):
            self.starting.discard(worker)
            self.failures = 0
            self._give(worker)
        elif isinstance(event, Answered):
            running = self.busy.pop(worker)
            if isinstance(event.answer, Blind):
                self._ask_again(worker, running, event.answer)
                return
            self.longest = max(self.longest, self.clock() - running.since)
            self.crew.answered += 1
            self.in_a_row = 0
            self._give(worker)  # before the answer is used, so that the worker need not wait for that
            yield running.number, event.answer
        else:
            yield from self._lost(worker, event)

    def _lost(self, worker: int, event: Gone) -> Iterator[tuple[int, Poisoned]]:
        self.crew.deaths += 1
        if worker in self.free:
            self.free.remove(worker)
        if worker in self.starting:
            self.starting.discard(worker)
            self.failures += 1
            self.failed = self.clock()
            if self.failures >= self.patience.starts and not (self.busy or self.free or self.starting):
                raise EngineError(f"no worker of {self.pool.name} can start: the last one {event.reason}")
        running = self.busy.pop(worker, None)
        if running is not None:
            yield from self._died(running.number, event.reason)

    def _died(self, number: int, reason: str) -> Iterator[tuple[int, Poisoned]]:
        """A worker was lost with this batch."""
        count = self.deaths.get(number, 0) + 1
        self.deaths[number] = count
        if count < self.patience.deaths:
            self.crew.retries += 1
            self.again.append(number)
            return
        self.crew.poisoned += 1
        self.in_a_row += 1
        if self.in_a_row >= (self.patience.in_a_row if self.crew.answered else self.patience.poisoned):
            raise EngineError(
                f"workers are lost with every batch, the last one {reason}: is there enough memory for a batch? Make batches "
                "smaller, or use fewer workers; what was finished is kept"
            )
        yield number, Poisoned(f"{count} workers were lost with it, the last one {reason}")

    def _stopped(self, now: float) -> Iterator[tuple[int, Poisoned]]:
        """Stop workers that took too long already at this time, since when all answers have been used."""
        for worker, running in list(self.busy.items()):
            limit = self.patience.limit(running.limit, self.longest, self.deaths.get(running.number, 0))
            if now - running.since > limit:
                self.pool.stop(worker)
                yield from self._lost(worker, Gone(worker, f"took longer than {limit:g} s and was stopped"))

    def _staff(self) -> None:
        """Give batches to free workers, and start workers while there are more batches than workers."""
        while self.free and (self.again or self.next is not None):
            self._give(self.free.popleft())
        if self.failures >= self.patience.starts and self.clock() < self.failed + _TRY_AGAIN:
            return
        missing = self.workers - len(self.busy) - len(self.free) - len(self.starting)
        for _ in range(min(missing, self._waiting(missing + len(self.starting)) - len(self.starting))):
            self.born += 1
            self.starting.add(self.born)
            self.pool.start(self.born)

    def _waiting(self, most: int) -> int:
        """The number of batches that no worker has, counted up to ``most``; without a length, there are as many."""
        return min(most, len(self.again) + (most if self.next is not None else 0))

    def _give(self, worker: int) -> None:
        """The next batch, if there is one."""
        if self.again:
            number = self.again.popleft()
        elif self.next is not None:
            number, self.next = self.next, next(self.numbers, None)
        else:
            self.free.append(worker)
            return
        self._send(worker, number, whole=worker in self.blind)

    def _send(self, worker: int, number: int, *, whole: bool) -> None:
        task = self.batches.task(number, whole)
        self.busy[worker] = _Running(number, self.clock(), self.batches.seconds(number), whole)
        self.pool.send(worker, task)

    def _ask_again(self, worker: int, running: _Running, answer: Blind) -> None:
        """With the contents of the inputs."""
        if running.whole:
            raise EngineError(f"batch {running.number} cannot be solved: {answer.reason}")
        if not self.blind:  # one note, however many they are
            self.crew.notes.append(f"inputs are sent to workers that cannot read them ({answer.reason})")
        self.blind.add(worker)
        self.crew.retries += 1
        self._send(worker, running.number, whole=True)

    def _report(self) -> None:
        self.crew.alive = len(self.busy) + len(self.free)
        self.batches.watch(self.crew)
