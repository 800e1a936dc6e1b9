"""Messages on the page's socket that no browser would send: dropped, without a traceback and without a line in the log.

An error in a handler of the page itself is not among these: nicegui catches it there, and logs it.
"""

from __future__ import annotations

import logging

from nicegui import core


def drop_forged_events() -> None:
    """Let errors in reading a message reach engineio, which goes on with the next one, and keep it quiet about them.

    Messages for the server's log are dropped too: whoever has the page open can send them, with any text.
    """
    core.sio.async_handlers = False  # else each message is a task, and asyncio writes about every task that failed
    core.sio.on("log", _ignored)
    logging.getLogger("engineio.server").setLevel(logging.CRITICAL)


def _ignored(*_: object) -> None:
    """Nothing is done."""
