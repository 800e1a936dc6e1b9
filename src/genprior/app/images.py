"""Images in and out of the page: unchecked uploads, drawings, and small PNGs for the browser."""

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
"""A 12-megapixel photograph; decoding it takes about a quarter of a gigabyte."""
_DATA_URL = "data:image/png;base64,"
_LARGEST_SKETCH = 1_000_000
_WIDEST_SKETCH = 1024
_DIGIT = 20 / 28
"""MNIST digits fill 20 of 28 pixels, with the centre of mass in the middle."""


def read_upload(data: bytes, signal_shape: tuple[int, ...], name: str = "the file") -> Tensor:
    """An uploaded file as one signal ``(1, channels, h, w)`` in [0, 1], rounded to 255 steps: cropped to a square, scaled.

    Transparent parts become white. A grey image that is mostly light (ink on paper) is inverted, because the
    bundled generator was trained on white digits on black.
    """
    channels, height, width = signal_shape
    _check_head(data, name)
    pixels = decode(data, ImageSpec(channels, height, width, resize=True, on_white=True), name)
    pixels = (pixels * 255).round() / 255  # so that a PNG file holds the same image
    if channels == 1 and pixels.mean() > 0.5:
        pixels = 1 - pixels
    return pixels[None]


def read_drawing(data_url: str, signal_shape: tuple[int, ...]) -> Tensor:
    """Strokes on the sketchpad as an MNIST digit: fitted into 20 pixels, centre of mass in the middle."""
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
    """The mask ``(h, w)`` of known pixels: True where nothing was painted."""
    height, width = signal_shape[-2:]
    share = np.asarray(_strokes(data_url).resize((width, height), Image.Resampling.BOX))
    known = torch.from_numpy(share < 128)
    if bool(known.all()):
        raise ValueError("no part is painted over yet: paint on the image")
    if not bool(known.any()):
        raise ValueError("everything is painted over: leave some part of the image, or press Clear")
    return known


def png(images: Tensor, zoom: int = 1) -> bytes:
    """Images ``(N, 1 or 3, h, w)`` in [0, 1] side by side as a PNG file."""
    content = grid(images, columns=len(images)).numpy()
    image = Image.fromarray(content[..., 0] if content.shape[2] == 1 else content)
    if zoom > 1:
        image = image.resize((image.width * zoom, image.height * zoom), Image.Resampling.NEAREST)
    store = io.BytesIO()
    image.save(store, format="png")
    return store.getvalue()


def data_url(image: Tensor) -> str:
    """An image as the source of an image element."""
    return _DATA_URL + base64.b64encode(png(image)).decode()


def _check_head(data: bytes, name: str) -> None:
    """Refuse files that are not images or have too many pixels, before any pixel is read."""
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
    """The opacity of each pixel of the sketchpad. It comes from a browser, so it is checked first."""
    if not data_url.startswith(_DATA_URL) or len(data_url) > _LARGEST_SKETCH:
        raise ValueError("the sketch arrived incomplete: draw it again")
    with reading("the sketch", "a drawing"):
        data = base64.b64decode(data_url.removeprefix(_DATA_URL), validate=True)
        with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
            if max(image.size) > _WIDEST_SKETCH:
                raise ValueError(f"it has {image.width} x {image.height} pixels")
            return image.convert("RGBA").getchannel("A")


def _centred(small: np.ndarray[Any, Any], height: int, width: int) -> np.ndarray[Any, Any]:
    """Put a small image on a black one, its centre of mass in the middle, nothing cut off."""
    rows, columns = small.shape
    mass = max(small.sum(), 1e-9)
    top = round(height / 2 - (small.sum(1) @ (np.arange(rows) + 0.5)) / mass)
    left = round(width / 2 - (small.sum(0) @ (np.arange(columns) + 0.5)) / mass)
    top, left = min(max(top, 0), height - rows), min(max(left, 0), width - columns)
    page = np.zeros((height, width))
    page[top : top + rows, left : left + columns] = small
    return page
