"""Checkpoints: the whole state of a run in one safetensors file, written atomically, refused for another run.

:class:`Checkpoint` is the file, :class:`Keeper` what a run keeps there.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from genprior import _tree, _validate
from genprior._files import temporary_name
from genprior._fingerprint import fingerprint
from genprior._journal import Damaged, Journal, OtherFormat, OtherJob, Record
from genprior.history import Panel
from genprior.loop.rows import Outcome

_NAME = "genprior-checkpoint-"
_FORMAT = f"{_NAME}8"

Stored = tuple[dict[str, Tensor], dict[str, Any]]


@dataclass
class Checkpoint:
    """Where and how often a run is stored.

    Parameters
    ----------
    path
        a file; if it exists and belongs to the same run, the run continues from there.
    seconds
        time between two writings.
    steps
        steps between two writings instead.
    """

    path: str | Path
    seconds: float = 60.0
    steps: int | None = None
    _last: float = field(default_factory=time.monotonic, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | Path):
            raise TypeError(f"checkpoint must be a path or a Checkpoint, got {self.path!r}")
        self.path = Path(self.path)
        _validate.number("seconds", self.seconds, least=0)
        if self.steps is not None:
            _validate.whole("steps", self.steps)
        if self.path.is_dir():
            raise ValueError(f"checkpoint must be a file, but {self.path} is a folder: add a file name")
        if not self.path.parent.is_dir():
            raise ValueError(f"checkpoint cannot be written: the folder {self.path.parent} does not exist")

    def due(self, step: int) -> bool:
        """Whether it is time to write."""
        if self.steps is not None:
            return step > 0 and step % self.steps == 0
        return time.monotonic() - self._last >= self.seconds

    def write(self, run: str, meta: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Store the run with this fingerprint, or leave the old file as it is."""
        Journal(_FORMAT, run).write(Path(self.path), meta, tensors)
        self._last = time.monotonic()

    def try_out(self) -> None:
        """Refuse a path that cannot be written before the run starts."""
        trial = temporary_name(Path(self.path))
        try:
            trial.touch()
            trial.unlink()
        except (OSError, ValueError) as problem:
            raise ValueError(f"checkpoint {self.path} cannot be written ({problem}): give another path") from problem

    def read(self, run: str) -> Record | None:
        """What was stored for the run with this fingerprint, or None if there is no file."""
        try:
            return Journal(_FORMAT, run).read(Path(self.path))
        except (Damaged, OSError) as problem:
            raise ValueError(f"checkpoint {self.path} cannot be read ({problem}): delete it to start anew") from problem
        except OtherFormat as problem:
            if problem.found.startswith(_NAME):
                reason = "was written by another version of genprior: finish the run with that one, or delete the file"
            else:
                reason = "is not a genprior checkpoint: give another path, or delete the file"
        except OtherJob:
            reason = (
                "belongs to another run (data, settings, seed, start or options differ): repeat that call exactly, give "
                "another path, or delete the file"
            )
        raise ValueError(f"checkpoint {self.path} {reason}")


@dataclass(frozen=True)
class Finished:
    """A finished batch: one entry per item."""

    outcome: Outcome
    restart: Tensor
    panel: Panel
    forwards: int
    backwards: int
    seconds: float


class Storable(Protocol):
    """A running batch."""

    def stored(self) -> Stored:
        """Its tensors and its numbers."""


class Keeper:
    """Writes a run to its checkpoint and reads it back; does nothing without a checkpoint."""

    def __init__(self, checkpoint: str | Path | Checkpoint | None, *identity: object) -> None:
        self._file = checkpoint if isinstance(checkpoint, Checkpoint | None) else Checkpoint(checkpoint)
        self._run = "" if self._file is None else fingerprint(*identity)
        self._read = None if self._file is None else self._file.read(self._run)
        if self._file is not None:
            self._file.try_out()

    def due(self, step: int) -> bool:
        """Whether it is time to write."""
        return self._file is not None and self._file.due(step)

    def write(self, done: list[Finished], running: Storable | None) -> None:
        """Store the finished batches and the running one; where that fails, warn: the run itself continues."""
        if self._file is None:
            return
        try:
            self._write(self._file, done, running)
        except OSError as problem:
            warnings.warn(f"the checkpoint could not be written ({problem}); the old file is unchanged", stacklevel=2)

    def _write(self, file: Checkpoint, done: list[Finished], running: Storable | None) -> None:
        tensors: dict[str, Tensor] = {}
        for number, part in enumerate(done):
            tensors |= _tree.pack(part.outcome, f"done.{number}.outcome")
            tensors |= _tree.pack(part.panel, f"done.{number}.panel")
            tensors[f"done.{number}.restart"] = part.restart
        counts = [[part.forwards, part.backwards, part.seconds] for part in done]
        meta: dict[str, Any] = {"done": counts, "running": None}
        if running is not None:
            part_tensors, meta["running"] = running.stored()
            tensors |= {f"running.{name}": tensor for name, tensor in part_tensors.items()}
        file.write(self._run, meta, tensors)

    def finished(self, place: Tensor) -> list[Finished]:
        """The finished batches, on the device of ``place``."""
        if self._read is None:
            return []
        tensors, counts = self._read.tensors, self._read.meta["done"]
        return [_finished(tensors, number, numbers, place) for number, numbers in enumerate(counts)]

    def running(self) -> Stored | None:
        """The batch that was running; returned once."""
        if self._read is None or self._read.meta["running"] is None:
            return None
        tensors, meta = self._read.tensors, self._read.meta
        self._read = None
        start = "running."
        return {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}, meta["running"]


def _finished(tensors: dict[str, Tensor], number: int, counts: list[Any], place: Tensor) -> Finished:
    def columns(name: str, count: int) -> list[Tensor]:
        return [tensors[f"done.{number}.{name}.{i}"] for i in range(count)]

    outcome = Outcome(*(column.to(place.device) for column in columns("outcome", len(fields(Outcome)))))
    restart = tensors[f"done.{number}.restart"].to(place.device)
    return Finished(outcome, restart, Panel(*columns("panel", len(fields(Panel)))), *counts)
