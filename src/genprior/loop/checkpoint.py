"""Checkpoints: the whole state of a run in one safetensors file, written atomically, refused for another problem."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from genprior import _validate
from genprior._files import temporary_name, write_atomically

_KIND = "genprior-checkpoint-"
_FORMAT = f"{_KIND}7"


@dataclass
class Checkpoint:
    """Where and how often a run is stored.

    Parameters
    ----------
    path
        a file; if it exists and belongs to the same run, the run goes on from there.
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

    def write(self, tensors: dict[str, Tensor], meta: dict[str, object]) -> None:
        """Store everything, or leave the old file as it is."""
        plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        text = {"format": _FORMAT, "meta": json.dumps(meta)}
        write_atomically(Path(self.path), lambda temporary: temporary.write_bytes(save(plain, metadata=text)))
        self._last = time.monotonic()

    def try_out(self) -> None:
        """Refuse a place that cannot be written now, rather than find out after the first minute."""
        trial = temporary_name(Path(self.path))
        try:
            trial.touch()
            trial.unlink()
        except (OSError, ValueError) as problem:
            raise ValueError(f"checkpoint {self.path} cannot be written ({problem}): give another path") from problem

    def read(self, run: str) -> tuple[dict[str, Tensor], dict[str, object]] | None:
        """What was stored for the run with this fingerprint, or None if there is no file."""
        if not Path(self.path).exists():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                header = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as problem:
            raise ValueError(f"checkpoint {self.path} cannot be read ({problem}): delete it to start anew") from problem
        if header.get("format") != _FORMAT:
            if header.get("format", "").startswith(_KIND):
                raise ValueError(
                    f"checkpoint {self.path} was written by another version of genprior: finish the run with that one, or "
                    "delete the file"
                )
            raise ValueError(
                f"checkpoint {self.path} is not a genprior checkpoint: give another path, or delete the file"
            )
        meta: dict[str, object] = json.loads(header["meta"])
        if meta["run"] != run:
            raise ValueError(
                f"checkpoint {self.path} belongs to another run (data, settings, seed, start or options differ): repeat "
                "that call exactly, give another path, or delete the file"
            )
        return tensors, meta
