"""Outcomes of finished problems on disk, so that a race that was cut short continues."""

from __future__ import annotations

import warnings
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import genprior
from genprior._files import add_folder
from genprior._journal import Journal
from genprior.lab.race.outcome import ProblemOutcome, Standing
from genprior.lab.reproduce.code import code_of

_FORMAT = "genprior-race-1"
_COMPUTING = (
    "genprior.lab.race.tuning",
    "genprior.lab.race.networks",
    "genprior.lab.race.problems",
    "genprior.loop.solve",
)
_CURVES = "curves"


class Kept:
    """A folder with a record for every finished problem. One of other code or other options is set aside, not used."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        add_folder(folder)

    def read(self, key: str, identity: dict[str, object]) -> ProblemOutcome | None:
        """The outcome of a problem, if it is there."""
        notes: list[str] = []
        record = _journal(identity).read_or_set_aside(self._path(key), notes)
        for note in notes:
            warnings.warn(note, stacklevel=2)
        if record is None:
            return None
        facts: dict[str, Any] = dict(record.meta)
        names = facts.pop(_CURVES)
        tensors = record.tensors
        curves = {name: (tensors[f"{n}.seconds"], tensors[f"{n}.measure"]) for n, name in enumerate(names)}
        standings = tuple(Standing(**_with_tuples(standing)) for standing in facts.pop("standings"))
        return ProblemOutcome(**_with_tuples(facts), standings=standings, curves=curves)

    def write(self, outcome: ProblemOutcome, identity: dict[str, object]) -> None:
        """Store an outcome."""
        facts = {one.name: getattr(outcome, one.name) for one in fields(outcome) if one.name != _CURVES}
        facts["standings"] = [asdict(standing) for standing in outcome.standings]
        facts[_CURVES] = list(outcome.curves)
        tensors: dict[str, Tensor] = {}
        for number, (seconds, measure) in enumerate(outcome.curves.values()):
            tensors |= {f"{number}.seconds": seconds, f"{number}.measure": measure}
        _journal(identity).write(self._path(outcome.key), facts, tensors)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.safetensors"


def _with_tuples(facts: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists alone."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()}


def _journal(identity: dict[str, object]) -> Journal:
    return Journal.of(_FORMAT, {**identity, "code": _code(), "torch": torch.__version__})


@cache
def _code() -> str:
    """Digest of all code that computes; code that only shows may change."""
    return code_of(_COMPUTING, Path(genprior.__file__).parents[1])
