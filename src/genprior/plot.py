"""Figures for notebooks and scripts, drawn with matplotlib, which is imported with the first figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from genprior.report.sheets import grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["strips"]

_LABELS = 1.5
"""Width of the margin left of the images, in inches, for the labels."""


def strips(rows: Mapping[str, Tensor], *, signal_range: tuple[float, float] = (0.0, 1.0), width: float = 9.0) -> Figure:
    """Draw one row of images for each label, so that what belongs together stands in one column.

    Parameters
    ----------
    rows
        label to images ``(B, 1 or 3, h, w)``.
    signal_range
        values shown as black and white; what lies outside is cut off.
    width
        of the figure, in inches.

    The figure is pyplot's current one: notebooks show it, ``plt.show()`` opens it, ``figure.savefig(...)`` stores it.

    Examples
    --------
    >>> import genprior as gp
    >>> G = gp.load_generator("mnist")
    >>> figure = gp.plot.strips({"samples": G(G.sample_latent(4, seed=1)), "others": G(G.sample_latent(4, seed=2))})
    >>> len(figure.axes)
    2
    """
    import matplotlib.pyplot as plt  # noqa: PLC0415 - slow to import, needed only here

    if not rows:
        raise ValueError("rows is empty: give at least one label with its images")
    sheets = {label: _sheet(label, images, signal_range) for label, images in rows.items()}
    heights = [(width - _LABELS) * sheet.shape[0] / sheet.shape[1] for sheet in sheets.values()]
    size = (width, sum(heights) + 0.1 * len(rows))
    figure, axes = plt.subplots(len(rows), 1, figsize=size, height_ratios=heights, squeeze=False)
    for axis, (label, sheet) in zip(axes[:, 0], sheets.items(), strict=True):
        shown = sheet.squeeze(-1) if sheet.shape[2] == 1 else sheet
        axis.imshow(shown.numpy(), cmap="gray", vmin=0, vmax=255)
        axis.set_xticks([])
        axis.set_yticks([])
        axis.set_frame_on(False)
        axis.set_ylabel(label, rotation=0, ha="right", va="center", fontsize=9)
    figure.subplots_adjust(left=_LABELS / width, right=0.995, top=0.995, bottom=0.005, hspace=0.06)
    return figure


def _sheet(label: str, images: Tensor, signal_range: tuple[float, float]) -> Tensor:
    """The images side by side, as bytes."""
    if images.ndim != 4 or images.shape[1] not in {1, 3} or len(images) == 0:
        raise ValueError(
            f"rows[{label!r}] has shape {tuple(images.shape)}, expected images (B, 1 or 3, h, w): add the axes of batch and "
            "channels with x.reshape(-1, 1, h, w)"
        )
    low, high = signal_range
    if not low < high:
        raise ValueError(f"signal_range must be (low, high) with low below high, got {signal_range!r}")
    return grid((images.detach() - low) / (high - low), len(images))
