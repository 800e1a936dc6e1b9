"""The race: what it measures, who is in it, and what it concludes."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch

import genprior as gp
from genprior import cli
from genprior.engines import EngineError, Place
from genprior.lab.race import budgets, contenders, kept, methods, networks, outcome, problems, run, sources, tuning
from genprior.lab.reports.race import notes_on, race_numbers
from genprior.lab.trace import Trace
from genprior.models.bundled import load_generator
from genprior.models.examples import soft_discs
from tests.lab.backwards import Backwards


def entry(noisy=False):
    return problems.Entry("a", "title", "mnist", noisy, lambda *_: None)


def curve(name, times, values, budget=10.0):
    """A run of two images whose error and objective are ``values``; of several, if these are lists."""
    measure = torch.tensor(values)
    measure = measure[:, None].repeat(1, 2) if measure.ndim == 1 else measure
    return outcome.Run(name, budget, torch.tensor(times), 2 * torch.arange(len(times)), measure, measure)


def field(runs):
    ours = contenders.untuned()
    baseline = contenders.Entrant(methods.Baseline(gp.Adam()), "baseline", starts=1)
    return {name: ours.get(name, baseline) for name in runs}


def outcome_of(runs, noisy=False):
    return outcome.outcome_of(entry(noisy), runs, field(runs), 1.0)


def test_times_passes_and_speedups():
    runs = {
        "Adam": [curve("Adam", [0.0, 4.0, 8.0], [1.0, 0.04, 0.009])],
        "L-BFGS": [curve("L-BFGS", [0.0, 3.0, 9.0], [1.0, 0.03, 0.02])],
        "Auto": [curve("Auto", [0.0, 1.0, 2.0], [1.0, 0.04, 0.005])],
    }
    found = outcome_of(runs)
    assert found.of("Auto").seconds == (1.0, 2.0) and found.of("Auto").passes == (2.0, 4.0)
    assert found.of("L-BFGS").seconds == (3.0, None)
    assert found.speedups == (3.0, 4.0) and found.kinds == ("=", "=")
    assert found.of("L-BFGS").solved == 1.0 and found.of("L-BFGS").solved_tight == 0.0
    assert (found.of("Auto").ended, found.of("Auto").role) == (2.0, "ours")


@pytest.mark.parametrize(("images", "needed"), [(1, 1), (4, 4), (10, 9), (11, 10), (20, 18), (30, 27)])
def test_a_target_is_reached_when_nine_of_ten_images_are_within_it(images, needed):
    rows = [[0.01] * done + [0.9] * (images - done) for done in range(images + 1)]
    assert outcome.first_time(torch.arange(images + 1.0), torch.tensor(rows), 0.05) == needed


def test_methods_as_published_are_no_baselines():
    runs = {
        "Adam": [curve("Adam", [0.0, 4.0], [1.0, 0.005])],
        "D-Flow": [curve("D-Flow", [0.0, 0.5], [1.0, 0.005])],
        "Auto": [curve("Auto", [0.0, 1.0], [1.0, 0.005])],
    }
    found = outcome_of(runs)
    assert found.speedups == (4.0, 4.0) and found.leaders() == ["Adam"] and found.of("D-Flow").role == "published"


def test_a_baseline_that_never_arrives_counts_with_its_budget():
    runs = {
        "Adam": [curve("Adam", [0.0, 9.0], [1.0, 0.5], budget=12.0)],
        "Auto": [curve("Auto", [0.0, 3.0], [1.0, 0.005])],
    }
    found = outcome_of(runs)
    assert found.speedups == (4.0, 4.0) and found.kinds == (">=", ">=")
    runs["Auto"] = [curve("Auto", [0.0, 3.0], [1.0, 0.5])]
    assert outcome_of(runs).speedups == (None, None)


def test_a_target_that_only_auto_misses_counts_against_it():
    runs = {
        "Adam": [curve("Adam", [0.0, 5.0], [1.0, 0.005], budget=12.0)],
        "Auto": [curve("Auto", [0.0, 3.0], [1.0, 0.04], budget=20.0)],
    }
    found = outcome_of(runs)
    assert found.speedups == (pytest.approx(5 / 3), 0.25) and found.kinds == ("=", "<=")


def test_noisy_problems_are_judged_by_the_best_objective_of_anybody():
    runs = {
        "Adam": [curve("Adam", [0.0, 5.0], [9.0, 2.3])],
        "Auto": [curve("Auto", [0.0, 2.0, 4.0], [9.0, 2.3, 2.0]), curve("Auto", [0.0, 2.0, 6.0], [9.0, 2.2, 2.0])],
    }
    found = outcome_of(runs, noisy=True)
    assert found.of("Auto").seconds == (2.0, 4.0), "lower medians over the rounds"
    assert found.of("Adam").seconds == (5.0, None)
    assert found.of("Adam").final == pytest.approx(1.15)


def test_nan_is_not_solved():
    nan = torch.full((1, 2), torch.nan)
    run_ = outcome.Run.of("Adam", 1.0, gp_trace(nan))
    assert run_.errors.isinf().all() and run_.objectives.isinf().all()


def gp_trace(values):
    return Trace(torch.zeros(len(values)), torch.zeros(len(values)), values, values)


@pytest.mark.parametrize("key", "abcdefmn")
def test_the_truth_nearly_solves_every_problem(key):
    one = next(e for e in problems.ENTRIES if e.key == key)
    generator = sources.open_generator(one.generator)
    made = problems.instance(one, generator, 2, seed=0)
    there = made.problem.evaluate(made.truth, made.starts).objective
    start = made.problem.objective(made.starts)
    assert (there < (0.6 if one.noisy else 1e-9) * start).all()
    other = problems.instance(one, generator, 2, seed=1)
    assert not torch.equal(made.truth, other.truth)


def test_a_tiny_race(tmp_path, monkeypatch, capsys):
    tiny = budgets.Budget(2, 1, 0.002, 0.004, 0.05, 0.02)
    monkeypatch.setattr(run, "QUICK", dict.fromkeys(budgets.QUICK, tiny))
    words = ["bench", "race", "--problems", "c", "--quick", "--threads", "1", "--out", str(tmp_path)]
    assert cli.main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((tmp_path / "race.json").read_text())
    assert (tmp_path / "race.png").stat().st_size > 10_000
    (problem,) = found["problems"]
    names = [solver["solver"] for solver in problem["solvers"]]
    assert problem["key"] == "c" and names == [*contenders.grids(), *contenders.OURS, *contenders.PUBLISHED]
    assert found["workers"] == 1
    monkeypatch.setattr(run, "_one_problem", None)
    assert cli.main([*words, "--json"]) == 0, "what is stored is not raced again"
    again = json.loads(capsys.readouterr().out)
    assert again == found


def test_workers_race_whole_problems(monkeypatch, capsys, tmp_path):
    tiny = budgets.Budget(2, 1, 0.002, 0.004, 0.05, 0.02)
    monkeypatch.setattr(run, "QUICK", dict.fromkeys(budgets.QUICK, tiny))
    words = ["bench", "race", "--problems", "ac", "--quick", "--workers", "2", "--threads", "1"]
    assert cli.main([*words, "--out", str(tmp_path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "geometric mean" in shown and "2 problems at a time, which slow each other down" in shown
    found = json.loads((tmp_path / "race.json").read_text())
    assert (found["workers"], found["threads"]) == (2, 1)
    assert [len(problem["solvers"]) for problem in found["problems"]] == [11, 11]


def test_problems_are_in_their_order_whichever_is_solved_first(monkeypatch):
    monkeypatch.setattr(run, "_one_problem", lambda entry, *_: entry.key)
    said = []
    found = run.run_race(keys="dca", repeats=1, engine=Backwards(), announce=said.append)
    assert found.problems == ("a", "c", "d") and found.workers == 3
    assert said == [f"{done} of 3 problems, 3 of 3 workers" for done in range(3)]


def test_workers_race_on_their_own_cards(monkeypatch):
    seen = []
    monkeypatch.setattr(run, "open_generator", lambda name, device: seen.append(device))
    monkeypatch.setattr(run, "_one_problem", lambda entry, *_: entry.key)
    work = run.RaceWork(1, True, 0, "cuda", torch.get_num_threads() + 1)
    try:
        assert work.open(Place(number=1))(run.Heat("a", budgets.QUICK["mnist"])) == "a"
        assert torch.get_num_threads() == work.threads and seen == [Place(number=1).device("cuda")] != ["cuda"]
    finally:
        torch.set_num_threads(work.threads - 1)


def test_a_problem_that_its_workers_die_of_is_named(monkeypatch):
    monkeypatch.setattr(run, "_one_problem", lambda entry, *_: entry.key)
    with pytest.raises(EngineError, match=r"problem c of the race cannot be solved: 3 workers were lost"):
        run.run_race(keys="ac", engine=Backwards(poisoned=1))


def test_unknown_problems_are_refused(capsys):
    assert cli.main(["bench", "race", "--problems", "xyz"]) == 1
    assert "problems must be some of abcdefghijklmn, got 'xyz'" in capsys.readouterr().err


def test_tuning_takes_the_setting_with_the_lowest_objective():
    practice = problems.instance(problems.ENTRIES[0], load_generator("mnist"), 2, seed=1)
    tried = tuning.Tuning.begun(practice, budgets.Budget(2, 2, 0.1, 0.2, 0.3, 0.3), quick=True)
    choices = [gp.GradientDescent(1e-6), gp.GradientDescent(), gp.GradientDescent(1e-5)]
    found = tried.tuned("gradient descent", choices)
    assert found.method.solver == gp.GradientDescent() and found.role == "baseline"
    assert found.starts in budgets.Budget(2, 2, 0.1, 0.2, 0.3, 0.3).starts and found.starts == found.method.starts


def test_the_number_of_starts_is_tuned_by_the_time_until_most_images_are_solved(monkeypatch):
    truth = {1: (1.0, [0.01, 0.9]), 4: (0.75, [0.01, 0.02]), 16: (2.0, [0.01, 0.02])}
    tried = []

    def made_up(contest, name, method, seconds):
        time, errors = truth[method.starts]
        tried.append((method.starts, seconds))
        errors = torch.tensor([errors])
        return outcome.Run(name, seconds, torch.tensor([min(time, seconds)]), torch.tensor([1]), errors, errors)

    monkeypatch.setattr(tuning, "run_one", made_up)
    practice = problems.Instance(entry(), None, None, None)
    state = tuning.Tuning(practice, budgets.Budget(2, 2, 0.1, 5.0, 9.0, 9.0), False, torch.full((2,), math.inf))
    found = state.tuned("Adam", [gp.Adam(0.1)])
    assert found.starts == 4 and not found.most_starts
    assert tried[-2:] == [(4, 5.0), (16, 0.75)], "one that is later than the best has lost"


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
    assert outcome_of(runs).leaders() == ["Adam", "L-BFGS"]
    del runs["L-BFGS"]
    assert outcome_of(runs).leaders() == ["Adam"], "nearest, where none arrived"


def test_numbers_are_plain():
    empty = race_numbers(run.Race((), 1, True, 1))
    assert empty["speedup_loose"] is None and empty["never_fewer_solved"] is True
    assert empty["others"] == {"speedup_loose": None, "speedup_tight": None, "smallest_speedup": None}


# -- methods -----------------------------------------------------------------------------------------------------------


def small(noisy=False, count=3):
    """Discs from exact measurements."""
    generator = soft_discs(side=12)
    one = problems.Entry("a", "discs", "none", noisy, problems._structured(0.5))
    return problems.instance(one, generator, count, seed=0)


def test_auto_runs_as_a_user_runs_it():
    contest = small(noisy=True)
    watch = methods.Watch(contest, 60.0)
    trace = methods.Unaided(gp.Auto()).run(contest, watch)
    alone = gp.solve(contest.problem)
    assert trace.passes[-1] == alone.forwards + alone.backwards - pool_passes(contest), "kept from the first run"
    assert torch.equal(trace.objectives[-1], alone.objective.cpu()) and trace.seconds[-1] < 60


def pool_passes(contest):
    """The second of two runs finds the pool and the preconditioner of the first."""
    contest.problem.generator.forget()
    first = gp.solve(contest.problem, stop=gp.MaxSteps(0))
    second = gp.solve(contest.problem, stop=gp.MaxSteps(0))
    return -(first.forwards + first.backwards - second.forwards - second.backwards)


def test_a_run_ends_when_nothing_is_left_to_be_measured():
    contest = small()
    near = contest.problem.generator.sample_latent(3, seed=1000) + 0.05  # of the truth
    contest = dataclasses.replace(contest, starts=near)
    trace = methods.Baseline(gp.LBFGS()).run(contest, methods.Watch(contest, 10.0))
    assert (trace.errors[-1] <= problems.ERRORS[1]).all() and (trace.errors[-2] > problems.ERRORS[1]).any()


def test_all_baselines_begin_at_the_same_first_start():
    contest = small()
    first = contest.problem.objective(contest.starts)
    for starts in (1, 4):
        trace = methods.Baseline(gp.Adam(), starts).run(contest, methods.Watch(contest, 0.0))
        assert (trace.objectives[0] <= first * (1 + 1e-5)).all()
        assert starts > 1 or torch.allclose(trace.objectives[0], first)


def test_joint_lbfgs_is_that_of_torch():
    contest = small(noisy=True)
    trace = methods.DFlow(iterations=5, steps=1).run(contest, methods.Watch(contest, 60.0))
    z = contest.starts.clone().requires_grad_()
    optimiser = torch.optim.LBFGS([z], max_iter=5, history_size=100, line_search_fn="strong_wolfe")
    seen = []

    def total():
        optimiser.zero_grad()
        A, y = contest.problem.loss.operator, contest.problem.loss.y
        values = 0.5 * (A(contest.problem.generator(z)) - y).square().flatten(1).sum(dim=1)
        values.sum().backward()
        seen.append(values.detach())
        return values.sum()

    optimiser.step(total)
    best = torch.stack(seen).cummin(dim=0).values
    assert trace.objectives.shape == best.shape and torch.allclose(trace.objectives, best, rtol=1e-3)
    assert trace.passes.tolist() == [2 * (number + 1) for number in range(len(best))]


def test_csgm_stops_an_image_when_its_loss_is_at_rest():
    contest = small(noisy=True)
    method = methods.Csgm(step_size=0.05, tolerance=1e-2, iterations=400)
    trace = method.run(contest, methods.Watch(contest, 60.0))
    assert trace.passes[-1] < 2 * 400
    never = methods.Csgm(step_size=0.05, tolerance=0.0, iterations=40)
    longer = never.run(contest, methods.Watch(contest, 60.0))
    assert len(longer.seconds) == 41, "all iterations"


# -- where generators come from ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["decoder", "flow"])
def test_drawn_generators_have_large_latents_and_pass_our_own_check(name):
    generator = sources.open_generator(name)
    assert math.prod(generator.latent_shape) > 1000
    x = generator(generator.sample_latent(2, seed=3))
    again = sources.open_generator(name)(generator.sample_latent(2, seed=3))
    assert torch.equal(x, again) and x.std() > 0.05


def test_the_flow_is_that_of_its_mixture():
    flow = networks.MixtureFlow(side=6, centres=1, steps=400).double()
    z = torch.randn(4, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    spectrum = torch.fft.rfft2(z[:, 0], norm="ortho")
    exact = flow.centres + flow.variances.sqrt() * spectrum  # one Gaussian: the flow is its affine map
    expected = torch.fft.irfft2(exact, s=(6, 6), norm="ortho")[:, None]
    assert torch.allclose(flow(z), expected, atol=0.02)


def test_the_velocity_of_a_mixture_is_a_conditional_mean():
    flow = networks.MixtureFlow(side=4, centres=3, steps=1).double()
    x = torch.randn(1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    t = 0.6
    covariance = dense(flow.variances, 4)
    means = torch.fft.irfft2(flow.centres, s=(4, 4), norm="ortho").reshape(3, 16)
    spread = (1 - t) ** 2 * torch.eye(16, dtype=torch.float64) + t**2 * covariance
    away = x.reshape(16) - t * means
    solved = torch.linalg.solve(spread, away.T).T
    weights = torch.softmax(-0.5 * (away * solved).sum(dim=1), dim=0)
    each = means + solved @ (t * covariance - (1 - t) * torch.eye(16, dtype=torch.float64))
    expected = (weights[:, None] * each).sum(dim=0).reshape(1, 4, 4)
    found = torch.fft.irfft2(flow.velocity(torch.fft.rfft2(x, norm="ortho"), t), s=(4, 4), norm="ortho")
    assert torch.allclose(found, expected, atol=1e-6)


def dense(variances, side):
    """The covariance whose variances at all frequencies are these, as a matrix."""
    units = torch.eye(side * side, dtype=torch.float64).reshape(-1, side, side)
    spectra = torch.fft.rfft2(units, norm="ortho") * variances
    return torch.fft.irfft2(spectra, s=(side, side), norm="ortho").reshape(side * side, -1)


def test_problems_without_their_package_are_left_out_with_the_reason(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(run, "_one_problem", lambda entry, *_: stored(entry.key))
    found = run.run_race(keys="ai", quick=True)
    assert [problem.key for problem in found.problems] == ["a"] and list(found.skipped) == ["i"]
    assert "`download=True`" in found.skipped["i"] and "gan-face-generate" in found.skipped["i"]
    assert any("(i) left out" in note for note in notes_on(found))
    with pytest.raises(ValueError, match="`download=True` fetches it"):
        run.run_race(keys="i", quick=True)
    asked = []
    monkeypatch.setattr(run, "open_generator", lambda name, device: None)
    monkeypatch.setattr(sources, "open_third_party", lambda name: None)
    monkeypatch.setattr(sources, "download_archive", lambda name, announce: asked.append(name))
    run.run_race(keys="ai", quick=True, download=True)
    assert asked == ["faces"]


def test_a_quick_race_needs_no_package(monkeypatch):
    monkeypatch.setattr(run, "_one_problem", lambda entry, *_: stored(entry.key))
    found = run.run_race(quick=True)
    assert "".join(problem.key for problem in found.problems) == "abcdefghmn" and not found.skipped


# -- what is kept ------------------------------------------------------------------------------------------------------


def stored(key="a"):
    runs = {
        "Adam": [curve("Adam", [0.0, 4.0, 8.0], [1.0, 0.04, 0.02])],
        "Auto": [curve("Auto", [0.0, 1.0, 2.0], [1.0, 0.04, 0.005])],
    }
    one = next(entry for entry in problems.ENTRIES if entry.key == key)
    return outcome.outcome_of(one, runs, field(runs), 1.0)


def test_an_outcome_that_is_kept_is_the_same(tmp_path):
    folder, identity = kept.Kept(tmp_path), {"seed": 0}
    assert folder.read("a", identity) is None
    folder.write(stored(), identity)
    found = folder.read("a", identity)
    assert race_numbers(run.Race((found,), 1, True, 1)) == race_numbers(run.Race((stored(),), 1, True, 1))
    for name, (seconds, measure) in stored().curves.items():
        assert torch.equal(found.curves[name][0], seconds) and torch.equal(found.curves[name][1], measure)


def test_an_outcome_of_another_race_is_set_aside(tmp_path):
    folder = kept.Kept(tmp_path)
    folder.write(stored(), {"seed": 0})
    with pytest.warns(UserWarning, match="belongs to another job"):
        assert folder.read("a", {"seed": 1}) is None


def test_a_race_that_was_cut_short_continues(tmp_path, monkeypatch):
    raced = []

    def one_problem(entry, *_):
        raced.append(entry.key)
        if len(raced) == 2:
            raise KeyboardInterrupt
        return stored(entry.key)

    monkeypatch.setattr(run, "_one_problem", one_problem)
    with pytest.raises(KeyboardInterrupt):
        run.run_race(keys="abf", quick=True, keep=tmp_path)
    found = run.run_race(keys="abf", quick=True, keep=tmp_path)
    assert raced == ["a", "b", "b", "f"] and [problem.key for problem in found.problems] == ["a", "b", "f"]
