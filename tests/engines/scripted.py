"""A pool without processes: workers answer, die and hang by a script, on a clock that only moves when nobody does."""

import heapq
import random
from collections.abc import Callable, Sequence
from typing import Any

from genprior.engines.pool import Answered, Event, Gone, Pool, Ready

Fate = Callable[[int, Any], tuple[float, str]]
"""Of a worker with a task: after how many seconds, and what: answer, die, or hang."""


class Scripted(Pool):
    """Answers a task by itself."""

    def __init__(self, fate: Fate, starts: Callable[[int], tuple[float, str]] = lambda worker: (1.0, "ready")) -> None:
        self.name, self.now = "a scripted pool", 0.0
        self._fate, self._starts = fate, starts
        self._due: list[tuple[float, int, Event]] = []
        self.alive: set[int] = set()
        self.stopped: list[int] = []
        self.most_alive = 0
        self.sent: list[tuple[int, Any]] = []
        self.closed = False
        self._ids = 0

    def clock(self) -> float:
        return self.now

    def start(self, worker: int) -> None:
        self.alive.add(worker)
        self.most_alive = max(self.most_alive, len(self.alive))
        seconds, what = self._starts(worker)
        if what != "hang":
            self._at(seconds, Ready(worker) if what == "ready" else Gone(worker, "died young"))

    def send(self, worker: int, task: Any) -> None:
        self.sent.append((worker, task))
        seconds, what = self._fate(worker, task)
        if what != "hang":
            self._at(seconds, Answered(worker, task) if what == "answer" else Gone(worker, "was struck by lightning"))

    def events(self, seconds: float) -> Sequence[Event]:
        until = self.now + seconds
        while self._due and self._due[0][0] <= until:
            self.now = max(self.now, self._due[0][0])
            if found := self._happened():
                return found
        self.now = until
        return []

    def _happened(self) -> list[Event]:
        found = []
        while self._due and self._due[0][0] <= self.now:
            event = heapq.heappop(self._due)[2]
            if event.worker in self.alive:
                if isinstance(event, Gone):
                    self.alive.discard(event.worker)
                found.append(event)
        return found

    def stop(self, worker: int) -> None:
        self.alive.discard(worker)
        self.stopped.append(worker)

    def close(self) -> None:
        self.closed = True
        self.alive.clear()

    def _at(self, seconds: float, event: Event) -> None:
        self._ids += 1
        heapq.heappush(self._due, (self.now + seconds, self._ids, event))


def at_random(seed: int, deadly: float, seconds: float = 1.0) -> Fate:
    """A share of the batches takes the worker along, another one hangs; it is not the batch's fault."""
    drawn = random.Random(seed)

    def fate(worker: int, task: Any) -> tuple[float, str]:
        what = drawn.choices(["answer", "die", "hang"], [1 - deadly, 0.7 * deadly, 0.3 * deadly])[0]
        return drawn.expovariate(1 / seconds), what

    return fate
