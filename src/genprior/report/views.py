"""What a report shows of signals that are no images: curves of those in time, slices of volumes, channels side by side."""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from genprior._axes import is_ambiguous, spatial_dims

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CHANNELS = 8
"""Most channels that are drawn."""
_POINTS = 2000
"""Most values along a curve: longer ones keep the least and the largest of each stretch, so that no peak is lost."""
_SHORT = 300
"""Signals up to this length are drawn two in a row."""
_STYLES: dict[str, dict[str, Any]] = {
    "original": {"color": "0.7", "linewidth": 3.0},
    "measured": {"color": "0.2", "linestyle": "none", "marker": ".", "markersize": 3},
    "recovered": {"color": "C0", "linewidth": 1.3, "zorder": 3},
}
_COLOURS = ("C8", "C1", "C2", "C4")
_OTHERS: dict[str, Any] = {"linewidth": 0.7, "alpha": 0.7}
_GAP = 2
"""Pixels between slices or channels."""


def as_images(signals: Tensor) -> Tensor:
    """``(B, 1 or 3, h, w)`` of images and volumes, ``(B, channels, n)`` of signals in time, eight channels at most.

    Of volumes the middle slice across each axis, side by side; of images with other channels than 1 or 3 the first eight side
    by side, each scaled to [0, 1].
    """
    shape = tuple(signals.shape[1:])
    dims = 1 if is_ambiguous(shape) and len(shape) == 2 else spatial_dims("the signal", shape)
    if dims == 1:
        return signals.reshape(len(signals), -1, shape[-1])[:, :_CHANNELS]
    if dims == 2:
        planes = signals.reshape(len(signals), -1, *shape[-2:])
        return planes if planes.shape[1] in {1, 3} else _side_by_side(list(_scaled(planes[:, :_CHANNELS]).unbind(1)))
    volume = signals.reshape(len(signals), -1, *shape[-3:])[:, 0]
    return _side_by_side([volume.select(axis, volume.shape[axis] // 2) for axis in (1, 2, 3)])


def curves(parts: Mapping[str, Tensor]) -> str:
    """Curves of the same signals by different methods, ``(N, channels, n)`` by name, as an image for a page.

    One plot for each channel of each item; those of more than one channel of the first four items only. What is
    "measured" is drawn as dots, but for zeros, which stand for what was not.
    """
    figure = curve_figure(parts)
    store = io.BytesIO()
    figure.savefig(store, format="png", dpi=100)
    data = base64.b64encode(store.getvalue()).decode()
    names = html.escape(", ".join(parts))
    return f'<div class="plot"><img style="max-width:100%" alt="{names}" src="data:image/png;base64,{data}"></div>'


def curve_figure(parts: Mapping[str, Tensor]) -> Figure:
    """The figure of :func:`curves`."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import, needed only here

    first = next(iter(parts.values()))
    channels = min(_CHANNELS, first.shape[1])
    count = len(first) if channels == 1 else min(4, len(first))
    columns = 2 if count > 1 and first.shape[2] <= _SHORT else 1
    rows = math.ceil(count / columns)
    height = 1.6 if channels == 1 else 0.9
    figure = Figure(figsize=(10, rows * channels * height + 0.5), layout="constrained")
    places = figure.subplots(rows * channels, columns, squeeze=False, sharex=True)
    for item in range(columns * rows):
        for channel in range(channels):
            place = places[item // columns * channels + channel][item % columns]
            if item >= count:
                place.set_axis_off()
                continue
            for number, (name, values) in enumerate(parts.items()):
                _draw(place, values[item, channel], name, number)
            if channel == 0:
                place.set_title(f"item {item + 1} of those shown", fontsize=8)
    handles, names = places[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=len(names), fontsize=9, frameon=False)
    return figure


def _draw(place: Axes, values: Tensor, name: str, number: int) -> None:
    at, thinned = _thinned(values.detach().cpu().double())
    if name == "measured":
        at, thinned = at[thinned != 0], thinned[thinned != 0]
    style = _STYLES.get(name, {"color": _COLOURS[number % len(_COLOURS)]} | _OTHERS)
    place.plot(at.numpy(), thinned.numpy(), label=name, **style)
    place.tick_params(labelsize=7)
    place.grid(alpha=0.3)
    place.margins(x=0)


def _thinned(values: Tensor) -> tuple[Tensor, Tensor]:
    """Where, and what: all values, or the least and the largest of each stretch in their order."""
    length = len(values)
    if length <= _POINTS:
        return torch.arange(length), values
    stretch = math.ceil(2 * length / _POINTS)
    whole = pad(values[None], (0, -length % stretch), mode="replicate")[0].reshape(-1, stretch)
    places = torch.stack([whole.argmin(1), whole.argmax(1)], dim=1).sort(dim=1).values
    at = (places + stretch * torch.arange(len(whole))[:, None]).flatten().clamp_max(length - 1)
    return at, values[at]


def _side_by_side(planes: list[Tensor]) -> Tensor:
    """Planes ``(B, h, w)`` as one, ``(B, 1, H, W)``, the smaller ones with black below them."""
    height = max(plane.shape[1] for plane in planes)
    wide = [pad(plane, (0, _GAP, 0, height - plane.shape[1])) for plane in planes]
    return torch.cat(wide, dim=2)[:, None, :, :-_GAP]


def _scaled(planes: Tensor) -> Tensor:
    low, high = planes.amin((2, 3), keepdim=True), planes.amax((2, 3), keepdim=True)
    return (planes - low) / (high - low).clamp_min(1e-12)
