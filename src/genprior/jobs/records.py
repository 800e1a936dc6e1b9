"""The record of every item: plain numbers for ``result.json``, a few images for the report."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from genprior import _batch
from genprior._journal import Record
from genprior.assessment import Facts, ResidualSummary, Words, assess
from genprior.files import Loaded
from genprior.jobs.comparison import Compared
from genprior.jobs.forward import ForwardModel
from genprior.jobs.resume import SIGNALS
from genprior.operators import Operator
from genprior.report.sheets import stretched
from genprior.report.views import as_images
from genprior.result import Result
from genprior.status import Status

UNREADABLE, POISONED = "UNREADABLE", "POISONED"
WITHOUT_RESULT = (UNREADABLE, POISONED)
"""Statuses of items that were not solved."""


@dataclass(frozen=True)
class Solved:
    """Results of some items of a batch."""

    result: Result
    y: Tensor
    truth: Tensor | None
    residual: Tensor
    noise: Tensor | None = None
    """The expected residual ``|noise| / |y|`` at the known noise level."""
    estimate: Tensor | None = None
    """The noise level as estimated from the residual, where it is not known; NaN for items with too few measurements."""
    baselines: dict[str, Compared] = field(default_factory=dict)
    """The answers of classical methods."""


@dataclass(frozen=True, eq=False)
class SolvedBatch:
    """What solving a batch gives, in plain values and tensors on the CPU, so that a process can send it to another.

    All but ``run`` is the same, bit by bit, wherever and however often the batch is solved.
    """

    first: int
    """Number of its first item in the job."""
    items: tuple[dict[str, Any], ...]
    """The record of each item, without the name of its output file."""
    signals: tuple[Tensor | None, ...]
    """None for an item without a result."""
    shown: tuple[int, ...] = ()
    """The items whose images are kept for the report."""
    images: dict[str, Tensor] = field(default_factory=dict)
    """These images: one row for each item that is shown."""
    plan: str = ""
    run: dict[str, Any] = field(default_factory=lambda: {"seconds": 0.0, "forwards": 0, "backwards": 0})
    """What it took, which may differ between two runs: seconds; passes, because each process estimates the generator's
    preconditioner once; and threads, on which the last bits do depend."""

    @classmethod
    def of(
        cls,
        first: int,
        loaded: Sequence[Loaded],
        solved: Sequence[tuple[Sequence[int], Solved]],
        operator: Operator,
        show: Container[int],
    ) -> SolvedBatch:
        """From the results of groups of items, each with the items' positions in the batch; ``show`` are numbers of items."""
        items = [without_result(item.name, UNREADABLE, item.problem) for item in loaded]
        signals: list[Tensor | None] = [None] * len(loaded)
        images: dict[int, dict[str, Tensor]] = {}
        for rows, group in solved:
            found = group.result.signal.detach().cpu()
            for place, row in enumerate(rows):
                items[row] = record_of(loaded[row].name, group, place)
                signals[row] = found[place].clone()  # a view would be sent with all rows
            places = [place for place, row in enumerate(rows) if first + row in show]
            images |= zip([first + rows[place] for place in places], images_of(group, operator, places), strict=False)
        shown = tuple(sorted(images))
        results = [group.result for _, group in solved]
        return cls(
            first,
            tuple(items),
            tuple(signals),
            shown,
            {name: torch.stack([images[item][name] for item in shown]) for name in images[shown[0]]} if shown else {},
            next((result.plan for result in results if result.plan), ""),
            {name: sum(getattr(result, name) for result in results) for name in ("seconds", "forwards", "backwards")},
        )

    @classmethod
    def poisoned(cls, first: int, names: Sequence[str], reason: str) -> SolvedBatch:
        """A batch that is set aside because it ended the process that solved it, again and again."""
        items = tuple(without_result(name, POISONED, reason) for name in names)
        return cls(first, items, (None,) * len(items))

    def with_run(self, run: dict[str, Any]) -> SolvedBatch:
        """The same, with other facts about the run."""
        return replace(self, run=run)

    def stored(self) -> Record:
        """The whole batch, to be read by :meth:`restored`."""
        rows = [signal for signal in self.signals if signal is not None]
        meta = {
            "first": self.first,
            "items": list(self.items),
            "shown": list(self.shown),
            "plan": self.plan,
            "run": self.run,
            "solved": [signal is not None for signal in self.signals],
        }
        tensors = {f"image {name}": images for name, images in self.images.items()}
        return Record(meta, tensors | ({"signals": torch.stack(rows)} if rows else {}))

    @classmethod
    def restored(cls, record: Record) -> SolvedBatch:
        """The batch in a record."""
        meta, rows = record.meta, iter(record.tensors.get("signals", ()))
        start = "image "
        return cls(
            meta["first"],
            tuple(meta["items"]),
            tuple(next(rows) if solved else None for solved in meta["solved"]),
            tuple(meta["shown"]),
            {name.removeprefix(start): images for name, images in record.tensors.items() if name.startswith(start)},
            meta["plan"],
            meta["run"],
        )

    def to_record(self, outputs: Sequence[str | None]) -> dict[str, Any]:
        """In plain values, with the names of the files written; the images are stored beside it."""
        return {
            "first": self.first,
            "plan": self.plan,
            "shown": list(self.shown),
            "items": [
                {**item, "output": None if output is None else f"{SIGNALS}/{output}"}
                for item, output in zip(self.items, outputs, strict=True)
            ],
            "run": self.run,
        }


def sampled(total: int, most: int) -> list[int]:
    """The items whose images are shown: all, or ``most`` of them, evenly spread."""
    count = min(total, most)
    return [place * total // count for place in range(count)]


def without_result(name: str, status: str, reason: str) -> dict[str, Any]:
    """The record of an item that has no result, with the reason."""
    return {"name": name, "status": status, "advice": reason}


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
        "restarts": int(result.starts[place]),
    }
    if record["noise"] and record["residual"] is not None:
        record["misfit"] = (record["residual"] / record["noise"]) ** 2
    if solved.estimate is not None:
        record["noise_estimate"] = finite(float(solved.estimate[place]))
    if result.deviation is not None:
        size = float(_batch.norm(result.signal[place][None]))
        deviation = float(_batch.norm(result.deviation[place][None]))
        record["deviation"] = finite(deviation / size) if size else None
        chosen = result.deviation_weight
        record["deviation_weight"] = None if chosen is None else finite(float(chosen[place]))
    truth = None if solved.truth is None else solved.truth[place]
    if truth is not None:
        record |= accuracy(result.signal[place], truth)
    if solved.baselines:
        record["baselines"] = {
            name: {"residual": finite(float(one.residual[place])), "weight": float(one.weight[place])}
            | ({} if truth is None else accuracy(one.signal[place], truth))
            for name, one in solved.baselines.items()
        }
    return record


def accuracy(signal: Tensor, truth: Tensor) -> dict[str, float | None]:
    """Relative error, and PSNR for values in [0, 1]; None where they are not finite."""
    difference, size = signal - truth, float(_batch.norm(truth[None]))
    mean = float(difference.square().mean())
    return {
        "error": finite(float(_batch.norm(difference[None])) / size) if size else None,
        "psnr": -10 * math.log10(mean) if 0 < mean < math.inf else None,
    }


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
    if record["status"] in WITHOUT_RESULT:
        return {**record, "advice": words.translate(record["advice"]), "attention": record["status"].lower()}
    found = assess(facts_of(record), company, words)
    return {**record, "attention": None if found.concern is None else str(found.concern), "advice": found.advice}


def finite(value: float) -> float | None:
    """None for NaN and infinity, which JSON does not have."""
    return value if math.isfinite(value) else None


def images_of(solved: Solved, operator: Operator, places: Sequence[int]) -> list[dict[str, Tensor]]:
    """What the report shows of some items: before, after, the answers of classical methods, and the truth if it is known."""
    if not places or solved.result.signal.ndim > 5:
        return []
    after, y = solved.result.signal[places], solved.y[places]
    parts = {"after": as_images(after)}
    if solved.result.deviation is not None:
        parts["in_range"] = as_images(solved.result.in_range[places])
        parts["deviation"] = stretched(as_images(solved.result.deviation[places]))
    if after.ndim == y.ndim == 4 and not y.is_complex() and y.shape[1] == after.shape[1] and after.shape[1] in {1, 3}:
        parts["before"] = torch.nn.functional.interpolate(y, size=after.shape[2:], mode="nearest")
    elif parts["after"].ndim != 4 and y.shape == after.shape and not y.is_complex():
        parts["before"] = as_images(y)
    elif not isinstance(operator, ForwardModel):
        back = as_images(operator.adjoint(y))
        parts["back"] = stretched(back) if parts["after"].ndim == 4 else back
    parts |= {name: as_images(one.signal[places]) for name, one in solved.baselines.items()}
    if solved.truth is not None:
        parts["truth"] = as_images(solved.truth[places])
    plain = {name: rows.detach().cpu().float() for name, rows in parts.items()}
    return [{name: rows[place] for name, rows in plain.items()} for place in range(len(places))]
