"""The course of a job: what is handed out, with how much of the time that is left, and how far the job is."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from typing import Any

from genprior.engines import Crew, Engine
from genprior.files import Items
from genprior.jobs.records import sampled
from genprior.jobs.resume import Plan
from genprior.jobs.settings import Recovery
from genprior.jobs.work import Task

Progress = Callable[[float, int, str], object]
"""Called with the number of items done (a fraction within a batch), their total, and the current activity."""


class Course:
    """Makes the tasks, keeps the clock on the wall, and reports, for one run of a job."""

    def __init__(self, job: Recovery, items: Items, plan: Plan, engine: Engine, on_progress: Progress) -> None:
        self._job, self._items, self._report = job, items, on_progress
        self._left = plan.left
        """Batches that were never handed out."""
        self._given: set[int] = set()
        """Batches that were handed out and are not answered."""
        self._used, self._begun = plan.elapsed, 0.0
        self._before = self._done = plan.items_done(len(items), job.batch_size)
        self._show = sampled(len(items), job.pictures)
        self._shares: dict[int, float | None] = {}
        self.crew = Crew("nothing was left to do", engine.size)

    @property
    def elapsed(self) -> float:
        """Seconds on the clock on the wall since the first batch was handed out, with those of earlier runs."""
        return self._used + (time.monotonic() - self._begun if self._begun else 0.0)

    @property
    def per_second(self) -> float:
        """Items that this run has finished per second."""
        gone = self.elapsed - self._used
        return (self._done - self._before) / gone if gone > 0 else 0.0

    def facts(self) -> dict[str, Any]:
        """Who solves the batches, in plain values, and for how long already."""
        crew = self.crew
        return {
            "engine": crew.engine,
            "workers": crew.wanted,
            "lost_workers": crew.deaths,
            "retries": crew.retries,
            "poisoned": crew.poisoned,
            "elapsed": self.elapsed,
        }

    def task(self, number: int, whole: bool) -> Task:
        """A batch, as it is handed out now."""
        self._begun = self._begun or time.monotonic()
        self._say(0.0, "reading" if self.crew.wanted == 1 else "")
        size = self._job.batch_size
        start, stop = number * size, min(len(self._items), (number + 1) * size)
        self._shares[number] = self._share()
        if number not in self._given:
            self._given.add(number)
            self._left -= 1
        loaded = tuple(self._items.read(start, stop)) if whole else None
        return Task(start, stop, self._shares[number], self._shown(start, stop), loaded)

    def share(self, number: int) -> float | None:
        """The seconds that the batch was given when it was handed out."""
        return self._shares[number]

    def finished(self, number: int, items: int) -> None:
        """A batch is answered."""
        self._given.discard(number)
        self._shares.pop(number, None)
        self._done += items

    def changed(self, crew: Crew) -> None:
        """Workers have come or gone, or some time has passed."""
        self.crew = crew
        self._say(0.0, "")

    def within(self, done: float, note: str) -> None:
        """So many items of the running batch are done, in this process."""
        self._say(done, note)

    def _shown(self, start: int, stop: int) -> tuple[int, ...]:
        """The items of a batch whose images are kept."""
        return tuple(self._show[bisect_left(self._show, start) : bisect_left(self._show, stop)])

    def _share(self) -> float | None:
        """An equal part of the time that is left, for as many batches as are solved at a time."""
        if self._job.time is None:
            return None
        left = max(1, self._left)
        return max(0.0, self._job.time - self.elapsed) * min(self.crew.at_once, left) / left

    def _say(self, within: float, note: str) -> None:
        speed = f"{self.per_second:.3g} items/s" if self._done > self._before else ""
        alive = f"{self.crew.alive} of {self.crew.wanted} workers" if self.crew.wanted > 1 else ""
        lost = f"{self.crew.deaths} lost" if self.crew.deaths else ""
        text = ", ".join(filter(None, (speed, alive, lost, note)))
        self._report(self._done + within, len(self._items), text)
