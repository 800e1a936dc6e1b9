"""Free memory, where the system reports it."""

from __future__ import annotations

import os
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")


def available() -> int | None:
    """Available bytes, of the machine or of the container if it has less; None where the system does not report them."""
    known = [free for free in (_of_the_machine(), _of_the_container()) if free is not None]
    return min(known, default=None)


def gigabytes(count: int) -> str:
    """Bytes in words."""
    return f"{count / 1e9:.2g} GB" if count < 1e10 else f"{count / 1e9:.0f} GB"


def _of_the_machine() -> int | None:
    try:
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        return 1024 * int(lines["MemAvailable"].split()[0])
    except (OSError, ValueError, KeyError):
        pass
    try:  # not what is free, but more than that there cannot be
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _of_the_container() -> int | None:
    """The limit of the control group less what is in use; the files that the system keeps in memory can be dropped."""
    try:
        most = int((_GROUP / "memory.max").read_text())
        used = int((_GROUP / "memory.current").read_text())
        lines = dict(line.split() for line in (_GROUP / "memory.stat").read_text().splitlines())
        return max(0, most - used + int(lines.get("inactive_file", 0)))
    except (OSError, ValueError):  # no control group, or no limit ("max")
        return None
