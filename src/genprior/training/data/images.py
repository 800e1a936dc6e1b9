"""Any folder, tar or zip of image files as training images."""

from __future__ import annotations

import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from genprior import _validate
from genprior.files.guard import Unreadable, reading
from genprior.files.images import WRITTEN_AS, check_depth, flatten, in_bands, opened, quiet
from genprior.files.limits import LARGEST_PIECE
from genprior.training.data.image_set import ImageSet

_AHEAD = 256
_LARGE = 2**22
"""From this many pixels on, one image is decoded at a time."""
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, RuntimeError)
"""The last one means a zip file with a password or an unknown compression."""


def image_files(
    path: str | Path,
    *,
    side: int = 64,
    channels: int = 3,
    limit: int | None = None,
    on_read: Callable[[int], object] = lambda count: None,
) -> ImageSet:
    """Read all images under a folder or in a tar or zip file, in the order of their names.

    Each is cropped to its central square and resized to ``side``. Transparent parts become white; 16 bits of grey are
    rounded to 8. Files that cannot be read, and those with 32 bits for each pixel, are skipped and named in the result;
    files without the ending of an image are ignored. ``limit`` takes the first so many names.
    """
    _validate.whole("side", side)
    if channels not in {1, 3}:
        raise ValueError(f"channels must be 1 (grey) or 3 (colour), got {channels!r}")
    if limit is not None:
        _validate.whole("limit", limit)
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no folder or archive {path}")
    images: dict[str, Tensor] = {}
    skipped: list[str] = []
    with quiet(), ThreadPoolExecutor() as pool:
        source, decode = _contents(path, limit), partial(_decoded, side=side, channels=channels)
        while chunk := list(_some(source)):
            found = pool.map(lambda part: None if _is_large(*part) else decode(*part), chunk)
            for part, done in zip(chunk, found, strict=True):
                name, image = done or decode(*part)
                if image is None:
                    skipped.append(name)
                else:
                    images[name] = image
            on_read(len(images))
    if not images:
        broken = f"; {len(skipped)} could not be read, the first is {min(skipped)}" if skipped else ""
        raise ValueError(f"{path} holds no image ({', '.join(sorted(WRITTEN_AS))} are read{broken})")
    stack = torch.stack([images[name] for name in sorted(images)])
    return ImageSet(path.name, stack, skipped=tuple(sorted(skipped)))


def _contents(path: Path, limit: int | None) -> Iterator[tuple[str, bytes]]:
    """Names and bytes of the image files, in the order in which they are quickly read."""
    if path.is_dir():
        names = [str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()]
        for name in _wanted(names, limit):
            yield name, _read(partial((path / name).read_bytes))
        return
    try:
        if zipfile.is_zipfile(path):
            yield from _zipped(path, limit)
        elif path.is_file() and tarfile.is_tarfile(path):
            yield from _tarred(path, limit)
        else:
            raise ValueError(f"{path} is neither a folder nor a tar or zip file of images (or it is truncated)")
    except _DAMAGED as problem:
        raise ValueError(
            f"{path} is damaged or truncated ({problem}): get the file again, or unpack what is left"
        ) from problem


def _zipped(path: Path, limit: int | None) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for name in _wanted(archive.namelist(), limit):
            small = archive.getinfo(name).file_size <= LARGEST_PIECE
            yield name, _read(partial(archive.read, name)) if small else b""


def _tarred(path: Path, limit: int | None) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path) as archive:
        wanted = set(_wanted(archive.getnames(), limit))
        for member in archive.getmembers():  # in the archive's order: seeking back in a compressed archive is slow
            file = archive.extractfile(member) if member.name in wanted else None
            if file is not None:
                yield member.name, file.read() if member.size <= LARGEST_PIECE else b""


def _some(source: Iterator[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    """The next batch of files, smaller if the files are large."""
    size = 0
    for name, content in islice(source, _AHEAD):
        yield name, content
        size += len(content)
        if size > LARGEST_PIECE:
            return


def _read(read: Callable[[], bytes]) -> bytes:
    """The content; empty, and therefore skipped, if the file cannot be read."""
    try:
        return read()
    except (OSError, *_DAMAGED):
        return b""


def _wanted(names: Iterable[str], limit: int | None) -> list[str]:
    return sorted(name for name in names if _is_image(name))[:limit]


def _is_image(name: str) -> bool:
    place = Path(name)
    return place.suffix.lower() in WRITTEN_AS and not place.name.startswith(".")


def _decoded(name: str, content: bytes, *, side: int, channels: int) -> tuple[str, Tensor | None]:
    """The image's bytes ``(channels, side, side)``, or None if it cannot be read."""
    try:
        return name, _square(_plain(name, content, channels), side, channels)
    except Unreadable:
        return name, None


def _is_large(name: str, content: bytes) -> bool:
    """Whether it takes so much memory that only one is unpacked at a time, in a thread that gives the memory back."""
    try:
        with reading(name, "an image"), opened(content, name) as image:
            return image.width * image.height > _LARGE
    except Unreadable:
        return False


def _plain(name: str, content: bytes, channels: int) -> Image.Image:
    with reading(name, "an image"), opened(content, name) as image:
        check_depth(image, name)
        return flatten(image, channels, name, on_white=True)


def _square(plain: Image.Image, side: int, channels: int) -> Tensor:
    """The central square of an image, scaled to ``side``."""
    if plain.mode == "F":
        plain = in_bands(plain, "L", lambda band: (255 * band).round().astype(np.uint8))
    short = min(plain.size)
    left, top = (plain.width - short) // 2, (plain.height - short) // 2
    square = plain.crop((left, top, left + short, top + short))
    if short != side:
        square = square.resize((side, side), Image.Resampling.LANCZOS, reducing_gap=3.0)
    pixels = torch.from_numpy(np.array(square, dtype=np.uint8))
    return pixels.reshape(side, side, -1).permute(2, 0, 1).expand(channels, -1, -1).contiguous()
