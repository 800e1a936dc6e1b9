"""Checkpoints: the whole state of a run in one safetensors file, written atomically, refused for another run.

:class:`Checkpoint` is the file, :class:`Keeper` what a run keeps there.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from genprior import _validate
from genprior._files import temporary_name
from genprior._fingerprint import fingerprint
from genprior._journal import Damaged, Journal, OtherFormat, OtherJob, Record
from genprior.loop.finished import Finished

_NAME = "genprior-checkpoint-"
_FORMAT = f"{_NAME}10"

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
        self.continues = self._read is not None
        """Whether a run is continued."""
        self.order = None if self._read is None else self._read.tensors.get("order")
        """The order of candidates of a run that chose its starts itself: a resumed run keeps to it."""
        self.guesses = None if self._read is None else self._read.tensors.get("guesses")
        """The guesses among the candidates, where there were any."""

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
        starts = {"order": self.order, "guesses": self.guesses}
        tensors: dict[str, Tensor] = {name: value for name, value in starts.items() if value is not None}
        meta: dict[str, Any] = {"done": [], "running": None}
        for number, part in enumerate(done):
            packed, counts = part.packed()
            tensors |= {f"done.{number}.{name}": tensor for name, tensor in packed.items()}
            meta["done"].append(counts)
        if running is not None:
            part_tensors, meta["running"] = running.stored()
            tensors |= {f"running.{name}": tensor for name, tensor in part_tensors.items()}
        file.write(self._run, meta, tensors)

    def finished(self, device: torch.device) -> list[Finished]:
        """The finished batches, on this device."""
        if self._read is None:
            return []
        found = []
        for number, counts in enumerate(self._read.meta["done"]):
            start = f"done.{number}."
            part = {name.removeprefix(start): t for name, t in self._read.tensors.items() if name.startswith(start)}
            found.append(Finished.unpacked(part, counts, device))
        return found

    def running(self) -> Stored | None:
        """The batch that was running; returned once."""
        if self._read is None or self._read.meta["running"] is None:
            return None
        tensors, meta = self._read.tensors, self._read.meta
        self._read = None
        start = "running."
        return {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}, meta["running"]
