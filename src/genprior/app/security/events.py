"""Drops forged messages on the page's socket, without a traceback or a line in the log."""

from __future__ import annotations

import logging
import traceback

from nicegui import core


def drop_forged_events() -> None:
    """Let engineio skip messages that cannot be read, without logging them.

    Messages for the server's log are dropped too, because any client can send them, with any text.
    """
    core.sio.async_handlers = False  # otherwise each message is a task, and asyncio logs every task that failed
    core.sio.on("log", _ignored)
    logging.getLogger("engineio.server").setLevel(logging.CRITICAL)
    logging.getLogger("nicegui").addFilter(_is_ours)


def _ignored(*_: object) -> None:
    """Nothing is done."""


def _is_ours(record: logging.LogRecord) -> bool:
    """Whether an error comes from the page; errors of nicegui in parsing an event's arguments come from the sender."""
    frames = list(traceback.walk_tb(record.exc_info[2])) if record.exc_info else []
    return not frames or not frames[-1][0].f_globals.get("__name__", "").startswith("nicegui.")
