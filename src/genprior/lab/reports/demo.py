"""The demo's table, figures and page."""

from __future__ import annotations

import itertools
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.table import Table

from genprior._files import write_text
from genprior.lab.demo import Demo
from genprior.report import page
from genprior.report.sheets import stretched

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
_HEAD = ("solver", "error", "worst", "objective", "seconds", "iterations", "passes")
_SHORT = (0, 1, 2, 4, 6)  # what fits on a terminal of 80 columns
_KINDS = {
    "test": "real test digits, not used in training: some error remains, because they lie slightly outside its range",
    "range": "digits from the generator: the error can go to zero",
}


def demo_rows(demo: Demo) -> list[dict[str, object]]:
    """One row per solver."""
    return [
        {
            "solver": run.name,
            "median_error": float(run.errors.median()),
            "worst_error": float(run.errors.max()),
            "median_objective": float(run.result.objective.median()),
            "seconds": run.result.seconds,
            "iterations": len(run.trace.seconds) - 1,
            "forwards": run.result.forwards,
            "backwards": run.result.backwards,
            "status": [status.name for status in run.result.status],
            "plan": run.result.plan,
        }
        for run in demo.runs
    ]


def demo_title(demo: Demo) -> str:
    """A one-line summary."""
    return f"{len(demo.truth)} digits of {demo.pixels} pixels from {demo.measurements} random measurements each"


def demo_table(demo: Demo) -> Table:
    """The numbers for a terminal."""
    starts = "one start" if demo.restarts == 1 else f"{demo.restarts} starts"
    caption = f"error: median |G(z) - truth| / |truth|; {demo.seconds:g} s per solver, {starts} per digit"
    table = Table(title=demo_title(demo), caption=caption)
    for number in _SHORT:
        table.add_column(_HEAD[number], justify="right" if number else "left", no_wrap=True)
    for row in _texts(demo):
        table.add_row(*(row[number] for number in _SHORT))
    return table


def write_page(demo: Demo, path: Path) -> None:
    """The report: table, images, curves, plans; one file."""
    rows = _texts(demo)
    best = min(range(len(demo.runs)), key=lambda i: float(demo.runs[i].errors.median()))
    shown = [("original", demo.truth), ("A^T y", stretched(demo.backprojection))]
    shown += [(run.name, run.result.signal) for run in demo.runs]
    plans = page.table(("solver", "plan"), [(run.name, run.result.plan) for run in demo.runs], prose=True)
    sections = [
        (
            "Result",
            page.table(_HEAD, rows, best) + page.paragraph("Error: |G(z) - truth| / |truth|, median of the digits."),
        ),
        ("Images", page.strips(shown)),
        ("Error against time and passes", page.plot(draw_curves(demo))),
        ("What each solver did", plans),
    ]
    lead = f"{_KINDS[demo.kind].capitalize()}. Every solver had {demo.seconds:g} seconds from the same start."
    footer = f"genprior {version('genprior')}, torch {torch.__version__}, seed {demo.seed}"
    write_text(path, page.page(demo_title(demo), lead, sections, footer))


def draw_curves(demo: Demo) -> Figure:
    """Median error of the best iterate against seconds and against passes through G."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import, needed only here

    figure = Figure(figsize=(10.5, 4), layout="constrained")
    by_time, by_passes = figure.subplots(1, 2, sharey=True)
    for run, style in zip(demo.runs, itertools.cycle(_STYLES), strict=False):
        middle = run.trace.errors.median(dim=1).values
        by_time.plot(run.trace.seconds.numpy(), middle.numpy(), linestyle=style, label=run.name)
        by_passes.plot(run.trace.passes.numpy(), middle.numpy(), linestyle=style, label=run.name)
    _label(by_time, "seconds")
    _label(by_passes, "forward + backward passes through G")
    by_time.set_ylabel("median error of the best iterate")
    by_passes.legend(fontsize=9)
    return figure


def _label(axes: Axes, name: str) -> None:
    axes.set_yscale("log")
    axes.set_xlabel(name)
    axes.grid(alpha=0.3, which="both")


def _texts(demo: Demo) -> list[tuple[str, ...]]:
    return [
        (
            str(row["solver"]),
            f"{row['median_error']:.3g}",
            f"{row['worst_error']:.3g}",
            f"{row['median_objective']:.3g}",
            f"{row['seconds']:.1f}",
            str(row["iterations"]),
            f"{row['forwards']} + {row['backwards']}",
        )
        for row in demo_rows(demo)
    ]
