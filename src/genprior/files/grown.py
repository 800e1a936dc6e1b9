"""Arrays that grow row by row on the disk, and how they become files of every format, in bounded memory."""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np

from genprior.files.hdf5 import hdf5
from genprior.files.signals import write_csv

Shape = tuple[int, ...]
_ROWS = 256
_RENAMED = {"kspace": "reconstruction"}
"""Data sets of measurements whose name would be wrong for signals."""


@dataclass(frozen=True)
class Grown:
    """An array written row by row; opened only while it is copied."""

    path: Path
    batched: bool

    @cached_property
    def shape(self) -> Shape:
        """With the axis of rows, where there is one."""
        return tuple(self.open().shape)

    @property
    def size(self) -> int:
        """In bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * 4

    def open(self) -> np.ndarray[Any, Any]:
        """Mapped into memory."""
        rows: np.ndarray[Any, Any] = np.load(self.path, mmap_mode="r", allow_pickle=False)
        return rows if self.batched else rows[0]


def blank(path: Path, shape: Shape) -> None:
    """A sparse file of zeros: on a full disk the first row that does not fit fails to be written."""
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        file.truncate(file.tell() + 4 * math.prod(shape))


def is_sound(path: Path, shape: Shape) -> bool:
    """Whether an array file is complete and has this shape."""
    try:
        with path.open("rb") as file:
            return first_row(file, shape) + 4 * int(np.prod(shape, dtype=np.int64)) == path.stat().st_size
    except ValueError:
        return False


def first_row(file: IO[bytes], shape: Shape) -> int:
    """The offset of the first row in an array file, which must hold float32 of this shape."""
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"{file.name} has the version {version}, expected (1, 0): it was not written by genprior")
    found, _, dtype = np.lib.format.read_array_header_1_0(file)
    if found != shape or dtype != np.float32:
        raise ValueError(
            f"{file.name} holds {dtype} of shape {found}, expected float32 of shape {shape}: it belongs to another run, "
            "delete it or give another `out`"
        )
    return file.tell()


def _write_npy(file: IO[bytes], array: np.ndarray[Any, Any]) -> None:
    head = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
    np.lib.format.write_array_header_1_0(file, head)
    for piece in _pieces(array):
        file.write(piece.tobytes())


def _write_npy_file(path: Path, arrays: dict[str, Grown]) -> None:
    with path.open("wb") as file:
        _write_npy(file, next(iter(arrays.values())).open())


def _write_npz(path: Path, arrays: dict[str, Grown]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, allowZip64=True) as archive:
        for key, array in arrays.items():
            with archive.open(f"{key}.npy", "w", force_zip64=True) as file:
                _write_npy(file, array.open())


def _write_safetensors(path: Path, arrays: dict[str, Grown]) -> None:
    """Write the format piece by piece, because the package's writer needs everything in memory."""
    head: dict[str, Any] = {}
    place = 0
    for key, array in arrays.items():
        head[key] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [place, place + array.size]}
        place += array.size
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            for piece in _pieces(array.open()):
                file.write(piece.tobytes())


def _write_hdf5(path: Path, arrays: dict[str, Grown]) -> None:
    with hdf5().File(path, "w") as file:
        for key, grown in arrays.items():
            array = grown.open()
            place = file.create_dataset(_RENAMED.get(key, key), shape=array.shape, dtype="f4")
            for start in range(0, len(array), _ROWS):
                place[start : start + _ROWS] = array[start : start + _ROWS]


def _write_csv(path: Path, arrays: dict[str, Grown]) -> None:
    write_csv(path, next(iter(arrays.values())).open())


def _pieces(array: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    for start in range(0, len(array), _ROWS):
        yield np.ascontiguousarray(array[start : start + _ROWS])


WRITERS = {
    ".npy": _write_npy_file,
    ".npz": _write_npz,
    ".safetensors": _write_safetensors,
    ".h5": _write_hdf5,
    ".hdf5": _write_hdf5,
    ".csv": _write_csv,
}
"""By the ending of the file: what writes these arrays into it, under their keys, in bounded memory."""
