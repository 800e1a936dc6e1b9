"""Recoveries while workers, machines and drivers are killed at random: every item must be there once, with the same bits.

    python tools/chaos.py workers --runs 20        workers of Ray killed by SIGKILL
    python tools/chaos.py processes --runs 20      worker processes killed by SIGKILL
    python tools/chaos.py nodes --runs 5           a machine of a (simulated) Ray cluster lost
    python tools/chaos.py drivers --runs 5         the driver killed by SIGKILL, the job finished by one process
    python tools/chaos.py poison --runs 3          an item that kills whoever solves it

Needs the extra `ray`. Each run is compared with the job in one process: signals byte by byte, and all that the records
say, but for what a run took.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from genprior.engines import Engine, Local, Ray
from genprior.jobs.recover import recover
from genprior.jobs.settings import Recovery, Source

os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # the loopback interface only
MODEL = """
import os, signal, torch
from torch import nn


class Model(nn.Module):
    latent_shape = (8,)

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.classes = nn.Embedding(4, 8)
        self.layers = nn.Sequential(nn.Linear(16, 128), nn.ELU(), nn.Linear(128, 784), nn.Sigmoid())

    def forward(self, z, label):
        if int(label.reshape(-1)[0]) == 3 and os.environ.get("SAFE") != str(os.getpid()):
            os.kill(os.getpid(), signal.SIGKILL)
        return self.layers(torch.cat([z, self.classes(label)], 1)).reshape(-1, 1, 28, 28)
"""
DRIVER = "import pickle, sys; job, engine = pickle.load(open(sys.argv[1], 'rb'))\n" + (
    "from genprior.jobs.recover import recover; recover(job, engine=engine)"
)


def job_in(folder: Path, items: int, *, deadly: int | None = None) -> Recovery:
    """A recovery of random images; one of them may be deadly."""
    (folder / "my_model.py").write_text(MODEL)
    np.save(folder / "in.npy", np.random.default_rng(0).random((items, 1, 28, 28), dtype=np.float32))
    labels = np.arange(items) % 3
    if deadly is not None:
        labels[deadly] = 3
    np.save(folder / "labels.npy", labels)
    source = Source(generator=f"{folder / 'my_model.py'}:Model", labels=str(folder / "labels.npy"))
    options = {"simulate": True, "noise": 0.1, "steps": 30, "batch_size": 4, "restarts": 2}
    return Recovery(
        inputs=(str(folder / "in.npy"),), out=folder / "one", source=source, operator="downsample:2", **options
    )


def outcome_of(out: Path) -> tuple[bytes, list[dict[str, object]]]:
    """Signals and records."""
    return (out / "recovered" / "in.npy").read_bytes(), json.loads((out / "result.json").read_text())["items"]


def pids(word: str) -> list[int]:
    """Processes that this one, or one of its own, has started, with this word in their command."""
    parents: dict[int, int] = {}
    words: dict[int, bytes] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(place.name)] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            words[int(place.name)] = (place / "cmdline").read_bytes()
        except OSError:
            continue

    def ours(pid: int) -> bool:
        return pid == os.getpid() or (pid in parents and ours(parents[pid]))

    return [pid for pid, said in words.items() if word.encode() in said and pid != os.getpid() and ours(pid)]


class Accidents:
    """What happens when so many items are done: given as the progress of a job."""

    def __init__(self, moments: list[float], action: Callable[[], object]) -> None:
        self._moments, self._action = sorted(moments), action

    def __call__(self, done: float, total: int, note: str) -> None:
        """Called by the job, every half second and after every batch."""
        if self._moments and done >= self._moments[0]:
            self._moments.pop(0)
            self._action()


def kill_one(word: str, drawn: random.Random, killed: list[int]) -> None:
    """A random one of these processes."""
    found = pids(word)
    if found:
        killed.append(drawn.choice(found))
        os.kill(killed[-1], signal.SIGKILL)


def workers(job: Recovery, drawn: random.Random, engine: Engine, word: str, items: int) -> str:
    """One to three workers are killed at random moments."""
    killed: list[int] = []
    moments = [drawn.uniform(0, items - 8) for _ in range(drawn.randint(1, 3))]
    run = recover(job, Accidents(moments, lambda: kill_one(word, drawn, killed)), engine=engine).run
    return f"{len(killed)} killed, {run['lost_workers']} lost, {run['retries']} retries"


def drivers(job: Recovery, drawn: random.Random, engine: Engine, seconds: float) -> str:
    """The driver is killed, this process finishes."""
    asked = job.out.with_suffix(".job")
    asked.write_bytes(pickle.dumps((job, engine)))
    with subprocess.Popen([sys.executable, "-c", DRIVER, asked], stderr=subprocess.DEVNULL) as driver:
        log = job.out / ".job" / "records-000000.log"
        while not log.is_file() or not log.stat().st_size:
            time.sleep(0.05)
            if driver.poll() is not None:
                raise RuntimeError("the driver ended by itself")
        time.sleep(drawn.uniform(0.0, seconds))
        driver.kill()
    size = log.stat().st_size
    recover(job)
    return f"killed with {size} bytes of records of {log.stat().st_size}"


def main() -> None:
    """Run, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["workers", "processes", "nodes", "drivers", "poison"])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--items", type=int, default=160)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["SAFE"] = str(os.getpid())
    drawn, failed = random.Random(asked.seed), 0
    with tempfile.TemporaryDirectory() as folder:
        job = job_in(Path(folder), asked.items, deadly=57 if asked.what == "poison" else None)
        begun = time.monotonic()
        recover(job)
        seconds = (time.monotonic() - begun) / 2
        print(f"one process: {2 * seconds:.1f} s for {asked.items} items")
        for number in range(asked.runs):
            one = replace(job, out=Path(folder) / f"run-{number}")
            begun = time.monotonic()
            told = run_one(asked.what, one, drawn, asked.items, seconds)
            good = same(asked.what, job.out, one.out)
            failed += not good
            print(
                f"{asked.what} {number}: {told}, {time.monotonic() - begun:.1f} s, {'equal' if good else 'DIFFERENT'}",
                flush=True,
            )
    print(f"{asked.runs - failed} of {asked.runs} equal")
    sys.exit(failed > 0)


def same(what: str, one: Path, other: Path) -> bool:
    """All signals and records; those of a batch that was set aside must say so."""
    (here, items), (there, others) = outcome_of(one), outcome_of(other)
    if what != "poison":
        return here == there and items == others
    aside = [number for number, item in enumerate(others) if item["status"] == "POISONED"]
    rest = [number for number in range(len(items)) if number not in aside]
    alike = all(items[n]["residual"] == others[n]["residual"] for n in rest)
    signals = np.load(one / "recovered" / "in.npy"), np.load(other / "recovered" / "in.npy")
    return aside == [56, 57, 58, 59] and alike and bool((signals[0][rest] == signals[1][rest]).all())


def run_one(what: str, job: Recovery, drawn: random.Random, items: int, seconds: float) -> str:
    """One run with its accidents."""
    if what == "processes":
        return workers(job, drawn, Local(2), "genprior.engines.child", items)
    import ray  # noqa: PLC0415 - not for processes

    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    if what == "nodes":
        return nodes(job, drawn, items)
    ray.init(address="local", num_cpus=2, **quiet)
    try:
        here = Ray(workers=2)
        if what == "workers":
            return workers(job, drawn, here, "ray::_Worker", items)
        if what == "drivers":
            there = replace(here, address=ray.get_runtime_context().gcs_address)
            return drivers(job, drawn, there, seconds)
        outcome = recover(job, engine=here)
        return f"{outcome.counts['POISONED']} set aside: {outcome.reasons['POISONED']}"
    finally:
        ray.shutdown()


def nodes(job: Recovery, drawn: random.Random, items: int) -> str:
    """A head without room, three machines of one processor; one is lost."""
    import ray  # noqa: PLC0415
    from ray.cluster_utils import Cluster  # noqa: PLC0415

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        machines = [cluster.add_node(num_cpus=1) for _ in range(3)]
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        lost = drawn.choice(machines)
        accident = Accidents([drawn.uniform(1, items - 16)], lambda: cluster.remove_node(lost, allow_graceful=False))
        run = recover(job, accident, engine=Ray(workers=3)).run
        return f"{run['lost_workers']} workers lost, {run['retries']} retries"
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
