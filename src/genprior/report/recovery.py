"""The report of a recovery: a summary, a few pictures before and after, the items that fit worst."""

from __future__ import annotations

from importlib.metadata import version

import torch
from torch import Tensor

from genprior._files import write_text
from genprior.report import page
from genprior.status import Status
from genprior.tasks.ledger import Ledger
from genprior.tasks.outcome import Outcome
from genprior.tasks.records import ADVICE
from genprior.tasks.settings import Recovery

_ROW = 8
_NAMES = {"truth": "original", "before": "measured", "back": "measured (A^T y)", "after": "recovered"}


def write_recovery_page(job: Recovery, ledger: Ledger, outcome: Outcome) -> None:
    """One self-contained file."""
    sections = [("Result", page.table(("", ""), _facts(job, outcome), prose=True))]
    pictures = _pictures(ledger, job.pictures)
    if pictures:
        count = len(pictures["after"])
        shown = f"The first {count} of {outcome.total} items." if count < outcome.total else "All items."
        sections.append(("Before and after", page.paragraph(shown) + _strips(pictures)))
    sections.append(
        ("How the items ended", page.table(("status", "items", "what it means"), _ends(outcome), prose=True))
    )
    if outcome.worst:
        sections.append(("Items that fit worst", page.table(_HEAD, [_row(item) for item in outcome.worst])))
    sections.append(("What was computed", page.paragraph(outcome.plan)))
    lead = f"{outcome.recovered} of {outcome.total} items from {job.operator}, generator {job.source.generator}."
    footer = f"genprior {version('genprior')}, torch {torch.__version__}, seed {job.seed}"
    write_text(outcome.report, page.page("Recovered signals", lead, sections, footer))


_HEAD = ("item", "residual", "error", "steps", "status")


def _facts(job: Recovery, outcome: Outcome) -> list[tuple[str, str]]:
    numbers = outcome.numbers()
    limit = [f"{job.time:g} s" if job.time is not None else "", f"{job.steps} steps" if job.steps else ""]
    facts = [
        ("median residual |A x - y| / |y|", _number(numbers["median_residual"])),
        ("median true error |x - original| / |original|", _number(numbers["median_error"])),
        ("loss, solver, starts", f"{job.loss}, {job.solver}, {job.restarts} per item"),
        ("no time was left for", f"{outcome.not_begun} items: allow more --time" if outcome.not_begun else ""),
        ("limit", ", ".join(filter(None, limit)) or f"{job.most_steps} steps per batch"),
        (
            "computing time",
            f"{outcome.seconds:.1f} s, {outcome.forwards} forward and {outcome.backwards} backward passes",
        ),
    ]
    facts += [("note", note) for note in outcome.notes]
    return [fact for fact in facts if fact[1]]


def _ends(outcome: Outcome) -> list[tuple[str, str, str]]:
    return [(name, str(count), _meaning(name, outcome)) for name, count in outcome.counts.most_common()]


def _meaning(name: str, outcome: Outcome) -> str:
    if name not in Status.__members__:
        return outcome.unread
    return ADVICE.get(Status[name], Status[name].advice)


def _row(item: dict[str, object]) -> tuple[str, ...]:
    return (
        str(item["name"]),
        _number(item["residual"]) or "-",
        _number(item.get("error")) or "-",
        str(item["steps"]),
        str(item["status"]),
    )


def _number(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else ""


def _pictures(ledger: Ledger, most: int) -> dict[str, Tensor]:
    parts = ledger.pictures()
    names = [name for name in _NAMES if parts and all(name in part for part in parts)]
    return {name: torch.cat([part[name] for part in parts])[:most] for name in names}


def _strips(pictures: dict[str, Tensor]) -> str:
    """Rows of eight, original, measured and recovered below each other."""
    zoom = max(1, 128 // pictures["after"].shape[-1])
    rows = []
    for start in range(0, len(pictures["after"]), _ROW):
        rows += [(_NAMES[name], part[start : start + _ROW]) for name, part in pictures.items()]
    return page.strips(rows, zoom)
