"""Messages on the page's socket that no browser would send: dropped, without a traceback and without a line in the log."""

from __future__ import annotations

import logging
import traceback

from nicegui import core


def drop_forged_events() -> None:
    """Let errors in reading a message reach engineio, which goes on with the next one, and keep it quiet about them.

    Messages for the server's log are dropped too: whoever has the page open can send them, with any text.
    """
    core.sio.async_handlers = False  # else each message is a task, and asyncio writes about every task that failed
    core.sio.on("log", _ignored)
    logging.getLogger("engineio.server").setLevel(logging.CRITICAL)
    logging.getLogger("nicegui").addFilter(_is_ours)


def _ignored(*_: object) -> None:
    """Nothing is done."""


def _is_ours(record: logging.LogRecord) -> bool:
    """Whether an error is the page's; what nicegui itself could not make of an event's arguments is the sender's."""
    frames = list(traceback.walk_tb(record.exc_info[2])) if record.exc_info else []
    return not frames or not frames[-1][0].f_globals.get("__name__", "").startswith("nicegui.")
