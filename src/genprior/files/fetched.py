"""A folder of fetched files that stays within a size: the file that was used longest ago goes first."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from genprior._cache import cache_folder
from genprior._files import add_folder, write_atomically
from genprior.files.guard import Unreadable
from genprior.files.limits import readable
from genprior.files.version import Version

PLACE, SIZE = "GENPRIOR_CACHE", "GENPRIOR_CACHE_SIZE"
_DEFAULT = 20 * 10**9
_ABANDONED = 24 * 3600 * 10**9
"""Nanoseconds after which an unfinished file is that of a process that was killed."""
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@dataclass(frozen=True)
class Cache:
    """Where fetched files are kept, and the size of all of them; by default as the environment says."""

    folder: Path | None = None
    size: int | None = None

    @property
    def place(self) -> Path:
        """The folder."""
        return self.folder or cache_folder() / "inputs"

    @property
    def limit(self) -> int:
        """In bytes."""
        return self.size or _size_of(os.environ.get(SIZE, ""))

    def keep(self, path: Path, version: Version, name: str, write: Callable[[Path], object]) -> None:
        """Make room for a file and let ``write`` fill it; ``name`` is for messages."""
        if version.size > self.limit:
            raise Unreadable(
                f"{name} has {readable(version.size)}, but at most {readable(self.limit)} of fetched files are kept in "
                f"{self.place}: give more with the environment variable {SIZE}, for example {SIZE}=100GB"
            )
        add_folder(self.place)
        self._trim(self.limit - version.size, path)

        def filled(temporary: Path) -> None:
            write(temporary)
            os.utime(temporary, ns=(time.time_ns(), version.time))

        write_atomically(path, filled)

    @staticmethod
    def use(path: Path, version: Version) -> bool:
        """Whether this version of the file is here; if so, it counts as used now."""
        try:
            if Version.of(path) != version:
                return False
            os.utime(path, ns=(time.time_ns(), version.time))
        except OSError:
            return False
        return True

    def _trim(self, limit: int, keep: Path) -> None:
        """Remove files until the others are within the limit; their times of access are set by ``use``."""
        found, oldest = [], time.time_ns() - _ABANDONED
        for path in self.place.iterdir():
            try:
                facts = path.stat()
            except OSError:  # another process removed it
                continue
            if path != keep and not (path.name.endswith(".part") and facts.st_atime_ns > oldest):
                found.append((facts.st_atime_ns, facts.st_size, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= limit:
                return
            path.unlink(missing_ok=True)
            total -= size


def _size_of(text: str) -> int:
    found = re.fullmatch(r"([0-9.]+) ?([KMGT]?B?)", text.strip().upper())
    try:
        size = int(float(found[1]) * _UNITS[found[2] if found[2].endswith("B") else f"{found[2]}B"]) if found else 0
    except ValueError:
        size = 0
    if text and size <= 0:
        raise ValueError(f"the environment variable {SIZE} must be a size such as 50GB, got {text!r}")
    return size or _DEFAULT
