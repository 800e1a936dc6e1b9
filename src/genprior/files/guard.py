"""Untrusted files: whatever their readers raise becomes one error class that names the file."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from genprior._files import printable

_SYSTEM = (
    "EMFILE ENFILE EIO EREMOTEIO ENODEV ENXIO ENOTCONN ESTALE ETIMEDOUT EHOSTDOWN EHOSTUNREACH ENETDOWN ENETUNREACH "
    "ECONNABORTED ECONNRESET ENOTDIR"
)
"""Too many open files, or a disk or network drive that failed; not every system has all of these."""
_SYSTEM_NUMBERS = frozenset(getattr(errno, name) for name in _SYSTEM.split() if hasattr(errno, name))

_OBJECTS = re.compile("^(Object arrays|Array can't be memory-mapped: Python objects)")
"""Numpy's messages for arrays of objects."""


class Unreadable(ValueError):
    """A file, or an item of it, that cannot be used; the message says why and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class Misfit(Unreadable):
    """A valid array that cannot be an item because of its shape or type."""


@contextmanager
def reading(path: Path | str, what: str) -> Iterator[None]:
    """Turn errors inside into one that names the file, the expected format and the reason.

    Failures of the system or of memory are passed on as they are, with the name of the file.
    """
    try:
        yield
    except (Unreadable, MemoryError):
        raise
    except Exception as problem:
        if isinstance(problem, OSError) and _not_its_fault(problem):
            if problem.errno is not None:
                problem.filename = problem.filename or str(path)
            raise
        reason = " ".join(str(problem).split()) or type(problem).__name__
        if _OBJECTS.search(reason):
            raise Unreadable(
                f"{path} holds Python objects (object arrays are pickles), which are not read: save plain numbers, for "
                "example array.astype(numpy.float32)"
            ) from None
        raise Unreadable(
            f"{path} cannot be read as {what} ({_short(reason)}): it is damaged, or has another format"
        ) from problem


def _not_its_fault(problem: OSError) -> bool:
    return isinstance(problem, FileNotFoundError | PermissionError) or problem.errno in _SYSTEM_NUMBERS


def _short(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else f"{text[:limit]}..."
