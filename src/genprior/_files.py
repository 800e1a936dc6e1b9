"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

_KEPT = 32
"""Letters of a file's name that its temporary name repeats: names may be as long as the file system allows, and no longer."""


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then put it in place in one move.

    Whatever happens on the way, the old file stays intact and no half-written one is left.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: the folder {path.parent} does not exist, create it first")
    temporary = temporary_name(path)
    try:
        write(temporary)
        with temporary.open("r+b") as file:  # some systems refuse fsync on what is open for reading only
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def temporary_name(path: Path) -> Path:
    """A name beside ``path`` that nobody else uses."""
    return path.with_name(f".{path.name[:_KEPT]}.{os.getpid()}-{threading.get_ident()}.part")


def make_folder(folder: Path) -> None:
    """Make the folder that a person gave as ``--out``, with those above it; say plainly why it cannot be one."""
    there = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    if there.exists() and not there.is_dir():
        where = "is a file, expected a folder" if there == folder else f"cannot be made, for {there} is a file"
        raise ValueError(f"--out {folder} {where}: give another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise ValueError(f"--out {folder} cannot be made ({problem.strerror}): give another --out") from None


def remove_unfinished(folder: Path) -> None:
    """Remove what processes that were killed while they wrote have left below a folder; nobody may be writing there now."""
    for path in folder.rglob(".*.part"):
        path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically; what cannot be text, see ``printable``, does not stop it."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8", errors="backslashreplace"))


def printable(text: str) -> str:
    r"""Text that can be shown: names of files may hold bytes that are no text, which become ``\udcff`` and so on."""
    return text.encode("utf-8", "backslashreplace").decode()
