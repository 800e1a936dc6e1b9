"""All items of some files and folders, in a fixed order, read when they are needed."""

from __future__ import annotations

import bisect
import hashlib
import itertools
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from genprior._files import printable
from genprior.files.arrays import Array, as_values
from genprior.files.expected import Expected
from genprior.files.guard import Unreadable, reading
from genprior.files.images import decode
from genprior.files.parts import Part, Parts
from genprior.files.shards import ENDINGS as SHARD_ENDINGS
from genprior.files.shards import Shard
from genprior.files.version import Version

_SHOWN = 3


@dataclass(frozen=True)
class Loaded:
    """One item: its name and value, or the reason why it has none."""

    name: str
    value: Tensor | None
    problem: str = ""


class Items:
    """A sequence of items in files; ``read`` gives a few of them."""

    def __init__(self, parts: Parts, expected: Expected) -> None:
        self.parts, self.expected = parts, expected
        self.starts = array("q", [0, *itertools.accumulate(parts.counts())])
        self._reading: Array | Shard | None = None

    def __len__(self) -> int:
        return self.starts[-1]

    @property
    def notes(self) -> tuple[str, ...]:
        """The first few inputs that were ignored."""
        found = [f"ignored: {reason}" for part in self.parts.others.values() for reason in part.ignored]
        more = [f"ignored: {len(found) - _SHOWN} more arrays"] if len(found) > _SHOWN else []
        return (*found[:_SHOWN], *more)

    def part_of(self, item: int) -> int:
        """The number of the part that holds an item."""
        return bisect.bisect_right(self.starts, item) - 1

    def parts_of(self, start: int, stop: int) -> list[int]:
        """The numbers of the parts that hold the items from ``start`` up to ``stop``, one for each."""
        return [self.part_of(item) for item in range(start, stop)]

    def names(self, start: int, stop: int) -> list[str]:
        """The names of the items from ``start`` up to ``stop``, without reading them."""
        parts = self.parts_of(start, stop)
        return [self.parts[part].name(item - self.starts[part]) for item, part in enumerate(parts, start)]

    def read(self, start: int, stop: int) -> list[Loaded]:
        """The items from ``start`` up to ``stop``."""
        found: list[Loaded] = []
        index = self.part_of(start)
        while start + len(found) < min(stop, len(self)):
            part, first = self.parts[index], start + len(found) - self.starts[index]
            found += self._read_part(part, first, min(part.count, first + stop - start - len(found)))
            index += 1
        if stop >= len(self):
            self._move_to(None)
        return found

    def missing(self, start: int, stop: int) -> list[Path]:
        """The files of these items that this process cannot read, or that have another version here.

        Files behind URLs are fetched.
        """
        numbers = range(self.part_of(start), self.part_of(min(stop, len(self)) - 1) + 1) if start < stop else range(0)
        seen = {part.place: part for number in numbers if (part := self.parts[number]).version is not None}
        return [part.path for part in seen.values() if not part.is_here()]

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which opens the files again: small, and without the operator's matrices."""
        return {**vars(self), "expected": self.expected.portable(), "starts": None, "_reading": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["parts"], state["expected"])  # type: ignore[misc]

    def fingerprint(self) -> str:
        """A digest of names, sizes and times of change: identifies the files of an earlier run."""
        digest = hashlib.sha256()
        for part in self.parts:
            version = part.version or Version(0, 0)
            digest.update(f"{part.label}:{part.count}:{version.size}:{version.time}\n".encode())
        return digest.hexdigest()

    def changed(self) -> list[Path]:
        """The files that changed since they were opened; those behind URLs cannot, because they were fetched."""
        own = (part for part in self.parts if part.version is not None and part.remote is None)
        gone = (part for part in own if not part.is_here())
        return [*dict.fromkeys(part.path for part in gone)]

    def changes(self) -> tuple[str, ...]:
        """A note on changed files for the end of a job, whose results are of the version at its start."""
        changed = self.changed()
        more = f" and {len(changed) - 1} more files" if len(changed) > 1 else ""
        alone = any(path.suffix.lower() in SHARD_ENDINGS for path in changed)
        without = ", without what was carried along in archives" if alone else ""
        return tuple(
            printable(f"{path}{more} changed during the job: the results are of the version at its start{without}")
            for path in changed[:1]
        )

    def newer_than(self, time: int) -> list[Path]:
        """The files that were changed after a time, in nanoseconds."""
        versions = {part.place: part.version for part in self.parts}
        return [Path(place) for place, version in versions.items() if version is not None and version.time > time]

    def _read_part(self, part: Part, first: int, last: int) -> list[Loaded]:
        try:
            return self._read_rows(part, first, last)
        except FileNotFoundError:
            if part.remote is None:
                raise
            return self._read_rows(part, first, last)  # another process made room for a file of its own: fetch it again

    def _read_rows(self, part: Part, first: int, last: int) -> list[Loaded]:
        names = [part.name(row) for row in range(first, last)]
        try:
            if part.problem:
                raise Unreadable(part.problem)
            if part.remote is not None:
                part.remote.ready()
            _refuse_changed(part)
            values = self._values(part, first, last)
            _refuse_changed(part)
        except Unreadable as problem:  # any other error is not due to the file: stop, to resume later
            return [Loaded(name, None, str(problem).replace(part.place, part.shown)) for name in names]
        except BaseException:
            self._move_to(None)
            raise
        loaded = [self._checked(name, value) for name, value in zip(names, values, strict=True)]
        return [replace(one, problem=one.problem.replace(part.place, part.shown)) for one in loaded]

    def _values(self, part: Part, first: int, last: int) -> Iterable[Tensor | Unreadable]:
        if part.array is None or part.layout is None:
            spec = self.expected.image
            assert spec is not None, "checked when the file was opened"
            return self.expected.known(decode(part.path, spec)[None])
        if isinstance(part.array, Shard):
            return self._members(part.array, range(first, last))
        self._move_to(part.array)
        with reading(part.path, "an array"):
            block = part.array.rows(first, last) if part.layout.batched else part.array.whole()[None]
        values = as_values(block, part.array.dtype, part.label, measured=self.expected.measured)
        return self.expected.known(part.layout.to_items(values, self.expected.shape))

    def _members(self, shard: Shard, rows: range) -> list[Tensor | Unreadable]:
        """Items of a shard, each of which is a file of its own: one that is damaged does not spoil the others."""
        self._move_to(shard)
        found: list[Tensor | Unreadable] = []
        for row in rows:
            try:
                with reading(shard.path, "a tar archive"):
                    found.append(self.expected.known(shard.item(row, self.expected)[None])[0])
            except Unreadable as problem:
                found.append(problem)
        return found

    def _move_to(self, array: Array | Shard | None) -> None:
        """Keep at most one file open, and the position in one of its arrays."""
        left = self._reading
        if left is not None and left is not array:
            left.close()
            if array is None or left.file is not array.file:
                left.file.close()
        self._reading = array

    def _checked(self, name: str, value: Tensor | Unreadable) -> Loaded:
        if isinstance(value, Unreadable):
            return Loaded(name, None, str(value))
        fault = self.expected.fault(value)
        return Loaded(name, None, f"{name} {fault}") if fault else Loaded(name, value)


def _refuse_changed(part: Part) -> None:
    """Raise if a file changed, because a result must not mix two versions."""
    if part.version is not None and Version.of(part.place) != part.version:
        raise Unreadable(
            f"{part.shown} has changed since the job began, so this item may belong to another version: "
            "recover the file again, into another `out`"
        )
