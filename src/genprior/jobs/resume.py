"""Start or resume a job: no file of the user is overwritten, and lost results are computed again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from genprior.files import Items, Outputs
from genprior.files.outputs import Batches
from genprior.jobs.ledger import Ledger, begun

SIGNALS = "recovered"
"""The folder of the recovered signals, in the output folder."""
RESULT, REPORT = "result.json", "report.html"


@dataclass(frozen=True)
class Plan:
    """The batches that are done, and what they have used."""

    done: Batches
    elapsed: float
    """Seconds on the clock on the wall, up to the last of them."""
    threads: int | None = None
    """With how many threads the last of them was solved, where that is on record."""

    @property
    def left(self) -> int:
        """How many batches are not done."""
        return len(self.done) - int(self.done.sum())

    def items_done(self, total: int, size: int) -> int:
        """How many of the ``total`` items are done, in batches of this size."""
        count = int(self.done.sum()) * size
        return count - (-total % size if len(self.done) and self.done[-1] else 0)

    def numbers(self) -> Iterator[int]:
        """Those that are not done, in order."""
        return (number for number, done in enumerate(self.done) if not done)


def refuse_losses(out: Path, items: Items) -> None:
    """Raise if a file would be overwritten: always for inputs, for other files only in a folder without a job."""
    there = [path for path in _written(out, items) if path.exists()]
    own = (part for part in items.parts if part.remote is None and part.version is not None)
    inputs = {_identity(part.path): part.path for part in own}
    for path in there:
        if (found := inputs.get(_identity(path))) is not None:
            raise ValueError(f"the input {found} would be overwritten by its result: give another `out`")
    if there and not begun(out):
        more = f" and {len(there) - 1} more files" if len(there) > 1 else ""
        raise ValueError(
            f"{there[0]}{more} would be overwritten, and {out} has no record of a job that wrote it: give "
            "another `out`, or remove it"
        )


def plan_of(ledger: Ledger, outputs: Outputs, total: int, size: int) -> Plan:
    """Done is what has a record and its signals; other records are removed."""
    for path in outputs.set_aside_damaged():
        ledger.notes.append(
            f"an unfinished array is damaged: it was set aside as {path}, and its items are computed again"
        )
    done, elapsed, threads = np.zeros(math.ceil(total / size), bool), 0.0, None
    for record in ledger.batches():
        number = record["first"] // size
        done[number] = outputs.holds(record["first"], _names(record["items"]))
        if record["run"]["elapsed"] >= elapsed:
            elapsed, threads = record["run"]["elapsed"], record["run"].get("threads", threads)
    done &= ~outputs.to_repeat(done, size)
    ledger.forget(number for number in ledger.done() if not done[number])
    return Plan(done, elapsed, threads)


def _written(out: Path, items: Items) -> Iterator[Path]:
    yield out / RESULT
    yield out / REPORT
    for output in dict.fromkeys(part.output for part in items.parts):
        yield out / SIGNALS / output


def _names(records: list[dict[str, str | None]]) -> list[str | None]:
    """Names of outputs below the folder of signals."""
    return [None if (name := record["output"]) is None else name.removeprefix(f"{SIGNALS}/") for record in records]


def _identity(path: Path) -> tuple[int, int]:
    """Equal for two names of one file, whatever the links and the letter case."""
    facts = path.stat()
    return facts.st_dev, facts.st_ino
