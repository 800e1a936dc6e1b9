"""Parts: kept, not redone, refused where settings differ; a kill in the middle changes nothing but times."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from genprior import cli
from genprior.lab.reproduce import run
from genprior.lab.reproduce.claims import Claim
from genprior.lab.reproduce.contest import Setting
from genprior.lab.reproduce.parts import Found, Part, Store, recorded_threads, run_parts, unique
from genprior.lab.reproduce.sizes import QUICK, SIZES, Denoising

TINY = Denoising(2, 8, 6, 4, 0.5)
CODE = f"""
import dataclasses, sys
from genprior.cli import main
from genprior.lab.reproduce.sizes import SIZES, Denoising
SIZES["quick"] = dataclasses.replace(SIZES["quick"], denoising={TINY!r})
sys.exit(main(sys.argv[1:]))
"""


def part(name, log, value=1.0, needs=()):
    def run(results):
        log.append(name)
        return Found({"value": value + sum(found.numbers["value"] for found in results.values())}, {"x": np.arange(3)})

    return Part(name, run, 1.0, tuple(needs))


def test_parts_are_run_once_and_see_what_they_need(tmp_path):
    log = []
    parts = [part("a", log), part("b", log, needs=["a"])]
    first = run_parts(parts, Store(tmp_path, {"seed": 0}))
    again = run_parts(parts, Store(tmp_path, {"seed": 0}))
    assert log == ["a", "b"]
    assert first["b"].numbers == again["b"].numbers == {"value": 2.0}
    assert np.array_equal(again["b"].arrays["x"], np.arange(3)) and again["b"].times["part_seconds"] >= 0


def test_a_part_that_fails_is_tried_again_and_those_before_it_are_not(tmp_path):
    log = []

    def broken(results):
        log.append("broken")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_parts([part("a", log), Part("b", broken, 1.0)], Store(tmp_path, {}))
    run_parts([part("a", log), part("b", log)], Store(tmp_path, {}))
    assert log == ["a", "broken", "b"]


@pytest.mark.parametrize("damage", [b"", b"{}", None])
def test_a_damaged_part_is_set_aside_and_run_again(tmp_path, damage):
    log = []
    store = Store(tmp_path, {})
    run_parts([part("a", log)], store)
    path = tmp_path / "parts" / "a.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"\1" if damage is None else damage)
    with pytest.warns(UserWarning, match=r"set aside as .*a\.safetensors\.damaged"):
        assert run_parts([part("a", log)], store)["a"].numbers == {"value": 1.0}
    assert log == ["a", "a"] and path.with_name("a.safetensors.damaged").is_file()


def test_a_part_of_another_run_is_not_taken(tmp_path):
    log = []
    first, second = (Store(tmp_path / str(seed), {"seed": seed}) for seed in (0, 1))
    run_parts([part("a", log)], first)
    shutil.copy(tmp_path / "0" / "parts" / "a.safetensors", tmp_path / "1" / "parts")
    with pytest.warns(UserWarning, match="belongs to another job"):
        run_parts([part("a", log)], second)
    assert log == ["a", "a"]


def test_other_settings_are_refused(tmp_path):
    Store(tmp_path, {"seed": 0, "size": "quick"})
    with pytest.raises(ValueError, match=r"other settings \(seed was 0, now 1\): give another `out`"):
        Store(tmp_path, {"seed": 1, "size": "quick"})


def test_progress_counts_finished_work_and_tells_the_time_left(tmp_path):
    log, told = [], []
    parts = [part(name, log) for name in "abcd"]
    run_parts(parts[:1], Store(tmp_path, {}))
    run_parts(parts, Store(tmp_path, {}), told.append)
    assert [at.part for at in told] == ["b", "c", "d"]
    assert [at.number for at in told] == [2, 3, 4] and {at.count for at in told} == {4}
    assert [at.share for at in told] == pytest.approx([0.25, 0.5, 0.75])
    assert told[0].seconds_left is None and all(at.seconds_left > 0 for at in told[1:])


def test_shared_parts_are_listed_once():
    log = []
    assert [one.name for one in unique([part("a", log), part("b", log), part("a", log)])] == ["a", "b"]


def test_an_experiment_that_is_finished_stays_in_the_report(tmp_path, monkeypatch):
    """Asked for one after the other, in one folder: the second report has both; one that is not whole is left out."""

    def experiment(name, count):
        parts = [part(f"{name}.{number}", []) for number in range(count)]
        judge = lambda setting, results: [Claim(name, name, "", "holds", str(len(results)))]  # noqa: E731
        return run.Experiment(name, name, lambda setting: parts, judge)

    known = {name: experiment(name, 2) for name in ("first", "second", "third")}
    monkeypatch.setattr(run, "EXPERIMENTS", known)
    assert run.reproduce(["first"], tmp_path, size="quick").experiments == ("first",)
    Store(tmp_path, run.settings_of(Setting(QUICK, 0, "cpu", None))).write("third.0", Found({}))
    done = run.reproduce(["second"], tmp_path, size="quick")
    assert done.experiments == ("first", "second") and [claim.key for claim in done.claims] == ["first", "second"]
    assert set(done.parts) == {"first.0", "first.1", "second.0", "second.1"} and done.document()["times"]["all"] >= 0


def test_killed_in_the_middle_it_goes_on_and_finds_the_same(tmp_path, monkeypatch):
    """kill -9 between tuning and the runs that need it; then the same on workers. Compared with a run left alone."""
    monkeypatch.setitem(SIZES, "quick", dataclasses.replace(QUICK, denoising=TINY))
    words = ["reproduce", "linf-denoising", "--quick", "--threads", "1"]
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, *words, "--out", str(killed)], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while not list((killed / "parts").glob("*.linf.tune.adam.safetensors")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it was still running"
    finished = {path: path.stat().st_mtime_ns for path in (killed / "parts").glob("*.safetensors")}
    assert not (killed / "results.json").exists() and not any(".run.auto" in path.name for path in finished)
    assert cli.main([*words, "--out", str(killed), "--json", "--workers", "2"]) == 0
    assert cli.main([*words, "--out", str(whole), "--json"]) == 0
    assert all(path.stat().st_mtime_ns == before for path, before in finished.items()), "not redone"
    documents = [json.loads((folder / "results.json").read_text()) for folder in (killed, whole)]
    assert documents[0]["environment"].pop("workers") == 2
    for document in documents:
        del document["times"]
    assert documents[0] == documents[1]


def test_the_number_of_threads_of_a_run(tmp_path):
    """A resumed run continues with it, whatever is fastest then."""
    assert recorded_threads(tmp_path) is None
    Store(tmp_path, {"threads": 3, "seed": 0})
    assert recorded_threads(tmp_path) == 3
    (tmp_path / "settings.json").write_text("{broken")
    assert recorded_threads(tmp_path) is None


def test_a_resumed_run_keeps_its_threads(tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(
        "genprior.cli.machine.Machine.choose_threads", lambda self, *, fixed: asked.append(fixed) or 1 / 0
    )
    Store(tmp_path, {"threads": 3})
    assert cli.main(["reproduce", "plateau", "--quick", "--out", str(tmp_path)]) == 1
    assert asked == [3]
