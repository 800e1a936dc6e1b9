"""Pictures in and out of the page: uploads that nobody has checked, drawings, and small PNGs for the browser."""

from __future__ import annotations

import base64
import binascii
import io
import warnings

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from genprior.report.sheets import grid

_MOST_PIXELS = 40_000_000
_DATA_URL = "data:image/png;base64,"
_LARGEST_SKETCH = 1_000_000
_DIGIT = 20
"""MNIST's digits fill 20 of 28 pixels, with the centre of mass in the middle."""


def read_upload(data: bytes, signal_shape: tuple[int, ...]) -> Tensor:
    """An uploaded file as one signal ``(1, channels, h, w)`` in [0, 1]: cropped to a square, resized, made grey where needed.

    Transparent parts become white. A grey picture that is mostly light (ink on paper) is turned into its negative, as the
    digits on which the bundled generator was trained are white on black.
    """
    channels, height, width = signal_shape
    image = _flat(_open(data), "L" if channels == 1 else "RGB")
    image = ImageOps.fit(image, (width, height), Image.Resampling.LANCZOS)
    pixels = torch.from_numpy(np.array(image)).float() / 255
    if channels == 1:
        pixels = (1 - pixels if pixels.mean() > 0.5 else pixels)[..., None]
    return pixels.permute(2, 0, 1)[None].contiguous()


def read_drawing(data_url: str, signal_shape: tuple[int, ...]) -> Tensor:
    """White strokes on the sketchpad as a digit such as those of MNIST: fitted into 20 pixels, centred by its mass."""
    ink = _strokes(data_url)
    box = ink.getbbox()
    if box is None:
        raise ValueError("nothing is drawn yet: draw a digit on the black square")
    _, height, width = signal_shape
    digit = ink.crop(box)
    scale = _DIGIT * height / 28 / max(digit.size)
    size = max(1, round(digit.width * scale)), max(1, round(digit.height * scale))
    small = np.asarray(digit.resize(size, Image.Resampling.BOX), dtype=np.float64)
    return torch.from_numpy(_centred(small, height, width))[None, None].float() / 255


def read_mask(data_url: str, signal_shape: tuple[int, ...]) -> Tensor:
    """The painted part of the sketchpad as a mask ``(h, w)`` of what is known: True where nothing was painted."""
    height, width = signal_shape[-2:]
    share = np.asarray(_strokes(data_url).resize((width, height), Image.Resampling.BOX))
    known = torch.from_numpy(share < 128)
    if bool(known.all()):
        raise ValueError("no part is painted over yet: paint on the picture what is to be lost")
    if not bool(known.any()):
        raise ValueError("everything is painted over: leave some part of the picture, or press Clear")
    return known


def png(picture: Tensor, zoom: int = 1) -> bytes:
    """Pictures ``(N, 1 or 3, h, w)`` in [0, 1] side by side as a PNG file."""
    content = grid(picture, columns=len(picture)).numpy()
    image = Image.fromarray(content[..., 0] if content.shape[2] == 1 else content)
    if zoom > 1:
        image = image.resize((image.width * zoom, image.height * zoom), Image.Resampling.NEAREST)
    store = io.BytesIO()
    image.save(store, format="png")
    return store.getvalue()


def data_url(picture: Tensor) -> str:
    """A picture as the source of an image element."""
    return _DATA_URL + base64.b64encode(png(picture)).decode()


def _open(data: bytes) -> Image.Image:
    """Decode, or say in one sentence why not. Pillow answers broken files with errors of many kinds."""
    if not data:
        raise ValueError("the file is empty: choose a PNG or JPEG image")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = Image.open(io.BytesIO(data))
            if image.width * image.height > _MOST_PIXELS:
                raise _TooLarge(f"the image has {image.width} x {image.height} pixels")
            image.load()
    except (_TooLarge, Image.DecompressionBombError) as problem:
        most = _MOST_PIXELS // 1_000_000
        raise ValueError(f"{problem}, more than {most} million: make it smaller first") from None
    except Exception:
        raise ValueError("this file is not an image that can be read: choose a PNG or JPEG image") from None
    return ImageOps.exif_transpose(image)


class _TooLarge(Exception):
    pass


def _flat(image: Image.Image, mode: str) -> Image.Image:
    """Eight bits, without transparency: on white."""
    if image.mode.startswith(("I", "F")):
        return _eight_bits(image).convert(mode)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert(mode)
    return image.convert(mode)


def _eight_bits(image: Image.Image) -> Image.Image:
    """Sixteen bits per pixel scaled to eight; other depths, which have no agreed white, from darkest to lightest."""
    values = np.nan_to_num(np.asarray(image, dtype=np.float64), posinf=0, neginf=0)
    low, high = (0.0, 65535.0) if image.mode.startswith("I;16") else (values.min(), values.max())
    scaled = (values - low) * (255 / (high - low) if high > low else 0.0)
    return Image.fromarray(scaled.clip(0, 255).round().astype(np.uint8))


def _strokes(data_url: str) -> Image.Image:
    """How opaque the sketchpad is, pixel by pixel. It comes from a browser: anything may be in it."""
    if not isinstance(data_url, str) or not data_url.startswith(_DATA_URL) or len(data_url) > _LARGEST_SKETCH:
        raise ValueError("the sketch did not arrive whole: draw it again")
    try:
        data = base64.b64decode(data_url.removeprefix(_DATA_URL), validate=True)
    except binascii.Error:
        raise ValueError("the sketch did not arrive whole: draw it again") from None
    return _open(data).convert("RGBA").getchannel("A")


def _centred(small: np.ndarray, height: int, width: int) -> np.ndarray:
    """Put a small picture on a black one, its centre of mass in the middle, nothing cut off."""
    rows, columns = small.shape
    mass = max(small.sum(), 1e-9)
    top = round(height / 2 - (small.sum(1) @ (np.arange(rows) + 0.5)) / mass)
    left = round(width / 2 - (small.sum(0) @ (np.arange(columns) + 0.5)) / mass)
    top, left = min(max(top, 0), height - rows), min(max(left, 0), width - columns)
    page = np.zeros((height, width))
    page[top : top + rows, left : left + columns] = small
    return page
