"""What the examples share: labelled strips of pictures, relative errors, and smaller sizes for tests."""

from __future__ import annotations

import os
from typing import TypeVar

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor

from genprior.report.sheets import grid

T = TypeVar("T")
MARGIN = 1.5  # inches for labels


def short(full: T, brief: T) -> T:
    """``full``, or ``brief`` when GENPRIOR_SHORT=1 asks for a quick run."""
    return brief if os.environ.get("GENPRIOR_SHORT") == "1" else full


def errors(x: Tensor, truth: Tensor) -> Tensor:
    """``|x - truth| / |truth|`` of each item."""
    return (x - truth).flatten(1).norm(dim=1) / truth.flatten(1).norm(dim=1)


def strips(rows: dict[str, Tensor], width: float = 9.0) -> Figure:
    """One strip of pictures ``(B, 1 or 3, h, w)`` in [0, 1] for each label."""
    sheets = {label: grid(pictures, len(pictures)).numpy() for label, pictures in rows.items()}
    heights = [(width - MARGIN) * sheet.shape[0] / sheet.shape[1] for sheet in sheets.values()]
    figure, axes = plt.subplots(
        len(rows), 1, figsize=(width, sum(heights) + 0.1 * len(rows)), height_ratios=heights, squeeze=False
    )
    for axis, (label, sheet) in zip(axes[:, 0], sheets.items(), strict=True):
        axis.imshow(sheet.squeeze(-1) if sheet.shape[2] == 1 else sheet, cmap="gray", vmin=0, vmax=255)
        axis.set_xticks([])
        axis.set_yticks([])
        axis.set_frame_on(False)
        axis.set_ylabel(label, rotation=0, ha="right", va="center", fontsize=9)
    figure.subplots_adjust(left=MARGIN / width, right=0.995, top=0.995, bottom=0.005, hspace=0.06)
    return figure
