"""The parts of a job's inputs: image files, and arrays of files. Image files are kept in columns: there may be millions."""

from __future__ import annotations

import os
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

from genprior._files import printable
from genprior.files.arrays import Array
from genprior.files.guard import Unreadable
from genprior.files.images import WRITTEN_AS
from genprior.files.layout import Layout
from genprior.files.remote import Remote
from genprior.files.shards import Shard
from genprior.files.version import Version


@dataclass(frozen=True, slots=True)
class Part:
    """An image file, or one array of a file: a run of consecutive items."""

    place: str
    """Path of the file."""
    output: str
    """Name of the output file, relative to the folder of outputs."""
    count: int
    array: Array | Shard | None = None
    layout: Layout | None = None
    deep: bool = False
    problem: str = ""
    """Why it is skipped, if it is."""
    ignored: tuple[str, ...] = ()
    """Why other arrays of the file are not items."""
    version: Version | None = None
    """Version of the file when it was opened."""
    remote: Remote | None = None
    """Where it was fetched from, if it was."""

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.place)

    @property
    def shown(self) -> str:
        """Its file in messages."""
        return self.place if self.remote is None else self.remote.name

    @property
    def label(self) -> str:
        """Its name in messages."""
        key = f"/{self.array.key}" if self.array is not None and self.array.key else ""
        return printable(self.output + key)

    def name(self, row: int) -> str:
        """The name of one of its items."""
        if isinstance(self.array, Shard):
            return printable(f"{self.label}/{self.array.member(row).key}")
        return f"{self.label}[{row}]" if self.layout is not None and self.layout.batched else self.label

    def is_here(self) -> bool:
        """Whether this process can read the file, in the version that was opened."""
        try:
            if self.remote is not None:
                self.remote.ready()
            return os.access(self.place, os.R_OK) and Version.of(self.place) == self.version
        except (OSError, Unreadable):
            return False

    def is_plain(self) -> bool:
        """Whether it is an image file with the usual name of its output, so that columns can hold it."""
        return (
            self.array is None
            and not self.problem
            and self.version is not None
            and os.path.basename(self.output) == written_name(os.path.basename(self.place))
        )


def written_name(name: str) -> str:
    """The name of an image file's output."""
    stem, ending = os.path.splitext(name)
    return stem + WRITTEN_AS.get(ending.lower(), ending)


class Parts(Sequence[Part]):
    """Parts of inputs, each made when it is asked for: an image file takes some 50 bytes, other parts are kept as they are."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self._folders, self._outputs = _Names(), _Names()
        self._names, self._ends = bytearray(), array("q", [0])
        self._sizes, self._times, self._deep = array("q"), array("q"), bytearray()
        self._others: dict[int, Part] = {}
        for number, part in enumerate(parts):
            if part.is_plain():
                assert part.version is not None, "plain"
                folder, name = os.path.split(part.place)
                self._add(folder, os.path.dirname(part.output), name, part.version, part.deep)
            else:
                self._others[number] = part
                self._add("", "", "", Version(0, 0), False)

    def _add(self, folder: str, output: str, name: str, version: Version, deep: bool) -> None:
        self._folders.add(folder)
        self._outputs.add(output)
        self._names += os.fsencode(name)
        self._ends.append(len(self._names))
        self._sizes.append(version.size)
        self._times.append(version.time)
        self._deep.append(deep)

    def __len__(self) -> int:
        return len(self._sizes)

    @overload
    def __getitem__(self, number: int) -> Part: ...
    @overload
    def __getitem__(self, number: slice) -> list[Part]: ...
    def __getitem__(self, number: int | slice) -> Part | list[Part]:
        """One of them, or some."""
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        number = range(len(self))[number]
        if (other := self._others.get(number)) is not None:
            return other
        name = os.fsdecode(bytes(self._names[self._ends[number] : self._ends[number + 1]]))
        return Part(
            os.path.join(self._folders[number], name),
            _joined(self._outputs[number], written_name(name)),
            1,
            deep=bool(self._deep[number]),
            version=Version(self._sizes[number], self._times[number]),
        )

    def __iter__(self) -> Iterator[Part]:
        return (self[number] for number in range(len(self)))

    def counts(self) -> Iterator[int]:
        """The number of items of each."""
        return (other.count if (other := self._others.get(n)) is not None else 1 for n in range(len(self)))

    @property
    def others(self) -> dict[int, Part]:
        """Arrays, and files that cannot be used, by their numbers; all others are image files."""
        return self._others

    def __getstate__(self) -> dict[str, Any]:
        """Compressed, with absolute paths: another process may run in another folder."""
        state = {name: value for name, value in vars(self).items() if name != "_others"}
        for name in _COLUMNS:
            state[name] = zlib.compress(bytes(state[name]), 1)
        others = {number: replace(part, place=os.path.abspath(part.place)) for number, part in self._others.items()}
        return {**state, "_folders": self._folders.absolute(), "_others": others}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, form in _COLUMNS.items():
            content = zlib.decompress(state[name])
            state[name] = bytearray(content) if form == "b" else array(form, content)
        vars(self).update(state)
        for number, part in self._others.items():
            if part.remote is not None:  # the cache of this machine is elsewhere
                self._others[number] = replace(part, place=str(part.remote.path))


_COLUMNS = {"_names": "b", "_ends": "q", "_sizes": "q", "_times": "q", "_deep": "b"}


class _Names:
    """A column of texts of which few are different, such as folders."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._texts: list[str] = []
        self._column = array("i")

    def add(self, text: str) -> None:
        number = self._known.setdefault(text, len(self._known))
        if number == len(self._texts):
            self._texts.append(text)
        self._column.append(number)

    def __getitem__(self, number: int) -> str:
        return self._texts[self._column[number]]

    def absolute(self) -> _Names:
        """The same of absolute paths."""
        found = _Names()
        found._texts, found._column = [os.path.abspath(text) for text in self._texts], self._column
        return found

    def __getstate__(self) -> tuple[list[str], bytes]:
        return self._texts, zlib.compress(self._column.tobytes(), 1)

    def __setstate__(self, state: tuple[list[str], bytes]) -> None:
        self._texts, self._column = state[0], array("i", zlib.decompress(state[1]))
        self._known = {text: number for number, text in enumerate(self._texts)}


def _joined(folder: str, name: str) -> str:
    """Names of outputs have forward slashes on every system."""
    return f"{folder}/{name}" if folder else name
