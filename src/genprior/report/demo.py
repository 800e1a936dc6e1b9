"""The demo's table and picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
from rich.table import Table
from torch import Tensor

from genprior._files import write_atomically
from genprior.experiments.demo import Demo

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))


def demo_rows(demo: Demo) -> list[dict[str, object]]:
    """One row of numbers per solver."""
    return [
        {
            "solver": run.name,
            "median_error": float(run.errors.median()),
            "solved": run.solved,
            "median_objective": float(run.result.objective.median()),
            "seconds": run.result.seconds,
            "forwards": run.result.forwards,
            "backwards": run.result.backwards,
            "status": [status.name for status in run.result.status],
        }
        for run in demo.runs
    ]


def demo_table(demo: Demo) -> Table:
    """The same numbers for a terminal."""
    title = f"{len(demo.truth)} pictures of {demo.pixels} pixels from {demo.measurements} random measurements"
    caption = f"error: median |G(z) - truth| / |truth|; solved: error under 5%; {demo.restarts} starts per picture"
    table = Table(title=title, caption=caption)
    table.add_column("solver")
    for name in ("error", "solved", "seconds", "passes"):
        table.add_column(name, justify="right")
    for row, run in zip(demo_rows(demo), demo.runs, strict=True):
        table.add_row(
            run.name,
            f"{row['median_error']:.1e}",
            f"{run.solved:.0%}",
            f"{run.result.seconds:.2f}",
            str(run.result.forwards + run.result.backwards),
        )
    return table


def draw_demo(demo: Demo, path: Path) -> None:
    """Pictures above, objective against passes below; one PNG."""
    matplotlib.use("Agg", force=False)
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import, needed only here

    shown = [("truth", demo.truth), ("A^T y", demo.backprojection)]
    shown += [(run.name, run.result.signal) for run in demo.runs]
    columns = len(demo.truth)
    figure = Figure(figsize=(1.25 * columns + 6.5, 1.25 * len(shown)), layout="constrained")
    halves = figure.subfigures(1, 2, width_ratios=[1.25 * columns + 1, 5.5], squeeze=False)
    _draw_pictures(halves[0, 0], shown, columns)
    _draw_curves(halves[0, 1].subplots(), demo)
    write_atomically(path, lambda temporary: figure.savefig(temporary, dpi=110, format="png"))


def _draw_pictures(figure: SubFigure, shown: list[tuple[str, Tensor]], columns: int) -> None:
    grid = figure.subplots(len(shown), columns, squeeze=False)
    for (name, pictures), axes in zip(shown, grid, strict=True):
        for picture, place in zip(pictures.cpu(), axes, strict=True):
            limits = {"vmin": 0.0, "vmax": 1.0} if name != "A^T y" else {}
            place.imshow(picture[0].numpy(), cmap="gray", **limits)
            place.set_xticks([])
            place.set_yticks([])
        axes[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9)


def _draw_curves(axes: Axes, demo: Demo) -> None:
    for run, style in zip(demo.runs, _STYLES, strict=False):
        column = [run.result.history.item(i) for i in range(len(demo.truth))]
        longest = max(column, key=lambda item: len(item["step"]))
        passes = longest["forwards"] + longest["backwards"]
        length = len(passes)
        best = [_padded(item["objective"].cummin(dim=0).values, length) for item in column]
        middle = [sorted(values)[len(values) // 2] for values in zip(*best, strict=True)]
        axes.semilogy(passes.numpy(), middle, linestyle=style, label=run.name)
    axes.set_xlabel("forward + backward passes through G")
    axes.set_ylabel("best objective so far, median over pictures")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=9)


def _padded(values: Tensor, length: int) -> list[float]:
    numbers: list[float] = values.tolist()
    return numbers + numbers[-1:] * (length - len(numbers))
