"""Contact sheets: many small images in one PNG."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from genprior._files import write_atomically


def contact_sheet(images: Tensor, path: Path, *, columns: int = 8, zoom: int | None = None) -> None:
    """Write images ``(N, 1 or 3, h, w)`` in [0, 1] row by row, with a thin line between."""
    content = grid(images, columns)
    zoom = max(1, 512 // content.shape[1]) if zoom is None else zoom
    image = Image.fromarray(content.squeeze(2).numpy() if content.shape[2] == 1 else content.numpy())
    image = image.resize((image.width * zoom, image.height * zoom), Image.Resampling.NEAREST)
    write_atomically(path, lambda temporary: image.save(temporary, format="png"))


def grid(images: Tensor, columns: int, gap: int = 1) -> Tensor:
    """Images side by side as bytes ``(H, W, channels)``; empty cells are black."""
    count, channels, height, width = images.shape
    rows = math.ceil(count / columns)
    plain = (images.detach().cpu().float().clamp(0, 1) * 255).round().to(torch.uint8)
    sheet = torch.zeros(channels, rows * (height + gap) - gap, columns * (width + gap) - gap, dtype=torch.uint8)
    for number, image in enumerate(plain):
        top, left = (number // columns) * (height + gap), (number % columns) * (width + gap)
        sheet[:, top : top + height, left : left + width] = image
    return sheet.permute(1, 2, 0).contiguous()


def stretched(images: Tensor) -> Tensor:
    """Rescale each image to [0, 1], to display values of another range."""
    low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
    return (images - low) / (high - low).clamp_min(1e-12)
