"""Start or resume a job: no file of the user is overwritten, and lost results are computed again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from genprior.files import Items, Outputs
from genprior.jobs.ledger import Ledger, begun

SIGNALS = "recovered"
"""The folder of the recovered signals, in the output folder."""
RESULT, REPORT = "result.json", "report.html"


@dataclass(frozen=True)
class Plan:
    """The batches left to do, and what the finished ones have used."""

    left: list[int]
    """Numbers of batches, in order."""
    used: float
    """Seconds."""
    shown: int
    """Number of images kept for the report."""


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
    """Batches without a record, or whose signals are missing; records of the latter are removed."""
    numbers = range(math.ceil(total / size))
    for path in outputs.set_aside_damaged():
        ledger.notes.append(
            f"an unfinished array is damaged: it was set aside as {path}, and its items are computed again"
        )
    taken: dict[int, tuple[float, int]] = {}
    for number in numbers:
        record = ledger.batch(number)
        if record is not None and outputs.holds(number * size, _names(record["items"])):
            taken[number] = (record["seconds"], record["shown"])
    for number in outputs.to_repeat(set(taken), size):
        del taken[number]
    left = [number for number in numbers if number not in taken]
    ledger.forget(left)
    return Plan(left, sum(seconds for seconds, _ in taken.values()), sum(shown for _, shown in taken.values()))


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
