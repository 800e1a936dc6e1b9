"""A finished batch: how each item ended, over all its starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from genprior import _batch, _tree
from genprior.history import Panel
from genprior.loop.restarts import better
from genprior.loop.rows import Outcome
from genprior.result import Minima
from genprior.status import Status

_DISTINCT = 0.01
"""Two minima are distinct where their signals differ by more than this share of their norm."""


@dataclass(frozen=True)
class Finished:
    """A finished batch: one entry per item."""

    outcome: Outcome
    restart: Tensor
    """Which of the item's starts won, over all rounds."""
    starts: Tensor
    """How many starts the item had."""
    panel: Panel
    minima: Minima
    """Other distinct minima, one after the other."""
    forwards: int
    backwards: int
    seconds: float

    def joined(self, later: Finished, items: Tensor, begun: int) -> Finished:
        """With what another round found for these items, which began at the step ``begun``."""
        earlier = _tree.take(self.outcome, items)
        steps = earlier.steps + later.outcome.steps
        won = better(later.outcome, earlier)
        fell = torch.where(later.outcome.fell > 0, earlier.steps + later.outcome.fell, 0)
        new = replace(later.outcome, steps=steps, fell=fell)
        kept = replace(earlier, steps=steps)
        outcome = _tree.put(self.outcome, items, _chosen(won, new, kept))
        number = self.starts[items] + later.restart
        others = replace(later.minima, item=items[later.minima.item])
        others = replace(others, restart=others.restart + self.starts[others.item])
        restart = self.restart.index_copy(0, items, torch.where(won, number, self.restart[items]))
        replaced = _answers(items, self.restart[items], earlier, won)
        beaten = _answers(items, number, later.outcome, ~won & (later.outcome.status != int(Status.DIVERGED)))
        minima = distinct(all_minima([self.minima, others, replaced, beaten]), outcome.x)
        return Finished(
            outcome=outcome,
            restart=restart,
            starts=self.starts.index_add(0, items, later.starts),
            panel=self.panel.joined(later.panel, items, won),
            minima=minima,
            forwards=later.forwards,
            backwards=later.backwards,
            seconds=later.seconds,
        )

    def packed(self) -> tuple[dict[str, Tensor], list[float]]:
        """Tensors and numbers for a checkpoint."""
        tensors = (
            _tree.pack(self.outcome, "outcome") | _tree.pack(self.panel, "panel") | _tree.pack(self.minima, "minima")
        )
        return tensors | {"restart": self.restart, "starts": self.starts}, [self.forwards, self.backwards, self.seconds]

    @classmethod
    def unpacked(cls, tensors: dict[str, Tensor], counts: list[Any], device: torch.device) -> Finished:
        """From what :meth:`packed` gave; the panel stays on the CPU."""

        def columns(name: str, kind: type) -> list[Tensor]:
            return [tensors[f"{name}.{number}"] for number in range(len(fields(kind)))]

        return cls(
            Outcome(*(column.to(device) for column in columns("outcome", Outcome))),
            tensors["restart"].to(device),
            tensors["starts"].to(device),
            Panel(*columns("panel", Panel)),
            Minima(*(column.to(device) for column in columns("minima", Minima))),
            *counts,
        )


def _chosen(where: Tensor, new: Outcome, old: Outcome) -> Outcome:
    pairs = ((getattr(new, field.name), getattr(old, field.name)) for field in fields(Outcome))
    return Outcome(*(torch.where(_batch.spread(where, one), one, other) for one, other in pairs))


def minima_of(outcome: Outcome, winner: Tensor, starts: int) -> Minima:
    """The rows that were neither culled nor won, at finite points."""
    codes = outcome.status
    kept = (codes != int(Status.CULLED)) & (codes != int(Status.DIVERGED)) & outcome.objective.isfinite()
    kept[winner] = False
    rows = kept.nonzero()[:, 0]
    return _minima(rows // starts, rows % starts, _tree.take(outcome, rows))


def _minima(item: Tensor, restart: Tensor, outcome: Outcome) -> Minima:
    return Minima(item, restart, outcome.objective, outcome.z, outcome.x, outcome.status)


def _answers(items: Tensor, restart: Tensor, outcome: Outcome, where: Tensor) -> Minima:
    """The answers of these items, where they are wanted and finite."""
    rows = (where & outcome.objective.isfinite()).nonzero()[:, 0]
    return _minima(items[rows], restart[rows], _tree.take(outcome, rows))


def all_minima(parts: Sequence[Minima]) -> Minima:
    """All of them in one."""
    return Minima(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Minima)))


def distinct(minima: Minima, signal: Tensor) -> Minima:
    """The best of each group of nearly equal signals of an item, and none that is nearly equal to its answer."""
    kept: dict[int, list[int]] = {}
    for row in minima.objective.argsort(stable=True).tolist():
        item, x = int(minima.item[row]), minima.x[row][None]
        seen = torch.stack([signal[item], *(minima.x[other] for other in kept.get(item, []))])
        if bool((_batch.norm(seen - x) > _DISTINCT * _batch.norm(x)).all()):
            kept.setdefault(item, []).append(row)
    rows = sorted(row for of_item in kept.values() for row in of_item)
    return _tree.take(minima, torch.tensor(rows, dtype=torch.long, device=minima.item.device))
