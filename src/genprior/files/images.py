"""Image files as values in [0, 1], and back. Each image mode has one documented conversion or a clear error."""

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
"""Endings that are read, and the ending of the recovered image."""
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
"""Formats tried for any file, whatever its ending: some other readers of PIL start programs, as for PostScript."""
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
"""Relative memory of a reader: that of WebP keeps two more copies of an image."""
_BAND = 256
"""Rows of an image that are converted at once."""


@dataclass(frozen=True)
class ImageSpec:
    """The format of an image: channels (1 grey, 3 colour) and size; ``resize`` allows cropping and scaling to it.

    With ``on_white``, transparent parts become white instead of an error. ``whole`` is the size of the signals if
    measurements are expected, for the error message.
    """

    channels: int
    height: int
    width: int
    resize: bool = False
    on_white: bool = False
    whole: tuple[int, int] | None = None


def decode(source: Path | bytes, spec: ImageSpec, name: str | None = None) -> Tensor:
    """An image as ``(channels, height, width)`` in [0, 1].

    Grey becomes three equal channels, or colour becomes grey, as ``spec`` requires. Palettes are resolved. 16-bit grey is
    kept; 16-bit colour is cut to its upper eight bits. EXIF rotation is applied. Of a camera's multi-frame JPEG (MPO) the
    first frame is used. Errors: another size (unless ``resize``), transparent pixels, other files with several frames,
    more than 16 bits, anything that is not an image.
    """
    shown = name or (str(source) if isinstance(source, Path) else "the image")
    with quiet(), reading(shown, "an image"), opened(source, shown) as image:
        check(image, spec, shown)
        plain = flatten(image, spec.channels, shown, on_white=spec.on_white)
        _check_size(plain.size, spec, shown)
    if spec.resize and plain.size != (spec.width, spec.height):
        plain = ImageOps.fit(plain, (spec.width, spec.height), Image.Resampling.LANCZOS)
    pixels = torch.from_numpy(np.array(plain, dtype=np.float32))
    pixels = pixels.clamp_(0, 1) if plain.mode == "F" else pixels.div_(255)
    pixels = pixels.reshape(spec.height, spec.width, -1).permute(2, 0, 1)
    return pixels.expand(spec.channels, -1, -1).contiguous()


def flatten(image: Image.Image, channels: int, name: str, *, on_white: bool) -> Image.Image:
    """An opened image upright, without palette and transparency: L or RGB, or F in [0, 1] for 16 bits of grey."""
    deep = is_deep(image)
    ImageOps.exif_transpose(image, in_place=True)
    if deep:
        return in_bands(image, "F", lambda band: band.astype(np.float32) / 65535)
    return _flat(_on_white(image) if on_white else image, channels, name)


def check_file(path: Path, spec: ImageSpec) -> bool:
    """Read the header only; raise if the image cannot be used. Returns whether it has 16 bits."""
    with quiet(), reading(path, "an image"), opened(path, str(path)) as image:
        check(image, spec, str(path))
        return is_deep(image)


def check(image: Image.Image, spec: ImageSpec, name: str) -> None:
    """Raise if an image, judged by its header, cannot be converted to the format."""
    if getattr(image, "is_animated", False) and image.format != "MPO":  # frames are not counted: there may be millions
        raise Unreadable(f"{name} holds several frames: save each as an image of its own")
    check_depth(image, name)
    _check_size(image.size[::-1] if _lies_on_its_side(image) else image.size, spec, name)


def check_depth(image: Image.Image, name: str) -> None:
    """Raise for 32-bit pixels, because their value of white is unknown."""
    if image.mode in _TOO_DEEP and not is_deep(image):
        raise Unreadable(f"{name} has 32 bits for each pixel (mode {image.mode}): save it as .npy, values in [0, 1]")


def encode(content: Tensor, path: Path, *, deep: bool = False, sync: bool = True) -> None:
    """Write an image ``(1 or 3, h, w)`` in [0, 1] atomically; ``deep`` writes grey with 16 bits.

    With ``sync=False`` the caller syncs the folder, see ``write_atomically``.
    """
    suffix = path.suffix.lower()
    image = _as_image(content, deep=deep and suffix in {".png", ".tif", ".tiff"})
    write_atomically(path, lambda temporary: image.save(temporary, **_SAVE[suffix]), sync=sync)


def as_png(content: Tensor, *, deep: bool = False) -> bytes:
    """The same as the bytes of a PNG file."""
    store = io.BytesIO()
    _as_image(content, deep=deep).save(store, **_SAVE[".png"])
    return store.getvalue()


def _as_image(content: Tensor, *, deep: bool) -> Image.Image:
    values = content.detach().cpu().float().clamp(0, 1)
    if deep and len(values) == 1:
        return Image.fromarray((values[0] * 65535).round().numpy().astype(np.uint16))
    pixels = (values * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else np.ascontiguousarray(pixels))


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


def _check_size(size: tuple[int, int], spec: ImageSpec, name: str) -> None:
    if spec.resize or size == (spec.width, spec.height):
        return
    if size[::-1] == spec.whole:
        raise Unreadable(
            f"{name} has {size[0]} x {size[1]} pixels, as the generator's images do, expected measurements of "
            f"{spec.width} x {spec.height}: are these whole images, to be measured first? Add `simulate=True`"
        )
    raise Unreadable(
        f"{name} has {size[0]} x {size[1]} pixels, expected {spec.width} x {spec.height}: cut it to size, or allow it to "
        "be cut and scaled with `resize=True`"
    )


def _lies_on_its_side(image: Image.Image) -> bool:
    """By the EXIF tag; for PNG only if it is in the header, because the rest would require reading the whole file."""
    if image.format != "PNG":
        return bool(image.getexif().get(_ORIENTATION, 1) > _LAST_UPRIGHT)
    marks = Image.Exif()
    marks.load(image.info.get("exif", b""))
    return bool(marks.get(_ORIENTATION, 1) > _LAST_UPRIGHT)


def is_deep(image: Image.Image) -> bool:
    """Whether it is 16-bit grey; PIL opens 16-bit PGM as integers up to 65535."""
    return image.mode in _DEEP or (image.mode == "I" and image.format == "PPM")


def _flat(image: Image.Image, channels: int, name: str) -> Image.Image:
    """Without palette and transparency: L or RGB."""
    if image.has_transparency_data:
        image = _as_mode(image, "RGBA")
        if image.getchannel("A").getextrema()[0] != 255:
            raise Unreadable(f"{name} has transparent pixels, whose values are undefined: flatten it onto a background")
    return _as_mode(image, "L" if channels == 1 else "RGB")


@contextmanager
def opened(source: Path | bytes, name: str) -> Iterator[Image.Image]:
    """An image file with only its header read; raises if the pixels would take too much memory."""
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
    """Suppress PIL's warnings; what matters is raised as an error. Not thread-safe: threads share the warning filters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
