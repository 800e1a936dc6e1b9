"""The record of every item: plain numbers for ``result.json``, a few images for the report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from genprior import _batch
from genprior.assessment import Facts, ResidualSummary, Words, assess
from genprior.files import Loaded
from genprior.jobs.resume import SIGNALS
from genprior.operators import Operator
from genprior.report.sheets import stretched
from genprior.result import Result
from genprior.status import Status

UNREADABLE = "UNREADABLE"


@dataclass(frozen=True)
class Solved:
    """Results of some items of a batch."""

    result: Result
    y: Tensor
    truth: Tensor | None
    residual: Tensor
    noise: Tensor | None = None
    """The expected residual ``|noise| / |y|`` at the known noise level."""


class Collected:
    """Results of one batch, in the order of its items."""

    def __init__(self, first: int, loaded: Sequence[Loaded], most_images: int) -> None:
        self._loaded, self._most_images = loaded, most_images
        self.signals: list[Tensor | None] = [None] * len(loaded)
        self.facts: dict[str, Any] = {"first": first, "seconds": 0.0, "forwards": 0, "backwards": 0, "plan": ""}
        self.images: dict[str, list[Tensor]] = {}
        self._records = [unread(item) for item in loaded]

    @property
    def shown(self) -> int:
        """Number of images kept for the report."""
        return len(self.images.get("after", []))

    def add(self, rows: Sequence[int], solved: Solved, operator: Operator) -> None:
        """Add the items at these positions."""
        for place, row in enumerate(rows):
            self.signals[row] = solved.result.signal[place]
            self._records[row] = record_of(self._loaded[row].name, solved, place)
        self.facts["plan"] = self.facts["plan"] or solved.result.plan
        for name in ("seconds", "forwards", "backwards"):
            self.facts[name] += getattr(solved.result, name)
        for name, images in shown_of(solved, operator, self._most_images - self.shown).items():
            self.images.setdefault(name, []).extend(images)

    def record(self, outputs: Sequence[str | None]) -> dict[str, Any]:
        """In plain values, with the names of the files written."""
        for record, output in zip(self._records, outputs, strict=True):
            record["output"] = output if output is None else f"{SIGNALS}/{output}"
        return {**self.facts, "items": self._records, "shown": self.shown}


def unread(item: Loaded) -> dict[str, Any]:
    """An item without a result."""
    return {"name": item.name, "status": UNREADABLE, "advice": item.problem}


def record_of(name: str, solved: Solved, place: int) -> dict[str, Any]:
    """One item in plain numbers."""
    result = solved.result
    record: dict[str, Any] = {
        "name": name,
        "status": result.status[place].name,
        "residual": finite(float(solved.residual[place])),
        "objective": finite(float(result.objective[place])),
        "gap": finite(float(result.primal_residual[place])),
        "stationarity": finite(float(result.stationarity[place])),
        "steps": int(result.steps[place]),
        "restart": int(result.restart[place]),
        "rollbacks": int(result.rollbacks[place]),
        "improving": bool(result.improving[place]),
        "reach": finite(float(result.reach[place])),
        "bound": bool(result.bound[place]),
        "penalty": float(result.penalty[place]),
        "representable": not bool(result.unfit[place]),
        "noise": None if solved.noise is None else finite(float(solved.noise[place])),
        "restarts": result.restarts,
    }
    if solved.truth is not None:
        difference = result.signal[place] - solved.truth[place]
        size = float(_batch.norm(solved.truth[place][None]))
        record["error"] = finite(float(_batch.norm(difference[None])) / size) if size else None
        mean = float(difference.square().mean())
        record["psnr"] = -10 * math.log10(mean) if 0 < mean < math.inf else None
    return record


def facts_of(record: dict[str, Any]) -> Facts:
    """The facts for the assessment of an item, from its record."""
    objective = record["objective"]
    return Facts(
        status=Status[record["status"]],
        steps=record["steps"],
        objective=math.inf if objective is None else objective,
        primal_residual=record["gap"] or 0.0,
        rollbacks=record["rollbacks"],
        restarts=record["restarts"],
        residual=record["residual"],
        noise=record["noise"],
        improving=record["improving"],
        latent=record["reach"] or 0.0,
        bound=record["bound"],
        penalty=record["penalty"],
        representable=record["representable"],
    )


def assessed(record: dict[str, Any], company: ResidualSummary, words: Words) -> dict[str, Any]:
    """The record with its assessment, relative to all items of the job."""
    if record["status"] == UNREADABLE:
        return {**record, "advice": words.translate(record["advice"]), "attention": UNREADABLE.lower()}
    found = assess(facts_of(record), company, words)
    return {**record, "attention": None if found.concern is None else str(found.concern), "advice": found.advice}


def finite(value: float) -> float | None:
    """None for NaN and infinity, which JSON does not have."""
    return value if math.isfinite(value) else None


def shown_of(solved: Solved, operator: Operator, most_images: int) -> dict[str, list[Tensor]]:
    """A few images: before, after, and the truth if it is known."""
    after = solved.result.signal[: max(0, most_images)]
    if len(after) == 0 or after.ndim != 4 or after.shape[1] not in {1, 3}:
        return {}
    y = solved.y[: len(after)]
    parts = {"after": after}
    if y.ndim == 4 and not y.is_complex() and y.shape[1] == after.shape[1]:
        parts["before"] = torch.nn.functional.interpolate(y, size=after.shape[2:], mode="nearest")
    else:
        parts["back"] = stretched(operator.adjoint(y))
    if solved.truth is not None:
        parts["truth"] = solved.truth[: len(after)]
    return {name: list(rows.detach().cpu().float()) for name, rows in parts.items()}
