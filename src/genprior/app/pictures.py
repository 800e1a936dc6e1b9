"""Pictures in and out of the page: unchecked uploads, drawings, and small PNGs for the browser."""

from __future__ import annotations

import base64
import io
import warnings
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from genprior.files.guard import Unreadable, reading
from genprior.files.images import FORMATS, ImageSpec, decode
from genprior.report.sheets import grid

_MOST_PIXELS = 13_000_000
"""A photograph of twelve million pixels; unpacked they take about a quarter of a gigabyte."""
_DATA_URL = "data:image/png;base64,"
_LARGEST_SKETCH = 1_000_000
_WIDEST_SKETCH = 1024
_DIGIT = 20 / 28
"""MNIST's digits fill 20 of 28 pixels, with the centre of mass in the middle."""


def read_upload(data: bytes, signal_shape: tuple[int, ...], name: str = "the file") -> Tensor:
    """An uploaded file as one signal ``(1, channels, h, w)`` in [0, 1], in 255 steps: cropped to its middle, scaled.

    Transparent parts become white. A grey picture that is mostly light (ink on paper) is turned into its negative, as the
    digits on which the bundled generator was trained are white on black.
    """
    channels, height, width = signal_shape
    _check_head(data, name)
    pixels = decode(data, ImageSpec(channels, height, width, resize=True, on_white=True), name)
    pixels = (pixels * 255).round() / 255  # so that a PNG file holds the same picture
    if channels == 1 and pixels.mean() > 0.5:
        pixels = 1 - pixels
    return pixels[None]


def read_drawing(data_url: str, signal_shape: tuple[int, ...]) -> Tensor:
    """White strokes on the sketchpad as a digit such as those of MNIST: fitted into 20 pixels, centred by its mass."""
    ink = _strokes(data_url)
    box = ink.getbbox()
    if box is None:
        raise ValueError("nothing is drawn yet: draw a digit on the black square")
    height, width = signal_shape[-2:]
    digit = ink.crop(box)
    scale = _DIGIT * height / max(digit.size)
    size = max(1, round(digit.width * scale)), max(1, round(digit.height * scale))
    small = np.asarray(digit.resize(size, Image.Resampling.BOX), dtype=np.float64)
    return torch.from_numpy(_centred(small, height, width))[None, None].float() / 255


def read_mask(data_url: str, signal_shape: tuple[int, ...]) -> Tensor:
    """The painted part of the sketchpad as a mask ``(h, w)`` of what is known: True where nothing was painted."""
    height, width = signal_shape[-2:]
    share = np.asarray(_strokes(data_url).resize((width, height), Image.Resampling.BOX))
    known = torch.from_numpy(share < 128)
    if bool(known.all()):
        raise ValueError("no part is painted over yet: paint on the image what is to be lost")
    if not bool(known.any()):
        raise ValueError("everything is painted over: leave some part of the image, or press Clear")
    return known


def png(pictures: Tensor, zoom: int = 1) -> bytes:
    """Pictures ``(N, 1 or 3, h, w)`` in [0, 1] side by side as a PNG file."""
    content = grid(pictures, columns=len(pictures)).numpy()
    image = Image.fromarray(content[..., 0] if content.shape[2] == 1 else content)
    if zoom > 1:
        image = image.resize((image.width * zoom, image.height * zoom), Image.Resampling.NEAREST)
    store = io.BytesIO()
    image.save(store, format="png")
    return store.getvalue()


def data_url(picture: Tensor) -> str:
    """A picture as the source of an image element."""
    return _DATA_URL + base64.b64encode(png(picture)).decode()


def _check_head(data: bytes, name: str) -> None:
    """Refuse what is no picture, or has too many pixels, before any of them is read."""
    try:
        with reading(name, "an image"), warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                size = image.size
    except Unreadable as problem:
        if not isinstance(problem.__cause__, UnidentifiedImageError):
            raise
        raise Unreadable(f"{name} cannot be read as an image: choose a PNG or JPEG file") from None
    if size[0] * size[1] > _MOST_PIXELS:
        raise Unreadable(f"{name} has {size[0]} x {size[1]} pixels, too many for this page: make it smaller first")


def _strokes(data_url: str) -> Image.Image:
    """How opaque the sketchpad is, pixel by pixel. It comes from a browser: anything may be in it."""
    if not data_url.startswith(_DATA_URL) or len(data_url) > _LARGEST_SKETCH:
        raise ValueError("the sketch did not arrive whole: draw it again")
    with reading("the sketch", "a drawing"):
        data = base64.b64decode(data_url.removeprefix(_DATA_URL), validate=True)
        with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
            if max(image.size) > _WIDEST_SKETCH:
                raise ValueError(f"it has {image.width} x {image.height} pixels")
            return image.convert("RGBA").getchannel("A")


def _centred(small: np.ndarray[Any, Any], height: int, width: int) -> np.ndarray[Any, Any]:
    """Put a small picture on a black one, its centre of mass in the middle, nothing cut off."""
    rows, columns = small.shape
    mass = max(small.sum(), 1e-9)
    top = round(height / 2 - (small.sum(1) @ (np.arange(rows) + 0.5)) / mass)
    left = round(width / 2 - (small.sum(0) @ (np.arange(columns) + 0.5)) / mass)
    top, left = min(max(top, 0), height - rows), min(max(left, 0), width - columns)
    page = np.zeros((height, width))
    page[top : top + rows, left : left + columns] = small
    return page
