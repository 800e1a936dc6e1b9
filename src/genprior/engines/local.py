"""Processes on this machine."""

from __future__ import annotations

import itertools
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

from genprior import _validate
from genprior.engines.base import Answer, Answers, Batches, Engine, EngineError, Task
from genprior.engines.dispatch import Patience, dispatch
from genprior.engines.frames import ERROR, OPEN, READY, TASK, read_frame, write_frame
from genprior.engines.pool import Answered, Event, Failed, Gone, Pool, Ready
from genprior.engines.worker import Head, arrived, dumps, packed, versions

_COMMAND = "from genprior.engines.child import main; main()"
_LAST = 2**14
"""Bytes of what a worker wrote to standard error, kept to explain its end."""
_LONGEST_END = 10.0
"""Seconds to wait for the end of a worker that was killed."""


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
    longest batch so far, and 10 minutes at least, four times that when it is repeated, and without limit before the first
    answer; in a job with a time limit at least two minutes above the batch's own."""

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


@dataclass(frozen=True)
class _Process:
    """A worker, with a thread here that hears it."""

    process: subprocess.Popen[bytes]
    attending: threading.Thread
    slot: int
    """The lowest number that no other living worker has."""

    def end(self) -> None:
        """Kill it, with all that it has started."""
        self.process.kill()
        self.attending.join(_LONGEST_END)


class _Processes(Pool):
    """Each with a thread here that hears it, one that waits for its end, and one that keeps its last words."""

    def __init__(self, count: int, threads: int, work: bytes) -> None:
        self.name = f"{count} process{'es' if count > 1 else ''} on this machine"
        self._threads, self._work = threads, work
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._workers: dict[int, _Process] = {}

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
        taken = {other.slot for other in self._workers.values()}
        slot = next(number for number in itertools.count() if number not in taken)
        opening = pickle.dumps((Head(versions(), self._threads, number=slot), self._work))
        thread = threading.Thread(target=self._attend, args=(worker, process, opening), daemon=True)
        self._workers[worker] = _Process(process, thread, slot)
        thread.start()

    def send(self, worker: int, task: object) -> None:
        there = self._workers.get(worker)
        if there is None:  # lost, which is the next event
            return
        assert there.process.stdin is not None, "asked for above"
        with suppress(OSError, ValueError):  # its end is heard by the thread that attends to it
            write_frame(there.process.stdin, TASK, dumps(task))

    def events(self, seconds: float) -> Sequence[Event]:
        found: list[Event] = []
        with suppress(queue.Empty):
            found.append(self._events.get(timeout=seconds))
            while True:
                found.append(self._events.get_nowait())
        known = [event for event in found if event.worker in self._workers]
        for event in known:
            if isinstance(event, Gone):
                del self._workers[event.worker]
        return known

    def stop(self, worker: int) -> None:
        self._workers.pop(worker).end()

    def close(self) -> None:
        for worker in self._workers.values():
            worker.process.kill()
        for worker in self._workers.values():
            worker.end()
        self._workers.clear()

    def _attend(self, worker: int, process: subprocess.Popen[bytes], opening: bytes) -> None:
        """Send the work, then turn what the process says into events, to its end."""
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        said = bytearray()
        listener = threading.Thread(target=_keep_last, args=(process.stderr, said), daemon=True)
        waiting = threading.Thread(target=_bury, args=(process,), daemon=True)
        listener.start()
        waiting.start()
        with suppress(OSError):
            write_frame(process.stdin, OPEN, opening)
        while (frame := _frame(process.stdout)) is not None:
            self._events.put(_event(worker, *frame))
        waiting.join()
        listener.join()
        for stream in (process.stdin, process.stdout, process.stderr):
            with suppress(OSError):  # what was not sent any more
                stream.close()
        self._events.put(Gone(worker, _end(process.returncode, bytes(said))))


def _bury(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a worker, and end the processes that it has started: they keep its pipes open."""
    process.wait()
    if hasattr(os, "killpg"):
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)


def _keep_last(stream: IO[bytes], said: bytearray) -> None:
    """Read to the end, and keep as much as is needed."""
    with suppress(OSError, ValueError):
        while piece := os.read(stream.fileno(), 2**16):
            said += piece
            del said[:-_LAST]


def _frame(stream: IO[bytes]) -> tuple[bytes, bytes] | None:
    try:
        return read_frame(stream)
    except (OSError, ValueError):  # closed while it was read
        return None


def _event(worker: int, kind: bytes, content: bytes) -> Event:
    if kind == READY:
        return Ready(worker)
    if kind == ERROR:
        return Failed(worker, arrived(content))
    try:
        return Answered(worker, pickle.loads(content))  # from a process that we started
    except Exception as problem:
        return Failed(
            worker, EngineError(f"the answer of a worker cannot be read ({type(problem).__name__}: {problem})")
        )


def _end(status: int, said: bytes) -> str:
    """How a process ended."""
    if status < 0:
        with suppress(ValueError):
            name = signal.Signals(-status).name
            more = ", as the system does when memory runs out" if name == "SIGKILL" else ""
            return f"was killed by {name}{more}"
    lines = said.decode(errors="replace").strip().splitlines()
    return f"ended with exit code {status}" + (f" ({lines[-1].strip()})" if lines else "")
