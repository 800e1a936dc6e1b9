"""Checkpoints: the whole state of a run in one safetensors file, written atomically, refused for another problem."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from genprior import _validate
from genprior._files import write_atomically
from genprior.operators import Operator

_FORMAT = "genprior-checkpoint-1"


@dataclass
class Checkpoint:
    """Where and how often a run is stored.

    Parameters
    ----------
    path: a file; if it exists and belongs to the same run, the run goes on from there.
    seconds: time between two writings.
    steps: steps between two writings instead.
    """

    path: str | Path
    seconds: float = 60.0
    steps: int | None = None
    _last: float = field(default_factory=time.monotonic, repr=False)

    def __post_init__(self) -> None:
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
        write_atomically(Path(self.path), lambda temporary: save_file(plain, temporary, metadata=text))
        self._last = time.monotonic()

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
            raise ValueError(f"checkpoint {self.path} is not a genprior checkpoint: give another path, or delete the file")
        meta: dict[str, object] = json.loads(header["meta"])
        if meta["run"] != run:
            raise ValueError(
                f"checkpoint {self.path} belongs to another run (problem, generator, data, solver, start, stop rule or "
                "options differ): repeat that call exactly, give another path, or delete the file"
            )
        return tensors, meta


def fingerprint(*parts: object) -> str:
    """A digest of everything that determines a run: data, weights, solver, options."""
    digest = hashlib.sha256()
    _feed(digest, parts, set())
    return digest.hexdigest()


def _feed(digest: hashlib._Hash, value: object, seen: set[int]) -> None:
    if isinstance(value, Tensor):
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        value = torch.view_as_real(value) if value.is_complex() else value
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, Operator):
        digest.update(type(value).__qualname__.encode())
        _feed(digest, _action(value), seen)
    elif isinstance(value, nn.Module):
        digest.update(type(value).__qualname__.encode())
        _feed(digest, value.state_dict(), seen)
    elif isinstance(value, str | int | float | bool | bytes | None | torch.dtype | torch.device):
        digest.update(repr(value).encode())
    elif isinstance(value, list | tuple):
        for part in value:
            _feed(digest, part, seen)
    elif isinstance(value, dict):
        for name, part in value.items():
            digest.update(repr(name).encode())
            _feed(digest, part, seen)
    else:
        _feed_object(digest, value, seen)


def _action(operator: Operator) -> Tensor | None:
    """What the operator does to a fixed signal: tells two operators apart whatever they keep inside."""
    if operator.signal_shape is None:
        return None
    shape = (operator.batch or 1, *operator.signal_shape)
    probe = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        image = operator(probe.to(operator.device or "cpu", operator.dtype or torch.float32))
    return torch.view_as_real(image) if image.is_complex() else image


def _feed_object(digest: hashlib._Hash, value: object, seen: set[int]) -> None:
    digest.update(type(value).__qualname__.encode())
    if isinstance(value, FunctionType):
        digest.update(f"{value.__module__}.{value.__qualname__}".encode())
        digest.update(value.__code__.co_code)
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        _feed(digest, {part.name: getattr(value, part.name) for part in dataclasses.fields(value)}, seen)
    elif hasattr(value, "__dict__"):
        public = {name: part for name, part in vars(value).items() if not name.startswith("_")}
        _feed(digest, {k: v for k, v in public.items() if k not in {"forwards", "backwards"}}, seen)
