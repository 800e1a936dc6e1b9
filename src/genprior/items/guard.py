"""Files from anywhere may be anything: what their readers raise becomes one kind of error that names the file."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

EXHAUSTED = (errno.EMFILE, errno.ENFILE)
"""The system has no more open files to give."""
_NOT_ITS_FAULT = (*EXHAUSTED, errno.EIO)

_OBJECTS = re.compile("^(Object arrays|Array can't be memory-mapped: Python objects)")
"""How numpy refuses arrays of objects."""


class Unreadable(ValueError):
    """A file, or one item of it, that cannot be used; the message says why and what to do."""


class Misfit(Unreadable):
    """A sound array that cannot be an item, by its shape or its kind of numbers."""


@contextmanager
def reading(path: Path | str, kind: str) -> Iterator[None]:
    """What goes wrong inside is the file's fault: say which file, as what it was read, and what went wrong.

    Not so where the system cannot read at all, or the memory is too small: that is passed on as it is.
    """
    try:
        yield
    except (Unreadable, FileNotFoundError, PermissionError, MemoryError):
        raise
    except Exception as problem:
        if isinstance(problem, OSError) and problem.errno in _NOT_ITS_FAULT:
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


def _short(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else f"{text[:limit]}..."
