"""Where uploaded pictures are read: one at a time, in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Found = TypeVar("Found")


class Decoder:
    """A small file may unpack to a large picture: one at a time, whoever uploads; who does something else does not wait."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="decoder")

    async def read(self, job: Callable[[], Found]) -> Found | None:
        """What ``job`` gives when its turn has come; None if the server is closing."""
        try:
            turn = self._thread.submit(job)
        except RuntimeError:  # closed
            return None
        return await asyncio.wrap_future(turn)

    def close(self) -> None:
        """Drop what waits, take nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)
