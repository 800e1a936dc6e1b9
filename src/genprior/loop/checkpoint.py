"""Checkpoints: the whole state of a run in one safetensors file, written atomically, refused for another run."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from genprior import _validate
from genprior._files import temporary_name
from genprior._journal import Damaged, Journal, OtherFormat, OtherJob, Record

_NAME = "genprior-checkpoint-"
_FORMAT = f"{_NAME}8"


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
