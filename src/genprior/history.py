"""The history of a run in columns, recorded at bounded memory."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor

from genprior._files import write_text

VALUES = ("objective", "gap", "stationarity", "rho")
COUNTS = ("step", "seconds", "forwards", "backwards")


@dataclass(frozen=True)
class Panel:
    """Records of a group of items that ran together."""

    counts: Tensor
    """``(records, 4)``: step, seconds, forwards, backwards."""
    values: Tensor
    """``(records, items, 4)``: objective, gap, stationarity, rho; NaN rows where the item was not running."""
    present: Tensor
    """``(records, items)``: where the item was running."""

    def select(self, items: Tensor) -> Panel:
        """The records of some items; records without any of them are left out."""
        present = self.present[:, items]
        kept = present.any(dim=1)
        return Panel(self.counts[kept], self.values[kept][:, items], present[kept])


@dataclass(eq=False)
class _Same:
    """Compares index tensors by identity: between two retirements all records share one."""

    tensor: Tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.tensor is other.tensor


@dataclass
class Recorder:
    """Collects records and thins them: beyond ``capacity`` records, every second one goes and half as many are taken.

    The first and the last record of every item stay. What is kept depends on step numbers alone, so an interrupted and
    resumed run keeps the same records as an uninterrupted one.
    """

    rows: int
    capacity: int
    stride: int = 1
    thinnable: int = 0
    records: list[tuple[tuple[int, float, int, int], Tensor, tuple[Tensor, ...], bool]] = field(default_factory=list)

    def wants(self, step: int) -> bool:
        """Whether this step is to be recorded: a resumed run comes by the step at which it was stored a second time."""
        last = self.records[-1] if self.records else None
        return step % self.stride == 0 and (last is None or last[3] or last[0][0] < step)

    def record(
        self, counts: tuple[int, float, int, int], rows: Tensor, values: tuple[Tensor, ...], final: bool
    ) -> None:
        """Note the values of the rows that are running; ``final`` records are never thinned away."""
        if final:
            self._withdraw(counts[0], rows)
        self.records.append((counts, rows, values, final))
        self.thinnable += not final
        while self.thinnable > self.capacity:
            self._thin()

    def panel(self) -> Panel:
        """Everything so far, as dense columns on the CPU."""
        number = len(self.records)
        counts = torch.tensor([entry[0] for entry in self.records], dtype=torch.float64).reshape(number, 4)
        values = torch.full((number, self.rows, len(VALUES)), torch.nan, dtype=torch.float64)
        present = torch.zeros(number, self.rows, dtype=torch.bool)
        for rows, first, last in self._runs():
            index = rows.cpu()
            for column in range(len(VALUES)):
                stacked = torch.stack([entry[2][column] for entry in self.records[first:last]])
                values[first:last, index, column] = stacked.to("cpu", torch.float64)
            present[first:last, index] = True
        return Panel(counts, values, present)

    def tensors(self) -> dict[str, Tensor]:
        """What must be stored to go on recording."""
        panel = self.panel()
        final = torch.tensor([entry[3] for entry in self.records], dtype=torch.bool)
        return {
            "counts": panel.counts,
            "values": panel.values,
            "present": panel.present,
            "final": final,
            "stride": torch.tensor(self.stride),
        }

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take over what :meth:`tensors` stored."""
        self.stride = int(tensors["stride"])
        self.records, self.thinnable = [], 0
        for counts, values, present, final in zip(
            tensors["counts"].tolist(), tensors["values"], tensors["present"], tensors["final"].tolist(), strict=True
        ):
            rows = present.nonzero()[:, 0]
            columns = values[rows].unbind(dim=1)
            self.records.append(((int(counts[0]), counts[1], int(counts[2]), int(counts[3])), rows, columns, final))
            self.thinnable += not final

    def _withdraw(self, step: int, rows: Tensor) -> None:
        """Rows that end right after they were recorded at the same step leave that record: one record per step."""
        if not self.records or self.records[-1][3] or self.records[-1][0][0] != step:
            return
        counts, index, values, final = self.records.pop()
        staying = ~torch.isin(index, rows)
        if bool(staying.any()):
            self.records.append((counts, index[staying], tuple(value[staying] for value in values), final))
        else:
            self.thinnable -= 1

    def _runs(self) -> Iterator[tuple[Tensor, int, int]]:
        """Stretches of records about the same rows, which are stacked in one go."""
        first = 0
        for rows, group in groupby(self.records, key=lambda entry: _Same(entry[1])):
            last = first + sum(1 for _ in group)
            yield rows.tensor, first, last
            first = last

    def _thin(self) -> None:
        self.stride *= 2
        self.records = [entry for entry in self.records if entry[3] or entry[0][0] % self.stride == 0]
        self.thinnable = sum(not entry[3] for entry in self.records)


@dataclass(frozen=True)
class History:
    """Columns ``step, seconds, forwards, backwards, objective, gap, stationarity, rho`` for every item.

    ``history.item(3)["objective"]`` is one item's column, ``history.to_csv(path)`` writes all of them. Seconds and passes
    are those of the batch in which the item ran; recording itself is not counted.
    """

    panels: tuple[Panel, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return COUNTS + VALUES

    def __len__(self) -> int:
        """Number of items."""
        return sum(panel.values.shape[1] for panel in self.panels)

    def item(self, number: int) -> dict[str, Tensor]:
        """The columns of one item, float64 on the CPU."""
        place = number
        for panel in self.panels:
            width = panel.values.shape[1]
            if 0 <= place < width:
                kept = panel.present[:, place]
                table = torch.cat([panel.counts[kept], panel.values[kept, place]], dim=1)
                return dict(zip(self.columns, table.unbind(dim=1), strict=True))
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
