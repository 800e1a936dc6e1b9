"""Any folder, tar or zip of image files as training pictures."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from genprior import _validate
from genprior.training.data.pictures import Pictures

_ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm"}
_AHEAD = 256

Named = tuple[str, Callable[[], bytes]]


def image_files(
    path: str | Path,
    *,
    side: int = 64,
    channels: int = 3,
    limit: int | None = None,
    on_read: Callable[[int], object] = lambda count: None,
) -> Pictures:
    """Read all pictures under a folder or in a tar or zip file, in the order of their names.

    Each is cropped to its central square and resized to ``side``. Files that cannot be read are skipped and named in
    the result; so is everything that is not an image by its ending, silently.
    """
    _validate.whole("side", side)
    if channels not in {1, 3}:
        raise ValueError(f"channels must be 1 (grey) or 3 (colour), got {channels!r}")
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no folder or archive {path}")
    pictures: list[Tensor] = []
    skipped: list[str] = []
    with ThreadPoolExecutor() as pool:
        source = iter(_files(path))
        while chunk := list(islice(source, _AHEAD)):
            contents = [(name, read()) for name, read in chunk]
            for name, picture in pool.map(lambda part: _decoded(*part, side=side, channels=channels), contents):
                if picture is None:
                    skipped.append(name)
                else:
                    pictures.append(picture)
            on_read(len(pictures))
            if limit is not None and len(pictures) >= limit:
                break
    if not pictures:
        broken = f"; {len(skipped)} could not be read, the first is {skipped[0]}" if skipped else ""
        raise ValueError(f"{path} holds no image ({', '.join(sorted(_ENDINGS))} are looked for{broken})")
    return Pictures(path.name, torch.stack(pictures[:limit]), skipped=tuple(skipped))


def _files(path: Path) -> Iterator[Named]:
    """Names and readers of the image files, sorted by name."""
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if file.is_file() and _is_image(file.name):
                yield str(file.relative_to(path)), file.read_bytes
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in sorted(name for name in archive.namelist() if _is_image(name)):
                yield name, partial(archive.read, name)
    elif path.is_file() and tarfile.is_tarfile(path):
        with tarfile.open(path) as archive:
            members = [member for member in archive.getmembers() if member.isfile() and _is_image(member.name)]
            for member in sorted(members, key=lambda member: member.name):
                yield member.name, partial(_tar_content, archive, member)
    else:
        raise ValueError(f"{path} is neither a folder nor a tar or zip file of images (or it is truncated)")


def _tar_content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    return b"" if file is None else file.read()


def _is_image(name: str) -> bool:
    place = Path(name)
    return place.suffix.lower() in _ENDINGS and not place.name.startswith(".")


def _decoded(name: str, content: bytes, *, side: int, channels: int) -> tuple[str, Tensor | None]:
    """The picture's bytes ``(channels, side, side)``, or None if it cannot be read."""
    try:
        with Image.open(io.BytesIO(content)) as image:
            plain = image.convert("RGB" if channels == 3 else "L")
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return name, None
    short = min(plain.size)
    left, top = (plain.width - short) // 2, (plain.height - short) // 2
    square = plain.crop((left, top, left + short, top + short))
    if short != side:
        square = square.resize((side, side), Image.Resampling.LANCZOS, reducing_gap=3.0)
    pixels = torch.from_numpy(np.array(square, dtype=np.uint8))
    return name, pixels.reshape(side, side, channels).permute(2, 0, 1).contiguous()
