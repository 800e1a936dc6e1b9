"""Plots of signals that are not images: lines, or maps if there are too many lines."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from genprior._files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LINES = 8
"""Most lines, or maps, of one signal."""
_POINTS = 2000
"""Most values along a line."""


def signal_sheet(signals: Tensor, path: Path, *, columns: int = 4) -> None:
    """One small plot for each of the signals ``(N, *shape)``, all on the same scale.

    ``(n,)`` is a line, ``(c, n)`` a line per channel or, above eight channels, a map with a row for each; of ``(..., h, w)``
    the first eight maps are laid side by side.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import, needed only here
    from matplotlib.layout_engine import ConstrainedLayoutEngine  # noqa: PLC0415

    values = signals.detach().cpu().double()
    shape = tuple(values.shape[1:])
    values = values.reshape(len(values), 1, -1) if len(shape) < 2 else values
    rows = math.ceil(len(values) / columns)
    room = ConstrainedLayoutEngine(h_pad=0.1, w_pad=0.1)
    figure = Figure(figsize=(3.2 * columns, 2.1 * rows + 0.5), layout=room)
    figure.suptitle(f"signals of shape {shape}{_explained(values)}", fontsize=11)
    places = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat
    low, high = float(values.min()), float(values.max())
    for place, signal in zip(places, values, strict=False):
        _draw(place, signal, (low, high))
    for place in places[len(values) :]:
        place.set_axis_off()
    write_atomically(path, lambda temporary: figure.savefig(temporary, dpi=100, format="png"))


def mosaic(maps: Tensor) -> Tensor:
    """Maps ``(c, h, w)`` side by side in about a square, as one ``(H, W)``; NaN between them and in empty cells."""
    count, height, width = maps.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    sheet = torch.full((rows * (height + 1) - 1, columns * (width + 1) - 1), torch.nan, dtype=maps.dtype)
    for number, one in enumerate(maps):
        top, left = number // columns * (height + 1), number % columns * (width + 1)
        sheet[top : top + height, left : left + width] = one
    return sheet


def _explained(values: Tensor) -> str:
    channels, length = values.shape[1], values.shape[-1]
    if values.ndim > 3:
        maps = math.prod(values.shape[1:-2])
        return f": the first {_LINES} of {maps} maps" if maps > _LINES else f": {maps} maps side by side"
    if channels > _LINES:
        return ": a row for each channel"
    thinned = f": every {_stride(length)}th value" if _stride(length) > 1 else ""
    return f", a line for each channel{thinned}" if channels > 1 else thinned


def _draw(place: Axes, signal: Tensor, bounds: tuple[float, float]) -> None:
    """``(c, n)`` or ``(..., h, w)``."""
    place.tick_params(labelsize=7)
    if signal.ndim == 2 and len(signal) <= _LINES:
        step = _stride(signal.shape[1])
        at = torch.arange(0, signal.shape[1], step).numpy()
        marker = "." if len(at) <= 40 else ""
        for channel in signal:
            place.plot(at, channel[::step].numpy(), linewidth=0.9, marker=marker, markersize=4)
        place.grid(alpha=0.3)
        return
    whole = signal if signal.ndim == 2 else mosaic(signal.reshape(-1, *signal.shape[-2:])[:_LINES])
    aspect: Literal["auto", "equal"] = "auto" if signal.ndim == 2 else "equal"
    place.imshow(whole.numpy(), "gray", vmin=bounds[0], vmax=bounds[1], aspect=aspect, interpolation="nearest")
    if signal.ndim > 2:
        place.set_axis_off()


def _stride(length: int) -> int:
    return math.ceil(length / _POINTS)
