"""Numbered records of one job in a few large files, appended in any order.

A record is a frame: a head of fixed size (mark, number, length, digest of the body, digest of the head), then the body. Both
digests are keyed by the identity of the job. Frames are only appended, and a frame is on the disk when :meth:`Log.append`
returns; the last record of a number counts. Opening reads every byte: a half-written frame at the end, as a kill leaves it, is
cut off; any other damage is set aside, and all undamaged records are kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from struct import Struct
from typing import IO

from safetensors.torch import load, save

from genprior._files import sync_folders, write_atomically, writing
from genprior._journal import Damaged, Record

SEGMENT = 64 * 2**20
"""Bytes from which on a segment is full."""
_MARK = b"gp\xf5\n"
_HEAD = Struct("<4sQQ16s16s")
_SIGNED = Struct("<4sQQ16s").size
"""Bytes of the head that its own digest covers."""
_META = Struct("<Q")
_FORGOTTEN = 2**64 - 1
"""In place of a number: the body lists numbers whose records no longer count."""
_AT_ONCE = 2**16
"""Most numbers in one frame of forgotten ones."""
_BLOCK = 2**20
_NONE = -1
_OFFSET = 40
"""Bits of a position that hold the offset in its segment."""


@dataclass(frozen=True)
class _Frame:
    """A frame whose head is sound."""

    start: int
    number: int
    length: int
    digest: bytes

    @property
    def body(self) -> int:
        """Where its body begins."""
        return self.start + _HEAD.size

    @property
    def end(self) -> int:
        return self.body + self.length


@dataclass(frozen=True)
class _Gap:
    """Bytes that are no sound frame."""

    start: int
    end: int
    torn: bool
    """Whether this is the beginning of a frame, and nothing follows."""


class Log:
    """The records of one job in the files ``records-*.log`` of a folder; one process at a time.

    The index takes 8 bytes for each number up to the largest; no file stays open.
    """

    def __init__(self, folder: Path, owner: str, *, segment: int = SEGMENT) -> None:
        """``owner`` identifies the job: the records of another one count as damaged."""
        self.folder = folder
        self.notes: list[str] = []
        """Notes for the user about damage."""
        self._key = hashlib.sha256(owner.encode()).digest()
        self._most = segment
        self._places = array("q")
        self._count = 0
        self._torn = False
        """Whether the last segment may hold more than ``_end`` bytes, which do not count."""
        paths = sorted((path for path in folder.glob("records-*.log") if _named(path)), key=_number_of)
        for path in paths:
            self._open(path, path == paths[-1])
        self._number = _number_of(paths[-1]) if paths else 0
        self._end = paths[-1].stat().st_size if paths else 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, number: int) -> bool:
        return 0 <= number < len(self._places) and self._places[number] != _NONE

    def numbers(self) -> Iterator[int]:
        """The numbers that have a record, in order."""
        return (number for number, place in enumerate(self._places) if place != _NONE)

    def append(self, number: int, record: Record) -> None:
        """Store a record, on the disk when this returns; after an error, such as a full disk, the log is as before."""
        if number < 0:
            raise ValueError(f"number must be at least 0, got {number}")
        place = self._write(self._frame(number, _packed(record)))
        self._put(number, place)

    def forget(self, numbers: Iterable[int]) -> None:
        """The records of these numbers no longer count."""
        there = array("Q", (number for number in numbers if number in self))
        for start in range(0, len(there), _AT_ONCE):
            some = there[start : start + _AT_ONCE]
            frame = self._frame(_FORGOTTEN, _little(some).tobytes())
            self._write(frame + frame)  # if one is damaged, no forgotten record comes back
            for number in some:
                self._put(number, _NONE)

    def records(self, numbers: Iterable[int] | None = None) -> Iterator[tuple[int, Record]]:
        """The records, by number, of all numbers or of those given; numbers without a record are skipped.

        Raises :class:`genprior._journal.Damaged` for one that was damaged after the log was opened.
        """
        opened, file = _NONE, None
        try:
            for number in self.numbers() if numbers is None else numbers:
                if number not in self:
                    continue
                segment, start = divmod(self._places[number], 1 << _OFFSET)
                if file is None or segment != opened:
                    if file is not None:
                        file.close()
                    opened, file = segment, self._path(segment).open("rb")
                yield number, self._read(file, number, start)
        finally:
            if file is not None:
                file.close()

    def _read(self, file: IO[bytes], number: int, start: int) -> Record:
        frame = self._frame_at(file, start)
        if frame is not None and frame.number == number:
            body = file.read(frame.length)
            if self._digest(body) == frame.digest:
                return _unpacked(body)
        raise Damaged(f"{file.name} is damaged: the same command sets the damaged part aside and does it again")

    def _write(self, content: bytes) -> int:
        """Append to the last segment, or to a new one if that is full; returns the position."""
        if self._end >= self._most:
            self._number, self._end = self._number + 1, 0
        path, start = self._path(self._number), self._end
        with writing(path), path.open("r+b" if start else "wb", buffering=0) as file:
            try:
                if self._torn:
                    _shorten(file, start)
                self._torn = True
                file.seek(start)
                _write_all(file, content)
                os.fsync(file.fileno())
                if start == 0:
                    sync_folders([self.folder])
            except BaseException:
                with suppress(OSError):  # then it is done before the next record
                    _shorten(file, start)
                    self._torn = False
                raise
        self._end, self._torn = start + len(content), False
        return self._number << _OFFSET | start

    def _put(self, number: int, place: int) -> None:
        if number >= len(self._places):
            self._places.extend(repeat(_NONE, number + 1 - len(self._places)))
        self._count += (place != _NONE) - (self._places[number] != _NONE)
        self._places[number] = place

    def _path(self, segment: int) -> Path:
        return self.folder / f"records-{segment:06d}.log"

    # -- opening -----------------------------------------------------------------------------------------------------

    def _open(self, path: Path, last: bool) -> None:
        """Index the records of a segment; a damaged one is replaced by its undamaged records first."""
        segment = _number_of(path)
        gaps = []
        with path.open("rb", buffering=_BLOCK) as file:
            for found in self._frames(file):
                if isinstance(found, _Gap):
                    gaps.append(found)
                elif found.number == _FORGOTTEN:
                    for number in self._forgotten(file, found):
                        self._put(number, _NONE)
                else:
                    self._put(found.number, segment << _OFFSET | found.start)
        if last and len(gaps) == 1 and gaps[0].torn:
            _cut(path, gaps[0].start)
        elif gaps:
            self._mend(path, gaps)
            self._open(path, last)

    def _mend(self, path: Path, gaps: list[_Gap]) -> None:
        """Keep a copy of a damaged segment, then take the damaged bytes out of it."""
        aside = path.with_name(f"{path.name}.damaged")
        write_atomically(aside, lambda temporary: shutil.copyfile(path, temporary))
        write_atomically(path, lambda temporary: _copy_without(path, gaps, temporary))
        self.notes.append(f"{path} is damaged: a copy is kept as {aside}, and what is lost of it is done again")

    def _forgotten(self, file: IO[bytes], frame: _Frame) -> array[int]:
        place = file.tell()
        file.seek(frame.body)
        numbers = array("Q", file.read(frame.length))
        file.seek(place)
        return _little(numbers)

    def _frames(self, file: IO[bytes]) -> Iterator[_Frame | _Gap]:
        """All sound frames of a segment, and what lies between them."""
        size, start = os.fstat(file.fileno()).st_size, 0
        while start < size:
            frame = self._frame_at(file, start)
            if frame is not None and frame.end <= size and self._digest_of(file, frame.length) == frame.digest:
                yield frame
                start = frame.end
                continue
            end = self._next_head(file, start + 1, size)
            torn = end == size and (size - start < _HEAD.size or (frame is not None and frame.end > size))
            yield _Gap(start, end, torn)
            start = end

    def _frame_at(self, file: IO[bytes], start: int) -> _Frame | None:
        """The frame that begins there, if its head is sound; the file is left at its body."""
        file.seek(start)
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size or not head.startswith(_MARK):
            return None
        _, number, length, digest, seal = _HEAD.unpack(head)
        return _Frame(start, number, length, digest) if seal == self._digest(head[:_SIGNED]) else None

    def _next_head(self, file: IO[bytes], start: int, size: int) -> int:
        """Where the next sound head begins; the end of the file if there is none."""
        while start < size:
            file.seek(start)
            block = file.read(_BLOCK)
            at = block.find(_MARK)
            while at >= 0:
                if self._frame_at(file, start + at) is not None:
                    return start + at
                at = block.find(_MARK, at + 1)
            start += max(1, len(block) - len(_MARK) + 1)
        return size

    def _frame(self, number: int, body: bytes) -> bytes:
        signed = _HEAD.pack(_MARK, number, len(body), self._digest(body), b"")[:_SIGNED]
        return signed + self._digest(signed) + body

    def _digest(self, content: bytes) -> bytes:
        return hashlib.blake2b(content, digest_size=16, key=self._key).digest()

    def _digest_of(self, file: IO[bytes], length: int) -> bytes:
        """The digest of the next bytes of a file, a block at a time."""
        digest = hashlib.blake2b(digest_size=16, key=self._key)
        while length > 0:
            block = file.read(min(length, _BLOCK))
            if not block:
                break
            digest.update(block)
            length -= len(block)
        return digest.digest()


def _packed(record: Record) -> bytes:
    meta = json.dumps(record.meta).encode()
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in record.tensors.items()}
    return _META.pack(len(meta)) + meta + (save(plain) if plain else b"")


def _unpacked(body: bytes) -> Record:
    end = _META.size + _META.unpack_from(body)[0]
    return Record(json.loads(body[_META.size : end]), load(body[end:]) if len(body) > end else {})


def _named(path: Path) -> bool:
    return path.stem.removeprefix("records-").isdecimal()


def _number_of(path: Path) -> int:
    return int(path.stem.removeprefix("records-"))


def _little(numbers: array[int]) -> array[int]:
    """Between the order of bytes of this machine and little-endian."""
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers


def _write_all(file: IO[bytes], content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def _shorten(file: IO[bytes], size: int) -> None:
    file.truncate(size)


def _cut(path: Path, size: int) -> None:
    with writing(path), path.open("r+b") as file:
        _shorten(file, size)
        os.fsync(file.fileno())


def _copy_without(path: Path, gaps: list[_Gap], target: Path) -> None:
    """Copy a file but for these parts of it, a block at a time."""
    edges = [0, *(edge for gap in gaps for edge in (gap.start, gap.end)), path.stat().st_size]
    with path.open("rb") as file, target.open("wb") as copy:
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            file.seek(start)
            for place in range(start, end, _BLOCK):
                copy.write(file.read(min(_BLOCK, end - place)))
