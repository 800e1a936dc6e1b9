"""Files from anywhere may be anything: what their readers raise becomes one kind of error that names the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Unreadable(ValueError):
    """A file, or one item of it, that cannot be used; the message says why and what to do."""


@contextmanager
def reading(path: Path | str, kind: str) -> Iterator[None]:
    """Whatever goes wrong inside is the file's fault: say which file, as what it was read, and what went wrong."""
    try:
        yield
    except (Unreadable, FileNotFoundError, PermissionError, MemoryError):
        raise
    except Exception as problem:
        reason = " ".join(str(problem).split()) or type(problem).__name__
        raise Unreadable(
            f"{path} cannot be read as {kind} ({_short(reason)}): it is damaged, or something else"
        ) from problem


def _short(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else f"{text[:limit]}..."
