"""A job in independent parts, such as the tasks of a job array, which are put together at the end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from genprior._files import remove_unfinished, write_text
from genprior._segments import Log
from genprior.assessment import JOB, Words
from genprior.engines import Answers, Batches, Crew, Engine, EngineError
from genprior.jobs.course import Begin, Course, Progress
from genprior.jobs.ledger import alone, asked_of, claimed
from genprior.jobs.outcome import Outcome
from genprior.jobs.records import SolvedBatch
from genprior.jobs.recover import Driver, recover
from genprior.jobs.resume import Plan
from genprior.jobs.settings import Recovery

_FOLDER = ".shards"
"""In the output folder: one folder for each shard, with its whole batches."""
_PLACE = "place"
"""The file with the folder in which the shards were started: the inputs are relative to it."""


@dataclass(frozen=True)
class Shard:
    """Shard 3 of 16, counted from 1: every 16th batch, from the third on."""

    number: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise ValueError(f"shard must be a number from 1 to the number of shards, such as 3/16, got {self}")

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @classmethod
    def of(cls, text: str) -> Shard:
        """From ``3/16``."""
        number, slash, count = text.partition("/")
        if not (slash and number.isdecimal() and count.isdecimal()):
            raise ValueError(f"shard must be a number from 1 to the number of shards, such as 3/16, got {text!r}")
        return cls(int(number), int(count))

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"{self.number:06d}-of-{self.count:06d}"


@dataclass(frozen=True)
class Part:
    """What a shard has done."""

    items: int
    total: int
    """Items of the whole job."""
    elapsed: float


def recover_shard(
    job: Recovery,
    shard: Shard,
    on_progress: Progress = lambda done, total, note: None,
    *,
    engine: Engine | None = None,
    on_begin: Begin = lambda generator, threads: None,
) -> Part:
    """Solve the batches of one shard, and keep them in ``job.out`` for :func:`gather`; resumes where it was stopped.

    Nothing else in the folder is written, so that all shards may run at the same time, on machines that share a disk.
    """
    driver = Driver(job, on_progress, engine)
    with alone(job.out, f"{_FOLDER}/{shard.folder}"):
        log = Log(job.out / _FOLDER / shard.folder, claimed(job.out, driver.identity(), driver.items.newer_than))
        remove_unfinished(log.folder)
        write_text(job.out / _FOLDER / _PLACE, str(Path.cwd()))
        total, size = len(driver.items), job.batch_size
        count = -(-total // size)
        done = np.ones(count, bool)
        done[shard.number - 1 :: shard.count] = False
        others = Plan(done, 0.0).items_done(total, size)
        done[[number for number in log.numbers() if number < count]] = True
        runs = (record.meta["run"] for _, record in log.records())
        last: dict[str, Any] = max(runs, key=itemgetter("elapsed"), default={"elapsed": 0.0})
        course = Course(
            job,
            driver.items,
            Plan(done, last["elapsed"], last.get("threads")),
            driver.engine,
            lambda reached, whole, note: on_progress(reached - others, whole - others, note),
        )
        for number, batch in course.solved(driver.work(), driver.model.generator, on_begin):
            log.append(number, batch.with_run(batch.run | {"elapsed": course.elapsed}).stored())
        return Part(total - others, total, course.elapsed)


def gather(out: Path, on_progress: Progress = lambda done, total, note: None, *, words: Words = JOB) -> Outcome:
    """Put the shards in a folder together: signals, ``result.json`` and report, as one run of the job would write them."""
    asked = asked_of(out)
    if not (out / _FOLDER / _PLACE).is_file():
        raise ValueError(f"{out} holds no shards: solve them first, each with its own `shard`")
    whole = out.absolute()
    with _started_in(Path((out / _FOLDER / _PLACE).read_text(encoding="utf-8"))):
        return recover(Recovery.of(asked, out=whole), on_progress, words=words, engine=_Gathered(whole, asked))


@dataclass(frozen=True)
class _Gathered(Engine):
    """Answers from the shards of a job."""

    out: Path
    asked: dict[str, Any]

    @property
    def size(self) -> int:
        """One."""
        return 1

    def run(self, batches: Batches[Any, Any]) -> Answers[Any]:
        """In order; raises where a batch is missing, before anything is taken."""
        owner = claimed(self.out, self.asked)
        names = sorted(folder.name for folder in (self.out / _FOLDER).iterdir() if folder.is_dir())
        logs = {name: self._log(name, owner) for name in names}
        notes = [note for log in logs.values() for note in log.notes]
        batches.watch(Crew(f"{len(logs)} shards", len(logs), alive=len(logs), notes=notes))
        wanted = list(batches.numbers)
        place = {number: name for name, log in logs.items() for number in log.numbers()}
        missing = [number for number in wanted if number not in place]
        if missing:
            raise EngineError(_lacking(missing, list(logs)))
        for number in wanted:
            batches.task(number, False)
            for _, record in logs[place[number]].records([number]):
                yield number, SolvedBatch.restored(record)

    def _log(self, name: str, owner: str) -> Log:
        """The records of a shard; raises while it is being solved: opening a log cuts off a record that is half written."""
        with alone(self.out, f"{_FOLDER}/{name}"):
            return Log(self.out / _FOLDER / name, owner)


def _lacking(missing: list[int], names: list[str]) -> str:
    """Which shards are to be run again."""
    counts = {int(name.rpartition("-")[2]) for name in names}
    if len(counts) != 1:
        return f"{len(missing)} batches are in none of the shards: run all of them with the same number of shards"
    count = counts.pop()
    shards = sorted({number % count + 1 for number in missing})
    named = ", ".join(f"{number}/{count}" for number in shards[:8]) + (" and others" if len(shards) > 8 else "")
    return f"{len(missing)} batches are missing: run these shards again, they resume where they stopped: {named}"


@contextmanager
def _started_in(folder: Path) -> Iterator[None]:
    """Names of inputs, weights and models are relative to the folder in which the shards were started."""
    before = Path.cwd()
    try:
        os.chdir(folder)
    except OSError as problem:
        raise ValueError(
            f"the shards were started in {folder}, which cannot be entered here ({problem.strerror})"
        ) from None
    try:
        yield
    finally:
        os.chdir(before)
