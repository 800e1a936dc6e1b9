"""Arrays in compressed .npz files, read sequentially in bounded memory."""

from __future__ import annotations

import io
import math
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from torch import Tensor

from genprior.files.guard import Unreadable
from genprior.files.handle import Handle
from genprior.files.limits import check_archive, check_count, check_declared
from genprior.files.plain import plain_tensor

_PIECE = 2**20
_MEMBER = ".npy"
"""The suffix that numpy.savez adds to every key."""
_LONGEST_HEAD = 10_000
"""Longest header in bytes, as in numpy, which checks it only after reading."""
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def open_npz(path: Path) -> Handle[zipfile.ZipFile]:
    """The file, not yet opened."""
    return Handle(_opened, path)


def _opened(path: Path) -> zipfile.ZipFile:
    with path.open("rb") as file:
        check_archive(file, path)
    return zipfile.ZipFile(path)


def npz_names(path: Path, file: Handle[zipfile.ZipFile]) -> list[str]:
    """The keys of the arrays."""
    names = [name.removesuffix(_MEMBER) for name in file.get().namelist() if name.endswith(_MEMBER)]
    check_count(len(names), path)
    return sorted(names)


class NpzArray:
    """One array of a .npz file: read sequentially, restarting to go back."""

    def __init__(self, path: Path, key: str, file: Handle[zipfile.ZipFile]) -> None:
        self._path, self._member, self.key, self.file = path, key + _MEMBER, key, file
        self._stream: IO[bytes] | None = None
        self._next = 0
        self._check_member()
        with self._open() as stream:
            self.shape, fortran, self._kind = self._head(stream)
            content = self.file.get().getinfo(self._member).file_size - stream.tell()
        self.dtype = self._kind.name
        if math.prod(self.shape) * self._kind.itemsize != content or any(length < 0 for length in self.shape):
            raise Unreadable(
                f"{path}: {self.key} declares the shape {self.shape}, but holds {content} bytes: it is damaged, or forged"
            )
        if fortran and len(self.shape) > 1:
            raise Unreadable(f"{path}: {self.key} is in Fortran order: save numpy.ascontiguousarray(array)")

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows of the first axis."""
        if self._stream is None or start < self._next:
            self.close()
            self._stream = self._open()
            self._head(self._stream)
        row = self._kind.itemsize * math.prod(self.shape[1:])
        self._skip((start - self._next) * row)
        count = min(stop, self.shape[0]) - start
        content = self._exactly(self._stream, count * row)
        self._next = start + count
        if self._next == self.shape[0]:
            self.close()
        return plain_tensor(np.frombuffer(content, self._kind).reshape(count, *self.shape[1:]))

    def whole(self) -> Tensor:
        """All of it."""
        self.close()
        with self._open() as stream:
            self._head(stream)
            content = self._exactly(stream, self._kind.itemsize * math.prod(self.shape))
        return plain_tensor(np.frombuffer(content, self._kind).reshape(self.shape))

    def __getstate__(self) -> dict[str, object]:
        """Without the position in the file."""
        return {**vars(self), "_stream": None, "_next": 0}

    def close(self) -> None:
        """Release the position in the file."""
        if self._stream is not None:
            self._stream.close()
        self._stream, self._next = None, 0

    def _check_member(self) -> None:
        entry = self.file.get().getinfo(self._member)
        if entry.compress_type not in _METHODS:
            raise Unreadable(
                f"{self._path}: {self.key} has an unsupported compression: rewrite it with numpy.savez_compressed"
            )
        check_declared(entry.file_size, entry.compress_size, f"{self._path}: {self.key}")

    def _open(self) -> IO[bytes]:
        return self.file.get().open(self._member)

    def _head(self, stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
        version = np.lib.format.read_magic(stream)
        size = self._exactly(stream, 2 if version == (1, 0) else 4)
        length = int.from_bytes(size, "little")
        if length > _LONGEST_HEAD:
            raise Unreadable(f"{self._path}: the header of {self.key} has {length} bytes: it is damaged, or forged")
        head = io.BytesIO(size + self._exactly(stream, length))
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(head)
        if dtype.hasobject:
            raise Unreadable(f"{self._path}: {self.key} holds Python objects (a pickle), which are not read")
        return shape, fortran, dtype

    def _skip(self, size: int) -> None:
        assert self._stream is not None, "opened before"
        while size > 0:
            size -= len(self._exactly(self._stream, min(size, _PIECE)))

    def _exactly(self, stream: IO[bytes], size: int) -> bytes:
        content = stream.read(size)
        if len(content) != size:
            raise Unreadable(f"{self._path}: {self.key} ends too early: the file is truncated")
        return content
