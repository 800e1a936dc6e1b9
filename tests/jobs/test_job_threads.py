"""The number of threads of a job: chosen before it begins, recorded, kept when it is resumed."""

import json

import numpy as np
import pytest
import torch

from genprior.cli import main
from genprior.cli import threads as commands
from genprior.files import Outputs
from genprior.jobs.outcome import Outcome
from genprior.jobs.threads import solved_by


class Fake:
    """Stands for torch's threads: nothing is slower, the records only say so."""

    def __init__(self, monkeypatch):
        self.threads, self.speeds, self.measured = 2, {1: 0.01, 2: 0.006}, []
        monkeypatch.setattr(torch, "get_num_threads", lambda: self.threads)
        monkeypatch.setattr(torch, "set_num_threads", lambda threads: setattr(self, "threads", threads))
        monkeypatch.setattr(commands, "Probe", self.probe)

    def probe(self, generator):
        self.measured.append(generator.signal_shape)
        return self

    def seconds(self, threads):
        self.threads = threads
        return self.speeds[threads]

    def busy(self):
        self.speeds = {1: 0.01, 2: 0.2}


@pytest.fixture
def machine(monkeypatch):
    return Fake(monkeypatch)


@pytest.fixture
def words(tmp_path):
    np.save(tmp_path / "in.npy", np.random.default_rng(0).random((6, 1, 28, 28), dtype=np.float32))
    fixed = "--operator downsample:4 --simulate --steps 3 --batch-size 2 --json --out"
    return ["recover", str(tmp_path / "in.npy"), *fixed.split(), str(tmp_path / "out")]


def run_of(capfd):
    return json.loads(capfd.readouterr().out)["summary"]["run"]


@pytest.mark.parametrize(("busy", "chosen"), [(False, 2), (True, 1)])
def test_the_number_is_chosen_for_the_generator_and_recorded(machine, words, capfd, busy, chosen):
    if busy:
        machine.busy()
    assert main(words) == 0
    run = run_of(capfd)
    assert (run["threads"], run["other_threads"]) == (chosen, []) and machine.measured == [(1, 28, 28)]


def test_a_given_number_is_not_measured(machine, words, capfd):
    machine.busy()
    assert main([*words, "--threads", "2"]) == 0
    assert run_of(capfd)["threads"] == 2 and machine.measured == []


def test_a_change_within_a_batch_is_recorded(machine, words, monkeypatch, capfd):
    def showing(watch, show):
        def both(done, total, note):
            machine.threads = 1 if "step" in note else machine.threads
            show(done, total, note)

        return both

    monkeypatch.setattr(commands.Watch, "showing", showing)
    words[words.index("--batch-size") + 1] = "6"
    assert main(words) == 0
    run = run_of(capfd)
    assert (run["threads"], run["other_threads"]) == (1, [2])
    assert main([word for word in words if word != "--json"]) == 0
    assert "this process, with 1 thread (earlier with 2)" in capfd.readouterr().out


def test_a_resumed_job_keeps_its_number(machine, words, tmp_path, monkeypatch, capfd):
    """Interrupted after the first batch on a busy machine, resumed on a quiet one."""
    machine.busy()

    with monkeypatch.context() as patch:
        from genprior.jobs.ledger import Ledger

        write = Ledger.write_batch

        def once(ledger, *record):
            write(ledger, *record)
            raise KeyboardInterrupt

        patch.setattr(Ledger, "write_batch", once)
        assert main(words) == 130
    capfd.readouterr()
    machine.threads, machine.speeds = 2, {1: 0.01, 2: 0.006}
    assert main(words) == 0
    run = run_of(capfd)
    assert (run["threads"], run["other_threads"]) == (1, []) and len(machine.measured) == 2
    machine.threads = 2
    assert main(words) == 0
    assert len(machine.measured) == 2, "nothing is left to do, so nothing is measured"


def test_shards_record_and_resume_alike(machine, words, capfd):
    machine.busy()
    for number in (1, 2):
        assert main([*words, "--shard", f"{number}/2"]) == 0
        machine.threads = 2
    capfd.readouterr()
    assert main(["gather", words[-1], "--json"]) == 0
    run = run_of(capfd)
    assert (run["threads"], run["other_threads"]) == (1, []) and len(machine.measured) == 2


def test_a_dry_run_chooses_as_the_job_does(machine, words, capfd):
    machine.busy()
    assert main([*words, "--dry-run"]) == 0
    assert machine.threads == 1 and len(machine.measured) == 1


def test_workers_are_not_measured(machine, words, capfd):
    assert main([*words, "--workers", "1"]) == 0
    assert machine.measured == [] and run_of(capfd)["threads"] == 1


def test_a_defence_chooses_and_records_alike(machine, tmp_path, monkeypatch, capfd):
    """With a change in the middle; its workers are not measured."""
    np.save(tmp_path / "in.npy", np.random.default_rng(0).random((2, 1, 28, 28), dtype=np.float32))
    words = [
        "defend",
        str(tmp_path / "in.npy"),
        *["--steps", "2", "--restarts", "1", "--batch-size", "1", "--json", "--out"],
    ]

    def run(*more):
        assert main([*words, *more]) == 0
        found = json.loads(capfd.readouterr().out)["run"]
        return found["threads"], found["other_threads"]

    assert run(str(tmp_path / "workers"), "--workers", "1") == (1, []) and machine.measured == []
    machine.busy()
    assert run(str(tmp_path / "busy")) == (1, []) and machine.measured == [(1, 28, 28)]
    machine.threads, machine.speeds = 2, {1: 0.01, 2: 0.006}
    write = Outputs.write

    def busy_afterwards(*batch):
        machine.threads = 1
        return write(*batch)

    monkeypatch.setattr(Outputs, "write", busy_afterwards)
    assert run(str(tmp_path / "changed")) == (1, [2])


def batch(elapsed, **run):
    return {"plan": "", "items": [], "run": {"seconds": 0.0, "forwards": 0, "backwards": 0, "elapsed": elapsed} | run}


def test_batches_that_were_set_aside_have_no_threads(tmp_path):
    outcome = Outcome(0, tmp_path, tmp_path)
    for record in (
        batch(1.0, engine="x", threads=4, other_threads=[8]),
        batch(2.0, engine="x", threads=2, other_threads=[]),
        batch(3.0, engine="x"),
    ):
        outcome.add(record)
    assert outcome.run["threads"] == 2 and outcome.run["other_threads"] == [4, 8]
    assert solved_by(outcome.run) == "x, with 2 threads (earlier with 4 and 8)"
