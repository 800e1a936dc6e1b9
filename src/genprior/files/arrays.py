"""Arrays in files, read a few rows at a time: .npy, .npz, .safetensors, HDF5; signals in .wav and .csv. No pickles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from genprior.files.guard import Misfit, Unreadable, reading
from genprior.files.handle import Handle
from genprior.files.hdf5 import Hdf5Array, hdf5_names, open_hdf5
from genprior.files.limits import check_count, check_head
from genprior.files.npz import NpzArray, npz_names, open_npz
from genprior.files.plain import plain_tensor
from genprior.files.signals import CsvArray, WavArray, open_signals

_SHOWN = 8
_ONLY = ""
"""The key in a file without keys."""
_SCALES = {"uint8": 255.0, "uint16": 65535.0}


class Array(Protocol):
    """One array in a file: its key (empty where the file has only one), shape and type, and its rows."""

    key: str
    shape: tuple[int, ...]
    dtype: str
    file: Handle[Any]
    """Shared by all arrays of the file."""

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows of the first axis."""

    def whole(self) -> Tensor:
        """All of it."""

    def close(self) -> None:
        """Release the position in the file, if there is one; it may be read again."""


class NpyArray:
    """A .npy file, mapped into memory."""

    key = ""

    def __init__(self, path: Path, key: str, file: Handle[Any]) -> None:
        self.file = file
        array = self._open()
        self.shape, self.dtype = array.shape, array.dtype.name

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows of the first axis."""
        return plain_tensor(self._open()[start:stop])

    def whole(self) -> Tensor:
        """All of it."""
        return plain_tensor(self._open()[...])

    def close(self) -> None:
        """Close the mapping: each one holds a file descriptor, of which there are about a thousand."""

    def _open(self) -> np.ndarray[Any, Any]:
        array: np.ndarray[Any, Any] = np.load(self.file.path, mmap_mode="r", allow_pickle=False)
        return array


class SafetensorsArray:
    """One tensor of a .safetensors file."""

    def __init__(self, path: Path, key: str, file: Handle[Any]) -> None:
        self.key, self.file = key, file
        part = self._part()
        self.shape, self.dtype = tuple(part.get_shape()), _TORCH_NAMES.get(part.get_dtype(), part.get_dtype())

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows of the first axis."""
        rows: Tensor = self._part()[start:stop]
        return rows.clone()

    def whole(self) -> Tensor:
        """All of it."""
        tensor: Tensor = self.file.get().get_tensor(self.key)
        return tensor.clone()

    def close(self) -> None:
        """There is no position in the file to release."""

    def _part(self) -> Any:
        return self.file.get().get_slice(self.key)


_TORCH_NAMES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "U8": "uint8",
    "U16": "uint16",
    "BOOL": "bool",
    "C64": "complex64",
}


@contextmanager
def open_arrays(path: Path, keys: Sequence[str] | None = None) -> Iterator[list[Array]]:
    """The arrays in a file, in the order of their keys; or only those with the given keys, in the order given.

    Other arrays are not read then, so they need not be readable. The file is closed at the
    end, and opened again when an array is read later.
    """
    reader = _KINDS[path.suffix.lower()]
    file = reader.open(path)
    try:
        with reading(path, reader.words):
            there = reader.names(path, file)
        if not there:
            raise Unreadable(f"{path} holds no array: nothing to do")
        wanted = there if keys is None else _chosen(path, keys, there)
        with reading(path, reader.words):
            arrays = [reader.array(path, name, file) for name in wanted]
        yield arrays
    finally:
        file.close()


def _chosen(path: Path, keys: Sequence[str], there: list[str]) -> list[str]:
    if there == [_ONLY]:
        raise ValueError(f"{path} holds one array, which has no key: leave out :{keys[0]}")
    wanted: list[str] = []
    for key in keys:
        name = key if key in there else key.strip("/")  # data sets of HDF5 are often written with a leading slash
        if name not in there:
            more = f" and {len(there) - _SHOWN} more" if len(there) > _SHOWN else ""
            raise ValueError(f"{path} has no array {key!r}: give one of {', '.join(there[:_SHOWN])}{more}")
        if name in wanted:
            raise ValueError(f"{path}:{name} was given twice: give every array once")
        wanted.append(name)
    return wanted


def as_values(block: Tensor, dtype: str, name: str, *, measured: bool) -> Tensor:
    """float32 (complex64) values: bytes and 16-bit whole numbers are images, scaled to [0, 1].

    ``measured`` data are never scaled: for them whole numbers are refused.
    """
    if block.is_complex():
        return block.to(torch.complex64)
    if block.is_floating_point() or (block.dtype == torch.bool and not measured):
        return block.float()
    if dtype not in _SCALES or measured:
        raise Misfit(
            f"{name} holds whole numbers ({dtype}), expected floating-point {'measurements' if measured else 'values'}"
            f"{'' if measured else ' in [0, 1], or uint8 or uint16'}: convert it"
        )
    return block.float() / _SCALES[dtype]


def _open_safetensors(path: Path) -> Handle[Any]:
    return Handle(_opened_safetensors, path)


def _opened_safetensors(path: Path) -> Any:
    check_head(path)
    return safe_open(path, framework="pt")


def _safetensors_names(path: Path, file: Handle[Any]) -> list[str]:
    names = sorted(file.get().keys())
    check_count(len(names), path)
    return names


class _Kind(NamedTuple):
    """How files of one ending are read."""

    words: str
    open: Callable[[Path], Handle[Any]]
    names: Callable[[Path, Handle[Any]], list[str]]
    array: Callable[[Path, str, Handle[Any]], Array]


_HDF5 = _Kind("HDF5", open_hdf5, hdf5_names, Hdf5Array)
_KINDS = {
    ".npy": _Kind("an array", lambda path: Handle(nullcontext, path), lambda path, file: [_ONLY], NpyArray),
    ".npz": _Kind("arrays", open_npz, npz_names, NpzArray),
    ".safetensors": _Kind("safetensors", _open_safetensors, _safetensors_names, SafetensorsArray),
    ".h5": _HDF5,
    ".hdf5": _HDF5,
    ".wav": _Kind("a sound file with PCM samples", open_signals, lambda path, file: [_ONLY], WavArray),
    ".csv": _Kind("a table of numbers", open_signals, lambda path, file: [_ONLY], CsvArray),
}
ARRAY_ENDINGS = tuple(_KINDS)
