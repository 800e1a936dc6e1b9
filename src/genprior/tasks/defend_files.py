"""The defence for a person's files: read a batch, project, classify before and after, write; then a record and a report."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from genprior._files import make_folder, write_text
from genprior.items import Items, Outputs, open_items
from genprior.items.single import read_array
from genprior.items.stream import Expected
from genprior.status import Status
from genprior.tasks.defence import Defended, Projection, defend

Progress = Callable[[float, int, str], object]
_SHOWN = 24


@dataclass
class Record:
    """What became of all items."""

    items: list[dict[str, Any]] = field(default_factory=list)
    unreadable: list[dict[str, str]] = field(default_factory=list)
    given: list[Tensor] = field(default_factory=list)
    """The first pictures, for the report."""
    projected: list[Tensor] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def numbers(self) -> dict[str, Any]:
        """Counts and, with labels, accuracies."""
        labelled = [item for item in self.items if "label" in item]
        found: dict[str, Any] = {
            "items": len(self.items),
            "unreadable": len(self.unreadable),
            "changed": sum(item["changed"] for item in self.items),
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
    """Defend every picture of files and folders; ``out/defended`` gets the projections, ``out/result.json`` the record."""
    generator = projection.generator
    items = open_items(inputs, Expected(generator.signal_shape, resize=resize), skip=skip)
    known = None if labels is None else _labels(labels, len(items))
    folder = out / "defended"
    if folder.is_dir() and any(folder.iterdir()):
        raise ValueError(f"{folder} is there already, with files of an earlier run: give another --out, or remove it")
    make_folder(out)
    folder.mkdir(exist_ok=True)
    work = out / "work"
    work.mkdir(exist_ok=True)
    outputs = Outputs(items, folder, work, generator.signal_shape)
    record = Record()
    for start in range(0, len(items), projection.batch_size):
        on_progress(start, len(items), "projecting")
        stop = min(len(items), start + projection.batch_size)
        _batch(classifier, projection, items, outputs, record, start, stop, known)
    work.rmdir()
    write_text(out / "result.json", json.dumps(document(record, projection), indent=2) + "\n")
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
        "results": record.items,
        "unreadable_items": record.unreadable,
    }


def _labels(path: Path, count: int) -> list[int]:
    found: list[int] = read_array(path, kinds="ui").reshape(-1).tolist()
    if len(found) != count:
        raise ValueError(f"{path} holds {len(found)} labels, but there are {count} pictures: give one for each")
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
        pictures = torch.stack([value for item in loaded if (value := item.value) is not None])
        pictures = pictures.to(projection.generator.device, projection.generator.dtype).clamp(0, 1)
        found = defend(classifier, projection, pictures)
        if Status.INTERRUPTED in found.result.status:
            raise KeyboardInterrupt
        for place, row in enumerate(good):
            signals[row] = found.pictures[place]
            label = None if labels is None else labels[start + row]
            record.items.append(_entry(loaded[row].name, found, place, label))
        room = _SHOWN - len(record.given)
        record.given += list(pictures[:room].cpu()) if room > 0 else []
        record.projected += list(found.pictures[:room].cpu()) if room > 0 else []
        record.seconds += found.result.seconds
    outputs.write(start, signals)
    outputs.finish(stop)


def _entry(name: str, found: Defended, place: int, label: int | None) -> dict[str, Any]:
    def plain(value: Tensor) -> float:
        number = float(value[place])
        return number if math.isfinite(number) else -1.0

    entry = {
        "name": name,
        "before": int(found.before[place]),
        "before_confidence": plain(found.before_confidence),
        "after": int(found.after[place]),
        "after_confidence": plain(found.after_confidence),
        "changed": bool(found.changed[place]),
        "distance": plain(found.distance),
    }
    return entry if label is None else entry | {"label": label}
