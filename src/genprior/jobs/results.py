"""``result.json``, written batch by batch in bounded memory, and the report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from genprior._files import write_atomically
from genprior.assessment import ResidualSummary, Words
from genprior.jobs.ledger import Ledger
from genprior.jobs.outcome import Outcome
from genprior.jobs.records import assessed
from genprior.jobs.recovery_page import write_recovery_page
from genprior.jobs.resume import REPORT, RESULT
from genprior.jobs.settings import Recovery


def write_result(job: Recovery, ledger: Ledger, total: int, notes: tuple[str, ...], words: Words) -> Outcome:
    """Write ``result.json`` from the batches on disk, and the report."""
    outcome = Outcome(total, job.out / RESULT, job.out / REPORT, notes=notes)
    for record in ledger.batches():
        outcome.add(record)
    if outcome.counted != total:
        raise ValueError(
            f"{job.out} has records of {outcome.counted} of {total} items: the same command does the others again"
        )
    company = outcome.company
    for item in _assessed_items(ledger, company, words):
        outcome.judge(item)
    write_atomically(outcome.result, lambda path: _write(path, job, outcome, _assessed_items(ledger, company, words)))
    write_recovery_page(job, ledger, outcome)
    return outcome


def _write(path: Path, job: Recovery, outcome: Outcome, items: Iterator[dict[str, Any]]) -> None:
    head = {
        "genprior": version("genprior"),
        "asked": job.asked(),
        "summary": outcome.numbers(),
        "report": REPORT,
    }
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(head, indent=2, allow_nan=False).removesuffix("\n}") + ',\n  "items": [\n')
        _write_items(file, items)
        file.write("\n  ]\n}\n")


def _assessed_items(ledger: Ledger, company: ResidualSummary, words: Words) -> Iterator[dict[str, Any]]:
    return (assessed(item, company, words) for record in ledger.batches() for item in record["items"])


def _write_items(file: IO[str], items: Iterator[dict[str, Any]]) -> None:
    for number, item in enumerate(items):
        file.write((",\n" if number else "") + "    " + json.dumps(item, allow_nan=False))
