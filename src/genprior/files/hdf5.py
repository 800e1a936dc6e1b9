"""Data sets in HDF5 files: only those stored in the file itself, decompressed in pieces of bounded size."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from genprior.files.guard import Unreadable
from genprior.files.handle import Handle
from genprior.files.limits import DEFLATE_RATIO, LARGEST_PIECE, check_count, check_declared, readable, unpacks_to
from genprior.files.plain import check_plain, plain_tensor

_DEFLATE, _LZF = 1, 32000
_HARMLESS = (2, 3)
"""Filters that keep the size: shuffle, and a checksum of four bytes."""
_CHECKSUM = 4
_LZF_RATIO = 88
"""Three bytes become 264 at most."""


def hdf5() -> Any:
    """The package h5py, or the way to get it."""
    try:
        import h5py  # type: ignore[import-untyped,unused-ignore]  # noqa: PLC0415 - optional
    except ModuleNotFoundError:
        raise Unreadable(
            "HDF5 files need the extra 'hdf5': pip install 'genprior[hdf5]', or '.[hdf5]' in a copy of the repository"
        ) from None
    return h5py


def open_hdf5(path: Path) -> Handle[Any]:
    """The file, not yet opened."""
    return Handle(_opened, path)


def _opened(path: Path) -> Any:
    return hdf5().File(path, "r")


def hdf5_names(path: Path, file: Handle[Any]) -> list[str]:
    """The data sets in the file itself; links, which may point to other files, are not followed."""
    data_set, found = hdf5().Dataset, []

    def visit(name: str, part: object) -> None:
        if isinstance(part, data_set) and part.shape is not None:  # h5py.Empty has no shape and no values
            found.append(name)
            check_count(len(found), path)

    file.get().visititems(visit)
    return sorted(found)


class Hdf5Array:
    """One data set of an HDF5 file."""

    def __init__(self, path: Path, key: str, file: Handle[Any]) -> None:
        self._path, self.key, self.file = path, key, file
        self._name = f"{path}: data set {key}"
        data = self._data_set()
        self.shape, self.dtype = tuple(data.shape), data.dtype.name
        self._checked = False
        self._large: dict[tuple[int, ...], int] = {}
        """Chunks that might decompress beyond the limit: offset to number of rows."""

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows of the first axis."""
        data = self._data_set()
        self._check(data)
        self._check_chunks(data, start, stop)
        return plain_tensor(data[start:stop])

    def whole(self) -> Tensor:
        """All of it."""
        data = self._data_set()
        self._check(data)
        self._check_chunks(data, 0, max((1, *self.shape[:1])))
        return plain_tensor(np.asarray(data[()]))

    def close(self) -> None:
        """There is no position in the file to release."""

    def _data_set(self) -> Any:
        data = self.file.get()[self.key]
        if data.is_virtual or data.external:
            where = "is a virtual data set" if data.is_virtual else f"lies in another file ({data.external[0][0]})"
            raise Unreadable(
                f"{self._name} {where}: only data in the file itself is read, because a link could name any file of yours; "
                "copy the values into a plain data set"
            )
        return data

    def _check(self, data: Any) -> None:
        """Checked once, before reading: plain numbers, stored in the file, in chunks of acceptable size."""
        if self._checked:
            return
        check_plain(data.dtype)
        check_declared(math.prod(self.shape) * data.dtype.itemsize, data.id.get_storage_size(), self._name)
        if data.chunks is not None:
            self._check_filters(data)
        self._checked = True

    def _check_filters(self, data: Any) -> None:
        settings = data.id.get_create_plist()
        filters = [settings.get_filter(number)[0] for number in range(settings.get_nfilters())]
        packers = [code for code in filters if code not in _HARMLESS]
        usual = [code for code in (_HARMLESS[0], *packers, _HARMLESS[1]) if code in filters]
        if len(packers) > 1 or not {*packers} <= {_DEFLATE, _LZF} or filters != usual:
            raise Unreadable(
                f"{self._name} has unsupported filters ({', '.join(map(str, filters))}), expected gzip or lzf: "
                "rewrite it, for example with h5repack -f GZIP=4"
            )
        size = math.prod(data.chunks) * data.dtype.itemsize
        if packers and size > LARGEST_PIECE:
            raise Unreadable(
                f"{self._name} has chunks of {readable(size)}, at most {readable(LARGEST_PIECE)} are decompressed at "
                "once: rewrite it with smaller chunks, for example with h5py and chunks=True"
            )
        if packers == [_LZF]:
            data.id.chunk_iter(lambda chunk: self._check_size(chunk, size))
        if packers == [_DEFLATE]:
            data.id.chunk_iter(lambda chunk: self._note(chunk, data.chunks[0]))

    def _check_size(self, chunk: Any, size: int) -> None:
        """LZF cannot be decompressed in pieces, so its sizes are compared; h5py stores incompressible chunks without it."""
        if chunk.size > size + _CHECKSUM or chunk.size * _LZF_RATIO > 2 * LARGEST_PIECE + size:
            raise Unreadable(
                f"{self._name} has a chunk of {readable(chunk.size)} for the {readable(size)} declared: damaged, or forged"
            )

    def _note(self, chunk: Any, rows: int) -> None:
        if chunk.size * DEFLATE_RATIO > LARGEST_PIECE:
            self._large[tuple(chunk.chunk_offset)] = rows

    def _check_chunks(self, data: Any, start: int, stop: int) -> None:
        """HDF5 decompresses a chunk to its end even beyond the declared size, so it is tested here first."""
        size = math.prod(data.chunks) * data.dtype.itemsize if self._large else 0
        for place, rows in [*self._large.items()]:
            if place[0] < stop and start < place[0] + rows:
                skipped, content = data.id.read_direct_chunk(place)
                fits = len(content) <= size + _CHECKSUM if skipped else unpacks_to(content, size + _CHECKSUM)
                if not fits:
                    raise Unreadable(
                        f"{self._name} has a chunk that expands beyond the {readable(size)} declared: damaged, or forged"
                    )
                del self._large[place]
