"""Parts on workers: each after those it needs, the same numbers as without workers, whatever happens to them."""

from __future__ import annotations

import json
import os
import signal

import numpy as np
import pytest
import torch

from genprior.cli.reproduce import _standing
from genprior.engines import Crew, EngineError, Local, Place, Ray, Serial
from genprior.engines.dispatch import Patience
from genprior.lab.reproduce import run
from genprior.lab.reproduce.contest import Setting
from genprior.lab.reproduce.parts import Found, Part, Store, run_parts
from genprior.lab.reproduce.sizes import QUICK
from genprior.lab.reproduce.spread import OnWorkers, PartsWork, spread_parts
from genprior.lab.workers import threads_of
from tests.lab.backwards import Backwards


def part(name, cost=1.0, needs=(), mark=None):
    """Its numbers follow from the seed in its name and from the parts that it needs; the first time it may kill its worker."""

    def run(results):
        assert set(results) == set(needs)
        if mark is not None and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        random = torch.rand(5, generator=torch.Generator().manual_seed(ord(name))).numpy()
        x = sum((found.arrays["x"] for found in results.values()), random)
        return Found({"sum": float(x.sum()), "threads": torch.get_num_threads()}, {"x": x}, {"seconds": 0.1})

    return Part(name, run, cost, tuple(needs))


def joined(setting):
    """c needs a and b; b kills its worker where the user's images lie, if there are any."""
    mark = None if setting.faces is None else setting.faces / "mark"
    return [part("a"), part("b", mark=mark), part("c", needs=("a", "b"))]


def fork(setting):
    return [part("y", 3.5), part("x", 1.0), part("z", 3.0, ("x",))]


def settings_of(setting, threads=1):
    return {"seed": setting.seed, "threads": threads}


def spread(make, folder, engine, show=lambda at: None, setting=Setting(QUICK)):  # noqa: B008 - frozen
    settings = settings_of(setting, threads_of(engine))
    work = PartsWork((make,), setting, settings, settings_of)
    return spread_parts(make(setting), Store(folder, settings), work, engine, show)


def test_the_numbers_are_those_of_one_process_though_a_worker_is_killed(tmp_path):
    said, setting = [], Setting(QUICK, faces=tmp_path)
    ours = spread(joined, tmp_path / "ours", Local(2), said.append, setting)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    theirs = run_parts(joined(setting), Store(tmp_path / "theirs", {}))
    torch.set_num_threads(threads)
    assert list(ours) == list(theirs) == ["a", "b", "c"]
    for name, found in theirs.items():
        assert ours[name].numbers == found.numbers and np.array_equal(ours[name].arrays["x"], found.arrays["x"])
        assert set(ours[name].times) == {"seconds", "part_seconds", "workers"}
    assert max(at.crew.deaths for at in said) == 1, "it was killed"
    assert said[-1].number == said[-1].count == 3 and said[-1].share == 1.0


def test_parts_are_handed_out_by_the_work_that_waits_for_them_and_only_when_they_can_start(tmp_path):
    def order(engine):
        said = []
        spread(fork, tmp_path / type(engine).__name__, engine, said.append)
        assert len(said) == len({(at.number, at.crew.alive) for at in said}), "only what has changed"
        return list(dict.fromkeys(at.part for at in said if at.part))

    assert order(Serial()) == ["x", "y", "z"]
    assert order(Backwards()) == ["y", "z"], "x and y together, of which y is named; z when both are there"


def test_what_is_finished_is_kept_when_a_part_cannot_be_computed(tmp_path):
    with pytest.raises(EngineError, match="part x cannot be computed: 3 workers were lost with it; finished parts are"):
        spread(fork, tmp_path, Backwards(poisoned=1))
    assert [path.stem for path in (tmp_path / "parts").iterdir()] == ["y"]
    assert set(spread(fork, tmp_path, Backwards())) == {"x", "y", "z"}


def test_the_settings_have_the_threads_that_compute(tmp_path, monkeypatch):
    """Not those of the driver. Without workers, but with as many threads, nothing is computed again."""
    known = {"joined": run.Experiment("joined", "joined", joined, lambda setting, results: [])}
    monkeypatch.setattr(run, "EXPERIMENTS", known)
    before = torch.get_num_threads()
    done = run.reproduce(["joined"], tmp_path, size="quick", engine=Local(1, threads=before + 1)).document()
    assert done["parts"]["a"]["threads"] == done["settings"]["threads"] == before + 1
    assert json.loads((tmp_path / "settings.json").read_text()) == done["settings"]
    assert done["environment"]["workers"] == 1
    with pytest.raises(ValueError, match=f"threads was {before + 1}, now {before}"):
        run.reproduce(["joined"], tmp_path, size="quick")
    torch.set_num_threads(before + 1)
    try:
        assert run.reproduce(["joined"], tmp_path, size="quick").document() == done
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("engine", "threads"),
    [
        (Local(4), 1),
        (Local(4, threads=3), 3),
        (Ray(cpus_per_worker=2), 2),
        (Ray(cpus_per_worker=0.5), 1),
        (Ray(threads=3), 3),
    ],
)
def test_threads_of_workers(engine, threads):
    assert threads_of(engine) == threads and threads_of(None) == torch.get_num_threads()


def test_workers_of_any_engine_compute_with_the_threads_of_the_settings_each_on_its_card():
    before, seen = torch.get_num_threads(), []
    make = lambda setting: seen.append(setting.device) or []  # noqa: E731
    try:
        work = PartsWork((make,), Setting(QUICK, device="cuda"), {"threads": before + 1}, settings_of)
        work.open(Place(number=2))
        assert torch.get_num_threads() == before + 1 and seen == [Place(number=2).device("cuda")] != ["cuda"]
    finally:
        torch.set_num_threads(before)


def test_a_long_part_is_not_taken_for_one_that_hangs(tmp_path):
    engine = Backwards()
    spread(lambda setting: [part("a", 0.1), part("b", 3600.0)], tmp_path, engine)
    short, long = sorted(Patience().limit(own, 1.0) for own in engine.limits)
    assert 600 <= short < 700 and long >= 20 * 3600


def test_a_machine_that_would_find_other_numbers_is_refused():
    def opened(seed):
        settings = {"seed": seed, "threads": torch.get_num_threads(), "sizes": (1, 2)}
        asked = lambda setting: settings | {"seed": 0}  # noqa: E731
        return PartsWork((joined,), Setting(QUICK), settings, asked).open(Place(visible=False))

    assert callable(opened(0))
    with pytest.raises(EngineError, match=r"would find other numbers \(seed is 0 there, 1 here\): install the same"):
        opened(1)


def test_progress_on_workers_in_words():
    crew = Crew("2 processes", 2, alive=1, deaths=1)
    assert _standing(OnWorkers("a", 3, 8, 0.5, 90.0, crew)) == "3 of 8 parts, 1 of 2 workers, 1 lost, about 2 min left"
