"""Limits on untrusted files, checked against their headers before anything is decompressed.

A few compressed bytes can expand to gigabytes. Arrays are read a few rows at a time, so their total size is not limited;
the smallest piece that must be decompressed at once is, and so are sizes that a header declares without content.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path
from typing import IO

from genprior.files.guard import Unreadable

MOST_PIXELS = 2**26
"""Pixels of one image before scaling: 67 million, about half a gigabyte decoded with one copy."""
LARGEST_PIECE = 2**27
"""Bytes that may be decompressed at once: 134 MB."""
DEFLATE_RATIO = 1032
"""Upper bound on the compression ratio of deflate (zip, gzip, PNG, HDF5)."""
MOST_ARRAYS = 100_000
"""Arrays in one file."""
LARGEST_INDEX = 2**24
"""Bytes of a file's index: 17 MB, far more than that many arrays need."""
MOST_MEMBERS = 10**6
"""Members of one tar archive."""
LARGEST_HEADER = 2**20
"""Bytes of the header of a member, which holds its name and attributes."""
_LITTLE = 2**20
"""Smaller declared sizes are not checked, because they cannot do harm."""
_STEP = 2**20
_HEAD_LENGTH = 8
_ZIP_END = b"PK\x05\x06"
_ZIP_END_SIZE = 22
_ZIP64_PLACE = b"PK\x06\x07"
_ZIP64_PLACE_SIZE = 20
_ZIP64_END = b"PK\x06\x06"
_ZIP64_END_SIZE = 56


def check_declared(declared: int, stored: int, name: str) -> None:
    """Raise if the declared size exceeds what the stored bytes could expand to."""
    if declared > DEFLATE_RATIO * max(stored, _LITTLE):
        raise Unreadable(
            f"{name} declares {readable(declared)} but the file holds only {readable(stored)} of it: it was never written, "
            "or it is forged"
        )


def check_count(count: int, path: Path) -> None:
    """Raise if a file holds too many arrays."""
    if count > MOST_ARRAYS:
        raise Unreadable(
            f"{path} holds {count} arrays, at most {MOST_ARRAYS} are read: put the items into one array, (N, ...)"
        )


def check_index(path: Path, size: int) -> None:
    """Raise if a file's index is too large to read."""
    if size > LARGEST_INDEX:
        raise Unreadable(
            f"{path} has a list of contents of {readable(size)}, at most {readable(LARGEST_INDEX)} is read: put the items "
            "into one array, (N, ...)"
        )


def check_head(path: Path) -> None:
    """Raise if the header of a .safetensors file is too long; other files are left to their readers."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_HEAD_LENGTH), "little")
    if length < path.stat().st_size:
        check_index(path, length)


def unpacks_to(stream: bytes, most: int) -> bool:
    """Whether a zlib stream is valid and expands to at most so many bytes, which are discarded."""
    unpacker, left = zlib.decompressobj(), stream
    while most >= 0 and not unpacker.eof and left:
        try:
            most -= len(unpacker.decompress(left, _STEP))
        except zlib.error:
            return False
        left = unpacker.unconsumed_tail
    return most >= 0


def check_archive(file: IO[bytes], name: Path) -> None:
    """Raise if the index of a zip file is too long or ambiguous, so that readers would disagree on its contents."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _ZIP_END_SIZE - _ZIP64_PLACE_SIZE - _ZIP64_END_SIZE))
    tail = file.read()
    file.seek(0)
    end = tail[-_ZIP_END_SIZE:]
    if not end.startswith(_ZIP_END):
        raise zipfile.BadZipFile("it does not end as a zip file")
    length = int.from_bytes(end[12:16], "little")
    place = tail[-_ZIP_END_SIZE - _ZIP64_PLACE_SIZE : -_ZIP_END_SIZE]
    if place.startswith(_ZIP64_PLACE):
        last = size - _ZIP_END_SIZE - _ZIP64_PLACE_SIZE - _ZIP64_END_SIZE
        large = tail[: -_ZIP_END_SIZE - _ZIP64_PLACE_SIZE]
        if int.from_bytes(place[8:16], "little") != last or not large.startswith(_ZIP64_END):
            raise zipfile.BadZipFile("its end is not where it says")
        length = int.from_bytes(large[40:48], "little")
    check_index(name, length)


def readable(size: int) -> str:
    """Bytes in a unit that is easy to read."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}" if unit != "bytes" else f"{size} bytes"
        size /= 1000  # type: ignore[assignment]
    return f"{size:.3g} GB"
