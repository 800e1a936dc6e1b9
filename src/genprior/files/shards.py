"""WebDataset shards: tar archives whose members are grouped by key, ``000.png 000.json 001.png ...``, read in place.

The key of a member is its name up to the first dot after the last slash. The item of a key is its one image or ``.npy``
array; its other members, such as labels, are carried along to the results.
"""

from __future__ import annotations

import io
import math
import os
import zlib
from array import array
from pathlib import Path
from typing import IO, Any

import numpy as np
from torch import Tensor

from genprior._files import printable
from genprior.files.arrays import as_values
from genprior.files.expected import Expected
from genprior.files.guard import Misfit, Unreadable, reading
from genprior.files.handle import Handle
from genprior.files.images import WRITTEN_AS, check, decode, is_deep, opened, quiet
from genprior.files.layout import Layout, fit
from genprior.files.limits import LARGEST_PIECE, readable
from genprior.files.plain import check_plain, plain_tensor
from genprior.files.tars import Member, Sample, samples

ENDINGS = (".tar",)
ARRAYS = (".npy",)
_LONGEST_HEAD = 10_000
"""Longest header of an array in bytes, as in numpy."""


class Shard:
    """The items of one archive: an index of places in it, made by one pass over its headers."""

    key = ""

    def __init__(self, path: Path, chosen: str | None = None) -> None:
        self.chosen = chosen
        self.file: Handle[IO[bytes]] = Handle(_opened, path)
        self._names, self._ends = bytearray(), array("q", [0])
        self._places, self._sizes, self._endings = array("q"), array("q"), array("H")
        self._texts: list[str] = []
        """The endings that occur."""
        self._fill()

    @property
    def path(self) -> Path:
        """The archive."""
        return self.file.path

    def _fill(self) -> None:
        known: dict[str, int] = {}
        for sample in samples(self.path):
            item = item_of(sample, self.path, self.chosen)
            number = known.setdefault(item.ending, len(known))
            self._names += os.fsencode(item.key)
            self._ends.append(len(self._names))
            self._places.append(item.place)
            self._sizes.append(item.size)
            if number == 2**16:
                raise Unreadable(f"{self.path} holds members of {number} types: it is damaged, or no shard")
            self._endings.append(number)
        self._texts = [*known]
        if not known:
            raise Unreadable(f"{self.path} holds no file: nothing to do")

    def __len__(self) -> int:
        return len(self._places)

    def member(self, row: int) -> Member:
        """The image or array of an item."""
        key = os.fsdecode(bytes(self._names[self._ends[row] : self._ends[row + 1]]))
        return Member(key, self._texts[self._endings[row]], self._places[row], self._sizes[row])

    def item(self, row: int, expected: Expected) -> Tensor:
        """The value of an item; raises if it cannot be used."""
        member = self.member(row)
        name = self._shown(member)
        if is_image(member):
            return decode(self._image(member, name), expected.image_for(name), name)
        return self._array(member, name, expected)

    def check(self, row: int, expected: Expected) -> None:
        """Raise if an item cannot be used; of images only the header is read."""
        member = self.member(row)
        if is_image(member):
            name = self._shown(member)
            spec, content = expected.image_for(name), self._image(member, name)
            with quiet(), reading(name, "an image"), opened(content, name) as image:
                check(image, spec, name)
        else:
            self.item(row, expected)

    def form(self, row: int, expected: Expected) -> tuple[bool, Layout | None]:
        """Whether an image has 16 bits, or the layout of an array."""
        member = self.member(row)
        name = self._shown(member)
        if not is_image(member):
            return False, fit(self._head(member, name)[0], expected.shape, name)
        with quiet(), reading(name, "an image"), opened(self._image(member, name), name) as image:
            return is_deep(image), None

    def close(self) -> None:
        """There is no position in the file to release."""

    def _shown(self, member: Member) -> str:
        return printable(f"{self.path}/{member.name}")

    def _image(self, member: Member, name: str) -> bytes:
        if member.size > LARGEST_PIECE:
            raise Unreadable(
                f"{name} has {readable(member.size)}, of an image at most {readable(LARGEST_PIECE)} are read"
            )
        return self._bytes(member.place, member.size, name)

    def _bytes(self, place: int, size: int, name: str) -> bytes:
        file = self.file.get()
        file.seek(place)
        content = file.read(size)
        if len(content) != size:
            raise Unreadable(f"{name} ends too early: the archive is truncated")
        return content

    def _head(self, member: Member, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
        """Shape, order and type of an array, and where its values begin."""
        stream = io.BytesIO(self._bytes(member.place, min(member.size, _LONGEST_HEAD), name))
        try:
            version = np.lib.format.read_magic(stream)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(stream)
        except (ValueError, EOFError, SyntaxError, TypeError, RecursionError) as problem:
            raise Unreadable(f"{name} cannot be read as an array ({problem}): it is damaged") from None
        check_plain(dtype)
        if any(length < 0 for length in shape) or math.prod(shape) * dtype.itemsize != member.size - stream.tell():
            raise Unreadable(f"{name} declares the shape {shape}, but holds {member.size} bytes: damaged, or forged")
        return shape, fortran, dtype, stream.tell()

    def _array(self, member: Member, name: str, expected: Expected) -> Tensor:
        shape, fortran, dtype, start = self._head(member, name)
        layout = fit(shape, expected.shape, name)
        if layout.batched:
            raise Misfit(f"{name} holds {shape[0]} items, expected one for each key of a shard")
        content = self._bytes(member.place + start, member.size - start, name)
        values = np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")
        expected.check_complex(name, dtype.kind == "c")
        block = as_values(plain_tensor(values), dtype.name, name, measured=expected.measured)
        return layout.to_items(block[None], expected.shape)[0]

    def __getstate__(self) -> dict[str, Any]:
        steps = np.diff(np.frombuffer(self._places, np.int64), prepend=0)  # small numbers, which compress well
        state = {name: zlib.compress(bytes(getattr(self, name)), 1) for name in _COLUMNS}
        return {**vars(self), **state, "_places": zlib.compress(steps.tobytes(), 1)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, form in _COLUMNS.items():
            content = zlib.decompress(state[name])
            state[name] = bytearray(content) if form == "b" else array(form, content)
        state["_places"] = array("q", np.cumsum(np.frombuffer(state["_places"], np.int64)).tobytes())
        vars(self).update(state)


_COLUMNS = {"_names": "b", "_ends": "q", "_places": "q", "_sizes": "q", "_endings": "H"}


def is_image(member: Member) -> bool:
    """Whether it is an image, by its ending."""
    return member.suffix in WRITTEN_AS


def item_of(sample: Sample, path: Path, chosen: str | None) -> Member:
    """The one image or array of a key, or that with the chosen ending."""
    found = [member for member in sample.members if is_image(member) or member.suffix in ARRAYS]
    named = [member for member in found if chosen in (None, member.ending)]
    there = ", ".join(member.ending for member in sample.members)
    if not named:
        wanted = "an image or .npy array" if chosen is None else f"an image or .npy array .{chosen}"
        raise Unreadable(f"{path} holds {sample.key} ({there}) without {wanted}: every key needs one")
    if len(named) > 1:
        raise Unreadable(
            f"{path} holds several images or arrays for {sample.key} ({there}): choose one by its ending, "
            f"{path.name}:{named[0].ending}"
        )
    if any(other.ending == written_ending(named[0]) for other in found if other is not named[0]):
        raise Unreadable(
            f"{path} holds {sample.key}.{written_ending(named[0])}, the name of the result for {named[0].name}: rename one"
        )
    return named[0]


def written_ending(member: Member) -> str:
    """The ending of an item's result: images become PNG."""
    if not is_image(member):
        return member.ending
    before, dot, _ = member.ending.rpartition(".")
    return f"{before}{dot}png"


def _opened(path: Path) -> IO[bytes]:
    return path.open("rb")
