"""Recovered signals in the layout of their inputs: image by image, arrays row by row, each file written atomically."""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from genprior._files import add_folder, set_aside, sync_folders, write_atomically, writing
from genprior.files.hdf5 import hdf5
from genprior.files.images import encode
from genprior.files.parts import Part
from genprior.files.shard_output import write_shard
from genprior.files.shards import Shard
from genprior.files.stream import Items

Shape = tuple[int, ...]
_ROWS = 256


@dataclass(frozen=True)
class _Group:
    """The arrays of one output file: indices of their parts, and the items from ``start`` up to ``stop``."""

    output: str
    members: tuple[int, ...]
    start: int
    stop: int

    def batches(self, size: int) -> range:
        """The batches of ``size`` items that overlap it."""
        return range(self.start // size, (self.stop - 1) // size + 1)


@dataclass(frozen=True)
class _Grown:
    """An array written row by row; opened only while it is copied."""

    path: Path
    batched: bool

    @cached_property
    def shape(self) -> Shape:
        return tuple(self.open().shape)

    @property
    def size(self) -> int:
        """In bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * 4

    def open(self) -> np.ndarray[Any, Any]:
        """Mapped into memory."""
        rows: np.ndarray[Any, Any] = np.load(self.path, mmap_mode="r", allow_pickle=False)
        return rows if self.batched else rows[0]


class Outputs:
    """Files in ``folder``; arrays are written in ``work`` and moved when complete.

    The order is: ``write`` some items, record that they are done, ``finish`` with the number done. After a kill in
    between, repeating the calls gives the same files.
    """

    def __init__(self, items: Items, folder: Path, work: Path, signal_shape: Shape) -> None:
        self._items, self._folder, self._work, self._shape = items, folder, work, signal_shape
        self._groups = _groups(items)
        add_folder(folder)
        self._next = 0
        """The first of the groups that is not in place."""

    def write(self, start: int, signals: Sequence[Tensor | None]) -> list[str | None]:
        """Write the items from ``start`` on, None for a missing one; returns the name of each file."""
        names: list[str | None] = []
        folders: list[Path] = []
        while len(names) < len(signals):
            number = self._items.part_of(start + len(names))
            part = self._items.parts[number]
            row = start + len(names) - self._items.starts[number]
            taken = signals[len(names) : len(names) + part.count - row]
            if part.array is not None:
                self._write_rows(number, row, taken)
            elif taken[0] is not None:
                folders.append(self._write_image(part, taken[0]))
            names += [None if signal is None else part.output for signal in taken]
        sync_folders(folders)  # once for all images of a batch
        return names

    def finish(self, done: int) -> None:
        """Move every array file into place whose items are all among the first ``done``; ``done`` never decreases."""
        while self._next < len(self._groups) and self._groups[self._next].stop <= done:
            group = self._groups[self._next]
            path = self._folder / group.output
            if all(self._row_file(number).is_file() for number in group.members):
                self._add_below(path.parent)
                write_atomically(path, partial(self._assemble, group))
            for number in group.members:
                self._row_file(number).unlink(missing_ok=True)
            self._next += 1

    def holds(self, start: int, names: Sequence[str | None]) -> bool:
        """Whether all images that ``write`` returned still exist."""
        return all(
            name is None or self._items.parts[part].array is not None or (self._folder / name).is_file()
            for part, name in zip(self._items.parts_of(start, start + len(names)), names, strict=True)
        )

    def set_aside_damaged(self) -> list[Path]:
        """Rename arrays that were growing in an earlier run and cannot be continued; their new names."""
        return [
            set_aside(path)
            for number, part in enumerate(self._items.parts)
            if (path := self._row_file(number)).is_file() and not _is_sound(path, self._row_shape(part))
        ]

    def to_repeat(self, done: set[int], size: int) -> set[int]:
        """The batches of ``size`` items among those ``done`` that must be repeated because their arrays are missing.

        An array file is intact if it is in place and no batch will write to it, or if it is unfinished and holds the rows
        of the finished batches. Otherwise all its batches are needed, which may overlap further files.
        """
        sound, before = set(done), -1
        while len(sound) != before:
            before = len(sound)
            for group in (*self._groups, *reversed(self._groups)):
                sound -= self._lost(group, sound, size)
        return done - sound

    def _lost(self, group: _Group, sound: set[int], size: int) -> set[int]:
        batches = group.batches(size)
        kept = sound.intersection(batches)
        if not kept or (len(kept) == len(batches) and (self._folder / group.output).is_file()):
            return set()
        starts = self._items.starts
        touched = (
            number
            for number in group.members
            if any(b in kept for b in range(starts[number] // size, (starts[number + 1] - 1) // size + 1))
        )
        return set() if all(self._row_file(number).is_file() for number in touched) else kept

    def _write_rows(self, number: int, row: int, signals: Sequence[Tensor | None]) -> None:
        part = self._items.parts[number]
        stored = np.stack([self._stored(part, signal) for signal in signals])
        shape, path = self._row_shape(part), self._row_file(number)
        if not path.is_file():
            write_atomically(path, lambda temporary: _blank(temporary, shape))
        with (
            writing(path),
            path.open("r+b") as file,
        ):  # not mapped into memory: on a full disk that would kill the process
            file.seek(_first_row(file, shape) + row * stored[0].nbytes)
            file.write(stored.tobytes())
            file.flush()
            os.fsync(file.fileno())

    def _write_image(self, part: Part, signal: Tensor) -> Path:
        """Returns the folder, which the caller must sync."""
        path = self._folder / part.output
        self._add_below(path.parent)
        encode(signal, path, deep=part.deep, sync=False)
        return path.parent

    def _add_below(self, folder: Path) -> None:
        """Create a subfolder, but never the output folder: without the job's records its files could not be identified."""
        if not self._folder.is_dir():
            raise FileNotFoundError(
                f"the folder {self._folder} is no longer there: was it removed during the job? The same command starts it "
                "again"
            )
        add_folder(folder)

    def _stored(self, part: Part, signal: Tensor | None) -> np.ndarray[Any, Any]:
        """A signal in the layout of the input's array; NaN for a missing one."""
        assert part.layout is not None, "an array has a layout"
        lone = torch.full((1, *self._shape), torch.nan) if signal is None else signal.detach().cpu()[None]
        stored: np.ndarray[Any, Any] = part.layout.from_items(lone).float().numpy()[0]
        return stored

    def _row_shape(self, part: Part) -> Shape:
        return (part.count, *self._stored(part, None).shape)

    def _row_file(self, number: int) -> Path:
        return self._work / f"rows-{number:06d}.npy"

    def _assemble(self, group: _Group, path: Path) -> None:
        part = self._items.parts[group.members[0]]
        if isinstance(part.array, Shard):
            signals = _Grown(self._row_file(group.members[0]), batched=True).open()
            write_shard(path, signals, part, self._items.expected)
            return
        arrays = {}
        for number in group.members:
            part = self._items.parts[number]
            assert part.array is not None and part.layout is not None, "only arrays grow row by row"
            arrays[part.array.key] = _Grown(self._row_file(number), part.layout.batched)
        _WRITERS[Path(group.output).suffix.lower()](path, arrays)


def _groups(items: Items) -> list[_Group]:
    numbered = [(number, part) for number, part in items.parts.others.items() if part.array is not None]
    found = []
    for output, group in groupby(numbered, key=lambda pair: pair[1].output):
        members = tuple(number for number, _ in group)
        found.append(_Group(output, members, items.starts[members[0]], items.starts[members[-1] + 1]))
    return found


def _blank(path: Path, shape: Shape) -> None:
    """A sparse file of zeros: on a full disk the first row that does not fit fails to be written."""
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        file.truncate(file.tell() + 4 * math.prod(shape))


def _is_sound(path: Path, shape: Shape) -> bool:
    """Whether an array file is complete and has this shape."""
    try:
        with path.open("rb") as file:
            return _first_row(file, shape) + 4 * int(np.prod(shape, dtype=np.int64)) == path.stat().st_size
    except ValueError:
        return False


def _first_row(file: IO[bytes], shape: Shape) -> int:
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


def _write_npy_file(path: Path, arrays: dict[str, _Grown]) -> None:
    with path.open("wb") as file:
        _write_npy(file, next(iter(arrays.values())).open())


def _write_npz(path: Path, arrays: dict[str, _Grown]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, allowZip64=True) as archive:
        for key, array in arrays.items():
            with archive.open(f"{key}.npy", "w", force_zip64=True) as file:
                _write_npy(file, array.open())


def _write_safetensors(path: Path, arrays: dict[str, _Grown]) -> None:
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


def _write_hdf5(path: Path, arrays: dict[str, _Grown]) -> None:
    with hdf5().File(path, "w") as file:
        for key, grown in arrays.items():
            array = grown.open()
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
