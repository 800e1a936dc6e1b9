"""What a job would do, and about how long it would take, from solving one of its batches."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

from genprior.engines import Blind, Engine, Place
from genprior.jobs.course import Begin, Progress
from genprior.jobs.ledger import begun
from genprior.jobs.recover import Driver
from genprior.jobs.settings import Recovery
from genprior.jobs.work import Task


@dataclass(frozen=True)
class Forecast:
    """A job before it is begun."""

    items: int
    batches: int
    batch_items: int
    """Items of the batch that was solved."""
    batch_seconds: float
    workers: int
    begun: bool
    """Whether the folder holds a job already, whose finished batches would not be repeated."""
    limit: float | None
    """The job's own limit in seconds."""

    @property
    def seconds(self) -> float:
        """For the whole job, if all batches take as long: with the job's limit, no more than that."""
        each = self.batch_seconds / self.batch_items * math.ceil(self.items / self.batches)
        needed = each * math.ceil(self.batches / self.workers)
        return needed if self.limit is None else min(needed, self.limit)


def forecast(
    job: Recovery,
    on_progress: Progress = lambda done, total, note: None,
    *,
    engine: Engine | None = None,
    on_begin: Begin = lambda generator, threads: None,
) -> Forecast:
    """Solve the first batch here, and write nothing; every worker is taken to be as fast as this process."""
    driver = Driver(job, on_progress, engine)
    total = len(driver.items)
    stop = min(total, job.batch_size)
    place = Place(on_progress=lambda done, note: on_progress(done, stop, note))
    on_begin(driver.model.generator, None)
    work = driver.work()
    short = replace(work, job=replace(job, steps=1, time=None)).open(place)
    short(Task(0, 1, None, ()))  # the first passes of a process are slow
    workers, batches = driver.engine.size, -(-total // job.batch_size)
    share = None if job.time is None else job.time * min(workers, batches) / batches
    solve, started = work.open(place), time.monotonic()
    answer = solve(Task(0, stop, share, ()))
    assert not isinstance(answer, Blind), "this process sees the inputs"
    seconds = time.monotonic() - started
    return Forecast(total, batches, stop, seconds, workers, begun(job.out), job.time)
