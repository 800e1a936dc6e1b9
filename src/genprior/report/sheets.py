"""Contact sheets: many small pictures in one PNG."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from genprior._files import write_atomically


def contact_sheet(pictures: Tensor, path: Path, *, columns: int = 8, zoom: int | None = None) -> None:
    """Write pictures ``(N, 1 or 3, h, w)`` in [0, 1] row by row, with a thin line between."""
    content = grid(pictures, columns)
    zoom = max(1, 512 // content.shape[1]) if zoom is None else zoom
    image = Image.fromarray(content.squeeze(2).numpy() if content.shape[2] == 1 else content.numpy())
    image = image.resize((image.width * zoom, image.height * zoom), Image.Resampling.NEAREST)
    write_atomically(path, lambda temporary: image.save(temporary, format="png"))


def grid(pictures: Tensor, columns: int, gap: int = 1) -> Tensor:
    """Pictures side by side as bytes ``(H, W, channels)``; places that stay empty are dark."""
    count, channels, height, width = pictures.shape
    rows = math.ceil(count / columns)
    plain = (pictures.detach().cpu().float().clamp(0, 1) * 255).round().to(torch.uint8)
    sheet = torch.zeros(channels, rows * (height + gap) - gap, columns * (width + gap) - gap, dtype=torch.uint8)
    for number, picture in enumerate(plain):
        top, left = (number // columns) * (height + gap), (number % columns) * (width + gap)
        sheet[:, top : top + height, left : left + width] = picture
    return sheet.permute(1, 2, 0).contiguous()


def stretched(pictures: Tensor) -> Tensor:
    """Each picture's own range as [0, 1], for what is no picture but can be looked at as one."""
    low, high = pictures.amin((1, 2, 3), keepdim=True), pictures.amax((1, 2, 3), keepdim=True)
    return (pictures - low) / (high - low).clamp_min(1e-12)
