"""Decodes uploaded images one at a time, in its own thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Found = TypeVar("Found")


class Decoder:
    """One image at a time, because a small file may decode to a large image; other requests do not wait."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="decoder")

    async def read(self, job: Callable[[], Found]) -> Found | None:
        """The result of ``job``; None if the server is closing."""
        try:
            turn = self._thread.submit(job)
        except RuntimeError:  # closed
            return None
        return await asyncio.wrap_future(turn)

    def close(self) -> None:
        """Cancel waiting jobs and accept no more."""
        self._thread.shutdown(wait=False, cancel_futures=True)
