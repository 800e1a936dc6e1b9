"""Versions of files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Version:
    """Identifies a version of a file, to detect changes."""

    size: int
    time: int
    """Time of the last change, in nanoseconds."""

    @staticmethod
    def of(path: str | Path) -> Version:
        """The current version."""
        facts = os.stat(path)
        return Version(facts.st_size, facts.st_mtime_ns)
