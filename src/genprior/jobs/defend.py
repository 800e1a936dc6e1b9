"""The defence of files: read a batch, project, classify before and after, write; then a record and a report."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from genprior._files import make_folder, remove_unfinished, write_text
from genprior.defence.projection import Defended, Projection, defend
from genprior.files import Items, Outputs, open_items
from genprior.files.expected import Expected
from genprior.files.single import read_array
from genprior.generators import Generator
from genprior.jobs.ledger import FOLDER, LOCK, alone, begun
from genprior.jobs.records import finite
from genprior.jobs.resume import REPORT, RESULT
from genprior.status import Status

Progress = Callable[[float, int, str], object]
SIGNALS = "defended"
"""The folder of the projections, in the output folder."""
_SHOWN = 24


@dataclass
class Record:
    """Results of all items."""

    items: list[dict[str, Any]] = field(default_factory=list)
    unreadable: list[dict[str, str]] = field(default_factory=list)
    given: list[Tensor] = field(default_factory=list)
    """The first images, for the report."""
    projected: list[Tensor] = field(default_factory=list)
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """Number of items, readable or not."""
        return len(self.items) + len(self.unreadable)

    @property
    def numbers(self) -> dict[str, Any]:
        """Counts and, with labels, accuracies."""
        labelled = [item for item in self.items if "label" in item]
        found: dict[str, Any] = {
            "items": len(self.items),
            "unreadable": len(self.unreadable),
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
    classifier: nn.Module,
    projection: Projection,
    inputs: tuple[str, ...],
    out: Path,
    *,
    labels: Path | None = None,
    resize: bool = False,
    skip: bool = False,
    on_progress: Progress = lambda done, total, note: None,
) -> Record:
    """Defend every image of files and folders; ``out/defended`` gets the projections, ``out/result.json`` the record.

    No file is overwritten: ``out`` must hold no results of an earlier run.
    """
    generator = projection.generator
    items = open_items(inputs, _expected(generator, resize), skip=skip, without=out)
    known = None if labels is None else _labels(labels, len(items))
    _refuse_losses(out)
    with _work(out) as (work, notes):
        outputs = Outputs(items, out / SIGNALS, work, generator.signal_shape)
        outputs.begin(projection.batch_size)
        record = Record(notes=(*notes, *items.notes))
        for start in range(0, len(items), projection.batch_size):
            on_progress(start, len(items), "projecting")
            stop = min(len(items), start + projection.batch_size)
            _batch(classifier, projection, items, outputs, record, start, stop, known)
        record.notes += items.changes()
    text = json.dumps(document(record, projection), indent=2, allow_nan=False)
    write_text(out / RESULT, text + "\n")
    on_progress(len(items), len(items), "done")
    return record


def document(record: Record, projection: Projection) -> dict[str, Any]:
    """``result.json``."""
    return {
        **record.numbers,
        "norm": projection.norm,
        "steps": projection.steps,
        "restarts": projection.restarts,
        "seed": projection.seed,
        "threads": torch.get_num_threads(),
        "notes": list(record.notes),
        "results": record.items,
        "unreadable_items": record.unreadable,
    }


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


def _batch(
    classifier: nn.Module,
    projection: Projection,
    items: Items,
    outputs: Outputs,
    record: Record,
    start: int,
    stop: int,
    labels: list[int] | None,
) -> None:
    loaded = items.read(start, stop)
    good = [row for row, item in enumerate(loaded) if item.value is not None]
    record.unreadable += [{"name": item.name, "problem": item.problem} for item in loaded if item.value is None]
    signals: list[Tensor | None] = [None] * len(loaded)
    if good:
        images = torch.stack([value for item in loaded if (value := item.value) is not None])
        images = _within(images.to(projection.generator.device, projection.generator.dtype), projection.generator)
        found = defend(classifier, projection, images, numbers=[start + row for row in good])
        if Status.INTERRUPTED in found.result.status:
            raise KeyboardInterrupt
        for place, row in enumerate(good):
            signals[row] = found.pictures[place]
            label = None if labels is None else labels[start + row]
            record.items.append(_entry(loaded[row].name, found, place, label))
        left = _SHOWN - len(record.given)
        record.given += list(images[:left].cpu()) if left > 0 else []
        record.projected += list(found.pictures[:left].cpu()) if left > 0 else []
        record.seconds += found.result.seconds
    outputs.write(start, signals)
    outputs.finish(start // projection.batch_size)


def _within(images: Tensor, generator: Generator) -> Tensor:
    """Clamp rounding errors to the generator's range; items further outside were refused."""
    return images if generator.signal_range is None else images.clamp(*generator.signal_range)


def _entry(name: str, found: Defended, place: int, label: int | None) -> dict[str, Any]:
    """One item in plain values; None for numbers that are not finite."""
    sure = {
        "before": finite(float(found.before_confidence[place])),
        "after": finite(float(found.after_confidence[place])),
    }
    entry = {
        "name": name,
        "status": found.result.status[place].name,
        "before": None if sure["before"] is None else int(found.before[place]),
        "before_confidence": sure["before"],
        "after": None if sure["after"] is None else int(found.after[place]),
        "after_confidence": sure["after"],
        "changed": None if None in sure.values() else bool(found.changed[place]),
        "distance": finite(float(found.distance[place])),
    }
    return entry if label is None else entry | {"label": label}
