"""One picture file as numbers in [0, 1], and back. Each kind of picture has one stated conversion, or a clear refusal."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from genprior._files import write_atomically
from genprior.files.guard import Unreadable, reading
from genprior.files.limits import MOST_PIXELS

WRITTEN_AS = {
    ".png": ".png",
    ".jpg": ".jpg",
    ".jpeg": ".jpeg",
    ".bmp": ".bmp",
    ".webp": ".webp",
    ".tif": ".tif",
    ".tiff": ".tiff",
    ".gif": ".png",
    ".pgm": ".png",
    ".ppm": ".png",
}
"""Endings that are read, and under which ending a recovered picture is written."""
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
"""What is looked for in a file, whatever its ending: of the other readers of PIL some start programs, as for PostScript."""
_SAVE: dict[str, dict[str, Any]] = {
    ".jpg": {"format": "jpeg", "quality": 95, "subsampling": 0},
    ".jpeg": {"format": "jpeg", "quality": 95, "subsampling": 0},
    ".bmp": {"format": "bmp"},
    ".webp": {"format": "webp", "lossless": True},
    ".tif": {"format": "tiff"},
    ".tiff": {"format": "tiff"},
    ".png": {"format": "png"},
}
_DEEP = ("I;16", "I;16L", "I;16B", "I;16N")
_TOO_DEEP = ("I", "F")
_ORIENTATION = 0x0112
_LAST_UPRIGHT = 4
Pixels = np.ndarray[Any, Any]
_COPIES = {"WEBP": 2}
"""How many times the memory of others a reader takes: that of WebP keeps two more copies of an image."""
_BAND = 256
"""Rows of an image that are converted at once."""


@dataclass(frozen=True)
class Wanted:
    """What a picture has to become: channels (1 grey, 3 colour) and size; ``resize`` allows to cut and scale to it.

    With ``on_white``, transparent parts become white instead of being refused. ``whole`` is the size of undamaged pictures
    where measurements are wanted, for an error that says so.
    """

    channels: int
    height: int
    width: int
    resize: bool = False
    on_white: bool = False
    whole: tuple[int, int] | None = None


def decode(source: Path | bytes, wanted: Wanted, name: str | None = None) -> Tensor:
    """A picture as ``(channels, height, width)`` in [0, 1].

    Grey pictures get three equal channels where colour is wanted, coloured ones become grey where grey is wanted; palettes
    are resolved; 16 bits of grey are kept, of 16 bits for each colour the upper eight; rotation marks of cameras are
    obeyed; of the several frames of a camera's JPEG (MPO) the first is taken. Refused: another size (unless ``resize``),
    transparent pixels, several frames otherwise, more than 16 bits, anything that is not a picture.
    """
    shown = name or (str(source) if isinstance(source, Path) else "the picture")
    with quiet(), reading(shown, "a picture"), opened(source, shown) as image:
        check(image, wanted, shown)
        plain = flatten(image, wanted.channels, shown, on_white=wanted.on_white)
        _check_size(plain.size, wanted, shown)
    if wanted.resize and plain.size != (wanted.width, wanted.height):
        plain = ImageOps.fit(plain, (wanted.width, wanted.height), Image.Resampling.LANCZOS)
    pixels = torch.from_numpy(np.array(plain, dtype=np.float32))
    pixels = pixels.clamp_(0, 1) if plain.mode == "F" else pixels.div_(255)
    pixels = pixels.reshape(wanted.height, wanted.width, -1).permute(2, 0, 1)
    return pixels.expand(wanted.channels, -1, -1).contiguous()


def flatten(image: Image.Image, channels: int, name: str, *, on_white: bool) -> Image.Image:
    """An opened picture upright, without palette and transparency: L or RGB, or F in [0, 1] for 16 bits of grey."""
    deep = _is_deep(image)
    ImageOps.exif_transpose(image, in_place=True)
    if deep:
        return in_bands(image, "F", lambda band: band.astype(np.float32) / 65535)
    return _flat(_on_white(image) if on_white else image, channels, name)


def check_file(path: Path, wanted: Wanted) -> bool:
    """Read the head of a file only; raise if it will be refused. Whether it has 16 bits."""
    with quiet(), reading(path, "a picture"), opened(path, str(path)) as image:
        check(image, wanted, str(path))
        return _is_deep(image)


def check(image: Image.Image, wanted: Wanted, name: str) -> None:
    """Raise where a picture, by what its head says, cannot become what is wanted."""
    if getattr(image, "is_animated", False) and image.format != "MPO":  # frames are not counted: there may be millions
        raise Unreadable(f"{name} holds several frames: save each as an image of its own")
    check_depth(image, name)
    _check_size(image.size[::-1] if _lies_on_its_side(image) else image.size, wanted, name)


def check_depth(image: Image.Image, name: str) -> None:
    """Raise where pixels have 32 bits: which of their values is white is not known."""
    if image.mode in _TOO_DEEP and not _is_deep(image):
        raise Unreadable(f"{name} has 32 bits for each pixel (mode {image.mode}): save it as .npy, values in [0, 1]")


def encode(picture: Tensor, path: Path, *, deep: bool = False, sync: bool = True) -> None:
    """Write an image ``(1 or 3, h, w)`` in [0, 1], whole or not at all; ``deep`` with 16 bits where it is grey.

    With ``sync=False`` the caller syncs the folder, see ``write_atomically``.
    """
    suffix = path.suffix.lower()
    values = picture.detach().cpu().float().clamp(0, 1)
    if deep and len(values) == 1 and suffix in {".png", ".tif", ".tiff"}:
        image = Image.fromarray((values[0] * 65535).round().numpy().astype(np.uint16))
    else:
        pixels = (values * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
        image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else np.ascontiguousarray(pixels))
    write_atomically(path, lambda temporary: image.save(temporary, **_SAVE[suffix]), sync=sync)


def _on_white(image: Image.Image) -> Image.Image:
    if not image.has_transparency_data:
        return image
    image = _as_mode(image, "RGBA")
    white = Image.new("RGB", image.size, "white")
    white.paste(image, mask=image.getchannel("A"))
    return white


def in_bands(image: Image.Image, mode: str, change: Callable[[Pixels], Pixels]) -> Image.Image:
    """An image with its pixels changed, some rows at a time: copies of a large one take hundreds of megabytes."""
    changed = Image.new(mode, image.size)
    for top in range(0, image.height, _BAND):
        band = image.crop((0, top, image.width, min(top + _BAND, image.height)))
        changed.paste(Image.fromarray(change(np.asarray(band))), (0, top))
    return changed


def _as_mode(image: Image.Image, mode: str) -> Image.Image:
    return image if image.mode == mode else image.convert(mode)


def _check_size(size: tuple[int, int], wanted: Wanted, name: str) -> None:
    if wanted.resize or size == (wanted.width, wanted.height):
        return
    if size[::-1] == wanted.whole:
        raise Unreadable(
            f"{name} has {size[0]} x {size[1]} pixels, as the generator's pictures do, expected measurements of "
            f"{wanted.width} x {wanted.height}: are these whole pictures, to be measured first? Add `simulate=True`"
        )
    raise Unreadable(
        f"{name} has {size[0]} x {size[1]} pixels, expected {wanted.width} x {wanted.height}: cut it to size, or allow it to "
        "be cut and scaled with `resize=True`"
    )


def _lies_on_its_side(image: Image.Image) -> bool:
    """By the camera's mark; a PNG is asked only for what stands in its head, for the rest all of it would be read."""
    if image.format != "PNG":
        return bool(image.getexif().get(_ORIENTATION, 1) > _LAST_UPRIGHT)
    marks = Image.Exif()
    marks.load(image.info.get("exif", b""))
    return bool(marks.get(_ORIENTATION, 1) > _LAST_UPRIGHT)


def _is_deep(image: Image.Image) -> bool:
    """Whether it is grey with 16 bits, which PGM files give as whole numbers up to 65535."""
    return image.mode in _DEEP or (image.mode == "I" and image.format == "PPM")


def _flat(image: Image.Image, channels: int, name: str) -> Image.Image:
    """Without palette and transparency: L or RGB."""
    if image.has_transparency_data:
        image = _as_mode(image, "RGBA")
        if image.getchannel("A").getextrema()[0] != 255:
            raise Unreadable(f"{name} has transparent pixels, whose values are not known: flatten it onto a background")
    return _as_mode(image, "L" if channels == 1 else "RGB")


@contextmanager
def opened(source: Path | bytes, name: str) -> Iterator[Image.Image]:
    """An image file whose head was read and whose pixels were not; refused where it would take too much memory."""
    with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS) as image:
        most = MOST_PIXELS // _COPIES.get(image.format or "", 1)
        if image.width * image.height > most:
            raise Unreadable(
                f"{name} has {image.width} x {image.height} pixels, at most {most / 1e6:.0f} million are read: scale it down "
                "first"
            )
        yield image


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of PIL: what matters is an error here. Not for threads, which share the filter of warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
