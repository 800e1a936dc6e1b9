"""The layout of items in an array: the meaning of each axis, and the inverse conversion."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from genprior.files.guard import Misfit, Unreadable

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """``exact`` (c, h, w); ``plain`` (h, w) for one channel, (d, h, w) for volumes; ``last`` (h, w, c); ``flat`` (c h w,)."""

    form: str
    batched: bool
    """Whether the first axis counts items; else the array is one item."""

    def to_items(self, block: Tensor, item_shape: Shape) -> Tensor:
        """Rows ``(n, ...)`` of the array as ``(n, *item_shape)``."""
        return block.movedim(-1, 1) if self.form == "last" else block.reshape(len(block), *item_shape)

    def from_items(self, items: Tensor) -> Tensor:
        """Items ``(n, *shape)`` in the array's layout, for example images without their single channel."""
        if self.form == "flat":
            return items.flatten(1)
        if self.form == "plain" and items.ndim in {4, 5} and items.shape[1] == 1:
            return items[:, 0]
        return items.movedim(1, -1) if self.form == "last" and items.ndim == 4 else items


def fit(shape: Shape, item_shape: Shape, name: str) -> Layout:
    """The layout of items in an array of this shape; raises if there is none."""
    for form, stored in _forms(item_shape):
        if shape == stored:
            return Layout(form, batched=False)
        if shape[1:] == stored and len(shape) == len(stored) + 1:
            if shape[0] == 0:
                raise Unreadable(f"{name} is empty, shape {shape}: nothing to do")
            return Layout(form, batched=True)
    many = ", ".join(["N", *map(str, item_shape)])
    raise Misfit(
        f"{name} has shape {shape}, expected {item_shape} for one item or ({many}) for many: does it belong to this "
        "generator and operator?"
    )


def _forms(item_shape: Shape) -> list[tuple[str, Shape]]:
    forms = [("exact", item_shape)]
    if len(item_shape) == 3:
        channels, height, width = item_shape
        forms += [("plain", (height, width))] if channels == 1 else []
        forms += [("last", (height, width, channels))]
    if len(item_shape) == 4 and item_shape[0] == 1:
        forms += [("plain", item_shape[1:])]
    if len(item_shape) > 1:
        forms += [("flat", (math.prod(item_shape),))]
    return forms
