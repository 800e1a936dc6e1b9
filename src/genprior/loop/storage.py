"""The parts of a run in its checkpoint: writing and reading them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from genprior import _tree
from genprior._fingerprint import fingerprint
from genprior.history import Panel
from genprior.loop.checkpoint import Checkpoint
from genprior.loop.rows import Outcome

Stored = tuple[dict[str, Tensor], dict[str, Any]]


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
