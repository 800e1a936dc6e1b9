"""The loop: stopping, roll-back, restarts, compaction, batches, callbacks, bad input."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import genprior as gp
from genprior.solvers.base import with_scale
from genprior.solvers.optimality import PASSES
from tests.laws.certified import CERTIFIED, ITEMS, LATENT, SIGNAL, affine_generator, starts
from tests.laws.solvers import SOLVERS

FIELDS = ("signal", "z", "w", "objective", "gap", "stationarity", "steps", "rollbacks")


def noisy() -> gp.Problem:
    return CERTIFIED["noisy"]().problem


def assert_same(left: gp.Result, right: gp.Result, **tolerance: float) -> None:
    for name in FIELDS:
        torch.testing.assert_close(getattr(left, name), getattr(right, name), msg=name, **tolerance)
    assert left.status == right.status


class Guarded(nn.Module):
    """An affine map that gives NaN further than ``limit`` from the origin."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.inner = affine_generator().module
        self.limit = limit

    def forward(self, z: Tensor) -> Tensor:
        return torch.where(z.norm(dim=1, keepdim=True) > self.limit, torch.nan, self.inner(z))


def weighted(weights: list[float], module: nn.Module | None = None) -> gp.Problem:
    """Items that need steps of different lengths."""
    generator = gp.Generator(module or affine_generator().module, (LATENT,), (SIGNAL,))
    centre = torch.linspace(-1, 1, SIGNAL, dtype=torch.float64).expand(len(weights), -1).contiguous()
    return gp.Problem(generator, gp.SquaredDistance(centre, torch.tensor(weights, dtype=torch.float64)))


# -- stopping and status ---------------------------------------------------------------------------------------------


def test_finished_items_leave_the_batch_and_the_others_do_not_notice():
    seen: list[int] = []
    sizes: list[int] = []
    problem = weighted([1.0, 0.1, 0.4, 0.2])
    problem.generator.module.register_forward_hook(lambda _m, _i, out: sizes.append(len(out)))
    solver = gp.GradientDescent(step_size=0.1)
    options = {"stop": gp.MaxSteps(4000), "tolerance": 1e-6, "check_every": 1, "patience": 5000}
    together = gp.solve(problem, solver, z0=starts(4), callbacks=[lambda view: seen.append(len(view.rows))], **options)
    assert len(set(together.steps.tolist())) == 4, (
        "the items must end at different steps for this test to mean anything"
    )
    assert sorted(set(sizes)) == [1, 2, 3, 4]
    assert set(seen) == {1, 2, 3, 4}
    for item in range(4):
        index = torch.tensor([item])
        alone = gp.solve(problem.rows(index), solver, z0=starts(4)[index], **options)
        torch.testing.assert_close(together.z[index], alone.z, rtol=1e-9, atol=1e-11)
        assert together.steps[item] == alone.steps[0]
    assert together.converged


def test_compaction_costs_no_pass():
    problem = weighted([1.0, 0.1, 0.4, 0.2])
    result = gp.solve(
        problem, gp.GradientDescent(step_size=0.1), z0=starts(4), stop=gp.MaxSteps(4000), tolerance=1e-8, check_every=1
    )
    ends = len(result.status)  # each with a proof of convergence
    assert result.forwards == int(result.steps.max()) + 1 + PASSES[0] * ends
    assert result.backwards == int(result.steps.max()) + PASSES[1] * ends


def test_stalled_is_not_converged():
    problem = CERTIFIED["signal linf"]().problem
    result = gp.solve(problem, gp.GradientDescent(step_size=0.5), z0=starts(), stop=gp.MaxSteps(5000), patience=60)
    assert set(result.status) == {gp.Status.STALLED}
    assert (result.steps < 5000).all()
    assert all("stalled" in text for text in result.advice)


def test_best_iterate_is_the_best_seen_and_the_signal_belongs_to_it():
    best = torch.full((ITEMS,), torch.inf, dtype=torch.float64)

    def watch(view: gp.View) -> None:
        best.copy_(torch.minimum(best, view.state.objective))

    problem = CERTIFIED["signal l1"]().problem
    result = gp.solve(
        problem, gp.Adam(0.3), z0=starts(), stop=gp.MaxSteps(37), callbacks=[watch], tolerance=0, check_every=100
    )
    last = gp.solve(problem, gp.Adam(0.3), z0=starts(), stop=gp.MaxSteps(37), tolerance=0).history.item(0)["objective"]
    assert float(last[-1]) > float(last.min()), "the last iterate must not be the best for this test to mean anything"
    torch.testing.assert_close(result.objective[0], last.min(), rtol=0, atol=0)
    torch.testing.assert_close(problem.generator(result.z), result.signal)
    torch.testing.assert_close(problem.objective(result.z), result.objective)


# -- roll-back -------------------------------------------------------------------------------------------------------


def test_an_exploding_item_is_rolled_back_alone_and_still_solved():
    problem = weighted([0.2, 400.0])
    solver = gp.GradientDescent(step_size=0.1)
    options = {"stop": gp.MaxSteps(3000), "tolerance": 1e-8, "patience": 5000}
    result = gp.solve(problem, solver, z0=starts(2), **options)
    assert result.rollbacks[0] == 0
    assert result.rollbacks[1] > 0
    assert result.converged
    assert "shortened" in result.advice[1]
    assert "shortened" not in result.advice[0]
    alone = gp.solve(problem.rows(torch.tensor([0])), solver, z0=starts(2)[:1], **options)
    torch.testing.assert_close(result.z[:1], alone.z, rtol=1e-9, atol=1e-11)
    reference = gp.solve(weighted([1.0, 1.0]), gp.LBFGS(), z0=starts(2), **options)
    torch.testing.assert_close(result.z, reference.z, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("solver", [name for name in SOLVERS if "Adam" not in name])
def test_non_finite_items_are_rolled_back(solver):
    """Steps that leave the region where G is finite are taken back; the rest of the batch goes on."""
    problem = weighted([1.0, 1.0], Guarded(limit=3.0))
    z0 = 0.5 * starts(2)
    result = gp.solve(problem, SOLVERS[solver](), z0=z0, stop=gp.MaxSteps(600), tolerance=1e-7)
    assert torch.isfinite(result.signal).all()
    assert (result.objective <= problem.objective(z0)).all()


def test_a_hopeless_item_ends_as_diverged_with_its_best_and_advice():
    problem = weighted([1.0, 1.0], Guarded(limit=1e-3))
    z0 = torch.zeros(2, LATENT, dtype=torch.float64)
    result = gp.solve(problem, gp.GradientDescent(step_size=1e9), z0=z0, stop=gp.MaxSteps(500), check_every=1)
    assert set(result.status) == {gp.Status.DIVERGED}
    assert (result.rollbacks == 6).all()
    torch.testing.assert_close(result.z, z0)
    assert torch.isfinite(result.objective).all()
    assert "smaller steps" in result.advice[0]


def test_roll_back_shortens_every_solvers_steps():
    """A state with a small scale moves less than one with scale 1."""
    problem = weighted([1.0, 1.0])
    for name, make in SOLVERS.items():
        solver = make().solver(problem)
        with torch.no_grad():
            full = solver.start(problem, starts(2))
            short = with_scale(full, 0.1 * full.scale)
            for _ in range(2):
                full, short = solver.step(problem, full), solver.step(problem, short)
        moved, moved_short = ((state.z - starts(2)).norm() for state in (full, short))
        assert moved_short < 0.5 * moved, name


# -- restarts --------------------------------------------------------------------------------------------------------


class Valleys(nn.Module):
    """Many local minima: the signal is a wave in the latent."""

    def forward(self, z: Tensor) -> Tensor:
        frequencies = torch.arange(1, 5, dtype=z.dtype)
        return torch.cat([torch.cos(frequencies * z), torch.sin(frequencies * z), 0.2 * z], dim=1)


def valleys(items: int = 4) -> gp.Problem:
    generator = gp.Generator(Valleys(), (1,), (9,), latent=gp.Uniform(-6, 6))
    generator.dtype = torch.float64
    y = generator(generator.sample_latent(items, seed=3))
    return gp.Problem(generator, gp.SquaredDistance(y))


def test_restarts_keep_the_best_per_item():
    problem = valleys()
    options = {"stop": gp.MaxSteps(150), "tolerance": 1e-6}
    draws = torch.stack([problem.generator.sample_latent(4, seed) for seed in range(12)])
    single = gp.solve(problem, gp.GradientDescent(), z0=draws[0], **options)
    many = gp.solve(problem, gp.GradientDescent(), z0=draws.transpose(0, 1), cull_after=1000, **options)
    assert (many.objective <= single.objective + 1e-12).all()
    assert (many.objective < 1e-6).all()
    assert (single.objective > 1e-2).any(), "one start must not be enough for this test to mean anything"
    scores = torch.stack([gp.solve(problem, gp.GradientDescent(), z0=draw, **options).objective for draw in draws])
    torch.testing.assert_close(many.objective, scores.amin(dim=0), rtol=1e-6, atol=1e-12)
    assert (scores.gather(0, many.restart[None])[0] <= scores.amin(dim=0) + 1e-9).all()


def test_worse_restarts_are_given_up_early_and_the_best_ones_stay():
    problem = valleys()
    rows: list[int] = []
    result = gp.solve(
        problem,
        gp.GradientDescent(step_size=1e-4),
        restarts=8,
        cull_after=20,
        stop=gp.MaxSteps(100),
        tolerance=0,
        callbacks=[lambda view: rows.append(len(view.rows))],
    )
    assert [rows[i] for i in (0, 20, 21, 40, 41, 80, 81, 100)] == [32, 32, 16, 16, 8, 8, 4, 4]
    assert set(result.status) == {gp.Status.MAX_STEPS}
    uncut = gp.solve(problem, gp.GradientDescent(step_size=1e-4), restarts=8, cull_after=999, stop=gp.MaxSteps(20))
    assert (result.objective <= uncut.objective).all(), "the best at the time of the cut must have stayed"


NO_SETS = [0.5 * gp.SquaredL2(), 2.0 * gp.L1(), gp.L2(), 0.1 * gp.LInf()]


@pytest.mark.parametrize("term", NO_SETS, ids=repr)
def test_given_starts_are_used_as_they_are_where_h_forbids_nothing(term):
    problem = noisy()
    problem = gp.Problem(problem.generator, problem.loss, on_latent=term)
    for z0 in (starts(), starts(2 * ITEMS).reshape(ITEMS, 2, LATENT)):
        result = gp.solve(problem, gp.GradientDescent(), z0=z0, stop=gp.MaxSteps(0))
        own = z0 if z0.ndim == 2 else z0[torch.arange(ITEMS), result.restart]
        assert torch.equal(result.z, own)


@pytest.mark.parametrize("term", [gp.Ball(0.1), gp.Box(-0.1, 0.1), gp.L1Ball(0.1)], ids=repr)
def test_given_starts_outside_the_set_of_h_are_projected(term):
    problem = noisy()
    problem = gp.Problem(problem.generator, problem.loss, on_latent=term)
    result = gp.solve(problem, gp.GradientDescent(), z0=starts(), stop=gp.MaxSteps(0))
    torch.testing.assert_close(result.z, term.prox(starts(), 1.0))
    assert result.objective.isfinite().all()


def test_the_first_restart_starts_at_z0():
    problem = noisy()
    solved = gp.solve(problem, gp.LBFGS(), z0=starts(), stop=gp.MaxSteps(200))
    again = gp.solve(problem, gp.LBFGS(), z0=solved.z, restarts=3, stop=gp.MaxSteps(3))
    assert again.restart.tolist() == [0] * ITEMS


# -- batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [1, 3])
@pytest.mark.parametrize("batch_size", [1, 2, 5, 7, 100])
def test_batch_size_changes_memory_not_results(batch_size, restarts):
    problem = valleys(7)
    options = {"stop": gp.MaxSteps(60), "restarts": restarts, "cull_after": 20, "seed": 4}
    whole = gp.solve(problem, gp.ExactADMM(), **options)
    parts = gp.solve(problem, gp.ExactADMM(), batch_size=batch_size, **options)
    assert_same(whole, parts, rtol=1e-9, atol=1e-11)
    assert len(parts.history) == 7
    for item in range(7):
        left, right = whole.history.item(item), parts.history.item(item)
        torch.testing.assert_close(left["objective"], right["objective"], rtol=1e-9, atol=1e-11)


def test_per_item_operators_and_terms_travel_with_their_items():
    generator = affine_generator()
    random = torch.Generator().manual_seed(0)
    masks = torch.rand(5, SIGNAL, generator=random) < 0.8
    truth = generator(generator.sample_latent(5, seed=8).double())
    operator = gp.operators.Mask(masks, per_item=True, dtype=torch.float64)
    weights = torch.linspace(0.01, 0.05, 5, dtype=torch.float64)
    problem = gp.Problem(generator, gp.LeastSquares(operator, operator(truth)), on_latent=weights * gp.SquaredL2())
    options = {"stop": gp.MaxSteps(1500), "tolerance": 1e-6}
    solver = gp.ExactADMM(rho=1.0, dual=gp.duals.Constant())
    whole = gp.solve(problem, solver, z0=starts(5), **options)
    parts = gp.solve(problem, solver, z0=starts(5), batch_size=2, **options)
    assert_same(whole, parts, rtol=1e-7, atol=1e-9)
    matrix, offset = generator.module.matrix, generator.module.offset
    for item in range(5):
        kept = matrix[masks[item]]
        rest = (truth[item] - offset)[masks[item]]
        z = torch.linalg.solve(kept.T @ kept + weights[item] * torch.eye(LATENT, dtype=torch.float64), kept.T @ rest)
        torch.testing.assert_close(whole.z[item], z, rtol=1e-3, atol=1e-3)


# -- everything a person passes in -----------------------------------------------------------------------------------


def bad_calls():
    problem = noisy()
    nan = starts().clone()
    nan[0, 0] = torch.nan
    return {
        "solver must be a genprior solver": {"solver": "adam"},
        "stop must be a stop rule": {"stop": 500},
        "restarts must be at least 1": {"restarts": 0},
        "restarts must be a whole number": {"restarts": 2.5},
        "batch_size must be at least 1": {"batch_size": 0},
        "tolerance must be a finite number": {"tolerance": -1.0},
        "patience must be at least 1": {"patience": 0},
        "check_every must be at least 1": {"check_every": 0},
        "cull_after must be at least 1": {"cull_after": 0},
        "seed must be at least 0": {"seed": -1},
        "z0 has 2 items, but the problem has 3": {"z0": starts(2)},
        "z0 has shape": {"z0": starts()[:, :2]},
        "z0 has dtype torch.float32": {"z0": starts().float()},
        "z0 holds 1 NaN": {"z0": nan},
        "add the batch axis": {"z0": starts()[0]},
        "z0 must be a torch.Tensor": {"z0": [[0.0] * LATENT] * ITEMS},
    }, problem


@pytest.mark.parametrize("message", bad_calls()[0])
def test_bad_options_are_named(message):
    calls, problem = bad_calls()
    with pytest.raises((ValueError, TypeError), match=message):
        gp.solve(problem, **{"stop": gp.MaxSteps(2), **calls[message]})


def test_a_generator_that_gives_nan_at_the_start_is_named():
    problem = weighted([1.0], Guarded(limit=1e-9))
    with pytest.raises(ValueError, match="generator gives NaN or infinity at all starts"):
        gp.solve(problem, z0=starts(1), stop=gp.MaxSteps(3))


def test_misspelt_options_are_not_swallowed():
    with pytest.raises(TypeError, match="max_itr"):
        gp.solve(noisy(), max_itr=5)


def test_a_forbidden_start_is_projected():
    problem = gp.Problem(affine_generator(), noisy().loss, on_latent=gp.Ball(0.1))
    result = gp.solve(problem, gp.GradientDescent(), z0=starts(), stop=gp.MaxSteps(0))
    torch.testing.assert_close(result.z, 0.1 * starts() / starts().norm(dim=1, keepdim=True))
    assert torch.isfinite(result.objective).all()


def test_an_indicator_on_the_signal_is_met_in_the_end():
    """G(z) is outside the box at first: the objective is infinite, and yet the best iterate is found."""
    generator = affine_generator()
    truth = generator(0.2 * starts())
    low, high = truth.min() - 0.01, truth.max() + 0.01
    problem = gp.Problem(generator, gp.SquaredDistance(truth + 0.3), on_signal=gp.Box(float(low), float(high)))
    assert torch.isinf(problem.objective(starts())).all()
    result = gp.solve(problem, gp.ExactADMM(dual=gp.duals.Constant()), z0=starts(), stop=gp.MaxSteps(2000))
    assert (result.signal > low - 1e-3).all()
    assert (result.signal < high + 1e-3).all()
    assert ((result.signal - truth).norm(dim=1) < 1.1).all()


def test_callbacks_see_every_step_and_can_stop():
    steps: list[int] = []

    def stop_at_nine(view: gp.View) -> bool:
        steps.append(view.step)
        assert view.items.tolist() == list(range(ITEMS))
        assert view.restarts.tolist() == [0] * ITEMS
        return view.step == 9

    result = gp.solve(noisy(), gp.GradientDescent(), z0=starts(), stop=gp.MaxSteps(50), callbacks=[stop_at_nine])
    assert steps == list(range(10))
    assert set(result.status) == {gp.Status.INTERRUPTED}
    assert result.steps.tolist() == [9] * ITEMS


def test_plan_names_the_exact_step():
    assert "thin SVD" in gp.solve(noisy(), gp.ExactADMM(), stop=gp.MaxSteps(1)).plan
    nonsmooth = CERTIFIED["signal linf"]().problem
    assert "prox of LInf" in gp.solve(nonsmooth, gp.ExactADMM(), stop=gp.MaxSteps(1)).plan


def test_eight_restarts_cost_less_than_three_runs():
    """Rows that pass through G, not time: with the default culling, over 250 steps."""
    rows = []
    problem = noisy()
    handle = problem.generator.module.register_forward_hook(lambda module, given, out: rows.append(len(out)))
    costs = []
    for restarts in (1, 8):
        rows.clear()
        gp.solve(problem, gp.GradientDescent(1e-6), stop=gp.MaxSteps(250), restarts=restarts, tolerance=0, patience=999)
        costs.append(sum(rows))
    handle.remove()
    assert costs[1] < 3 * costs[0]


# -- starts for every restart ------------------------------------------------------------------------------------------


def test_starts_of_all_restarts():
    problem, solver = noisy(), gp.GradientDescent(step_size=0.05)
    z0 = torch.stack([starts(ITEMS) + 0.3 * number for number in range(3)], dim=1)
    seen: list[Tensor] = []
    options = {"stop": gp.MaxSteps(7), "tolerance": 0.0}
    first: list[Tensor] = []

    def watch(view: gp.View) -> None:
        seen.append(view.rows)
        first.append(view.best_objective)

    together = gp.solve(problem, solver, z0=z0, cull_after=100, callbacks=[watch], **options)
    assert len(seen[0]) == 3 * ITEMS
    alone = [gp.solve(problem, solver, z0=z0[:, number], **options) for number in range(3)]
    objectives = torch.stack([result.objective for result in alone], dim=1)
    assert torch.equal(together.restart, objectives.argmin(1))
    torch.testing.assert_close(together.objective, objectives.amin(1))
    split = gp.solve(problem, solver, z0=z0, restarts=3, cull_after=100, batch_size=1, **options)
    assert_same(together, split)
    other = gp.solve(problem, solver, z0=z0, cull_after=100, seed=9, **options)
    assert_same(together, other)


def test_one_start_given_with_its_axis_is_the_same():
    problem, solver = noisy(), gp.GradientDescent(step_size=0.05)
    options = {"stop": gp.MaxSteps(7)}
    assert_same(
        gp.solve(problem, solver, z0=starts(ITEMS), **options),
        gp.solve(problem, solver, z0=starts(ITEMS)[:, None], **options),
    )


@pytest.mark.parametrize(
    ("shape", "restarts", "message"),
    [
        ((ITEMS, 3, LATENT), 2, "z0 holds 3 starts per item, but restarts is 2"),
        ((ITEMS, 0, LATENT), 1, "starts per item, must be at least 1, got 0"),
        ((ITEMS + 1, 3, LATENT), 1, "items, but the problem has"),
        ((ITEMS, 3, LATENT + 1), 1, "z0 has shape .* expected .B, "),
    ],
)
def test_starts_of_all_restarts_that_do_not_fit(shape, restarts, message):
    with pytest.raises(ValueError, match=message):
        gp.solve(noisy(), z0=torch.zeros(shape, dtype=torch.float64), restarts=restarts)
