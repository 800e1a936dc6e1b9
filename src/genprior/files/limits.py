"""How much files of unknown origin may ask for: checked against what their heads declare, before anything is unpacked.

A few packed bytes can stand for gigabytes. Arrays are read a few rows at a time, so their whole size does not matter; what
matters is the least piece that a reader must unpack at once, and what a head declares without any content behind it.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path
from typing import IO

from genprior.files.guard import Unreadable

MOST_PIXELS = 2**26
"""Of one image, before it is scaled: 67 million. Unpacked, with one copy, about half a gigabyte."""
LARGEST_PIECE = 2**27
"""Bytes that may have to be unpacked at once: 134 MB."""
DEFLATE_RATIO = 1032
"""So many times its size a deflated stream (zip, gzip, PNG, HDF5) becomes at most."""
MOST_ARRAYS = 100_000
"""In one file."""
LARGEST_INDEX = 2**24
"""Bytes of the list of contents of a file: 17 MB, far more than that many arrays need."""
_LITTLE = 2**20
"""Up to here nothing is compared: small files may declare what they like, it costs nothing."""
_STEP = 2**20
_HEAD_LENGTH = 8
_ZIP_END = b"PK\x05\x06"
_ZIP_END_SIZE = 22
_ZIP64_PLACE = b"PK\x06\x07"
_ZIP64_PLACE_SIZE = 20
_ZIP64_END = b"PK\x06\x06"
_ZIP64_END_SIZE = 56


def check_declared(declared: int, stored: int, name: str) -> None:
    """Refuse contents that are declared larger than what is stored could become."""
    if declared > DEFLATE_RATIO * max(stored, _LITTLE):
        raise Unreadable(
            f"{name} declares {readable(declared)} but the file holds only {readable(stored)} of it: it was never written, "
            "or it is forged"
        )


def check_count(count: int, path: Path) -> None:
    """Refuse more arrays in a file than anybody needs."""
    if count > MOST_ARRAYS:
        raise Unreadable(
            f"{path} holds {count} arrays, at most {MOST_ARRAYS} are read: put the items into one array, (N, ...)"
        )


def check_index(path: Path, size: int) -> None:
    """Refuse a list of contents that would take gigabytes to read."""
    if size > LARGEST_INDEX:
        raise Unreadable(
            f"{path} has a list of contents of {readable(size)}, at most {readable(LARGEST_INDEX)} is read: put the items "
            "into one array, (N, ...)"
        )


def check_head(path: Path) -> None:
    """Refuse a .safetensors file whose head, the list of its tensors, is too long; what is no such file is left to others."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_HEAD_LENGTH), "little")
    if length < path.stat().st_size:
        check_index(path, length)


def unpacks_to(stream: bytes, most: int) -> bool:
    """Whether a deflated stream (zlib) becomes at most so many bytes; they are not kept. A damaged one does not."""
    unpacker, left = zlib.decompressobj(), stream
    while most >= 0 and not unpacker.eof and left:
        try:
            most -= len(unpacker.decompress(left, _STEP))
        except zlib.error:
            return False
        left = unpacker.unconsumed_tail
    return most >= 0


def check_archive(file: IO[bytes], name: Path) -> None:
    """Refuse a zip file whose list of contents is too long, or has more than one end, of which readers see different ones."""
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
