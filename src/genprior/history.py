"""The history of a run in columns, in bounded memory."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor

from genprior._files import write_text

VALUES = ("objective", "gap", "stationarity", "rho")
"""In files the primal residual keeps its first name, ``gap``."""
COUNTS = ("step", "seconds", "forwards", "backwards")


@dataclass(frozen=True)
class Panel:
    """Records of a group of items that ran together."""

    counts: Tensor
    """``(records, 4)``: step, seconds, forwards, backwards."""
    values: Tensor
    """``(records, items, 4)``: objective, primal residual, stationarity, rho; NaN where the item was not running."""
    present: Tensor
    """``(records, items)``: where the item was running."""
    ends: Tensor
    """``(items, 8)``: the last record of every item; NaN where it has not ended."""

    def select(self, items: Tensor) -> Panel:
        """The records of some items; records without any of them are left out."""
        present = self.present[:, items]
        kept = present.any(dim=1)
        return Panel(self.counts[kept], self.values[kept][:, items], present[kept], self.ends[items])

    def joined(self, later: Panel, items: Tensor, won: Tensor) -> Panel:
        """With the later records of those of the ``items``, which ran again together, that were ``won`` by them."""
        items, won = items.cpu(), won.cpu()
        before, after, width = len(self.counts), len(later.counts), self.values.shape[1]
        values = torch.full((before + after, width, len(VALUES)), torch.nan, dtype=torch.float64, device="cpu")
        present = torch.zeros(before + after, width, dtype=torch.bool, device="cpu")
        values[:before], present[:before] = self.values, self.present
        present[:before, items[won]] = False
        values[before:, items[won]], present[before:, items[won]] = later.values[:, won], later.present[:, won]
        ends = self.ends.clone()
        ends[items[won]] = later.ends[won]
        return Panel(torch.cat([self.counts, later.counts]), values, present, ends)

    @property
    def records(self) -> int:
        """Number of records in the tables of all items."""
        end = self.ends[:, 0]
        earlier = self.present & ~(self.counts[:, :1] >= end)
        return int(earlier.sum()) + int((~end.isnan()).sum())

    def table(self, item: int) -> Tensor:
        """All records of one item, ``(records, 8)``, the last one among them once."""
        kept = self.present[:, item]
        table = torch.cat([self.counts[kept], self.values[kept, item]], dim=1)
        end = self.ends[item]
        if bool(end[0].isnan()):
            return table
        return torch.cat([table[table[:, 0] < end[0]], end[None]])


Counts = tuple[int, float, int, int]


class Recorder:
    """Collects records and thins them: above ``capacity``, every second one is dropped, and from then on half as many taken.

    The first and the last record of every item stay. The choice depends on step numbers alone, so that a resumed run
    keeps the same records as an uninterrupted one. ``unit``: steps between two measurements of the residuals; thinned records
    keep to these steps.
    """

    def __init__(self, rows: int, capacity: int, unit: int = 1) -> None:
        self.rows, self.capacity, self.unit, self.stride = rows, capacity, unit, 1
        self.records: list[tuple[Counts, Tensor, Sequence[Tensor | None]]] = []
        self.ends = torch.full((rows, len(COUNTS) + len(VALUES)), torch.nan, dtype=torch.float64, device="cpu")

    def wants(self, step: int) -> bool:
        """Whether this step is to be recorded: a resumed run passes the step at which it was stored twice."""
        return step % self.stride == 0 and (not self.records or self.records[-1][0][0] < step)

    def end(self, counts: Counts, rows: Tensor, values: tuple[Tensor, ...]) -> None:
        """Record the last values of rows, which are never dropped."""
        columns = torch.stack(values, dim=1).cpu().double()  # not every device has float64
        self.ends[rows.cpu()] = torch.cat(
            [torch.tensor(counts, dtype=torch.float64, device="cpu").expand(len(rows), -1), columns], 1
        )

    def record(self, counts: Counts, rows: Tensor, values: Sequence[Tensor | None]) -> None:
        """Record the values of the running rows; None where a column was not measured."""
        self.records.append((counts, rows, values))
        while len(self.records) > self.capacity:
            self.stride = self.unit if self.stride < self.unit else 2 * self.stride
            self.records = [entry for entry in self.records if entry[0][0] % self.stride == 0]

    def panel(self) -> Panel:
        """Everything so far, as dense columns on the CPU."""
        number = len(self.records)
        counts = torch.tensor([entry[0] for entry in self.records], dtype=torch.float64, device="cpu").reshape(
            number, len(COUNTS)
        )
        values = torch.full((number, self.rows, len(VALUES)), torch.nan, dtype=torch.float64, device="cpu")
        present = torch.zeros(number, self.rows, dtype=torch.bool, device="cpu")
        for rows, first, last in self._runs_of_rows():
            index = rows.cpu()
            for column in range(len(VALUES)):
                entries = [(place, self.records[place][2][column]) for place in range(first, last)]
                known = [(place, entry) for place, entry in entries if entry is not None]
                if known:
                    places = torch.tensor([place for place, _ in known], device="cpu")
                    stacked = torch.stack([entry for _, entry in known]).cpu().double()
                    values[places[:, None], index[None], column] = stacked
            present[first:last, index] = True
        return Panel(counts, values, present, self.ends)

    def tensors(self) -> dict[str, Tensor]:
        """What must be stored to continue recording."""
        panel = self.panel()
        parts = {"counts": panel.counts, "values": panel.values, "present": panel.present, "ends": panel.ends}
        return parts | {"stride": torch.tensor(self.stride)}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Continue from what :meth:`tensors` stored."""
        self.stride, self.ends = int(tensors["stride"]), tensors["ends"]
        self.records = []
        for counts, values, present in zip(
            tensors["counts"].tolist(), tensors["values"], tensors["present"], strict=True
        ):
            rows = present.nonzero()[:, 0]
            step, seconds, forwards, backwards = counts
            entry = (int(step), seconds, int(forwards), int(backwards)), rows, values[rows].unbind(dim=1)
            self.records.append(entry)

    def _runs_of_rows(self) -> Iterator[tuple[Tensor, int, int]]:
        """Ranges of records of the same rows, which are stacked together."""
        first = 0
        for _, group in groupby(self.records, key=lambda entry: id(entry[1])):
            last = first + sum(1 for _ in group)
            yield self.records[first][1], first, last
            first = last


class Columns(dict[str, Tensor]):
    """Columns by name."""

    def __missing__(self, name: str) -> Tensor:
        if name == "primal_residual":
            return self["gap"]
        raise KeyError(f"there is no column {name!r}: give one of {', '.join(self)}")


@dataclass(frozen=True)
class History:
    """Columns ``step, seconds, forwards, backwards, objective, gap, stationarity, rho`` for every item.

    ``history.item(3)["objective"]`` is one item's column, ``history.to_csv(path)`` writes all of them; ``gap`` is the primal
    residual. Seconds and passes are those of the batch in which the item ran; recording itself is not counted.
    """

    panels: tuple[Panel, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return COUNTS + VALUES

    def __len__(self) -> int:
        """Number of items."""
        return sum(panel.values.shape[1] for panel in self.panels)

    def __repr__(self) -> str:
        records = sum(panel.records for panel in self.panels)
        return f"History({len(self)} items, {records} records: {', '.join(self.columns)})"

    def item(self, number: int) -> dict[str, Tensor]:
        """The columns of one item, float64 on the CPU; ``primal_residual`` is another name of ``gap``."""
        place = number
        for panel in self.panels:
            width = panel.values.shape[1]
            if 0 <= place < width:
                return Columns(zip(self.columns, panel.table(place).unbind(dim=1), strict=True))
            place -= width
        raise IndexError(f"item {number} does not exist: the run had {len(self)} items, numbered from 0")

    def to_csv(self, path: str | Path | None = None) -> str:
        """All records as CSV text, one line per item and record; written to ``path`` if given, whole or not at all."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("item", *self.columns))
        for number in range(len(self)):
            columns = self.item(number)
            for line in zip(*(columns[name].tolist() for name in self.columns), strict=True):
                step, seconds, forwards, backwards, *values = line
                writer.writerow((number, int(step), f"{seconds:.6f}", int(forwards), int(backwards), *values))
        if path is not None:
            write_text(Path(path), text.getvalue())
        return text.getvalue()
