"""Messages between the driver and a process: a letter for the kind, the length, the content."""

from __future__ import annotations

import struct
from typing import IO

_HEAD = struct.Struct("<cQ")
OPEN, TASK = b"o", b"t"
"""From the driver: the head and the work; a batch."""
READY, ANSWER, ERROR = b"r", b"a", b"e"
"""From a worker."""


def write_frame(stream: IO[bytes], kind: bytes, content: bytes = b"") -> None:
    """One message; the stream is flushed."""
    stream.write(_HEAD.pack(kind, len(content)))
    stream.write(content)
    stream.flush()


def read_frame(stream: IO[bytes]) -> tuple[bytes, bytes] | None:
    """The next message; None where the other side is gone, be it within a message."""
    head = _exactly(stream, _HEAD.size)
    if head is None:
        return None
    kind, length = _HEAD.unpack(head)
    content = _exactly(stream, length)
    return None if content is None else (kind, content)


def _exactly(stream: IO[bytes], count: int) -> bytes | None:
    content = stream.read(count)
    return content if len(content) == count else None
