"""Files written whole or not at all, which survive a power failure: every file of ours is written here."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

_KEPT = 32
"""Letters of a file's name that its temporary name repeats: names may be as long as the file system allows, and no longer."""
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EROFS)
"""How file systems, such as network drives, say that folders need not or cannot be synced."""


def write_atomically(path: Path, write: Callable[[Path], object], *, sync: bool = True) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then put it in place in one move.

    Whatever happens on the way, the old file stays intact and no half-written one is left; errors name ``path``. A power
    cut afterwards leaves the new file in place, once its folder is on the disk too: callers that write many files pass
    ``sync=False`` and call :func:`sync_folders` once for all of them.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: the folder {path.parent} does not exist, create it first")
    temporary = temporary_name(path)
    with writing(path, temporary):
        try:
            write(temporary)
            with temporary.open("r+b") as file:  # some systems refuse fsync on what is open for reading only
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    if sync:
        sync_folders([path.parent])


@contextmanager
def writing(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """Errors of the system inside get the name of the file: "disk full" alone does not say which disk."""
    try:
        yield
    except OSError as problem:
        if problem.filename not in (None, str(temporary)):
            raise
        if problem.errno is None:
            raise OSError(f"cannot write {path}: {problem}") from None
        raise OSError(
            problem.errno, os.strerror(problem.errno), str(path)
        ) from None  # libraries add pages of their own


def sync_folders(folders: Iterable[Path]) -> None:
    """Put the names in these folders on the disk; their contents are there already, see :func:`write_atomically`."""
    if not hasattr(os, "O_DIRECTORY"):
        return  # Windows opens no folders
    for folder in dict.fromkeys(folders):
        try:
            number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except PermissionError:
            continue  # one may write into a folder without being allowed to list it
        try:
            with writing(folder):
                os.fsync(number)
        except OSError as problem:
            if problem.errno not in _NO_SYNC:
                raise
        finally:
            os.close(number)


def add_folder(folder: Path) -> None:
    """Make a folder, with those above it, that stays when the power fails."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    sync_folders(path.parent for path in reversed(new))


def temporary_name(path: Path) -> Path:
    """A name beside ``path`` that no other thread or process uses."""
    return path.with_name(f".{path.name[:_KEPT]}.{os.getpid()}-{threading.get_ident()}.part")


def make_folder(folder: Path) -> None:
    """Make the folder for what a job writes, its argument ``out``, with its parents; the error says why it cannot be made."""
    there = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    if there.exists() and not there.is_dir():
        where = "is a file, expected a folder" if there == folder else f"cannot be made, because {there} is a file"
        raise ValueError(f"`out` {folder} {where}: give another `out`")
    try:
        add_folder(folder)
    except OSError as problem:
        raise ValueError(f"`out` {folder} cannot be made ({problem.strerror}): give another `out`") from None


def set_aside(path: Path) -> Path:
    """Rename a damaged file, so that it can still be inspected; its new name."""
    aside = path.with_name(f"{path.name}.damaged")
    path.replace(aside)
    return aside


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary files of killed processes below a folder; no process may be writing there now."""
    for path in folder.rglob(".*.part"):
        path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically; what cannot be text, see ``printable``, does not stop it."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8", errors="backslashreplace"))


def printable(text: str) -> str:
    r"""Text that can be shown: names of files may hold bytes that are no text, which become ``\udcff`` and so on."""
    return text.encode("utf-8", "backslashreplace").decode()
