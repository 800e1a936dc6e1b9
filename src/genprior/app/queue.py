"""Who runs next: a few races at once, the others wait, and nobody waits for one who has had more than they."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from genprior import _validate
from genprior.app.race import Race

FORGET = 60.0
"""Seconds after which half of what was used is forgotten."""


class QueueFull(ValueError):
    """Too many races wait already, or too many of one owner."""


class Owner(NamedTuple):
    """Who wants a race: a browser, which may forget who it is, at an address, which many may share."""

    address: str
    browser: str


@dataclass(eq=False)
class _Entry:
    race: Race
    owner: Owner
    number: int


class Queue:
    """Runs at most ``jobs`` races at once, each in a thread.

    A place that gets free goes to the address with the fewest races running, among these to the one with the least
    computing in the last minutes; at one address to the browser with the fewest and the least; among these to who came
    first. What was used is forgotten by half every minute. At most ``longest`` races wait, at most half of them from one
    address and ``each`` from one browser.
    """

    def __init__(
        self, jobs: int = 2, longest: int = 32, each: int = 3, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.jobs = _validate.whole("jobs", jobs)
        self.longest = _validate.whole("longest", longest)
        self.each = _validate.whole("each", each)
        self._clock = clock
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._waiting: list[_Entry] = []
        self._running: list[_Entry] = []
        self._used: dict[str | Owner, tuple[float, float]] = {}
        self._numbers = itertools.count()

    def submit(self, race: Race, owner: Owner) -> None:
        """Take in a race; it starts as soon as it is its turn."""
        with self._lock:
            self._waiting = [entry for entry in self._waiting if not entry.race.snapshot.phase.over]
            if sum(entry.owner == owner for entry in self._waiting) >= self.each:
                raise QueueFull(f"{self.each} of your races are waiting already: let one of them run, or stop it")
            there = sum(entry.owner.address == owner.address for entry in self._waiting)
            if there >= max(self.each, self.longest // 2):
                raise QueueFull(f"{there} races from your network address are waiting already: try again in a minute")
            if len(self._waiting) >= self.longest:
                raise QueueFull(f"{self.longest} races are waiting already: try again in a minute")
            self._waiting.append(_Entry(race, owner, next(self._numbers)))
            self._fill()

    def stop(self, race: Race) -> None:
        """Stop a race, or take it out of the queue."""
        race.stop()
        with self._lock:
            self._waiting = [entry for entry in self._waiting if entry.race is not race]

    def place(self, race: Race) -> int:
        """How many races start before this one; 0 for one that runs or is over."""
        with self._lock:
            order = sorted(self._waiting, key=self._claim)
            return next((place for place, entry in enumerate(order, 1) if entry.race is race), 0)

    @property
    def running(self) -> int:
        """Races that run now."""
        with self._lock:
            return len(self._running)

    def close(self, wait: float = 0.0) -> None:
        """Stop everything; wait so many seconds at most until nothing runs."""
        with self._lock:
            entries, self._waiting = self._waiting + self._running, []
        for entry in entries:
            entry.race.stop()
        with self._lock:
            self._ended.wait_for(lambda: not self._running, wait)

    def _fill(self) -> None:
        """Start what may start. The caller holds the lock."""
        while self._waiting and len(self._running) < self.jobs:
            entry = min(self._waiting, key=self._claim)
            self._waiting.remove(entry)
            self._running.append(entry)
            threading.Thread(target=self._run, args=(entry,), daemon=True).start()

    def _run(self, entry: _Entry) -> None:
        try:
            entry.race.run()
        finally:
            with self._lock:
                self._running.remove(entry)
                self._ended.notify_all()
                now = self._clock()
                self._used = {owner: (left, now) for owner in self._used if (left := self._use(owner)) > 0.1}
                for owner in (entry.owner.address, entry.owner):
                    self._used[owner] = (self._use(owner) + entry.race.seconds, now)
                self._fill()

    def _claim(self, entry: _Entry) -> tuple[int, int, int, int, int]:
        """The smaller, the sooner; use in whole seconds, so that little use is none."""
        owner = entry.owner
        near = sum(other.owner.address == owner.address for other in self._running)
        mine = sum(other.owner == owner for other in self._running)
        return near, round(self._use(owner.address)), mine, round(self._use(owner)), entry.number

    def _use(self, owner: str | Owner) -> float:
        seconds, since = self._used.get(owner, (0.0, 0.0))
        return float(seconds * 0.5 ** ((self._clock() - since) / FORGET))
