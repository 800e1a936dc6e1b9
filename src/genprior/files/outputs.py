"""Recovered signals in the layout of their inputs: image by image, arrays row by row, each file written atomically."""

from __future__ import annotations

import bisect
import os
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from genprior._files import add_folder, set_aside, sync_folders, write_atomically, writing
from genprior.files.grown import WRITERS, Grown, blank, first_row, is_sound
from genprior.files.images import encode
from genprior.files.parts import Part
from genprior.files.shard_output import write_shard
from genprior.files.shards import Shard
from genprior.files.signals import WavArray, write_wav
from genprior.files.stream import Items

Shape = tuple[int, ...]
Batches = np.ndarray[Any, np.dtype[np.bool_]]
"""One truth value for each batch of a job."""


@dataclass(frozen=True)
class _Group:
    """The arrays of one output file: indices of their parts, and the items from ``start`` up to ``stop``."""

    output: str
    members: tuple[int, ...]
    start: int
    stop: int

    def batches(self, size: int) -> slice:
        """The batches of ``size`` items that overlap it."""
        return batches_of(self.start, self.stop, size)


def batches_of(start: int, stop: int, size: int) -> slice:
    """The batches of ``size`` items that overlap the items from ``start`` up to ``stop``."""
    return slice(start // size, (stop - 1) // size + 1)


class Outputs:
    """Files in ``folder``; arrays are written in ``work`` and moved when complete.

    The order is: ``begin``, then for every batch, in any order: ``write`` its items, record that they are done, ``finish`` it.
    After a kill in between, repeating the calls gives the same files. Takes a byte for each batch, and eight for each file of
    arrays.
    """

    def __init__(self, items: Items, folder: Path, work: Path, signal_shape: Shape) -> None:
        self._items, self._folder, self._work, self._shape = items, folder, work, signal_shape
        self._groups = _groups(items)
        add_folder(folder)
        self._stops = array("q", (group.stop for group in self._groups))
        self._size = 0
        self._done: Batches = np.zeros(0, bool)
        self._left = array("q")
        """For each of the groups, how many of its batches are not done."""

    def begin(self, size: int, done: Batches | None = None) -> None:
        """Batches have ``size`` items; those ``done`` are recorded. Moves array files into place that are complete."""
        self._size = size
        self._done = np.zeros(-(-len(self._items) // size), bool) if done is None else done.copy()
        self._left = array("q", (int((~self._done[group.batches(size)]).sum()) for group in self._groups))
        for number, left in enumerate(self._left):
            if not left:
                self._place(self._groups[number])

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

    def finish(self, batch: int) -> None:
        """A batch is recorded: move the array files into place of which it was the last. Once more changes nothing."""
        if self._done[batch]:
            return
        self._done[batch] = True
        first = batch * self._size
        number = bisect.bisect_right(self._stops, first)
        while number < len(self._groups) and self._groups[number].start < first + self._size:
            self._left[number] -= 1
            if not self._left[number]:
                self._place(self._groups[number])
            number += 1

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
            if (path := self._row_file(number)).is_file() and not is_sound(path, self._row_shape(part))
        ]

    def to_repeat(self, done: Batches, size: int) -> Batches:
        """The batches of ``size`` items among those ``done`` that must be repeated because their arrays are missing.

        An array file is intact if it is in place and no batch will write to it, or if it is unfinished and holds the rows
        of the finished batches. Otherwise all its batches are needed, which may overlap further files.
        """
        sound, before = done.copy(), -1
        while (now := int(sound.sum())) != before:
            before = now
            for group in (*self._groups, *reversed(self._groups)):
                if not self._intact(group, sound, size):
                    sound[group.batches(size)] = False
        return done & ~sound

    def _intact(self, group: _Group, sound: Batches, size: int) -> bool:
        kept = sound[group.batches(size)]
        if kept.all() and (self._folder / group.output).is_file():
            return True
        starts = self._items.starts
        touched = (n for n in group.members if sound[batches_of(starts[n], starts[n + 1], size)].any())
        return all(self._row_file(number).is_file() for number in touched)

    def _place(self, group: _Group) -> None:
        """Move a complete file into place, unless that was done before."""
        path = self._folder / group.output
        if all(self._row_file(number).is_file() for number in group.members):
            self._add_below(path.parent)
            write_atomically(path, partial(self._assemble, group))
        for number in group.members:
            self._row_file(number).unlink(missing_ok=True)

    def _write_rows(self, number: int, row: int, signals: Sequence[Tensor | None]) -> None:
        part = self._items.parts[number]
        stored = np.stack([self._stored(part, signal) for signal in signals])
        shape, path = self._row_shape(part), self._row_file(number)
        if not path.is_file():
            write_atomically(path, lambda temporary: blank(temporary, shape))
        with (
            writing(path),
            path.open("r+b") as file,
        ):  # not mapped into memory: on a full disk that would kill the process
            file.seek(first_row(file, shape) + row * stored[0].nbytes)
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
            signals = Grown(self._row_file(group.members[0]), batched=True).open()
            write_shard(path, signals, part, self._items.expected)
            return
        if isinstance(part.array, WavArray):
            assert part.layout is not None, "an array has a layout"
            write_wav(path, Grown(self._row_file(group.members[0]), part.layout.batched).open(), part.array.rate)
            return
        arrays = {}
        for number in group.members:
            part = self._items.parts[number]
            assert part.array is not None and part.layout is not None, "only arrays grow row by row"
            arrays[part.array.key] = Grown(self._row_file(number), part.layout.batched)
        WRITERS[Path(group.output).suffix.lower()](path, arrays)


def _groups(items: Items) -> list[_Group]:
    numbered = [(number, part) for number, part in items.parts.others.items() if part.array is not None]
    found = []
    for output, group in groupby(numbered, key=lambda pair: pair[1].output):
        members = tuple(number for number, _ in group)
        found.append(_Group(output, members, items.starts[members[0]], items.starts[members[-1] + 1]))
    return found
