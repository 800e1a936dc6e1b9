"""Archives of packages on disk: found, compared with their digest, and opened down to the generator's file.

Nothing is read from an archive before its digest is known to be the expected one. What is unpacked is bounded all the same.
"""

from __future__ import annotations

import gzip
import hashlib
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from genprior._cache import cache_folder
from genprior.files.guard import Unreadable, reading
from genprior.files.limits import LARGEST_PIECE, check_archive, check_declared, readable
from genprior.lab.third_party.packages import Package, package_of

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)


def default_folder() -> Path:
    """The folder of downloaded archives in the user's cache."""
    return cache_folder() / "third-party"


def find_archive(package: str | Package, folder: Path | None = None) -> Path:
    """The archive of a package in a folder, by default that in the cache; its digest is checked."""
    package = package_of(package)
    folder = default_folder() if folder is None else folder
    path = folder / package.archive
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no {package.archive} (package {package.name} {package.version}) in {folder}: fetch it with "
            f"download_archive({package.key!r}), or put it there"
        )
    check_digest(package, path)
    return path


def check_digest(package: Package, path: Path) -> None:
    """Raise if a file is not the archive of the package."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != package.sha256:
        raise Unreadable(
            f"{path} has the SHA-256 {found}, expected {package.sha256}: it is not {package.name} {package.version} as it "
            "was published, or it is damaged: refused; delete it and download it again"
        )


@contextmanager
def generator_file(package: Package, folder: Path | None = None) -> Iterator[Path]:
    """The generator's file as a file of its own, for as long as the context lasts."""
    path = find_archive(package, folder)
    with tempfile.TemporaryDirectory(prefix="genprior-") as temporary:
        for number, member in enumerate(package.members):
            unpacked = Path(temporary) / f"{number}-{Path(member).stem}"
            take = _from_tar if path.name.endswith(".tar.gz") else _from_zip
            with reading(path, "an archive"), unpacked.open("xb") as target:
                take(path, member, target)
            path = unpacked
        yield path


def _from_zip(path: Path, member: str, target: IO[bytes]) -> None:
    with path.open("rb") as file:
        check_archive(file, path)
        with zipfile.ZipFile(file) as archive:
            if member not in archive.namelist():
                raise _without(path, member)
            entry = archive.getinfo(member)
            _check_size(entry.file_size, path, member)
            check_declared(entry.file_size, entry.compress_size, f"{path}: {member}")
            if entry.compress_type not in _METHODS:
                raise Unreadable(f"{path}: {member} has an unsupported compression: it is not the published archive")
            with archive.open(entry) as source:
                shutil.copyfileobj(source, target)


def _from_tar(path: Path, member: str, target: IO[bytes]) -> None:
    """The members that stand before have to be decompressed, too, so the sum is bounded."""
    with _Bounded(path) as unpacked, tarfile.open(fileobj=unpacked, mode="r|") as archive:
        for entry in archive:
            if entry.name != member:
                continue
            if entry.type not in _PLAIN or entry.issparse():
                raise Unreadable(f"{path}: {member} is not a plain file: it is not the published archive")
            _check_size(entry.size, path, member)
            source = archive.extractfile(entry)
            assert source is not None, "a plain file"
            return shutil.copyfileobj(source, target)
    raise _without(path, member)


class _Bounded(gzip.GzipFile):
    """A compressed stream of which no more is read than a limit."""

    left = LARGEST_PIECE

    def read(self, size: int | None = -1) -> bytes:
        """At most so many bytes; raises when the limit is reached."""
        wanted = self.left + 1 if size is None or size < 0 else min(size, self.left + 1)
        content = super().read(wanted)
        self.left -= len(content)
        if self.left < 0:
            raise Unreadable(
                f"{self.name} unpacks to more than {readable(LARGEST_PIECE)}: it is not the published archive"
            )
        return content


def _check_size(size: int, path: Path, member: str) -> None:
    if size > LARGEST_PIECE:
        raise Unreadable(
            f"{path}: {member} has {readable(size)}, at most {readable(LARGEST_PIECE)} are read: it is not the published "
            "archive"
        )


def _without(path: Path, member: str) -> Unreadable:
    return Unreadable(f"{path} holds no {member}: it is not the published archive")
