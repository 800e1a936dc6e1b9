"""The outcome of a job in numbers, for a summary."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from genprior._quantiles import Quantiles
from genprior.assessment import Concern, ResidualSummary
from genprior.jobs.comparison import nearer
from genprior.jobs.records import WITHOUT_RESULT
from genprior.jobs.threads import threads_of_all
from genprior.status import Status

_WORST = 10
_OF_A_BATCH = ("seconds", "forwards", "backwards")
"""What a batch took; the rest of its ``run`` is of the job, up to it."""


@dataclass
class Accuracy:
    """How well one method did."""

    residuals: Quantiles = field(default_factory=Quantiles)
    errors: Quantiles = field(default_factory=Quantiles)
    distances: Quantiles = field(default_factory=Quantiles)
    """Root mean square differences, from which the PSNR follows: that may be negative, for values beyond [0, 1]."""

    def add(self, item: dict[str, Any]) -> None:
        """Count one item; what is None, or not known, is left out."""
        for name, values in (("residual", self.residuals), ("error", self.errors)):
            if item.get(name) is not None:
                values.add(item[name])
        if item.get("psnr") is not None:
            self.distances.add(10 ** (-item["psnr"] / 20))

    def numbers(self) -> dict[str, float | None]:
        """The medians."""
        distance = _median(self.distances)
        return {
            "median_residual": _median(self.residuals),
            "median_error": _median(self.errors),
            "median_psnr": -20 * math.log10(distance) if distance else None,
        }


@dataclass
class Outcome:
    """The numbers of a job in constant memory, without its items: those are in ``result.json``."""

    total: int
    result: Path
    report: Path
    counts: Counter[str] = field(default_factory=Counter)
    """How many items ended with each status."""
    own: Accuracy = field(default_factory=Accuracy)
    """How well the generator did."""
    misfits: Quantiles = field(default_factory=Quantiles)
    """``|A x - y|^2`` over what is expected of the noise."""
    estimates: Quantiles = field(default_factory=Quantiles)
    """Noise levels that were estimated."""
    baselines: dict[str, Accuracy] = field(default_factory=dict)
    """The same numbers of classical methods, where the job compares."""
    nearer: Counter[str] = field(default_factory=Counter)
    """How many items a classical method came nearer to the truth than the generator, by the nearest one."""
    attention: Counter[str] = field(default_factory=Counter)
    """How many items need attention, and why."""
    outside: int = 0
    """Items whose latent lies outside of the generator's latent distribution."""
    first: list[dict[str, Any]] = field(default_factory=list)
    """The items to inspect first: those that need attention, then those that fit worst."""
    seconds: float = 0.0
    forwards: int = 0
    backwards: int = 0
    plan: str = ""
    notes: tuple[str, ...] = ()
    run: dict[str, Any] = field(default_factory=dict)
    """Who solved the last batch, and how long the job had taken then, by the clock on the wall; and with how many threads
    that and the others were solved."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why the first item has no result, for each status of such items."""

    @property
    def company(self) -> ResidualSummary:
        """The statistics that items are compared with."""
        return ResidualSummary.of_quantiles(self.own.residuals)

    @property
    def counted(self) -> int:
        """Number of items that were added."""
        return self.counts.total()

    @property
    def without_result(self) -> int:
        """Number of items that were not solved: they could not be read, or were set aside."""
        return sum(self.counts[status] for status in WITHOUT_RESULT)

    @property
    def not_begun(self) -> int:
        """Number of items for which no time was left."""
        return self.attention[Concern.NOT_BEGUN]

    @property
    def lost(self) -> int:
        """Number of items that fit far worse than the others, or than the noise."""
        return self.attention[Concern.LOST]

    @property
    def recovered(self) -> int:
        """Number of items with a result: solved, at least one step made, not diverged."""
        return self.total - self.without_result - self.counts[Status.DIVERGED.name] - self.not_begun

    def add(self, record: dict[str, Any]) -> None:
        """Count one batch."""
        self.seconds += record["run"]["seconds"]
        self.forwards += record["run"]["forwards"]
        self.backwards += record["run"]["backwards"]
        self.plan = self.plan or record["plan"]
        runs = sorted((self.run, record["run"]), key=lambda run: float(run.get("elapsed", 0.0)))
        last = {name: value for name, value in runs[-1].items() if name not in _OF_A_BATCH}
        self.run = last | threads_of_all(runs)
        for item in record["items"]:
            self.counts[item["status"]] += 1
            if item["status"] in WITHOUT_RESULT:
                self.reasons.setdefault(item["status"], item["advice"])
                continue
            self.outside += (item["reach"] or 0.0) > 1
            self.own.add(item)
            for name, values in (("misfit", self.misfits), ("noise_estimate", self.estimates)):
                if item.get(name) is not None:
                    values.add(item[name])
            for name, one in item.get("baselines", {}).items():
                self.baselines.setdefault(name, Accuracy()).add(one)
            if (better := nearer(item)) is not None:
                self.nearer[better] += 1

    def judge(self, item: dict[str, Any]) -> None:
        """Count an assessed item."""
        if item["attention"] is not None:
            self.attention[item["attention"]] += 1
        if item["status"] in WITHOUT_RESULT:
            return
        if len(self.first) < _WORST or _badness(item) > _badness(self.first[-1]):
            self.first = sorted([*self.first, item], key=_badness, reverse=True)[:_WORST]

    def numbers(self) -> dict[str, Any]:
        """The summary as plain values."""
        return {
            "items": self.total,
            "recovered": self.recovered,
            "not_begun": self.not_begun,
            "status": dict(self.counts.most_common()),
            "attention": dict(self.attention.most_common()),
            "latents_outside": self.outside,
            **self.own.numbers(),
            "median_misfit": _median(self.misfits),
            "median_noise_estimate": _median(self.estimates),
            **self._comparison(),
            "seconds": self.seconds,
            "forwards": self.forwards,
            "backwards": self.backwards,
            "plan": self.plan,
            "run": self.run | {"items_per_second": self.counted / elapsed if (elapsed := self.run["elapsed"]) else 0.0},
            "notes": list(self.notes),
        }

    def _comparison(self) -> dict[str, Any]:
        if not self.baselines:
            return {}
        found = {name: one.numbers() for name, one in self.baselines.items()}
        return {"baselines": found, "baseline_nearer": dict(self.nearer.most_common())}


def _badness(item: dict[str, Any]) -> tuple[int, float]:
    """Sort key: the most serious concern, then the residual."""
    concern = item["attention"]
    grave = 0 if concern is None else len(Concern) - list(Concern).index(Concern(concern))
    return grave, -1.0 if item["residual"] is None else float(item["residual"])


def _median(values: Quantiles) -> float | None:
    return values.median() if values else None
