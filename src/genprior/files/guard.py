"""Files from anywhere may be anything: what their readers raise becomes one kind of error that names the file."""

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
"""No more open files to give, or a disk or a network drive that has gone; not every system has all of them."""
_SYSTEM_NUMBERS = frozenset(getattr(errno, name) for name in _SYSTEM.split() if hasattr(errno, name))

_OBJECTS = re.compile("^(Object arrays|Array can't be memory-mapped: Python objects)")
"""How numpy refuses arrays of objects."""


class Unreadable(ValueError):
    """A file, or one item of it, that cannot be used; the message says why and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class Misfit(Unreadable):
    """A sound array that cannot be an item, by its shape or its kind of numbers."""


@contextmanager
def reading(path: Path | str, kind: str) -> Iterator[None]:
    """What goes wrong inside is the file's fault: say which file, as what it was read, and what went wrong.

    Not so where the system cannot read at all, or the memory is too small: that is passed on as it is, with the name of
    the file.
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
            f"{path} cannot be read as {kind} ({_short(reason)}): it is damaged, or something else"
        ) from problem


def _not_its_fault(problem: OSError) -> bool:
    return isinstance(problem, FileNotFoundError | PermissionError) or problem.errno in _SYSTEM_NUMBERS


def _short(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else f"{text[:limit]}..."
