"""Recovered signals in the layout of their inputs: picture by picture, arrays row by row, each file whole or not there."""

from __future__ import annotations

import bisect
import json
import zipfile
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from genprior._files import write_atomically
from genprior.items.arrays import hdf5
from genprior.items.pictures import encode
from genprior.items.stream import Items, Part

Shape = tuple[int, ...]
_ROWS = 256


class Outputs:
    """Files in ``folder``; arrays grow in ``work`` and move over when their last row is there.

    The order is: ``write`` some items, note somewhere that they are done, ``finish`` with how many are done. Killed in
    between, the same calls again give the same files.
    """

    def __init__(self, items: Items, folder: Path, work: Path, signal_shape: Shape) -> None:
        self._items, self._folder, self._work, self._shape = items, folder, work, signal_shape

    def write(self, start: int, signals: Sequence[Tensor | None]) -> list[str | None]:
        """Write the items from ``start`` on, None where there is none; the name of each one's file."""
        names: list[str | None] = []
        growing: dict[int, np.memmap[Any, Any]] = {}
        for index, signal in enumerate(signals, start):
            number = bisect.bisect_right(self._items.starts, index) - 1
            part = self._items.parts[number]
            if part.array is not None and part.layout is not None:
                stored = self._stored(part, signal)
                if number not in growing:
                    growing[number] = self._rows(number, (part.count, *stored.shape))
                growing[number][index - self._items.starts[number]] = stored
            elif signal is not None:
                self._write_picture(part, signal)
            names.append(None if signal is None else part.output)
        for rows in growing.values():
            rows.flush()
        return names

    def finish(self, done: int) -> None:
        """Put every array file in place whose items are all among the first ``done``."""
        numbered = [(number, part) for number, part in enumerate(self._items.parts) if part.array is not None]
        for output, group in groupby(numbered, key=lambda pair: pair[1].output):
            members = list(group)
            if self._items.starts[members[-1][0] + 1] > done:
                continue
            path = self._folder / output
            if not path.is_file():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, partial(self._assemble, members))
            for number, _ in members:
                self._row_file(number).unlink(missing_ok=True)

    def _write_picture(self, part: Part, signal: Tensor) -> None:
        path = self._folder / part.output
        path.parent.mkdir(parents=True, exist_ok=True)
        encode(signal, path, deep=part.deep)

    def _stored(self, part: Part, signal: Tensor | None) -> np.ndarray[Any, Any]:
        """A signal as the input's array would hold it; NaN where there is none."""
        assert part.layout is not None, "an array has a layout"
        lone = torch.full((1, *self._shape), torch.nan) if signal is None else signal.detach().cpu()[None]
        stored: np.ndarray[Any, Any] = part.layout.from_items(lone).float().numpy()[0]
        return stored

    def _rows(self, number: int, shape: Shape) -> np.memmap[Any, Any]:
        path = self._row_file(number)
        if not path.is_file():
            write_atomically(path, lambda temporary: _blank(temporary, shape))
        return np.lib.format.open_memmap(path, mode="r+")

    def _row_file(self, number: int) -> Path:
        return self._work / f"rows-{number:06d}.npy"

    def _assemble(self, members: list[tuple[int, Part]], path: Path) -> None:
        arrays = {}
        for number, part in members:
            rows = np.load(self._row_file(number), mmap_mode="r", allow_pickle=False)
            assert part.array is not None and part.layout is not None, "only arrays grow row by row"
            arrays[part.array.key] = rows if part.layout.batched else rows[0]
        _WRITERS[Path(members[0][1].output).suffix.lower()](path, arrays)


def _blank(path: Path, shape: Shape) -> None:
    np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape).flush()


def _write_npy(file: IO[bytes], array: np.ndarray[Any, Any]) -> None:
    head = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
    np.lib.format.write_array_header_1_0(file, head)
    for piece in _pieces(array):
        file.write(piece.tobytes())


def _write_npy_file(path: Path, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    with path.open("wb") as file:
        _write_npy(file, next(iter(arrays.values())))


def _write_npz(path: Path, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, allowZip64=True) as archive:
        for key, array in arrays.items():
            with archive.open(f"{key}.npy", "w", force_zip64=True) as file:
                _write_npy(file, array)


def _write_safetensors(path: Path, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    """The format by hand, piece by piece: the package's own writer wants everything in memory."""
    head: dict[str, Any] = {}
    place = 0
    for key, array in arrays.items():
        head[key] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [place, place + array.nbytes]}
        place += array.nbytes
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            for piece in _pieces(array):
                file.write(piece.tobytes())


def _write_hdf5(path: Path, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    with hdf5().File(path, "w") as file:
        for key, array in arrays.items():
            place = file.create_dataset(key, shape=array.shape, dtype="f4")
            for start in range(0, len(array), _ROWS):
                place[start : start + _ROWS] = array[start : start + _ROWS]


def _pieces(array: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    for start in range(0, len(array), _ROWS):
        yield np.ascontiguousarray(array[start : start + _ROWS])


_WRITERS = {
    ".npy": _write_npy_file,
    ".npz": _write_npz,
    ".safetensors": _write_safetensors,
    ".h5": _write_hdf5,
    ".hdf5": _write_hdf5,
}
