"""One whole file: an image, or an array, for masks, matrices and labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from genprior.files.guard import Unreadable, reading
from genprior.files.images import ImageSpec, decode, opened, quiet

_KINDS = {"b": "truth values", "u": "whole numbers", "i": "whole numbers", "f": "real numbers", "c": "complex numbers"}


def read_image(path: Path, channels: int) -> Tensor:
    """An image in its own size, ``(channels, h, w)`` in [0, 1]."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    with quiet(), reading(path, "an image"), opened(path, str(path)) as image:
        size = image.size
    return decode(path, ImageSpec(channels, size[1], size[0], resize=True))


def read_array(path: Path, kinds: str = "f") -> np.ndarray[Any, Any]:
    """The array in a ``.npy`` file, whose numbers must be of one of the ``kinds``: b, u, i, f or c."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    if path.suffix.lower() != ".npy":
        raise Unreadable(f"{path} must be a .npy file: numpy.save writes one")
    with reading(path, "an array"):
        array = np.load(
            path, mmap_mode="r", allow_pickle=False
        )  # the declared size must be present before anything is read
    if array.dtype.kind not in kinds:
        allowed = " or ".join(dict.fromkeys(_KINDS[kind] for kind in kinds))
        raise Unreadable(f"{path} holds {array.dtype}, expected {allowed}")
    return np.array(array, order="C")
