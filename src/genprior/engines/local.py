"""Processes on this machine."""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

from genprior import _validate
from genprior.engines.base import Answer, Answers, Batches, Engine, Task
from genprior.engines.dispatch import Patience, dispatch
from genprior.engines.frames import ERROR, OPEN, READY, TASK, read_frame, write_frame
from genprior.engines.pool import Answered, Event, Failed, Gone, Pool, Ready
from genprior.engines.worker import Head, packed, versions

_COMMAND = "from genprior.engines.child import main; main()"
_LINES = 20
"""Of what a worker wrote to standard error, kept to explain its end."""


@dataclass(frozen=True)
class Local(Engine):
    """Worker processes on this machine.

    A script that uses it needs no ``if __name__ == "__main__"``: the workers do not run it again.

    Examples
    --------
    >>> import genprior as gp
    >>> gp.engines.Local(workers=4)
    Local(workers=4, threads=1, batch_seconds=None)
    """

    workers: int
    """Number of processes; each has its own generator in memory."""
    threads: int = 1
    """Threads of each. Results depend on the number of threads in the last bits, as torch's sums do."""
    batch_seconds: float | None = None
    """A worker that needs longer for a batch is stopped, and the batch is repeated. By default 20 times as long as the
    longest batch so far, and 10 minutes at least; in a job with a time limit at least two minutes above the batch's own."""

    def __post_init__(self) -> None:
        _validate.whole("workers", self.workers)
        _validate.whole("threads", self.threads)
        if self.batch_seconds is not None:
            _validate.number("batch_seconds", self.batch_seconds, above=0)

    @property
    def size(self) -> int:
        """The number of processes."""
        return self.workers

    def run(self, batches: Batches[Task, Answer]) -> Answers[Answer]:
        """In the order in which they are done."""
        count = enough(self.workers, batches)
        pool = _Processes(count, self.threads, packed(batches.work))
        return dispatch(pool, batches, count, Patience(batch_seconds=self.batch_seconds))


def enough(workers: int, batches: Batches[Any, Any]) -> int:
    """No more workers than batches, where their number is known."""
    count = len(batches.numbers) if isinstance(batches.numbers, Sequence) else batches.count
    return workers if count is None else max(1, min(workers, count))


class _Processes(Pool):
    """Each with a thread here that hears it, and one that keeps the last lines of its standard error."""

    def __init__(self, count: int, threads: int, work: bytes) -> None:
        self.name = f"{count} process{'es' if count > 1 else ''} on this machine"
        self._threads, self._work = threads, work
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._attending: dict[int, threading.Thread] = {}

    def start(self, worker: int) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": str(self._threads), "MKL_NUM_THREADS": str(self._threads)}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # from where this process imports genprior
        process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the driver, which ends the workers
        )
        self._processes[worker] = process
        head = Head(versions(), self._threads, number=worker)
        opening = pickle.dumps((head, self._work))
        thread = threading.Thread(target=self._attend, args=(worker, process, opening), daemon=True)
        self._attending[worker] = thread
        thread.start()

    def send(self, worker: int, task: object) -> None:
        process = self._processes[worker]
        assert process.stdin is not None, "asked for above"
        with suppress(OSError, ValueError):  # its end is heard by the thread that attends to it
            write_frame(process.stdin, TASK, pickle.dumps(task, protocol=5))

    def events(self, seconds: float) -> Sequence[Event]:
        found: list[Event] = []
        until = time.monotonic() + seconds
        with suppress(queue.Empty):
            found.append(self._events.get(timeout=max(0.0, until - time.monotonic())))
            while True:
                found.append(self._events.get_nowait())
        return [event for event in found if event.worker in self._processes]

    def stop(self, worker: int) -> None:
        self._processes.pop(worker).kill()
        self._attending.pop(worker).join()

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
        for thread in self._attending.values():
            thread.join()
        self._processes.clear()
        self._attending.clear()

    def _attend(self, worker: int, process: subprocess.Popen[bytes], opening: bytes) -> None:
        """Send the work, then turn what the process says into events, to its end."""
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        said: deque[bytes] = deque(maxlen=_LINES)
        listener = threading.Thread(target=said.extend, args=(process.stderr,), daemon=True)
        listener.start()
        with suppress(OSError):
            write_frame(process.stdin, OPEN, opening)
        while (frame := _frame(process.stdout)) is not None:
            self._events.put(_event(worker, *frame))
        status = process.wait()
        listener.join()
        for stream in (process.stdin, process.stdout, process.stderr):
            with suppress(OSError):  # what was not sent any more
                stream.close()
        self._events.put(Gone(worker, _end(status, b"".join(said))))


def _frame(stream: IO[bytes]) -> tuple[bytes, bytes] | None:
    try:
        return read_frame(stream)
    except (OSError, ValueError):  # closed while it was read
        return None


def _event(worker: int, kind: bytes, content: bytes) -> Event:
    if kind == READY:
        return Ready(worker)
    value = pickle.loads(content)  # from a process that we started
    return Failed(worker, value) if kind == ERROR else Answered(worker, value)


def _end(status: int, said: bytes) -> str:
    """How a process ended."""
    if status < 0:
        with suppress(ValueError):
            name = signal.Signals(-status).name
            more = ", as the system does when memory runs out" if name == "SIGKILL" else ""
            return f"was killed by {name}{more}"
    lines = said.decode(errors="replace").strip().splitlines()
    return f"ended with exit code {status}" + (f" ({lines[-1].strip()})" if lines else "")
