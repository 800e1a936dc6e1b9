"""The defence of files: batches are handed out, and what comes back is written; then a record and a report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from genprior._files import make_folder, remove_unfinished, write_text
from genprior.engines import Engine, Serial
from genprior.files import Outputs, open_items
from genprior.files.expected import Expected
from genprior.files.single import read_array
from genprior.generators import Generator
from genprior.jobs.course import Begin, Course, Progress
from genprior.jobs.defence_work import DefenceWork, Networks
from genprior.jobs.ledger import FOLDER, LOCK, alone, begun
from genprior.jobs.records import POISONED, UNREADABLE, SolvedBatch
from genprior.jobs.resume import REPORT, RESULT, Plan
from genprior.jobs.settings import Defence
from genprior.jobs.shipment import Shipment
from genprior.jobs.threads import threads_of_all
from genprior.status import Status

SIGNALS = "defended"
"""The folder of the projections, in the output folder."""
_UNKNOWN = dict.fromkeys(("before", "before_confidence", "after", "after_confidence", "changed", "distance"))
"""The classes of an item that was not projected."""


@dataclass(frozen=True)
class Record:
    """Results of all items."""

    items: list[dict[str, Any]]
    """Of those that could be read."""
    unreadable: list[dict[str, str]]
    images: dict[str, Tensor]
    """Some of the images, ``given`` and ``projected``, for the report."""
    seconds: float
    """Of all workers together."""
    run: dict[str, Any]
    """Who projected the images, and how long that took by the clock on the wall."""
    notes: tuple[str, ...]

    @classmethod
    def of(
        cls, batches: Sequence[SolvedBatch], labels: Sequence[int] | None, run: dict[str, Any], notes: tuple[str, ...]
    ) -> Record:
        """From all batches, in order; ``labels`` has one class per item."""
        items = [item for batch in batches for item in batch.items]
        if labels is not None:
            items = [item | {"label": label} for item, label in zip(items, labels, strict=True)]
        shown = [batch.images for batch in batches if batch.images]
        return cls(
            [_known(item) for item in items if item["status"] != UNREADABLE],
            [{"name": item["name"], "problem": item["advice"]} for item in items if item["status"] == UNREADABLE],
            {name: torch.cat([images[name] for images in shown]) for name in shown[0]} if shown else {},
            sum(batch.run["seconds"] for batch in batches),
            run,
            notes,
        )

    @property
    def total(self) -> int:
        """Number of items, readable or not."""
        return len(self.items) + len(self.unreadable)

    @property
    def poisoned(self) -> list[dict[str, Any]]:
        """The items that were set aside, because workers were lost with their batch again and again."""
        return [item for item in self.items if item["status"] == POISONED]

    @property
    def numbers(self) -> dict[str, Any]:
        """Counts and, with labels, accuracies."""
        labelled = [item for item in self.items if "label" in item and item["status"] != POISONED]
        found: dict[str, Any] = {
            "items": len(self.items),
            "unreadable": len(self.unreadable),
            "poisoned": len(self.poisoned),
            "diverged": sum(item["status"] == Status.DIVERGED.name for item in self.items),
            "changed": sum(bool(item["changed"]) for item in self.items),
            "seconds": round(self.seconds, 3),
        }
        if labelled:
            for name in ("before", "after"):
                right = sum(item[name] == item["label"] for item in labelled)
                found[f"accuracy_{name}"] = right / len(labelled)
        return found


def defend_files(
    job: Defence,
    on_progress: Progress = lambda done, total, note: None,
    *,
    engine: Engine | None = None,
    on_begin: Begin = lambda generator, threads: None,
) -> Record:
    """Defend every item of the inputs; write the projections and ``result.json`` into ``job.out``.

    No file is overwritten: ``job.out`` must hold no results of an earlier run. The results have the same bits on every
    engine, for the same ``batch_size`` and number of threads.

    Examples
    --------
    >>> import tempfile, pathlib, numpy, genprior as gp
    >>> from genprior import samples
    >>> from genprior.jobs.defend import defend_files
    >>> from genprior.jobs.settings import Defence
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> numpy.save(folder / "digits.npy", samples.digits(2)[0].numpy())
    >>> job = Defence(inputs=(str(folder / "digits.npy"),), out=folder / "out", steps=5, restarts=1)
    >>> record = defend_files(job)  # with workers: engine=gp.engines.Local(2)
    >>> record.run["engine"], len(record.items)
    ('this process', 2)
    """
    engine = Serial() if engine is None else engine
    on_progress(0, 1, "opening")
    networks = Networks.of(job, job.device if isinstance(engine, Serial) else "cpu")
    generator = networks.projection.generator
    items = open_items(job.inputs, _expected(generator, job.resize), skip=job.skip, without=job.out)
    labels = None if job.labels is None else _labels(job.labels, len(items))
    _refuse_losses(job.out)
    shipment = Shipment.of(job.source, classifier=job.classifier, whole=not engine.here)
    work = DefenceWork(job, items, shipment, networks.digests, here=networks)
    plan = Plan(np.zeros(-(-len(items) // job.batch_size), bool), elapsed=0.0)
    course = Course(job, items, plan, engine, on_progress)
    found: dict[int, SolvedBatch] = {}
    with _work(job.out) as (folder, notes):
        outputs = Outputs(items, job.out / SIGNALS, folder, generator.signal_shape)
        outputs.begin(job.batch_size)
        for number, batch in course.solved(work, generator, on_begin):
            outputs.write(batch.first, batch.signals)
            outputs.finish(number)
            found[number] = replace(batch, signals=())
    remarks = (*networks.notes, *notes, *course.crew.notes, *items.notes, *items.changes())
    used = threads_of_all(batch.run for batch in found.values())
    run = course.facts() | used | {"items_per_second": course.per_second}
    record = Record.of([found[number] for number in sorted(found)], labels, run, remarks)
    write_text(job.out / RESULT, json.dumps(document(record, job), indent=2, allow_nan=False) + "\n")
    on_progress(len(items), len(items), "done")
    return record


def document(record: Record, job: Defence) -> dict[str, Any]:
    """``result.json``."""
    return {
        **record.numbers,
        "run": record.run,
        "norm": job.norm,
        "steps": job.steps,
        "restarts": job.restarts,
        "seed": job.seed,
        "notes": list(record.notes),
        "results": record.items,
        "unreadable_items": record.unreadable,
    }


def _known(item: dict[str, Any]) -> dict[str, Any]:
    """The entry of an item that could be read; all have the same names."""
    if item["status"] != POISONED:
        return item
    return {name: value for name, value in item.items() if name != "advice"} | _UNKNOWN | {"problem": item["advice"]}


def _expected(generator: Generator, resize: bool) -> Expected:
    bounds = generator.signal_range
    return Expected(generator.signal_shape, unit_range=bounds == (0.0, 1.0), resize=resize, bounds=bounds)


def _refuse_losses(out: Path) -> None:
    """Raise if a file would be overwritten or mixed with those of another run."""
    for path in (out / SIGNALS, out / RESULT, out / REPORT):
        if path.exists() and not (path.is_dir() and not any(path.iterdir())):
            raise ValueError(
                f"{path} exists already, from an earlier run or another source: give another `out`, or remove it"
            )
    if begun(out):
        raise ValueError(f"{out} holds a job of genprior recover or denoise: give another `out`")


@contextmanager
def _work(out: Path) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """A hidden, locked, empty work folder, and notes for the user. It is removed at the end."""
    make_folder(out)
    folder = out / FOLDER
    with alone(out) as notes:
        folder.mkdir(exist_ok=True)
        _clear(folder)
        try:
            yield folder, notes
        finally:
            _clear(folder)
            (folder / LOCK).unlink(missing_ok=True)
            with suppress(OSError):  # it holds files of another program
                folder.rmdir()


def _clear(work: Path) -> None:
    remove_unfinished(work)
    for path in work.glob("rows-*.npy"):
        path.unlink(missing_ok=True)


def _labels(path: Path, count: int) -> list[int]:
    found: list[int] = read_array(path, kinds="ui").reshape(-1).tolist()
    if len(found) != count:
        raise ValueError(f"{path} holds {len(found)} labels, but there are {count} images: give one label per image")
    return found
