"""The style of curves: every method has its own colour, dash and mark, so that they differ in grey too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from genprior.lab.reproduce.methods import (
    ADAM,
    AUTO,
    EXACT,
    EXACT_ADAM,
    EXACT_L2,
    GD,
    LABELS,
    LINEARIZED,
    PROJECTED,
)
from genprior.lab.reproduce.parts import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LOOKS: dict[str, tuple[str, Any, str]] = {
    GD: ("#7f7f7f", "-", "o"),
    ADAM: ("#d95f02", "--", "s"),
    PROJECTED: ("#a6761d", ":", "v"),
    LINEARIZED: ("#66a61e", (0, (5, 1, 1, 1)), "^"),
    EXACT: ("#1f4e9c", "-", "D"),
    EXACT_ADAM: ("#7570b3", "-.", "P"),
    AUTO: ("#000000", "-", "*"),
    EXACT_L2: ("#1f4e9c", ":", "d"),
}
MOST_POINTS = 250


def figure(width: float, height: float, lines: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure with its plots, row by row."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import, needed only here

    made = Figure(figsize=(width, height), layout="constrained")
    return made, list(made.subplots(lines, columns, squeeze=False, **options).flat)


def draw(axes: Axes, key: str, x: Array, y: Array, label: str | None = None) -> None:
    """One method's curve, thinned."""
    colour, dash, mark = _LOOKS[key]
    places = thinned(len(x))
    axes.plot(
        np.asarray(x)[places],
        np.asarray(y)[places],
        color=colour,
        linestyle=dash,
        marker=mark,
        markersize=5,
        markevery=_marks(key, len(places)),
        linewidth=2.0 if key in (EXACT, AUTO) else 1.4,
        label=label or LABELS[key],
    )


def _marks(key: str, count: int) -> tuple[int, int]:
    """Positions of marks, shifted for each method so that they do not overlap."""
    every = max(1, count // 7)
    return list(_LOOKS).index(key) * every // len(_LOOKS), every


def band(axes: Axes, key: str, x: Array, low: Array, high: Array) -> None:
    """The quartiles around a curve."""
    places = thinned(len(x))
    x, low, high = (np.asarray(values)[places] for values in (x, low, high))
    axes.fill_between(x, low, high, color=_LOOKS[key][0], alpha=0.12, linewidth=0)


def finish(axes: Axes, title: str, across: str, up: str, *, log_x: bool = False, log_y: bool = True) -> None:
    """Title, labels, scales, a light grid."""
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(across, fontsize=9)
    axes.set_ylabel(up, fontsize=9)
    if log_x:
        axes.set_xscale("log")
    if log_y:
        axes.set_yscale("log")
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3, which="both")


def common_legend(made: Figure, axes: Axes, columns: int = 7) -> None:
    """One legend for all plots, below them."""
    handles, labels = axes.get_legend_handles_labels()
    made.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels)), fontsize=9, frameon=False)


def thinned(count: int) -> Array:
    """At most this many indices, dense at the start."""
    if count <= MOST_POINTS:
        return np.arange(count)
    early = np.unique(np.geomspace(1, count, MOST_POINTS // 2).astype(int) - 1)
    even = np.linspace(0, count - 1, MOST_POINTS // 2).astype(int)
    return np.unique(np.concatenate([early, even]))
