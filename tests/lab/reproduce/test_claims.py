"""Verdicts follow from numbers, and the numbers from curves: hand-made ones with known answers."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import genprior as gp
from genprior.defence.projection import default_solver
from genprior.lab.reproduce import EXPERIMENTS, claims, defence, plateau, reproduce, run
from genprior.lab.reproduce import compressive_sensing as sensing
from genprior.lab.reproduce import defender as defender_module
from genprior.lab.reproduce.claims import (
    FAILS,
    HOLDS,
    NOT_JUDGED,
    PARTLY,
    UNDECIDED,
    Comparison,
    first_step,
    graded,
    slope,
    together,
    within,
)
from genprior.lab.reproduce.code import code_of
from genprior.lab.reproduce.contest import Contest, Setting, chosen, quartiles, race, tuning_part
from genprior.lab.reproduce.defender import Defender
from genprior.lab.reproduce.judging_defence import Looks, _known, _linf_first, paired
from genprior.lab.reproduce.judging_races import (
    _adam_is_slow,
    _ahead,
    _cost,
    _gd_stands,
    _healthy,
    _passes_adam,
)
from genprior.lab.reproduce.methods import denoising_methods, grid, sensing_methods
from genprior.lab.reproduce.parts import Found, unique
from genprior.lab.reproduce.run import settings_of
from genprior.lab.reproduce.sizes import FULL, QUICK
from genprior.lab.reproduce.tuning import watched
from genprior.models.examples import soft_discs
from genprior.operators import dense


def curve(values, name="objective", **numbers):
    column = np.repeat(np.asarray(values, float)[:, None], 3, axis=1)
    return Found({"solver": "?"} | numbers, {"objective": column, "error": column, "linf": column} | {name: column})


def test_graded():
    assert graded([True, True]) == HOLDS and graded([True, False]) == PARTLY and graded([False]) == FAILS


def test_within():
    assert within(1.0, (0, 2), (0, 3)) == HOLDS and within(2.5, (0, 2), (0, 3)) == PARTLY
    assert within(4.0, (0, 2), (0, 3)) == within(None, (0, 2), (0, 3)) == within(np.nan, (0, 2), (0, 3)) == FAILS


def test_first_step_and_slope():
    assert first_step(np.array([3.0, 2.0, 1.0]), 2.0) == 1 and first_step(np.array([3.0]), 2.0) is None
    assert slope([1, 10, 100], [5, 0.5, 0.05]) == pytest.approx(-1)


@pytest.mark.parametrize(
    ("ours", "verdict"), [([9, 4, 1], HOLDS), ([9, 6, 1], PARTLY), ([9, 6, 3], FAILS), ([9, 5, 2], UNDECIDED)]
)
def test_ahead_at_half_and_at_the_end(ours, verdict):
    results = {"f.run.exact": curve(ours), "f.run.gd": curve([9, 5, 2])}
    assert _ahead(results, "f", "mnist", 0.5, "exact").verdict == verdict


def test_a_few_pictures_ahead_by_luck_are_no_proof():
    """The mean is ahead owing to one picture of eight: undecided, from either side. Ahead on every one: holds."""
    theirs = np.array([1.0, 1, 1, 1, 1, 1, 1, 40])
    lucky = np.array([1.2, 1.2, 1.2, 1.2, 1.2, 1.2, 1.2, 4])
    found = claims.compared(lucky, theirs)
    assert found.ratio < 1 < found.high and found.median_ratio > 1 and found.won == pytest.approx(1 / 8)
    assert found.verdict == UNDECIDED == claims.compared(theirs, lucky).verdict
    assert claims.compared(0.8 * theirs, theirs).verdict == HOLDS
    assert claims.compared(1.25 * theirs, theirs).verdict == FAILS
    assert claims.compared(lucky, theirs) == found, "seeded"


def test_where_most_pictures_contradict_their_mean_it_holds_partly():
    """Sixteen of forty gain much, the others lose a little: the mean is ahead beyond doubt, most pictures are not."""
    few = np.arange(40) < 16
    theirs, ours = np.where(few, 10.0, 1.0), np.where(few, 1.0, 1.1)
    found = claims.compared(ours, theirs)
    assert found.high < 1 < found.median_ratio and found.won == 0.4
    assert found.verdict == PARTLY == claims.compared(theirs, ours).verdict


@pytest.mark.parametrize(
    ("low", "high", "medians", "won", "verdict"),
    [
        (0.93, 0.99, 1.03, 0.7, HOLDS),
        (0.93, 0.99, 0.97, 0.3, HOLDS),
        (0.93, 0.99, 1.03, 0.5, PARTLY),
        (1.01, 1.07, 0.97, 0.3, FAILS),
        (1.01, 1.07, 1.03, 0.7, FAILS),
        (1.01, 1.07, 0.97, 0.7, PARTLY),
        (0.9, 1.0, 0.5, 1.0, UNDECIDED),
        (1.0, 1.1, 1.5, 0.0, UNDECIDED),
        (np.nan, np.nan, np.nan, 0.9, FAILS),
    ],
)
def test_the_same_rule_on_both_sides_of_one(low, high, medians, won, verdict):
    assert Comparison((low + high) / 2, low, high, medians, won, 10).verdict == verdict


@pytest.mark.parametrize(
    ("verdicts", "whole"),
    [
        ([HOLDS, HOLDS], HOLDS),
        ([UNDECIDED, UNDECIDED], UNDECIDED),
        ([HOLDS, UNDECIDED], PARTLY),
        ([FAILS, UNDECIDED], FAILS),
        ([HOLDS, FAILS], PARTLY),
        ([FAILS, PARTLY], PARTLY),
        ([UNDECIDED, PARTLY], PARTLY),
        ([HOLDS, FAILS, UNDECIDED], PARTLY),
    ],
)
def test_parts_of_a_claim_together(verdicts, whole):
    assert together(verdicts) == together(verdicts[::-1]) == whole


def test_bootstrap_interval_against_the_delta_method():
    random = np.random.default_rng(3)
    theirs = random.uniform(1, 2, 400)
    ours = 0.9 * theirs + random.uniform(-0.3, 0.3, 400)
    found = claims.compared(ours, theirs)
    deviation = (ours - found.ratio * theirs).std() / theirs.mean() / 20
    assert found.low == pytest.approx(found.ratio - 1.96 * deviation, abs=0.15 * deviation)
    assert found.high == pytest.approx(found.ratio + 1.96 * deviation, abs=0.15 * deviation)


@pytest.mark.parametrize(("start", "verdict"), [(50, HOLDS), (150, PARTLY), (None, FAILS)])
def test_when_adam_is_passed(start, verdict):
    admm = np.ones(200)
    if start is not None:
        admm[start:] = 0.1
    results = {
        "linf-denoising.linf.run.adam": curve(np.linspace(1, 0.2, 300)),
        "linf-denoising.linf.run.exact": curve(admm),
    }
    found = _passes_adam(results, "linf", "exact")
    assert found.verdict == verdict and found.numbers["step"] == start


@pytest.mark.parametrize("steps", [60, 100])
def test_short_runs_do_not_judge_who_passes_whom(steps):
    flat = curve(np.ones(steps + 1))
    long = curve(np.linspace(1, 0.2, 300))
    for adam, admm in ((long, flat), (flat, long)):
        runs = {"linf-denoising.linf.run.adam": adam, "linf-denoising.linf.run.exact": admm}
        found = _passes_adam(runs, "linf", "exact")
        assert (found.verdict == NOT_JUDGED) == (steps < 100)
        assert ("Only 60 iterations were run, too few to judge" in found.finding) == (steps < 100)


@pytest.mark.parametrize(
    ("half", "steps", "verdict"),
    [(None, 60, NOT_JUDGED), (None, 199, NOT_JUDGED), (None, 200, HOLDS), (20, 60, FAILS), (150, 300, PARTLY)],
)
def test_short_runs_do_not_judge_whether_adam_is_slow(half, steps, verdict):
    values = np.ones(steps + 1)
    if half is not None:
        values[half:] = 0.4
    found = _adam_is_slow({"linf-denoising.linf.run.adam": curve(values)})
    assert found.verdict == verdict
    assert ("more than were run" in found.finding) == (verdict == NOT_JUDGED)


@pytest.mark.parametrize(("end", "verdict"), [(0.97, HOLDS), (0.9, PARTLY), (0.5, FAILS)])
def test_gradient_descent_is_judged_by_its_best_step(end, verdict):
    """The tuned one may stand still where another one, over all iterations, does not."""
    results = {
        "linf-denoising.linf.run.gd": curve([1, 1, 1], solver="a"),
        "linf-denoising.linf.steps.2": curve([1, 1, end], solver="b"),
        "linf-denoising.linf.steps.4": curve([1, 2, 3], solver="c"),
    }
    found = _gd_stands(results, "linf")
    assert (
        found.verdict == verdict and found.numbers["end"] == pytest.approx(end) and "best of 3 steps" in found.finding
    )


def test_every_tuned_method_has_as_many_settings():
    for methods in (sensing_methods(8, "mnist", 0.5), *(denoising_methods(8, norm) for norm in ("linf", "l1", "l2"))):
        assert {len(method.choices) for method in methods if method.tuned} == {8}
        assert [method.key for method in methods if not method.tuned] == ["auto"]
    assert {len(method.choices) for method in sensing_methods(3, "celeba", 0.2) if method.tuned} == {3}


@pytest.mark.parametrize("methods", [sensing_methods(8, "mnist", 0.5), denoising_methods(8, "linf")])
def test_tuning_sees_the_schedule_of_the_race(methods):
    """At the same share of a short and of a long run, Algorithm 2 has the same penalty: the last one for most of it."""
    method = next(one for one in methods if one.key == "exact")
    for short, long in zip(method.solvers(100), method.solvers(1000), strict=True):
        for share in (0.05, 0.15, 0.25, 0.5, 0.99):
            values = [
                float(solver.penalty(torch.tensor([share * steps]), torch.ones(1), torch.ones(1), None))
                for solver, steps in ((short, 100), (long, 1000))
            ]
            assert values[0] == values[1], share
        assert values[0] == 2**short.penalty.scales
        assert float(long.penalty(torch.tensor([500.0]), torch.ones(1), torch.ones(1), None)) == values[0]


def test_a_setting_at_the_edge_of_its_grid_is_told():
    method = grid("exact", gp.ADMM, 9, rho=(1, 1, 1, 2, 2, 2, 3, 3, 3), pull=(5, 6, 7) * 3)
    assert [method.edges(number) for number in (0, 1, 4, 5)] == [["rho", "pull"], ["rho"], [], ["pull"]]
    assert grid("auto", gp.Auto, 1, step=(1.0,)).edges(0) == []
    assert method.places(5) == {"rho": "inside", "pull": "at the edge"}


def test_of_two_values_none_is_inside():
    method = grid("exact", gp.ADMM, 4, rho=(1, 1, 2, 2), pull=(5, 6, 7, 5), share=(3, 3, 3, 3))
    assert method.places(1) == {"rho": "one of two", "pull": "inside"} and method.edges(1) == []


def test_tuning_is_not_left_to_three_faces():
    assert min(size.tuning_pictures for size in (FULL.faces, FULL.digits)) >= 5


def discs():
    generator = soft_discs()
    truth = generator(generator.sample_latent(3, seed=1)).detach()
    problem = gp.Problem(generator, loss=gp.SquaredDistance(truth, 1.0))
    return Contest(problem, generator.sample_latent(3, seed=2), {})


def test_tuning_takes_the_lowest_mean_objective():
    method = grid("gd", gp.GradientDescent, 3, step_size=(1e-6, 0.01, 1e-5))
    found = tuning_part("t", method, lambda count, practice: discs(), 3, 20, "mnist").run({})
    assert found.numbers["chosen"] == 1 and found.numbers["scores"][1] == min(found.numbers["scores"])


def test_a_choice_of_other_code_is_refused():
    method = grid("gd", gp.GradientDescent, 3, step_size=(1e-6, 0.01, 1e-5))
    found = {"t": tuning_part("t", method, lambda count, practice: discs(), 3, 4, "mnist").run({})}
    assert chosen(method, found, "t", 100) == gp.GradientDescent(0.01)
    other = grid("gd", gp.GradientDescent, 3, step_size=(1e-6, 0.02, 1e-5))
    with pytest.raises(ValueError, match=r"t chose GradientDescent\(step_size=0.01.*the code has changed"):
        chosen(other, found, "t", 100)


def test_settings_tell_other_methods_torch_threads_and_faces_apart(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    folders = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    shades = random.integers(0, 255, (4, 64, 64, 3), dtype=np.uint8)
    for folder, shift in zip(folders, (0, 0, 40), strict=True):
        folder.mkdir()
        for number, picture in enumerate(shades):
            Image.fromarray(picture // 2 + np.uint8(shift)).save(folder / f"{number}.png")
    same, again, other = (settings_of(Setting(QUICK, faces=folder)) for folder in folders)
    assert same == again and other["faces"] != same["faces"] and {"torch", "threads"} <= same.keys()
    monkeypatch.setattr("genprior.lab.reproduce.methods._STEPS", (0.001, 0.003, 0.011, 1, 1, 1, 1, 1))
    assert settings_of(Setting(QUICK))["methods"] != same["methods"]


def test_binomial_interval_against_its_definition():
    """Wilson: the shares p at which the observed one is 1.96 deviations away."""
    for right, count in ((3, 50), (25, 50), (1900, 2000)):
        for p in claims.binomial(right, count):
            assert abs(right / count - p) == pytest.approx(1.959964 * np.sqrt(p * (1 - p) / count), rel=1e-6)
    assert claims.binomial(0, 50)[0] == 0 and claims.binomial(50, 50)[1] == pytest.approx(1)


def test_a_picture_has_its_start_whatever_is_looked_at():
    defender = Defender(Setting(QUICK), "exact", gp.Auto())
    whole = defender.starts(20)
    assert torch.equal(defender.starts(3), whole[:3]) and torch.equal(defender.starts(5, 10), whole[10:15])
    assert (FULL.defence.bpda_pictures, FULL.defence.bpda_steps) >= (50, 30)


@pytest.mark.parametrize(
    ("bpda", "latent", "verdict", "word"),
    [
        (0.5, 0.5, HOLDS, "broken"),
        (0.85, 0.9, UNDECIDED, "perhaps"),
        (0.95, 0.97, FAILS, "not broken by these attacks"),
    ],
)
def test_the_worst_attack_of_each_picture_counts(bpda, latent, verdict, word):
    places = np.arange(100)
    results = {
        "defence.run.exact.0": Found({}, {"right": np.ones(200, bool)}),
        "defence.bpda.exact": Found(
            {"unattacked_accuracy": 1.0, "pictures": 100}, {"right": places < round(100 * bpda)}
        ),
        "defence.latent.exact": Found({}, {"right": places >= 100 - round(100 * latent)}),
    }
    found = _known(results, "exact")
    assert found.numbers["worst"] == pytest.approx(bpda + latent - 1) and found.numbers["pictures"] == 100
    assert found.verdict == verdict and word in found.finding and "stands" not in found.paper + found.finding


def test_the_last_iterate_shows_that_a_step_overshoots():
    found = race(watched(discs()), gp.GradientDescent(3.0), 6)
    current, best = found.arrays["current"], found.arrays["objective"]
    assert np.array_equal(best[: len(current)], np.minimum.accumulate(current)), "the best of them is the best so far"
    assert (current[-1] > best[-1]).any()


def test_the_theorems_largest_penalty_is_that_of_the_loss():
    problem, start, _ = plateau.synthetic(0, 2.0)
    assert float(problem.loss.curvature(problem.generator(start))[0].min()) == 2 * plateau.LARGEST_PENALTY


def test_missing_digits_are_missed_before_the_first_part(tmp_path, monkeypatch):
    def none(split):
        raise RuntimeError("t10k could not be downloaded")

    monkeypatch.setattr(defender_module, "mnist", none)
    defender_module._test_digits.cache_clear()
    monkeypatch.setattr("genprior.lab.reproduce.run.run_parts", lambda *_: pytest.fail("nothing is to be run"))
    with pytest.raises(RuntimeError, match="could not be downloaded"):
        reproduce(("plateau", "defence"), tmp_path)


def test_paired_differences_of_accuracies():
    ours, theirs = np.arange(400) % 4 != 0, np.arange(400) % 2 != 0
    mean, low, high = paired(ours, theirs)
    assert mean == 0.25 and mean - low == pytest.approx(high - mean)
    assert high - mean == pytest.approx(1.96 * np.sqrt(0.25 * 0.75 / 400), rel=0.01), "a quarter differ, all one way"
    assert paired(ours, theirs[:100])[0] == 0.25 and paired(ours, ours) == (0, 0, 0)


def test_a_defence_between_two_looks():
    right = np.array([[False, False], [True, False], [True, True]])
    seen = Looks([1, 11, 31], right)
    assert seen.at(1).tolist() == [0, 0] and seen.at(6).tolist() == [0.5, 0] and seen.at(11).tolist() == [1, 0]
    assert seen.at(16).tolist() == [1, 0.25] and seen.at(31).tolist() == [1, 1] == seen.at(99).tolist()
    assert Looks([1, 11, 11], right).at(11).tolist() == [1, 0], "the first look at so many passes"
    assert seen.first(0.5) == 11 and seen.first(0.6) == 31 and Looks([1], right[:1]).first(0.1) is None


def defences(**accuracies):
    """Runs of defences that read the first so many of 200 digits right at looks after 1, 101, 201, 301, 401 passes."""
    found = {}
    for key, several in accuracies.items():
        right = np.arange(200) < np.round(200 * np.array(several))[:, None]
        numbers = {
            "steps": [50 * number for number in range(len(several))],
            "passes": [1 + 100 * number for number in range(len(several))],
            "right": right.sum(axis=1).tolist(),
            "pictures": 200,
        }
        times = {"seconds": [0.0] * len(several)}
        found[f"defence.run.{key.replace('_', '-')}.0"] = Found(numbers, {"right_at": right}, times)
    return found


@pytest.mark.parametrize(
    ("exact", "error", "computation", "verdict", "told"),
    [
        ((0.1, 0.2, 0.7), HOLDS, PARTLY, PARTLY, "reaches after 201"),
        ((0.1, 0.6, 0.7), HOLDS, HOLDS, HOLDS, "reaches after 101"),
        ((0.1, 0.2, 0.3), FAILS, FAILS, FAILS, "does not reach"),
        ((0.1, 0.2, 0.5), PARTLY, FAILS, PARTLY, "does not reach"),
    ],
)
def test_ahead_late_is_not_ahead_with_less_computation(exact, error, computation, verdict, told):
    """Adam is at its best after 101 passes and falls: whoever waits long enough is ahead of it."""
    size = dataclasses.replace(QUICK.defence, pictures=200, chunk=200, control_pictures=200)
    setting = Setting(dataclasses.replace(QUICK, defence=size))
    rivals = {"adam": (0.1, 0.55, 0.5, 0.45, 0.4), "gd": (0.1, 0.4, 0.55, 0.55, 0.55)}
    found = _linf_first(setting, defences(exact=exact, exact_l2=exact, **rivals), "exact")
    assert found.numbers["lower_error"] == error and found.numbers["less_computation"] == computation
    assert found.verdict == verdict
    assert f"the best of Adam is 55.0% after 101, which exact ADMM {told}" in found.finding
    quarter = found.numbers["at_shares"]["Adam"][0][0]
    assert quarter == pytest.approx(np.interp(50.25, [1, 101], exact[:2]) - np.interp(50.25, [1, 101], [0.1, 0.55]))


def test_an_interval_of_points_that_includes_none_is_undecided():
    size = dataclasses.replace(QUICK.defence, pictures=200, chunk=200, control_pictures=200)
    setting = Setting(dataclasses.replace(QUICK, defence=size))
    same = dict.fromkeys(("exact", "exact_l2", "adam", "gd"), (0.1, 0.4, 0.5))
    assert _linf_first(setting, defences(**same), "exact").verdict == UNDECIDED


@pytest.mark.parametrize(("forwards", "verdict"), [(31, HOLDS), (61, PARTLY)])
def test_the_cost_of_an_iteration_is_counted(forwards, verdict):
    """Two forward passes for exact ADMM, as the paper counts, would be seen."""
    field = sensing.field_name("mnist", QUICK.digits.main, "range")
    numbers = {"forwards": 31, "backwards": 30, "steps": 30}
    results = {f"{field}.run.{key}": Found(dict(numbers)) for key in ("gd", "linearized")}
    results[f"{field}.run.exact"] = Found(numbers | {"forwards": forwards})
    found = _cost(Setting(QUICK), results)
    assert found.verdict == verdict and found.ours


def test_a_dual_is_told_with_the_share_of_its_own_bound():
    """The longest dual belongs to the case with the larger first step, not to the one that uses most of its bound."""
    results = {}
    for case, sigma, largest in (("linf", 0.01, 0.02), ("linf-sign", 0.001, 0.003)):
        for key in ("exact", "exact-adam"):
            arrays = {"w_from_y": np.ones((4, 3)), "dual": np.full((4, 3), largest)}
            name = f"linf-denoising.{case}.run.{key}"
            results[name] = Found({"solver": f"ExactADMM(dual=Paper(sigma={sigma}), penalty=?)"}, arrays)
    found = _healthy(results)
    assert found.verdict == HOLDS
    assert "0.02, 59.0% of the rule's bound, without" in found.finding
    assert "0.003, 88.5% of the rule's bound, with noise" in found.finding


def test_a_race_repeats_exactly_and_runs_all_steps():
    first, second = (race(discs(), gp.ExactADMM(), 15) for _ in range(2))
    assert first.numbers == second.numbers and first.numbers["steps"] == 15
    assert first.numbers["forwards"] == 16 and len(first.arrays["objective"]) == 16
    for name in first.arrays.keys() - {"seconds"}:
        assert np.array_equal(first.arrays[name], second.arrays[name]), name
    assert (np.diff(first.arrays["objective"], axis=0) <= 0).all(), "the best so far"


def test_an_interrupted_race_does_not_count():
    def stop(view):
        raise KeyboardInterrupt

    contest = discs()
    with pytest.raises(KeyboardInterrupt):
        race(Contest(contest.problem, contest.starts, {}, stop), gp.Adam(), 5)


def test_quartiles():
    assert quartiles(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])) == {"q25": 2, "median": 3, "q75": 4, "mean": 3}
    assert quartiles(torch.tensor([torch.inf, torch.inf]))["mean"] is None


def test_rate_of_a_known_fall():
    steps = np.arange(400)[:, None]
    assert plateau.fitted_rate(0.9**steps * np.array([[1.0, 3.0]])) == pytest.approx(0.1, rel=1e-6)


def test_synthetic_generators_have_the_conditioning_they_claim():
    """Against the singular values of the Jacobian at random points."""
    problem, start, _ = plateau.synthetic(0, 8.0)
    sizes = torch.linalg.svdvals(problem.generator.jacobian(start))
    ratio = sizes[:, 0] / sizes[:, -1]
    assert ((ratio > 8 / 1.2) & (ratio < 8 * 1.2)).all()


def test_synthetic_solutions_against_another_optimiser():
    problem, start, solution = plateau.synthetic(0, 4.0)
    z = start.clone().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [z], max_iter=300, tolerance_grad=1e-12, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )

    def value():
        optimiser.zero_grad()
        loss = problem.loss(problem.generator(z)).sum()
        loss.backward()
        return loss

    optimiser.step(value)
    torch.testing.assert_close(solution, problem.generator(z).detach(), atol=1e-6, rtol=0)


def test_verdict_words():
    assert (claims.HOLDS, claims.PARTLY, claims.FAILS) == ("holds", "holds partly", "does not hold")
    assert (claims.UNDECIDED, claims.NOT_JUDGED) == ("undecided", "not judged")


def test_nobody_pays_for_the_factorisation(monkeypatch):
    """Also not the first one after a run was killed: the operator comes factorised, once, and the time is told."""
    made = []
    inner = dense._factors_of
    monkeypatch.setattr(dense, "_factors_of", lambda matrix: made.append(matrix.shape) or inner(matrix))
    contest = sensing.contest(Setting(QUICK, seed=7), "mnist", 33, "range", 2, False)
    assert made == [(33, 784)] and contest.preparation > 0
    found = [race(contest, solver, 2) for solver in (gp.GradientDescent(0.01), gp.ExactADMM())]
    again = sensing.contest(Setting(QUICK, seed=7), "mnist", 33, "range", 3, True)
    assert len(made) == 1 and again.preparation == contest.preparation
    assert {one.times["preparation_seconds"] for one in found} == {contest.preparation}


def test_the_defence_that_is_attacked_is_of_the_kind_that_is_shipped():
    attacked = next(method for method in defence.methods(8) if method.key == defence.KNOWN[0])
    assert repr(default_solver("linf")) in {repr(solver) for solver in attacked.solvers(300)}


def test_the_full_run_is_estimated_at_an_hour_and_a_half():
    """By a model that counts factorisations and every projection of an attack that knows the defence."""
    parts = unique(part for one in EXPERIMENTS.values() for part in one.parts(Setting(FULL)))
    assert 70 * 60 < sum(part.cost for part in parts) < 95 * 60
    costs = {part.name: part.cost for part in parts}
    bpda, run = costs["defence.bpda.exact-adam"], costs["defence.run.exact-adam.0"]
    assert bpda > FULL.defence.bpda_steps * run * FULL.defence.bpda_pictures / FULL.defence.chunk


def test_the_large_matrix_is_factorised_once_for_tuning_and_sensing():
    faces = [
        one.name
        for one in unique(
            part for name in ("tuning", "compressive-sensing") for part in EXPERIMENTS[name].parts(Setting(FULL))
        )
        if ".celeba." in one.name
    ]
    order = [name.split(".m")[1].split(".")[0] for name in faces]
    assert len(list(itertools.groupby(order))) == len(set(order)) == 3


def test_real_faces_come_from_the_person_and_practice_ones_are_others(tmp_path):
    random = np.random.default_rng(0)
    for number in range(4):
        Image.fromarray(random.integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(tmp_path / f"{number}.png")
    setting = Setting(QUICK, faces=tmp_path)
    contest, practice = (sensing.contest(setting, "celeba", 10, "real", 2, which) for which in (False, True))
    assert contest.problem.batch == practice.problem.batch == 2
    assert not torch.equal(
        contest.problem.loss(contest.starts.new_zeros(2, 3, 64, 64)),
        practice.problem.loss(contest.starts.new_zeros(2, 3, 64, 64)),
    )
    assert any(".celeba.real." in part.name for part in sensing.parts(setting))
    with pytest.raises(ValueError, match="holds 4 images, expected at least 6"):
        sensing.contest(setting, "celeba", 10, "real", 3, True)


CODE = {
    "own/__init__.py": "",
    "own/lab/run.py": '"""Runs."""\nimport numpy\nfrom own.parts import part  # a comment\nfrom own import solvers\n',
    "own/parts.py": "def part(x):\n    from own.deep.inner import y\n    return x + y\n",
    "own/deep/__init__.py": "",
    "own/deep/inner.py": "y = 1\n",
    "own/solvers/__init__.py": "from own.solvers.auto import Auto\n",
    "own/solvers/auto.py": "class Auto:\n    z = 3\n",
    "own/report.py": "from own.parts import part\nshown = 1\n",
}


@pytest.fixture
def digest(tmp_path):
    """Of the code in ``CODE``, with some files replaced, added or removed."""

    def found(**changes):
        shutil.rmtree(tmp_path / "own", ignore_errors=True)
        for name, text in (CODE | changes.get("files", {})).items():
            if text is not None:
                (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / name).write_text(text)
        return code_of(["own.lab.run"], tmp_path)

    return found


@pytest.mark.parametrize(
    "files",
    [
        {"own/report.py": "shown = 2"},
        {"own/parts.py": '"""Words."""\n' + CODE["own/parts.py"].replace("return", "# why\n    return")},
        {
            "own/deep/inner.py": None,
            "own/other.py": "y = 1",
            "own/parts.py": CODE["own/parts.py"].replace("deep.inner", "other"),
        },
        {"own/deep/inner.py": "", "own/parts.py": CODE["own/parts.py"] + "y = 1"},
    ],
    ids=["what only shows", "words", "a file renamed", "two files joined"],
)
def test_what_computes_nothing_else_leaves_the_code_as_it_is(digest, files):
    assert digest(files=files) == digest()


@pytest.mark.parametrize("name", ["own/deep/inner.py", "own/solvers/auto.py", "own/lab/run.py"])
def test_parts_of_another_code_do_not_belong_together(digest, name):
    assert digest(files={name: CODE[name] + "z = 2"}) != digest()
    assert digest(files={"own/parts.py": CODE["own/parts.py"].replace("x + y", "x - y")}) != digest()


def test_the_code_of_the_experiments(monkeypatch):
    """It has what computes, and not what hands out, judges, shows or belongs to commands."""
    read, real = [], Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: (read.append(path), real(path))[1])
    run._code.__wrapped__()
    package = Path(gp.__file__).parent
    names = {path.relative_to(package).as_posix() for path in read}
    assert {"solvers/auto.py", "loop/solve.py", "lab/reproduce/plateau.py", "models/bundled.py"} <= names
    assert not [name for name in names if name.startswith(("cli/", "app/", "report/", "lab/reports/", "jobs/"))]
    assert not [name for name in names if "judging" in name or "claims" in name]
    assert not names & {"lab/reproduce/run.py", "lab/reproduce/spread.py", "lab/workers.py"}
