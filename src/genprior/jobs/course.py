"""The course of a job: what is handed out, with how much of the time that is left, and how far the job is."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Protocol

from genprior.engines import Batches, Crew, Engine, Poisoned, Serial, Work
from genprior.files import Items
from genprior.generators import Generator
from genprior.jobs.records import SolvedBatch, sampled
from genprior.jobs.resume import Plan
from genprior.jobs.work import Task

Progress = Callable[[float, int, str], object]
"""Called with the number of items done (a fraction within a batch), their total, and the current activity."""
Begin = Callable[[Generator, int | None], object]
"""Called before the first batch that this process solves itself, not before those of workers: with the generator, and the
number of threads that solved the job's last batch, if an earlier run did."""


class Job(Protocol):
    """What the course depends on."""

    @property
    def batch_size(self) -> int:
        """Items that are solved at once."""

    @property
    def time(self) -> float | None:
        """Seconds for the whole job."""

    @property
    def pictures(self) -> int:
        """Largest number of items shown in the report."""


class Course:
    """Makes the tasks, keeps the clock on the wall, and reports, for one run of a job."""

    def __init__(self, job: Job, items: Items, plan: Plan, engine: Engine, on_progress: Progress) -> None:
        self._job, self._items, self._plan, self._engine, self._report = job, items, plan, engine, on_progress
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

    def solved(
        self, work: Work[Task, SolvedBatch], generator: Generator, on_begin: Begin
    ) -> Iterator[tuple[int, SolvedBatch]]:
        """Hand out the batches that are left; number and result of each, as they come."""
        if isinstance(self._engine, Serial) and self._plan.left:
            on_begin(generator, self._plan.threads)
        batches: Batches[Task, SolvedBatch] = Batches(
            work,
            self._plan.numbers(),
            self.task,
            seconds=self.share,
            watch=self.changed,
            on_progress=self.within,
            count=self._plan.left,
        )
        answers = self._engine.run(batches)
        with closing(answers):
            for number, answer in answers:
                batch = self._poisoned(number, answer) if isinstance(answer, Poisoned) else answer
                self.finished(number, len(batch.items))
                yield number, batch

    def task(self, number: int, whole: bool) -> Task:
        """A batch, as it is handed out now."""
        self._begun = self._begun or time.monotonic()
        self._say(0.0, "reading" if self.crew.wanted == 1 else "")
        start, stop = self._span(number)
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

    def _span(self, number: int) -> tuple[int, int]:
        """The first item of a batch, and the one after its last."""
        size = self._job.batch_size
        return number * size, min(len(self._items), (number + 1) * size)

    def _poisoned(self, number: int, answer: Poisoned) -> SolvedBatch:
        start, stop = self._span(number)
        return SolvedBatch.poisoned(start, self._items.names(start, stop), answer.reason)

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
