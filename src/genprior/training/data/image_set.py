"""A set of images in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class ImageSet:
    """Images as bytes ``(N, channels, side, side)``, with labels where there are some."""

    name: str
    bytes: Tensor
    labels: Tensor | None = None
    licence: str = ""
    skipped: tuple[str, ...] = ()
    """Files that were there but could not be read as images."""

    def __len__(self) -> int:
        return len(self.bytes)

    @property
    def signal_shape(self) -> tuple[int, ...]:
        """Shape of one image."""
        return tuple(self.bytes.shape[1:])

    def batch(self, index: Tensor, device: torch.device | str = "cpu") -> Tensor:
        """The images at these places, in [0, 1]."""
        return self.bytes[index].to(device).float() / 255

    def part(self, start: int, end: int | None = None) -> ImageSet:
        """The images from ``start`` up to ``end``."""
        labels = None if self.labels is None else self.labels[start:end]
        return replace(self, bytes=self.bytes[start:end], labels=labels)
