"""An experiment is a list of parts; each part's result is a file. A restarted run repeats no finished part."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from genprior._files import add_folder
from genprior._journal import Journal, agree, differences

Array = np.ndarray[Any, Any]
_FORMAT = "genprior-parts-1"


@dataclass(frozen=True)
class Found:
    """The result of a part. Timings are in ``times`` and in the array ``seconds``; the rest is reproducible."""

    numbers: dict[str, Any]
    arrays: dict[str, Array] = field(default_factory=dict)
    times: dict[str, Any] = field(default_factory=dict)


Results = Mapping[str, Found]


@dataclass(frozen=True)
class Part:
    """A piece of an experiment: a pure function of the settings and of the parts that it needs."""

    name: str
    run: Callable[[Results], Found]
    cost: float
    """Estimated seconds on two idle cores, for the time left, and for workers what to begin with and when a part hangs."""
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Progress:
    """The progress of a run of parts."""

    part: str
    number: int
    count: int
    share: float
    """Finished share of the whole work."""
    seconds_left: float | None
    """None before anything was measured."""


class Store:
    """The folder of a run: ``settings.json``, and a file for every finished part in ``parts``."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        add_folder(folder / "parts")
        if changed := agree(folder / "settings.json", dict(settings)):
            raise ValueError(
                f"{folder} holds a run with other settings ({differences(changed)}): give another `out`, or the same settings"
            )
        self._journal = Journal.of(_FORMAT, dict(settings))

    def read(self, name: str) -> Found | None:
        """A finished part, or None; a damaged one is moved away and run again."""
        notes: list[str] = []
        record = self._journal.read_or_set_aside(self._path(name), notes)
        for note in notes:
            warnings.warn(note, stacklevel=2)
        if record is None:
            return None
        arrays = {key: tensor.numpy() for key, tensor in record.tensors.items()}
        return Found(record.meta["numbers"], arrays, record.meta["times"])

    def write(self, name: str, found: Found) -> Found:
        """Store a part. Returns the same as :meth:`read`."""
        tensors = {key: torch.from_numpy(array.copy()) for key, array in found.arrays.items()}
        self._journal.write(self._path(name), {"numbers": found.numbers, "times": found.times}, tensors)
        again = self.read(name)
        assert again is not None
        return again

    def _path(self, name: str) -> Path:
        return self.folder / "parts" / f"{name}.safetensors"


def recorded_threads(folder: Path) -> int | None:
    """The number of threads of the run in a folder; None without a run, or with an unreadable record of one."""
    try:
        found = json.loads((folder / "settings.json").read_bytes())
        return int(found["threads"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def run_parts(
    parts: Sequence[Part], store: Store, show: Callable[[Progress], object] = lambda progress: None
) -> dict[str, Found]:
    """All parts in order; those that are in the store are read, not run."""
    results: dict[str, Found] = {}
    costs = {part.name: part.cost for part in parts}
    waiting = [part for part in parts if _kept(results, store, part.name) is None]
    spent = fresh = 0.0
    for number, part in enumerate(waiting):
        left = sum(costs[other.name] for other in waiting[number:])
        rate = spent / fresh if fresh else None
        done = len(parts) - len(waiting) + number
        share = 1 - left / max(sum(costs.values()), 1e-9)
        show(Progress(part.name, done + 1, len(parts), share, None if rate is None else rate * left))
        start = time.perf_counter()
        found = part.run({name: results[name] for name in part.needs})
        seconds = time.perf_counter() - start
        results[part.name] = store.write(
            part.name, Found(found.numbers, found.arrays, found.times | {"part_seconds": round(seconds, 3)})
        )
        spent, fresh = spent + seconds, fresh + part.cost
    return {part.name: results[part.name] for part in parts}


def unique(parts: Iterable[Part]) -> list[Part]:
    """Each part once: experiments share some."""
    return list({part.name: part for part in parts}.values())


def _kept(results: dict[str, Found], store: Store, name: str) -> Found | None:
    found = store.read(name)
    if found is not None:
        results[name] = found
    return found
