"""How each solver ended, in words for visitors who do not know the library."""

from __future__ import annotations

import html
import math
import re

from genprior.app import registry
from genprior.app.snapshot import Lane
from genprior.app.view.chart import COLOURS

_HEAD = ("solver", "status", "error", "objective", "steps", "passes", "seconds")

_ADVICE = {
    "CONVERGED": "It cannot improve further from this start. If the image is wrong, more starts may find a better one.",
    "STALLED": "It stopped improving. More starts or another solver may find a better image.",
    "OUT_OF_TIME": "It was still running at the time limit. More seconds may improve the image.",
    "DIVERGED": "Its iterates grew without bound. Try another solver or more starts.",
    "INTERRUPTED": "The race was stopped; this is its best image so far.",
}
_TROUBLE = {"DIVERGED", "not possible"}


def advice(lane: Lane) -> str:
    """What to do next on the page; the library's own advice if there is none for the page."""
    return lane.problem or _ADVICE.get(lane.status, lane.advice)


def needs_attention(lane: Lane) -> bool:
    """Whether something went wrong that a visitor should see first."""
    return bool(lane.problem) or lane.status in _TROUBLE


def table(lanes: tuple[Lane, ...]) -> str:
    """All solvers, those that need attention first."""
    head = "".join(f"<th>{name}</th>" for name in _HEAD)
    rows = "".join(map(_rows, sorted(lanes, key=needs_attention, reverse=True)))
    return f'<table class="outcome"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def _rows(lane: Lane) -> str:
    css_class = "impossible" if lane.problem else lane.status.replace(" ", "-")
    status = lane.status.replace("_", " ").lower()
    cells = (short(lane.error), short(lane.objective), str(lane.steps), str(lane.passes), f"{lane.seconds:.1f}")
    lines = (("What now:", advice(lane)), ("Method:", registry.SOLVERS[lane.name].description)) if lane.over else ()
    words = "".join(f"<div><b>{title}</b> {html.escape(text)}</div>" for title, text in lines if text)
    name = re.sub("(?<=[a-z])(?=[A-Z])", "<wbr>", lane.name)
    row = f'<td>{name}</td><td class="{css_class}">{status}</td>' + "".join(f"<td>{cell}</td>" for cell in cells)
    row = f'<tr class="{"head" if words else ""}" style="--tone: {COLOURS[lane.name]}">{row}</tr>'
    return row + (f'<tr class="words"><td colspan="{len(_HEAD)}">{words}</td></tr>' if words else "")


def short(value: float) -> str:
    """A number in three digits; a dash for NaN."""
    return "–" if math.isnan(value) else f"{value:.3g}"
