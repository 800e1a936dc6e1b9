"""Runs a few races at once; the others wait, with fair scheduling between visitors."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import NamedTuple

from genprior import _validate
from genprior.app.race import Race


class QueueFull(ValueError):
    """Too many races wait already, or too many of one owner."""


class Owner(NamedTuple):
    """Owner of a race: a browser (a cookie, which may be deleted) at an address (which many may share)."""

    address: str
    browser: str


@dataclass(eq=False)
class _Entry:
    race: Race
    owner: Owner


class Queue:
    """Runs at most ``jobs`` races at once, each in a thread.

    A free place goes to the address with the fewest running races, then to the browser with the fewest, then to the oldest
    race. A race that has just ended still counts as running, so owners with waiting races take turns. At most
    ``longest`` races wait, at most half of them from one address and ``each`` from one browser.
    """

    def __init__(self, jobs: int = 2, longest: int = 32, each: int = 3) -> None:
        self.jobs = _validate.whole("jobs", jobs)
        self.longest = _validate.whole("longest", longest)
        self.each = _validate.whole("each", each)
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._waiting: list[_Entry] = []
        """In order of arrival; empty while there is a free place."""
        self._running: list[_Entry] = []

    def submit(self, race: Race, owner: Owner) -> None:
        """Add a race; it starts at its turn."""
        with self._lock:
            self._waiting = [entry for entry in self._waiting if not entry.race.snapshot.phase.over]
            if sum(entry.owner == owner for entry in self._waiting) >= self.each:
                raise QueueFull(f"{self.each} of your races are waiting already: wait for one of them, or stop it")
            there = sum(entry.owner.address == owner.address for entry in self._waiting)
            if there >= max(self.each, self.longest // 2):
                raise QueueFull(f"{there} races from your network address are waiting already: try again in a minute")
            if len(self._waiting) >= self.longest:
                raise QueueFull(f"{self.longest} races are waiting already: try again in a minute")
            entry = _Entry(race, owner)
            if len(self._running) < self.jobs:
                self._start(entry)
            else:
                self._waiting.append(entry)

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

    def _start(self, entry: _Entry) -> None:
        """The caller holds the lock."""
        self._running.append(entry)
        threading.Thread(target=self._run, args=(entry,), daemon=True).start()

    def _run(self, entry: _Entry) -> None:
        try:
            entry.race.run()
        finally:
            with self._lock:
                following = min(self._waiting, key=self._claim, default=None)
                self._running.remove(entry)
                self._ended.notify_all()
                if following is not None:
                    self._waiting.remove(following)
                    self._start(following)

    def _claim(self, entry: _Entry) -> tuple[int, int]:
        """Sort key: smallest first."""
        owner = entry.owner
        near = sum(other.owner.address == owner.address for other in self._running)
        return near, sum(other.owner == owner for other in self._running)
