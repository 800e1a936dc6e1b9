"""TorchScript files, checked before torch reads them: torch trusts their sizes and reads past the end of short records.

The pickles in such a file map tensors to records. Here they are read without calling anything: every name becomes an
object that does nothing.
"""

from __future__ import annotations

import io
import pickle
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genprior.files.guard import Unreadable, reading

_PICKLES = re.compile(r"([^/]+)/(data|constants)\.pkl")
"""The records that are checked; traced inputs are stored too, sometimes without data."""
_SIZES = {
    "ByteStorage": 1,
    "CharStorage": 1,
    "BoolStorage": 1,
    "QInt8Storage": 1,
    "QUInt8Storage": 1,
    "ShortStorage": 2,
    "HalfStorage": 2,
    "BFloat16Storage": 2,
    "IntStorage": 4,
    "FloatStorage": 4,
    "QInt32Storage": 4,
    "LongStorage": 8,
    "DoubleStorage": 8,
    "ComplexFloatStorage": 8,
    "ComplexDoubleStorage": 16,
}
_REBUILT = ("_rebuild_tensor_v2", "_rebuild_tensor", "_rebuild_qtensor")


def check_script(path: Path) -> None:
    """Raise if a tensor in a TorchScript file extends beyond its record."""
    with reading(path, "a TorchScript file"), zipfile.ZipFile(path) as archive:
        sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
        for name in sizes:
            if (found := _PICKLES.fullmatch(name)) is not None:
                _Reader(archive.read(name), f"{found[1]}/{found[2]}", sizes, path).load()


@dataclass(frozen=True)
class _Storage:
    """A record with its number of values."""

    count: int


class _Nothing:
    """Accepts any call and does nothing."""

    def __new__(cls, *given: object, **options: object) -> _Nothing:
        return object.__new__(cls)

    def __init__(self, *given: object, **options: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass

    def __setitem__(self, key: object, value: object) -> None:
        pass

    def append(self, value: object) -> None:
        """As for a list."""

    def extend(self, values: object) -> None:
        """As for a list."""


class _Reader(pickle.Unpickler):
    """Reads the names and sizes in a pickle without calling anything."""

    def __init__(self, content: bytes, folder: str, sizes: dict[str, int], path: Path) -> None:
        super().__init__(io.BytesIO(content))
        self._folder, self._sizes, self._path = folder, sizes, path

    def find_class(self, module: str, name: str) -> Any:
        """An inert object, or a check of a tensor's storage."""
        return self._tensor if name in _REBUILT else type(name, (_Nothing,), {})

    def persistent_load(self, pid: Any) -> _Storage:
        """A record, which must hold as many values as declared."""
        _, kind, key, _, count = pid
        size = _SIZES.get(getattr(kind, "__name__", ""), 1)
        if not 0 <= count * size <= self._sizes.get(f"{self._folder}/{key}", -1):
            raise Unreadable(f"{self._path} declares {count} numbers in a record that has fewer: damaged, or forged")
        return _Storage(count)

    def _tensor(self, storage: _Storage, offset: int, size: Any, stride: Any, *rest: object) -> _Nothing:
        """A tensor, whose last value must lie inside its record."""
        last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        if min((offset, *size, *stride)) < 0 or (0 not in size and last >= storage.count):
            raise Unreadable(f"{self._path} holds a tensor that extends beyond its record: damaged, or forged")
        return _Nothing()
