"""What one driver can feed: its cost for a batch, and a simulation with workers that only sleep.

    python tools/measure_scale.py --workers 1000 --seconds 10

Everything but the workers is real: tasks and answers are pickled and unpickled as between processes, signals are written into
an array file, records are appended and synced. A logical worker is an entry in a queue that comes due after its seconds. The
figures of docs/scale.md come from here.
"""

from __future__ import annotations

import argparse
import heapq
import pickle
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from genprior import engines
from genprior.engines.dispatch import dispatch
from genprior.engines.pool import Answered, Event, Pool, Ready
from genprior.engines.worker import dumps
from genprior.files import Outputs, open_items
from genprior.files.expected import Expected
from genprior.jobs.course import Course
from genprior.jobs.ledger import Ledger
from genprior.jobs.records import SolvedBatch
from genprior.jobs.resume import plan_of
from genprior.jobs.settings import Recovery

SHAPE = (1, 28, 28)
ITEM = {
    "status": "CONVERGED", "residual": 0.01234567, "objective": 0.0123456, "gap": 0.0, "stationarity": 1.2e-5,
    "steps": 87, "restart": 0, "rollbacks": 0, "improving": False, "reach": 0.7654321, "bound": False, "penalty": 0.0,
    "representable": True, "noise": None, "restarts": 1, "error": 0.0234567, "psnr": 34.5678,
}  # fmt: skip


class Sleeping(Pool):
    """Logical workers that answer after some seconds by the clock on the wall."""

    def __init__(self, seconds: float, answer: Callable[[int], bytes]) -> None:
        self.name = "sleeping workers"
        self._seconds, self._answer = seconds, answer
        self._due: list[tuple[float, int, bytes | None]] = []
        self.waited = 0.0

    def start(self, worker: int) -> None:
        """Ready after a while, not all at once."""
        heapq.heappush(self._due, (time.monotonic() + self._seconds * (worker % 997) / 997, worker, None))

    def send(self, worker: int, task: object) -> None:
        """The answer comes after the worker's seconds."""
        made = pickle.loads(dumps(task))
        heapq.heappush(self._due, (time.monotonic() + self._seconds, worker, self._answer(made.start)))

    def events(self, seconds: float) -> Sequence[Event]:
        """What is due."""
        wait = min(seconds, self._due[0][0] - time.monotonic()) if self._due else seconds
        if wait > 0:
            time.sleep(wait)
            self.waited += wait
        found: list[Event] = []
        while self._due and self._due[0][0] <= time.monotonic() and len(found) < 100:
            _, worker, content = heapq.heappop(self._due)
            found.append(Ready(worker) if content is None else Answered(worker, pickle.loads(content)))
        return found

    def stop(self, worker: int) -> None:
        """Never."""
        raise AssertionError("they do not hang")

    def close(self) -> None:
        """Nothing was started."""
        self._due.clear()


@dataclass
class Driver:
    """The writing side of a recovery, with a folder of its own."""

    items: int
    batch: int
    folder: Path

    def __post_init__(self) -> None:
        np.lib.format.open_memmap(self.folder / "in.npy", mode="w+", dtype="u1", shape=(self.items, 28, 28)).flush()
        self.job = Recovery(inputs=(str(self.folder / "in.npy"),), out=self.folder / "out", batch_size=self.batch)
        self.sources = open_items(self.job.inputs, Expected(SHAPE))
        self.ledger = Ledger(self.job.out, self.job.asked())
        self.outputs = Outputs(self.sources, self.job.out / "recovered", self.ledger.folder, SHAPE)
        self.plan = plan_of(self.ledger, self.outputs, self.items, self.batch)
        self.outputs.begin(self.batch, self.plan.done)
        self.told = 0.0
        self.course = Course(self.job, self.sources, self.plan, engines.Serial(), self._tell)
        signals = tuple(torch.rand(SHAPE) for _ in range(self.batch))
        items = tuple({"name": f"in.npy[{number}]", **ITEM} for number in range(self.batch))
        run = {"seconds": 1.0, "forwards": 100, "backwards": 100}
        self.answer = SolvedBatch(0, items, signals, plan="as always", run=run)

    def _tell(self, done: float, total: int, note: str) -> None:
        self.told = done

    def answered(self, start: int) -> bytes:
        """As a worker would send it."""
        object.__setattr__(self.answer, "first", start)
        return dumps(self.answer)

    def keep(self, number: int, batch: SolvedBatch) -> None:
        """Write and record a batch."""
        self.course.finished(number, len(batch.items))
        record = batch.to_record(self.outputs.write(batch.first, batch.signals))
        record["run"] = self.course.facts() | record["run"]
        self.ledger.write_batch(number, record, batch.images)
        self.outputs.finish(number)


def costs(driver: Driver, repeats: int) -> None:
    """Median milliseconds of each part of the driver's work for a batch."""
    sent = driver.answered(0)
    parts: dict[str, list[float]] = {}

    def timed(name: str, call: Callable[[], object]) -> object:
        begun = time.perf_counter()
        found = call()
        parts.setdefault(name, []).append(1e3 * (time.perf_counter() - begun))
        return found

    used = time.process_time()
    for number in range(repeats):
        timed("make and pack the task", lambda number=number: dumps(driver.course.task(number, False)))
        batch = timed("unpack the answer", lambda: pickle.loads(sent))
        assert isinstance(batch, SolvedBatch)
        object.__setattr__(batch, "first", number * driver.batch)
        names = timed("write the signals", lambda batch=batch: driver.outputs.write(batch.first, batch.signals))
        record = batch.to_record(names)  # type: ignore[arg-type]
        record["run"] = driver.course.facts() | record["run"]
        timed("record", lambda number=number, record=record: driver.ledger.write_batch(number, record, {}))
        timed("finish", lambda number=number: driver.outputs.finish(number))
    cpu = 1e3 * (time.process_time() - used) / repeats
    for name, found in parts.items():
        print(f"  {name:24} {np.median(found):8.3f} ms")
    print(
        f"  {'all, median':24} {np.median(np.sum(list(parts.values()), axis=0)):8.3f} ms, {cpu:.3f} ms of the processor"
    )
    log = sum(path.stat().st_size for path in driver.ledger.folder.glob("records-*.log"))
    done = repeats * driver.batch
    print(f"  bytes for an item: {len(sent) / driver.batch:.0f} in the answer, {log / done:.0f} in the log")


def simulate(driver: Driver, workers: int, seconds: float, duration: float) -> None:
    """Batches per second with so many workers that need so many seconds for a batch."""
    pool = Sleeping(seconds, driver.answered)
    batches: engines.Batches[object, SolvedBatch] = engines.Batches(
        driver.sources,
        driver.plan.numbers(),
        driver.course.task,
        watch=driver.course.changed,  # type: ignore[arg-type]
    )
    answers = dispatch(pool, batches, workers)
    begun, count, warm = time.monotonic(), 0, max(seconds, 1.0)
    waited, started, cpu = 0.0, begun, time.process_time()
    for number, batch in answers:
        driver.keep(number, batch)  # type: ignore[arg-type]
        now = time.monotonic()
        if warm and now - begun > warm:
            started, count, waited, warm, cpu = now, 0, pool.waited, 0.0, time.process_time()
        count += 1
        if not warm and now - started > duration:
            break
    answers.close()
    gone = time.monotonic() - started
    idle, used = (pool.waited - waited) / gone, (time.process_time() - cpu) / gone
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"  {workers} workers, {seconds:g} s a batch: {count / gone:7.1f} batches/s of {workers / seconds:.1f} offered, "
        f"driver idle {idle:.0%}, processor {used:.0%}, peak memory {memory:.0f} MB"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64, help="items of a batch")
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument(
        "--seconds", type=float, nargs="+", default=[10.0, 5.0, 2.0], help="that a worker needs for a batch"
    )
    parser.add_argument("--duration", type=float, default=15.0, help="seconds to measure")
    parser.add_argument("--items", type=int, default=10**7)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "costs").mkdir()
        print(f"one batch of {asked.batch} items of {SHAPE}")
        costs(Driver(300 * asked.batch, asked.batch, Path(folder) / "costs"), 300)
    for seconds in asked.seconds:
        with tempfile.TemporaryDirectory() as folder:
            simulate(Driver(asked.items, asked.batch, Path(folder)), asked.workers, seconds, asked.duration)


if __name__ == "__main__":
    main()
