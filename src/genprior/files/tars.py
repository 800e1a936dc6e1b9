"""The members of tar archives: headers are read by the standard library, with limits on what they may declare."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import IO

from genprior.files.guard import Unreadable, reading
from genprior.files.limits import LARGEST_HEADER, MOST_MEMBERS, readable

_BLOCK = tarfile.BLOCKSIZE
_TAIL = 2**20
"""Bytes after the end of an archive that are looked at: it is padded with zeros."""
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


@dataclass(frozen=True, slots=True)
class Member:
    """A file in an archive."""

    key: str
    """Its name up to the first dot after the last slash."""
    ending: str
    """The rest of it, without that dot."""
    place: int
    """Where its content begins."""
    size: int

    @property
    def name(self) -> str:
        """The whole name."""
        return f"{self.key}.{self.ending}"

    @property
    def suffix(self) -> str:
        """The last ending, in small letters, with its dot."""
        return f".{self.ending.rpartition('.')[2].lower()}"


def members(path: Path) -> Iterator[Member]:
    """The files in an archive, in its order; folders and names without a key or an ending are passed over."""
    with reading(path, "a tar archive"), path.open("rb") as file, _Headers(io.FileIO(path)) as headers:
        _refuse_compressed(file, path)
        size = file.seek(0, os.SEEK_END)
        with tarfile.open(fileobj=headers, mode="r:", encoding="utf-8") as archive:
            count = 0
            while (entry := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # it would keep them all
                count += 1
                if count > MOST_MEMBERS:
                    raise Unreadable(f"{path} holds more than {MOST_MEMBERS} members: split it into several shards")
                if (member := _member(entry, size, path)) is not None:
                    yield member
            _check_end(file, archive.offset, path)


@dataclass(frozen=True, slots=True)
class Sample:
    """The members of one key."""

    key: str
    members: tuple[Member, ...]


def samples(path: Path) -> Iterator[Sample]:
    """The members of an archive key by key; raises where a key or a name occurs again."""
    seen: set[str] = set()
    for key, group in groupby(members(path), key=lambda member: member.key):
        together = tuple(group)
        if key in seen:
            raise Unreadable(
                f"{path} holds the key {key} twice: the members of a key must stand together, as in an "
                "archive whose names are sorted, and every key must be different"
            )
        seen.add(key)
        endings = [member.ending for member in together]
        if twice := next((ending for ending in endings if endings.count(ending) > 1), None):
            raise Unreadable(f"{path} holds {key}.{twice} twice: which one is meant?")
        yield Sample(key, together)


def _member(entry: tarfile.TarInfo, size: int, path: Path) -> Member | None:
    if entry.isdir():
        return None
    name = entry.name.removeprefix("./")
    if entry.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or entry.issparse():
        raise Unreadable(
            f"{path} holds {name}, which is a link, a device or a sparse file: only plain files are read: write "
            "the archive again with contents in place of links"
        )
    if name.startswith("/") or ".." in name.split("/"):
        raise Unreadable(f"{path} holds the name {name}, which leads out of a folder: it is forged")
    if entry.size < 0 or entry.offset_data + entry.size > size:
        raise Unreadable(
            f"{path} is truncated: {name} should have {readable(max(0, entry.size))}, but the archive ends before"
        )
    folder, slash, base = name.rpartition("/")
    stem, _, ending = base.partition(".")
    if not (stem and ending):
        return None
    return Member(f"{folder}{slash}{stem}", ending, entry.offset_data, entry.size)


def _check_end(file: IO[bytes], place: int, path: Path) -> None:
    """Raise unless a block of zeros ends the archive: the standard library takes damage and a cut for the end, too."""
    file.seek(place)
    end = file.read(_BLOCK)
    if len(end) < _BLOCK:
        raise Unreadable(f"{path} is truncated: its end is missing; copy or download it again")
    if any(end):
        raise Unreadable(f"{path} is damaged at byte {place}: there is no header of a member")
    if any(file.read(_TAIL)):
        raise Unreadable(
            f"{path} goes on after its end, as archives that were put together by cat do: make one with tar"
        )


def _refuse_compressed(file: IO[bytes], path: Path) -> None:
    start = file.read(8)
    for magic, name in _COMPRESSED.items():
        if start.startswith(magic):
            raise Unreadable(compressed(path, name))


def compressed(path: str | Path, name: str) -> str:
    """Why a compressed archive is not read."""
    return (
        f"{path} is compressed ({name}), so that no member can be read without all that are before it: decompress it "
        "first, to a .tar (images in it are compressed anyway)"
    )


class _Headers(io.BufferedReader):
    """A file of which only short pieces are read: a header may declare any length for a name."""

    def read(self, size: int | None = -1, /) -> bytes:
        """At most what a header may have."""
        if size is None or not 0 <= size <= LARGEST_HEADER:
            raise Unreadable(
                f"{self.name} has a header that declares {size} bytes, at most {LARGEST_HEADER} are read: it is forged"
            )
        return super().read(size)
