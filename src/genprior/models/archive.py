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
"""Pickles at the start of files of old versions of torch: magic number, version, system information, names."""
_COSTLY = (
    "bytearray",
    "_rebuild_device_tensor_from_cpu_tensor",
    "_rebuild_device_tensor_from_numpy",
    "_rebuild_nested_tensor",
    "_rebuild_sparse_tensor",
    "_rebuild_wrapper_subclass",
)
"""Names that torch allows and that can expand a few bytes to gigabytes. No weights need them."""


def check_saved(path: Path) -> None:
    """Raise if reading a file would expand it far beyond its size; damaged files are left to torch."""
    with path.open("rb") as file:
        zipped = file.read(len(_SAVED)) == _SAVED
        if zipped:
            check_records(file, path)
        for name in _pickled_names(file, zipped):
            if name.rpartition(" ")[2] in _COSTLY:
                raise Unreadable(f"{path} holds {name.replace(' ', '.')}, which no weights need: refused as forged")


def check_records(file: IO[bytes], path: Path) -> None:
    """Raise for compressed, overlapping or too many records; torch compresses only code."""
    with reading(path, "a file of torch"):
        check_archive(file, path)
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
    unpacked = sum(entry.file_size for entry in entries)
    packed = sum(entry.file_size for entry in entries if entry.file_size != entry.compress_size)
    if packed > LARGEST_INDEX or unpacked - packed > file.seek(0, io.SEEK_END):
        raise Unreadable(
            f"{path} holds {readable(unpacked)}, more than its size allows (compressed or overlapping records): "
            "save it again with torch"
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
    except Exception:  # damaged: torch reports what is wrong
        return


def _globals(file: IO[bytes]) -> Iterator[str]:
    """Torch's unpickler supports no other way to name a function."""
    for operation, argument, _ in pickletools.genops(file):
        if operation.name == "GLOBAL":
            yield str(argument)
