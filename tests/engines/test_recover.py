"""Recoveries on engines: the same files and records as in one process, whatever happens to the workers."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from genprior.engines import Crew, Engine, EngineError, Local, Place
from genprior.engines.worker import packed
from genprior.files import Items
from genprior.jobs.recover import Driver, recover
from genprior.jobs.settings import Recovery, Source
from tests.jobs.conftest import CODE

DEADLY = """
import os, signal


class Deadly(Conditional):
    def forward(self, z, label):
        if int(label.reshape(-1)[0]) == 3 and os.environ.get("SAFE") != str(os.getpid()):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(z, label)
"""


@pytest.fixture
def job(tmp_path):
    """Builds jobs on twelve images; the model is in a file of its own."""
    (tmp_path / "my_model.py").write_text(CODE + DEADLY)
    np.save(tmp_path / "in.npy", np.random.default_rng(0).random((12, 1, 8, 8), dtype=np.float32))

    def build(out, name="build", **settings):
        source = Source(generator=f"{tmp_path / 'my_model.py'}:{name}", **settings.pop("source", {}))
        common = {"inputs": (str(tmp_path / "in.npy"),), "operator": "downsample:2", "simulate": True, "noise": 0.1}
        common |= {"steps": 6, "batch_size": 2, "restarts": 2, "pictures": 3}
        return Recovery(out=tmp_path / out, source=source, **common | settings)

    return build


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def outcome_of(out):
    """Signals and records, without what a run took."""
    found = json.loads((out / "result.json").read_text())
    for name in ("run", "seconds", "forwards", "backwards"):
        del found["summary"][name]
    return (out / "recovered" / "in.npy").read_bytes(), found["items"], found["summary"] | {"notes": []}


def run_of(out):
    return json.loads((out / "result.json").read_text())["summary"]["run"]


class Backwards(Engine):
    """Answers in reverse, from workers in this process that see the inputs or not."""

    size = 3
    here = True

    def __init__(self, *, visible=True):
        self.here = visible

    def run(self, batches):
        solve = batches.work.open(Place(visible=self.here))
        tasks = [(number, batches.task(number, not self.here)) for number in batches.numbers]
        yield from [(number, solve(task)) for number, task in tasks][::-1]


def test_two_processes_write_what_one_does(job):
    recover(job("one"))
    recover(job("two"), engine=Local(2))
    assert outcome_of(job("two").out) == outcome_of(job("one").out)
    run = run_of(job("two").out)
    assert run["engine"] == "2 processes on this machine" and run["workers"] == 2 and run["lost_workers"] == 0
    assert run["items_per_second"] == pytest.approx(12 / run["elapsed"])


@pytest.mark.parametrize("visible", [True, False])
def test_workers_that_see_the_inputs_or_not_in_any_order(job, visible, monkeypatch):
    recover(job("one"))
    told = []
    if not visible:
        monkeypatch.setattr(Items, "missing", lambda *given: 1 / 0)
    recover(job("two"), lambda done, total, note: told.append(done), engine=Backwards(visible=visible))
    assert outcome_of(job("two").out) == outcome_of(job("one").out)
    assert told == sorted(told)


def test_a_deadly_item_is_set_aside_by_the_workers_and_the_rest_is_recovered(job, tmp_path, monkeypatch):
    """A class of a conditional generator ends the process; the folder is then taken up in this process."""
    monkeypatch.setenv("SAFE", str(os.getpid()))
    labels = np.zeros(12, int)
    labels[5] = 3
    np.save(tmp_path / "labels.npy", labels)
    settings = {"name": "Deadly", "source": {"labels": str(tmp_path / "labels.npy")}, "batch_size": 4, "restarts": 1}
    recover(job("one", **settings))
    outcome = recover(job("two", **settings), engine=Local(2))
    assert outcome.counts["POISONED"] == 4 and outcome.recovered == 8
    assert "3 workers were lost with it, the last one was killed by SIGKILL" in outcome.reasons["POISONED"]
    here, there = outcome_of(job("one").out)[1], outcome_of(job("two").out)[1]
    for number, (one, two) in enumerate(zip(here, there, strict=True)):
        assert (two["status"] == "POISONED") if 4 <= number < 8 else one["residual"] == two["residual"]
    run = run_of(job("two").out)
    assert (run["lost_workers"], run["retries"], run["poisoned"]) == (3, 2, 1)


def test_a_driver_that_is_killed_leaves_a_folder_that_another_engine_finishes(job, tmp_path):
    script = (
        "import sys, time; from genprior.engines import Local; from genprior.jobs.recover import recover\n"
        "import pickle; job = pickle.load(open(sys.argv[1], 'rb'))\n"
        "recover(job, lambda done, total, note: done >= 4 and (print('now', flush=True), time.sleep(100)), engine=Local(1))\n"
    )
    import pickle

    (tmp_path / "job").write_bytes(pickle.dumps(job("two")))
    with subprocess.Popen([sys.executable, "-c", script, tmp_path / "job"], stdout=subprocess.PIPE) as driver:
        assert driver.stdout.readline() == b"now\n"
        driver.send_signal(signal.SIGKILL)
    recover(job("one"))
    recover(job("two"))
    assert outcome_of(job("two").out) == outcome_of(job("one").out)


class Failing(Backwards):
    """Its first answer comes, then it cannot go on."""

    def run(self, batches):
        yield next(super().run(batches))
        raise EngineError("the cluster is gone")


def test_an_engine_that_fails_keeps_what_was_answered(job):
    with pytest.raises(EngineError, match="the cluster is gone"):
        recover(job("two"), engine=Failing())
    told = []
    recover(job("two"), lambda done, total, note: told.append(done))
    assert told[1] == 2 or 2 in told[:3]
    recover(job("one"))
    assert outcome_of(job("two").out) == outcome_of(job("one").out)


class Slow(Backwards):
    """Two workers; each batch takes a second of the clock."""

    size = 2

    def __init__(self, now):
        super().__init__()
        self.now, self.shares = now, []

    def run(self, batches):
        solve = batches.work.open(Place())
        for number in batches.numbers:
            task = batches.task(number, False)
            self.shares.append((task.seconds, batches.seconds(number)))
            self.now[0] += 1.0
            yield number, solve(task)


def test_the_time_is_that_of_the_clock_on_the_wall_and_goes_on_after_an_interruption(job, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("genprior.jobs.course.time.monotonic", lambda: now[0])

    def press(done, total, note):
        if done >= 6:
            raise KeyboardInterrupt

    first = Slow(now)
    with pytest.raises(KeyboardInterrupt):
        recover(job("two", time=12.0), press, engine=first)
    shares = [12 * 2 / 6, 11 * 2 / 5, 10 * 2 / 4, 9 * 2 / 3]
    assert [share for share, _ in first.shares] == pytest.approx(shares[: len(first.shares)])
    assert all(share == limit for share, limit in first.shares)
    now[0] += 500.0  # between the runs no time of the job passes
    second = Slow(now)
    recover(job("two", time=12.0), engine=second)
    used = len(first.shares) - (1 if len(first.shares) == 4 else 0)
    assert second.shares[0][0] == pytest.approx((12 - used) * 2 / (6 - used))


class Roomy(Slow):
    """Learns only when it runs that it has three workers, one of which is lost after the first answer."""

    size = 1

    def run(self, batches):
        crew = Crew("three workers", 3)
        batches.watch(crew)
        for number, answer in super().run(batches):
            crew.answered, crew.alive = crew.answered + 1, 2
            batches.watch(crew)
            yield number, answer


def test_the_time_is_shared_by_the_workers_that_there_are(job, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("genprior.jobs.course.time.monotonic", lambda: now[0])
    engine = Roomy(now)
    recover(job("two", time=12.0), engine=engine)
    shares = [12 * 3 / 6, 11 * 2 / 5, 10 * 2 / 4, 9 * 2 / 3, 8.0, 7.0]
    assert [share for share, _ in engine.shares] == pytest.approx(shares)


def test_tokens_in_the_names_of_inputs_do_not_leave_the_driver(job):
    work = Driver(job("one"), lambda *given: None, None).work()
    secret = replace(work, job=replace(work.job, inputs=("https://me:secret@host/in.npy?token=secret",)))
    assert b"secret" not in packed(secret)
    assert b"my_model" in packed(secret)
