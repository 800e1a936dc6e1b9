"""A file that is shared by the arrays in it: opened on first use, and closed when another file is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Generic, TypeVar

from genprior.files.remote import Remote

Opened = TypeVar("Opened")


class Handle(Generic[Opened]):
    """What ``opener`` makes of a file, kept open between reads.

    Opening a file with thousands of arrays means reading a list of thousands of names: once for the file, not once for each.
    A copy in another process, where ``opener`` must be a function of a module, opens the file again.
    """

    def __init__(self, opener: Callable[[Path], AbstractContextManager[Opened]], path: Path) -> None:
        self._opener, self.path = opener, path
        self.remote: Remote | None = None
        """Where the file was fetched from, if it was."""
        self._stack: ExitStack | None = None
        self._opened: Opened | None = None

    def get(self) -> Opened:
        """The open file."""
        if self._opened is None:
            self._stack = ExitStack()
            self._opened = self._stack.enter_context(self._opener(self.path))
        return self._opened

    def close(self) -> None:
        """Close the file; it may be opened again."""
        stack, self._stack, self._opened = self._stack, None, None
        if stack is not None:
            stack.close()

    def __del__(self) -> None:
        self.close()

    def __getstate__(self) -> dict[str, object]:
        """Closed, with an absolute path: another process may run in another folder."""
        path = Path(os.path.abspath(self.path))
        return {**vars(self), "path": path, "_stack": None, "_opened": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self.remote is not None:  # the cache of this machine is elsewhere
            self.path = self.remote.path
