"""Archives of torch (``torch.save``, TorchScript), checked before torch reads them."""

from __future__ import annotations

import io
import pickletools
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from genprior.files.guard import Unreadable, reading
from genprior.files.limits import LARGEST_INDEX, check_archive, readable

_SAVED = b"PK\x03\x04"
_PICKLE = "/data.pkl"
_OLD_PICKLES = 4
"""With which files of old versions of torch begin: a number, a version, facts on the machine, and the names."""
_COSTLY = (
    "bytearray",
    "_rebuild_device_tensor_from_cpu_tensor",
    "_rebuild_device_tensor_from_numpy",
    "_rebuild_nested_tensor",
    "_rebuild_sparse_tensor",
    "_rebuild_wrapper_subclass",
)
"""What torch allows in files, and makes gigabytes of a few bytes. No weights need it."""


def check_saved(path: Path) -> None:
    """Refuse a file that becomes much more than it is when torch reads it; what is damaged is left to torch."""
    with path.open("rb") as file:
        zipped = file.read(len(_SAVED)) == _SAVED
        if zipped:
            check_records(file, path)
        for name in _pickled_names(file, zipped):
            if name.rpartition(" ")[2] in _COSTLY:
                raise Unreadable(f"{path} holds {name.replace(' ', '.')}, which no weights need: refused as forged")


def check_records(file: IO[bytes], path: Path) -> None:
    """Refuse packed, overlapping or innumerable records; torch stores numbers as they are and packs only code."""
    with reading(path, "a file of torch"):
        check_archive(file, path)
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
    unpacked = sum(entry.file_size for entry in entries)
    packed = sum(entry.file_size for entry in entries if entry.file_size != entry.compress_size)
    if packed > LARGEST_INDEX or unpacked - packed > file.seek(0, io.SEEK_END):
        raise Unreadable(
            f"{path} holds {readable(unpacked)}, more than its size allows (packed or overlapping records): "
            "save it anew with torch"
        )


def _pickled_names(file: IO[bytes], zipped: bool) -> Iterator[str]:
    """Names of functions and classes in a file of torch.save, ``module name``, as far as it can be read."""
    try:
        if zipped:
            with zipfile.ZipFile(file) as archive:
                for name in archive.namelist():
                    if name.endswith(_PICKLE):
                        yield from _globals(io.BytesIO(archive.read(name)))
        else:
            file.seek(0)
            for _ in range(_OLD_PICKLES):
                yield from _globals(file)
    except Unreadable:
        raise
    except Exception:  # damaged in one of many ways: torch says what is wrong
        return


def _globals(file: IO[bytes]) -> Iterator[str]:
    """The unpickler of torch knows only this way to name a function."""
    for operation, argument, _ in pickletools.genops(file):
        if operation.name == "GLOBAL":
            yield str(argument)
