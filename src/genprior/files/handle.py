"""A file that is shared by the arrays in it: opened on first use, and closed when another file is read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Generic, TypeVar

Opened = TypeVar("Opened")


class Handle(Generic[Opened]):
    """The result of ``opener``, kept open between reads.

    Opening a file with thousands of arrays means reading a list of thousands of names: once for the file, not once for each.
    """

    def __init__(self, opener: Callable[[], AbstractContextManager[Opened]]) -> None:
        self._opener = opener
        self._stack: ExitStack | None = None
        self._opened: Opened | None = None

    def get(self) -> Opened:
        """The open file."""
        if self._opened is None:
            self._stack = ExitStack()
            self._opened = self._stack.enter_context(self._opener())
        return self._opened

    def close(self) -> None:
        """Close the file; it may be opened again."""
        stack, self._stack, self._opened = self._stack, None, None
        if stack is not None:
            stack.close()
