"""The report of a recovery: a summary, a few images before and after, the items that fit worst."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from genprior._files import write_text
from genprior.jobs.comparison import METHODS
from genprior.jobs.ledger import Ledger
from genprior.jobs.outcome import Outcome
from genprior.jobs.records import sampled
from genprior.jobs.settings import Recovery
from genprior.jobs.threads import solved_by
from genprior.report import page
from genprior.report.views import curves
from genprior.status import Status

_ROW = 8
"""Images in a row; fewer where they are wide."""
_NAMES = {
    "truth": "original",
    "before": "measured",
    "back": "measured (A^T y)",
    "after": "recovered",
    "in_range": "of it, in the generator's range",
    "deviation": "and the deviation, its contrast stretched",
    **METHODS,
}


def write_recovery_page(job: Recovery, ledger: Ledger, outcome: Outcome) -> None:
    """Write the report, one self-contained file."""
    sections = [("Result", page.table(("", ""), _facts(job, outcome), prose=True))]
    grave = [item for item in outcome.first if item["attention"] is not None]
    if grave:
        sections.append(
            ("Items that need attention", page.table(_ATTENTION, [_alarm(item) for item in grave], prose=True))
        )
    if outcome.baselines:
        sections.append(("Compared with methods that need no generator", _comparison(outcome)))
    images = _images(ledger, job, outcome.total)
    if images:
        count = len(images["after"])
        shown = f"{count} of {outcome.total} items, evenly spread." if count < outcome.total else "All items."
        sections.append(("Before and after", page.paragraph(shown) + _strips(images)))
    sections.append(
        ("How the items ended", page.table(("status", "items", "what it means"), _ends(outcome), prose=True))
    )
    if outcome.first:
        by_fit = sorted(outcome.first, key=lambda item: -(item["residual"] or 0.0))
        sections.append(("Items that fit worst", page.table(_HEAD, [_row(item) for item in by_fit])))
    sections.append(("What was computed", page.paragraph(outcome.plan)))
    measured = job.forward or job.operator
    lead = f"{outcome.recovered} of {outcome.total} items from {measured}, generator {job.source.generator}."
    footer = f"genprior {version('genprior')}, torch {torch.__version__}, seed {job.seed}"
    write_text(outcome.report, page.page("Recovered signals", lead, sections, footer))


_HEAD = ("item", "residual", "error", "steps", "status", "latent")
_ATTENTION = ("item", "why", "what was found, and what to try")


def _facts(job: Recovery, outcome: Outcome) -> list[tuple[str, str]]:
    numbers = outcome.numbers()
    limit = [f"{job.time:g} s" if job.time is not None else "", f"{job.steps} steps" if job.steps else ""]
    facts = [
        ("median residual |A x - y| / |y|", _number(numbers["median_residual"])),
        ("median true error |x - original| / |original|", _number(numbers["median_error"])),
        ("median misfit |A x - y|^2, times that of the noise", _number(numbers["median_misfit"])),
        ("noise level, given", "" if job.noise_level is None else f"{job.noise_level:g}"),
        (
            "noise level, estimated from the residual (what the generator cannot make counts too)",
            _number(numbers["median_noise_estimate"]),
        ),
        ("loss, solver, starts", f"{job.loss}, {job.solver}, {job.restarts or 'as many as pay'} per item"),
        ("deviation from the range", _deviation(job)),
        ("starts guessed by", job.start or ""),
        ("need attention", ", ".join(f"{count} {why}" for why, count in outcome.attention.most_common())),
        ("latents outside of the generator's distribution", f"{outcome.outside}" if outcome.outside else ""),
        ("limit", ", ".join(filter(None, limit)) or f"{job.most_steps} steps per batch"),
        (
            "computing time",
            f"{outcome.seconds:.1f} s, {outcome.forwards} forward and {outcome.backwards} backward passes",
        ),
        ("solved by", f"{solved_by(outcome.run)}, in {outcome.run['elapsed']:.1f} s by the clock on the wall"),
    ]
    facts += [("note", note) for note in outcome.notes]
    return [fact for fact in facts if fact[1]]


def _deviation(job: Recovery) -> str:
    """Basis and weight, where there is a deviation."""
    weight = job.weight_of_deviation
    if weight is None:
        return ""
    chosen = "a weight chosen for each item" if isinstance(weight, str) else f"the weight {weight:g}"
    return f"sparse in the basis {job.basis or 'identity'}, with {chosen}"


_COMPARED = ("method", "median residual", "median error", "median PSNR", "nearest in")


def _comparison(outcome: Outcome) -> str:
    """One row for each method, and what follows for the user."""
    own = outcome.counted - outcome.without_result - outcome.nearer.total()
    methods = [("generator", outcome.own, own)]
    methods += [(METHODS[name], one, outcome.nearer[name]) for name, one in outcome.baselines.items()]
    known = bool(outcome.own.errors)
    rows = [
        (name, *(_number(value) or "-" for value in one.numbers().values()), f"{count} items" if known else "-")
        for name, one, count in methods
    ]
    return page.table(_COMPARED, rows) + page.paragraph(verdict(outcome))


def verdict(outcome: Outcome) -> str:
    """Whether the generator helps, in a sentence."""
    if not outcome.own.errors:
        return (
            "The original is not known, so only fits can be compared; a closer fit is not always nearer to the original. "
            "With undamaged inputs, simulate measurements to see which method is nearer."
        )
    total, better = outcome.counted - outcome.without_result, outcome.nearer.total()
    if not better:
        return f"The generator is nearest to the original in all {total} items."
    most = METHODS[outcome.nearer.most_common(1)[0][0]]
    lead = f"A method without a generator is nearer to the original in {better} of {total} items, most often {most}"
    if 2 * better > total:
        return f"{lead}: here the generator does not help."
    return f"{lead}."


def _ends(outcome: Outcome) -> list[tuple[str, str, str]]:
    return [(name, str(count), _meaning(name, outcome)) for name, count in outcome.counts.most_common()]


def _meaning(name: str, outcome: Outcome) -> str:
    if name not in Status.__members__:
        return outcome.reasons[name]
    return Status[name].advice


def _row(item: dict[str, Any]) -> tuple[str, ...]:
    return (
        str(item["name"]),
        _number(item["residual"]) or "-",
        _number(item.get("error")) or "-",
        str(item["steps"]),
        str(item["status"]),
        _number(item["reach"]) or "-",
    )


def _alarm(item: dict[str, Any]) -> tuple[str, str, str]:
    return str(item["name"]), str(item["attention"]), str(item["advice"])


def _number(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else ""


def _images(ledger: Ledger, job: Recovery, total: int) -> dict[str, Tensor]:
    batches = sorted({number // job.batch_size for number in sampled(total, job.pictures)})
    parts = [batch for batch in ledger.images(batches) if batch]
    names = [name for name in _NAMES if parts and all(name in part for part in parts)]
    return {name: torch.cat([part[name] for part in parts])[: job.pictures] for name in names}


def _strips(images: dict[str, Tensor]) -> str:
    """Rows of images, original, measured and recovered below each other; of signals in time their curves."""
    if images["after"].ndim == 3:
        return curves({_NAMES[name]: part for name, part in images.items()})
    height, width = images["after"].shape[-2:]
    zoom, many = max(1, 128 // height), max(1, round(_ROW * min(1.0, height / width)))
    rows = []
    for start in range(0, len(images["after"]), many):
        rows += [(_NAMES[name], part[start : start + many]) for name, part in images.items()]
    return page.strips(rows, zoom)
