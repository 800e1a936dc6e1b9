"""Arrays in files, read a few rows at a time: .npy, .npz, .safetensors, HDF5. No pickles."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from genprior.items.guard import Misfit, Unreadable, reading

_PIECE = 2**20
_SHOWN = 8
_ONLY = ""
"""The key in a file that has no keys."""
_MEMBER = ".npy"
"""What numpy.savez puts behind every key."""
_SCALES = {"uint8": 255.0, "uint16": 65535.0}


class Array(Protocol):
    """One array in a file: its key (empty where the file has only one), shape and type, and its rows."""

    key: str
    shape: tuple[int, ...]
    dtype: str

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows of the first axis."""

    def whole(self) -> Tensor:
        """All of it."""

    def close(self) -> None:
        """Let go of the file; it may be read again."""


class NpyArray:
    """A .npy file, mapped into memory."""

    key = ""

    def __init__(self, path: Path) -> None:
        self._path = path
        array = self._open()
        self.shape, self.dtype = array.shape, array.dtype.name

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows of the first axis."""
        return _tensor(self._open()[start:stop])

    def whole(self) -> Tensor:
        """All of it."""
        return _tensor(self._open()[...])

    def close(self) -> None:
        """Nothing stays open: every mapping takes a file descriptor, of which there are about a thousand."""

    def _open(self) -> np.ndarray[Any, Any]:
        array: np.ndarray[Any, Any] = np.load(self._path, mmap_mode="r", allow_pickle=False)
        return array


class NpzArray:
    """One array of a .npz file, which is packed: read forward in pieces, from the start again where one goes back."""

    def __init__(self, path: Path, key: str) -> None:
        self._path, self._member, self.key = path, key + _MEMBER, key
        self._stream: IO[bytes] | None = None
        self._next = 0
        stream, self.shape, fortran, kind = self._open()
        stream.close()
        self._kind, self.dtype = kind, kind.name
        if fortran and len(self.shape) > 1:
            raise Unreadable(f"{path}: {self.key} lies column by column: save numpy.ascontiguousarray(array)")

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows of the first axis."""
        if self._stream is None or start < self._next:
            self.close()
            self._stream = self._open()[0]
        row = self._kind.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))
        self._skip((start - self._next) * row)
        count = min(stop, self.shape[0]) - start
        content = self._exactly(count * row)
        self._next = start + count
        if self._next == self.shape[0]:
            self.close()
        return _tensor(np.frombuffer(content, self._kind).reshape(count, *self.shape[1:]))

    def whole(self) -> Tensor:
        """All of it."""
        self.close()
        stream = self._open()[0]
        with stream:
            content = stream.read(self._kind.itemsize * int(np.prod(self.shape, dtype=np.int64)))
        return _tensor(np.frombuffer(content, self._kind).reshape(self.shape))

    def close(self) -> None:
        """Forget the place in the file."""
        if self._stream is not None:
            self._stream.close()
        self._stream, self._next = None, 0

    def _open(self) -> tuple[IO[bytes], tuple[int, ...], bool, np.dtype[Any]]:
        with zipfile.ZipFile(self._path) as archive:
            stream = archive.open(self._member)  # the file stays open until this is closed
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, kind = read(stream)
        if kind.hasobject:
            raise Unreadable(f"{self._path}: {self.key} holds Python objects (a pickle), which are not read")
        return stream, shape, fortran, kind

    def _skip(self, size: int) -> None:
        while size > 0:
            size -= len(self._exactly(min(size, _PIECE)))

    def _exactly(self, size: int) -> bytes:
        content = self._stream.read(size) if self._stream is not None else b""
        if len(content) != size:
            raise Unreadable(f"{self._path}: {self.key} ends too early: the file is truncated")
        return content


class SafetensorsArray:
    """One tensor of a .safetensors file."""

    def __init__(self, path: Path, key: str) -> None:
        self._path, self.key = path, key
        with safe_open(path, framework="pt") as file:
            part = file.get_slice(key)
            self.shape, self.dtype = tuple(part.get_shape()), _TORCH_NAMES.get(part.get_dtype(), part.get_dtype())

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows of the first axis."""
        with safe_open(self._path, framework="pt") as file:
            rows: Tensor = file.get_slice(self.key)[start:stop]
            return rows

    def whole(self) -> Tensor:
        """All of it."""
        with safe_open(self._path, framework="pt") as file:
            tensor: Tensor = file.get_tensor(self.key)
            return tensor

    def close(self) -> None:
        """Nothing stays open."""


class Hdf5Array:
    """One data set of an HDF5 file."""

    def __init__(self, path: Path, key: str) -> None:
        self._path, self.key = path, key
        with hdf5().File(path, "r") as file:
            self.shape, self.dtype = tuple(file[key].shape), file[key].dtype.name

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows of the first axis."""
        with hdf5().File(self._path, "r") as file:
            return _tensor(file[self.key][start:stop])

    def whole(self) -> Tensor:
        """All of it."""
        with hdf5().File(self._path, "r") as file:
            return _tensor(np.asarray(file[self.key][()]))

    def close(self) -> None:
        """Nothing stays open."""


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


def open_arrays(path: Path, keys: Sequence[str] | None = None) -> list[Array]:
    """The arrays in a file, in the order of their keys; or only those with the given keys, in the order given.

    What else lies there is not looked at then, so it does not matter whether it could be read.
    """
    kind, names, opener = _KINDS[path.suffix.lower()]
    with reading(path, kind):
        there = names(path)
    if not there:
        raise Unreadable(f"{path} holds no array: nothing to do")
    wanted = there if keys is None else _chosen(path, keys, there)
    with reading(path, kind):
        return [opener(path, name) for name in wanted]


def _chosen(path: Path, keys: Sequence[str], there: list[str]) -> list[str]:
    if there == [_ONLY]:
        raise ValueError(f"{path} holds one array, which has no key: leave out :{keys[0]}")
    wanted: list[str] = []
    for key in keys:
        name = key if key in there else key.strip("/")  # data sets of HDF5 are often written with a slash in front
        if name not in there:
            more = f" and {len(there) - _SHOWN} more" if len(there) > _SHOWN else ""
            raise ValueError(f"{path} has no array {key!r}: give one of {', '.join(there[:_SHOWN])}{more}")
        if name in wanted:
            raise ValueError(f"{path}:{name} was given twice: give every array once")
        wanted.append(name)
    return wanted


def hdf5() -> Any:
    """The package h5py, or the way to get it."""
    try:
        import h5py  # type: ignore[import-untyped,unused-ignore]  # noqa: PLC0415 - optional
    except ModuleNotFoundError:
        raise Unreadable(
            "HDF5 files need the extra 'hdf5': pip install 'genprior[hdf5]', or '.[hdf5]' in a copy of the repository"
        ) from None
    return h5py


def as_values(block: Tensor, dtype: str, name: str, *, measured: bool) -> Tensor:
    """float32 (complex64) values: bytes and 16-bit whole numbers are pictures, scaled to [0, 1].

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


def _npz_names(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        return sorted(name.removesuffix(_MEMBER) for name in archive.namelist() if name.endswith(_MEMBER))


def _safetensors_names(path: Path) -> list[str]:
    with safe_open(path, framework="pt") as file:
        return sorted(file.keys())


def _hdf5_names(path: Path) -> list[str]:
    h5py, found = hdf5(), []
    with h5py.File(path, "r") as file:
        file.visititems(lambda name, part: found.append(name) if isinstance(part, h5py.Dataset) else None)
    return sorted(found)


def _tensor(array: np.ndarray[Any, Any]) -> Tensor:
    """A copy as a tensor; only plain numbers."""
    if array.dtype.kind not in "biufc":
        raise Unreadable(f"an array holds {array.dtype}, not plain numbers")
    native = np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
    return torch.from_numpy(native.astype(np.complex64) if native.dtype.kind == "c" else native)


_KINDS: dict[str, tuple[str, Callable[[Path], list[str]], Callable[[Path, str], Array]]] = {
    ".npy": ("an array", lambda path: [_ONLY], lambda path, name: NpyArray(path)),
    ".npz": ("arrays", _npz_names, NpzArray),
    ".safetensors": ("safetensors", _safetensors_names, SafetensorsArray),
    ".h5": ("HDF5", _hdf5_names, Hdf5Array),
    ".hdf5": ("HDF5", _hdf5_names, Hdf5Array),
}
ARRAY_ENDINGS = tuple(_KINDS)
