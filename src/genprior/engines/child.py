"""A worker process of :class:`genprior.engines.Local`: batches come in at its standard input, answers go out."""

from __future__ import annotations

import os
import pickle  # what comes in was written by the driver that started this process
import queue
import signal
import sys
import threading
from typing import IO, Any

from genprior.engines.frames import ANSWER, ERROR, OPEN, READY, TASK, read_frame, write_frame
from genprior.engines.worker import dumps, open_work, portable


def main() -> None:
    """Open the work, solve batches until there are no more; ends with the driver, even in the middle of a batch."""
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anybody prints goes to standard error
    inbox: queue.SimpleQueue[tuple[bytes, bytes]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(source, inbox), daemon=True).start()
    try:
        kind, content = inbox.get()
        assert kind == OPEN, "the work comes first"
        head, work = pickle.loads(content)
        solve = open_work(head, work)
        write_frame(sink, READY)
        while True:
            kind, content = inbox.get()
            assert kind == TASK, "batches follow"
            answer: Any = solve(pickle.loads(content))
            write_frame(sink, ANSWER, dumps(answer))
    except BrokenPipeError:
        _end()
    except BaseException as error:
        write_frame(sink, ERROR, portable(error))


def _listen(source: IO[bytes], inbox: queue.SimpleQueue[tuple[bytes, bytes]]) -> None:
    """Take in what the driver sends; where that is gone, this process is of no use any more."""
    while (frame := read_frame(source)) is not None:
        inbox.put(frame)
    _end()


def _end() -> None:
    """At once, with all that the work has started."""
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(0)
