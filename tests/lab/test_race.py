"""The race: what it measures, who is in it, and what it concludes."""

from __future__ import annotations

import json

import pytest
import torch

import genprior as gp
from genprior import cli
from genprior.engines import EngineError, Place
from genprior.lab.race import contenders, outcome, problems, run
from genprior.lab.reports.race import race_numbers
from genprior.models.bundled import load_generator
from tests.lab.backwards import Backwards


def entry(noisy=False):
    return problems.Entry("a", "title", "mnist", noisy, lambda *_: None)


def curve(name, times, values, budget=10.0):
    """A run of two pictures whose error and objective are ``values``."""
    measure = torch.tensor(values)[:, None].repeat(1, 2)
    return outcome.Run(name, budget, torch.tensor(times), 2 * torch.arange(len(times)), measure, measure)


def field(runs):
    return dict.fromkeys(runs, outcome.Entrant(gp.Auto()))


def test_times_passes_and_speedups():
    runs = {
        "Adam": [curve("Adam", [0.0, 4.0, 8.0], [1.0, 0.04, 0.009])],
        "L-BFGS": [curve("L-BFGS", [0.0, 3.0, 9.0], [1.0, 0.03, 0.02])],
        "Auto": [curve("Auto", [0.0, 1.0, 2.0], [1.0, 0.04, 0.005])],
    }
    found = outcome.outcome_of(entry(), runs, field(runs), 1.0)
    assert found.of("Auto").seconds == (1.0, 2.0) and found.of("Auto").passes == (2.0, 4.0)
    assert found.of("L-BFGS").seconds == (3.0, None)
    assert found.speedups == (3.0, 4.0) and found.kinds == ("=", "=")
    assert found.of("L-BFGS").solved == 1.0


def test_a_baseline_that_never_arrives_counts_with_its_budget():
    runs = {
        "Adam": [curve("Adam", [0.0, 9.0], [1.0, 0.5], budget=12.0)],
        "Auto": [curve("Auto", [0.0, 3.0], [1.0, 0.005])],
    }
    found = outcome.outcome_of(entry(), runs, field(runs), 1.0)
    assert found.speedups == (4.0, 4.0) and found.kinds == (">=", ">=")
    runs["Auto"] = [curve("Auto", [0.0, 3.0], [1.0, 0.5])]
    assert outcome.outcome_of(entry(), runs, field(runs), 1.0).speedups == (None, None)


def test_a_target_that_only_auto_misses_counts_against_it():
    runs = {
        "Adam": [curve("Adam", [0.0, 5.0], [1.0, 0.005], budget=12.0)],
        "Auto": [curve("Auto", [0.0, 3.0], [1.0, 0.04], budget=20.0)],
    }
    found = outcome.outcome_of(entry(), runs, field(runs), 1.0)
    assert found.speedups == (pytest.approx(5 / 3), 0.25) and found.kinds == ("=", "<=")


def test_noisy_problems_are_judged_by_the_best_objective_of_anybody():
    runs = {
        "Adam": [curve("Adam", [0.0, 5.0], [9.0, 2.3])],
        "Auto": [curve("Auto", [0.0, 2.0, 4.0], [9.0, 2.3, 2.0]), curve("Auto", [0.0, 2.0, 6.0], [9.0, 2.2, 2.0])],
    }
    found = outcome.outcome_of(entry(noisy=True), runs, field(runs), 1.0)
    assert found.of("Auto").seconds == (2.0, 4.0), "lower medians over the rounds"
    assert found.of("Adam").seconds == (5.0, None)
    assert found.of("Adam").final == pytest.approx(1.15)


@pytest.mark.parametrize("key", "abcdef")
def test_the_truth_nearly_solves_every_problem(key):
    one = next(e for e in problems.ENTRIES if e.key == key)
    made = problems.instance(one, load_generator("mnist"), 2, seed=0)
    there = made.problem.evaluate(made.truth, made.starts).objective
    start = made.problem.objective(made.starts)
    assert (there < (0.6 if one.noisy else 1e-9) * start).all()
    other = problems.instance(one, load_generator("mnist"), 2, seed=1)
    assert not torch.equal(made.truth, other.truth)


def test_a_tiny_race(tmp_path, monkeypatch, capsys):
    tiny = run.Budget(2, 2, 0.005, 0.02, 0.15, 0.1)
    monkeypatch.setattr(run, "QUICK", {"mnist": tiny, "celeba": tiny})
    assert cli.main(["bench", "race", "--problems", "ac", "--quick", "--json", "--out", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((tmp_path / "race.json").read_text())
    assert (tmp_path / "race.png").stat().st_size > 10_000
    assert [problem["key"] for problem in found["problems"]] == ["a", "c"]
    for problem in found["problems"]:
        names = [solver["solver"] for solver in problem["solvers"]]
        assert names == [*contenders.grids(), *contenders.OURS]
    assert found["workers"] == 1
    words = ["bench", "race", "--problems", "ac", "--quick", "--workers", "2", "--threads", "1"]
    assert cli.main([*words, "--out", str(tmp_path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "geometric mean" in shown and "2 problems at a time, which slow each other down" in shown
    found = json.loads((tmp_path / "race.json").read_text())
    assert (found["workers"], found["threads"]) == (2, 1)
    assert [len(problem["solvers"]) for problem in found["problems"]] == [8, 8]


def test_problems_are_in_their_order_whichever_is_solved_first(monkeypatch):
    monkeypatch.setattr(run, "_one_problem", lambda entry, *_: entry.key)
    said = []
    found = run.run_race(keys="dca", repeats=1, engine=Backwards(), announce=said.append)
    assert found.problems == ("a", "c", "d") and found.workers == 3
    assert said == [f"{done} of 3 problems, 3 of 3 workers" for done in range(3)]


def test_workers_race_on_their_own_cards(monkeypatch):
    seen = []
    monkeypatch.setattr(run, "load_generator", lambda name, device: seen.append(device))
    monkeypatch.setattr(run, "_one_problem", lambda entry, *_: entry.key)
    work = run.RaceWork(1, True, 0, "cuda", torch.get_num_threads() + 1)
    try:
        assert work.open(Place(number=1))(run.Heat("a", run.QUICK["mnist"])) == "a"
        assert torch.get_num_threads() == work.threads and seen == [Place(number=1).device("cuda")] != ["cuda"]
    finally:
        torch.set_num_threads(work.threads - 1)


def test_a_problem_that_its_workers_die_of_is_named(monkeypatch):
    monkeypatch.setattr(run, "_one_problem", lambda entry, *_: entry.key)
    with pytest.raises(EngineError, match=r"problem c of the race cannot be solved: 3 workers were lost"):
        run.run_race(keys="ac", engine=Backwards(poisoned=1))


def test_unknown_problems_are_refused(capsys):
    assert cli.main(["bench", "race", "--problems", "xyz"]) == 1
    assert "problems must be some of abcdefgh, got 'xyz'" in capsys.readouterr().err


def test_tuning_takes_the_setting_with_the_lowest_objective():
    generator = load_generator("mnist")
    practice = problems.instance(problems.ENTRIES[0], generator, 2, seed=1)
    budget = run.Budget(2, 2, 0.1, 0.2, 0.3, 0.3)
    best = run._tuned(practice, budget, False, lambda text: None)
    assert list(best) == list(contenders.grids())
    assert best["gradient descent"].solver != contenders.grids()["gradient descent"][1], "a step of 0.001 goes nowhere"


def test_a_setting_at_the_edge_of_its_grid_is_told():
    found = contenders.grids()
    told = {name: [contenders.at_edge(choice, choices) for choice in choices] for name, choices in found.items()}
    assert told["gradient descent"] == [False, True, *[False] * 9, True], "the default has no step of its own"
    assert told["Adam"] == [True, *[False] * 5, True]
    assert told["projected gradient"] == [True, True, True, True, False, True, True, True, True], "inner and step"


def test_later_rounds_are_for_those_that_speed_ups_depend_on():
    runs = {
        "Adam": [curve("Adam", [0.0, 2.0, 8.0], [1.0, 0.04, 0.02])],
        "L-BFGS": [curve("L-BFGS", [0.0, 3.0, 9.0], [1.0, 0.03, 0.009])],
        "momentum": [curve("momentum", [0.0, 3.0, 9.0], [1.0, 0.5, 0.2])],
        "Auto": [curve("Auto", [0.0, 1.0, 2.0], [1.0, 0.04, 0.005])],
        "ExactADMM": [curve("ExactADMM", [0.0, 1.0, 2.0], [1.0, 0.04, 0.005])],
    }
    assert outcome.outcome_of(entry(), runs, field(runs), 1.0).leaders() == ["Adam", "L-BFGS"]
    del runs["L-BFGS"]
    assert outcome.outcome_of(entry(), runs, field(runs), 1.0).leaders() == ["Adam"], "nearest, where none arrived"


def test_numbers_are_plain():
    empty = race_numbers(run.Race((), 1, True, 1))
    assert empty["speedup_loose"] is None and empty["never_fewer_solved"] is True
