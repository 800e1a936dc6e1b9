"""An experiment is a list of parts; each part's result is a file. Killed and started again, nothing finished is redone."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from genprior._files import add_folder, write_atomically, write_text

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Found:
    """What a part found. All that a clock decides is in ``times`` and in the array ``seconds``; the rest repeats exactly."""

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
    """About how many seconds on two quiet cores: for the time that is left, and for nothing else."""
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Progress:
    """Where a run of parts stands."""

    part: str
    number: int
    count: int
    share: float
    """Of the whole work, finished."""
    seconds_left: float | None
    """None before anything was measured."""


class Store:
    """The folder of a run: ``settings.json``, and two files for every finished part in ``parts``."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        add_folder(folder / "parts")
        self._agree(json.loads(json.dumps(settings)))

    def _agree(self, settings: dict[str, Any]) -> None:
        path = self.folder / "settings.json"
        if not path.is_file():
            write_text(path, json.dumps(settings, indent=2) + "\n")
            return
        before = json.loads(path.read_text(encoding="utf-8"))
        if before == settings:
            return
        other = sorted(name for name in before.keys() | settings.keys() if before.get(name) != settings.get(name))
        told = ", ".join(f"{name} {_short(before.get(name))} there, {_short(settings.get(name))} now" for name in other)
        raise ValueError(
            f"{self.folder} holds a run with other settings ({told}): give another --out, or the same settings"
        )

    def read(self, name: str) -> Found | None:
        """A finished part, or None."""
        text, arrays = self._files(name)
        if not text.is_file():
            return None
        document = json.loads(text.read_text(encoding="utf-8"))
        with np.load(arrays, allow_pickle=False) as file:
            return Found(document["numbers"], {key: file[key] for key in file.files}, document["times"])

    def write(self, name: str, found: Found) -> Found:
        """Keep a part; the JSON file comes last, so that a part with it is whole. Gives what :meth:`read` would."""
        text, arrays = self._files(name)
        write_atomically(arrays, lambda path: _save(path, found.arrays))
        write_text(text, json.dumps({"numbers": found.numbers, "times": found.times}, indent=1) + "\n")
        again = self.read(name)
        assert again is not None
        return again

    def _files(self, name: str) -> tuple[Path, Path]:
        return self.folder / "parts" / f"{name}.json", self.folder / "parts" / f"{name}.npz"


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


def _save(path: Path, arrays: Mapping[str, Array]) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, **dict(arrays))  # type: ignore[arg-type]  # the stubs take one name for a flag


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
