"""Laws of every solver: right optimum, stationarity, batch = singles, pure step, counted passes, zero steps."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import genprior as gp
from genprior import _tree
from tests.laws.certified import CERTIFIED, ITEMS, LATENT, NONSMOOTH, SMOOTH, starts
from tests.laws.solvers import ADAPTIVE_MOMENTS, ENOUGH, OTHER_PASSES, SOLVERS, SPLITTING, SQUARES_ONLY

PAIRS = [(s, c) for s in SOLVERS for c in CERTIFIED if s not in SQUARES_ONLY or c in SMOOTH]
every_solver = pytest.mark.parametrize("solver", SOLVERS)


def marked(case: str) -> list[pytest.MarkDecorator]:
    """`make quick` takes the first case of a table, `make test` all."""
    return [] if case == SMOOTH[0] else [pytest.mark.slow]


def solved(problem: gp.Problem, name: str, steps: int | None = None, **options) -> gp.Result:
    options = {"z0": starts(problem.batch or ITEMS), "tolerance": 1e-8, "patience": 10_000} | options
    return gp.solve(
        problem, SOLVERS[name](), stop=gp.MaxSteps(ENOUGH.get(name, 3000) if steps is None else steps), **options
    )


@every_solver
@pytest.mark.parametrize("case", [pytest.param(case, marks=marked(case)) for case in SMOOTH])
def test_reaches_the_certified_optimum_and_says_so(solver, case):
    certified = CERTIFIED[case]()
    loose = solver in ADAPTIVE_MOMENTS
    result = solved(certified.problem, solver, steps=1000 if loose else None, tolerance=1e-7)
    torch.testing.assert_close(
        result.objective, torch.tensor(certified.optimum), rtol=1e-3 if loose else 1e-6, atol=1e-4 if loose else 1e-9
    )
    assert (result.stationarity < (1e-2 if loose else 1e-6)).all()
    assert (result.gap < (1e-2 if loose else 1e-6)).all()
    assert loose or set(result.status) == {gp.Status.CONVERGED}


@pytest.mark.slow
@pytest.mark.parametrize("solver", SPLITTING)
@pytest.mark.parametrize("case", NONSMOOTH)
def test_admm_solves_what_has_no_gradient(solver, case):
    certified = CERTIFIED[case]()
    steps = min(2000, ENOUGH.get(solver, 2000))
    result = solved(certified.problem, solver, steps=steps, tolerance=1e-6)
    torch.testing.assert_close(result.objective, torch.tensor(certified.optimum), rtol=2e-3, atol=1e-6)
    assert (result.gap < 3e-2).all(), "Adam's steps do not shrink: the gap swings, about the answer"


@pytest.mark.slow
@pytest.mark.parametrize("solver", [name for name in SOLVERS if name not in SPLITTING + SQUARES_ONLY])
@pytest.mark.parametrize("case", NONSMOOTH)
def test_baselines_descend_by_subgradients(solver, case):
    certified = CERTIFIED[case]()
    result = solved(certified.problem, solver, steps=1000)
    optimum = torch.tensor(certified.optimum)
    start = certified.problem.objective(starts())
    assert (result.objective >= optimum - 1e-6).all()
    assert ((result.objective - optimum) < 0.25 * (start - optimum)).all()


@pytest.mark.slow
def test_solvers_agree_with_each_other_on_the_minimiser():
    certified = CERTIFIED["ridge"]()
    latents = {name: solved(certified.problem, name).z for name in SOLVERS}
    for name, latent in latents.items():
        error = 1e-2 if name in ADAPTIVE_MOMENTS else 1e-5
        torch.testing.assert_close(latent, latents["GradientDescent"], rtol=0, atol=error)


@pytest.mark.parametrize(("solver", "case"), [pytest.param(*pair, marks=marked(pair[1])) for pair in PAIRS])
def test_a_batch_equals_single_runs(solver, case):
    problem = CERTIFIED[case]().problem
    # Near an optimum, rounding decides whether a trial is accepted, and which of equal iterates is the best.
    steps = 12
    together = solved(problem, solver, steps=steps)
    for item in range(ITEMS):
        index = torch.tensor([item])
        alone = solved(problem.rows(index), solver, steps=steps, z0=starts()[index])
        for name in ("signal", "z", "w", "objective", "gap", "stationarity"):
            torch.testing.assert_close(getattr(together, name)[index], getattr(alone, name), rtol=1e-6, atol=1e-7)
        if solver not in SQUARES_ONLY:  # there, rounding decides when the last Jacobian is taken and convergence judged
            assert together.status[item] is alone.status[0]
            assert together.steps[item] == alone.steps[0]


@pytest.mark.parametrize(("solver", "case"), [p for p in PAIRS if p[1] in ("noisy", "latent box", "signal linf")])
def test_a_step_is_pure_and_keeps_the_structure(solver, case):
    problem = CERTIFIED[case]().problem
    method = SOLVERS[solver]().solver(problem)
    with torch.no_grad():
        state = method.start(problem, starts())
        for _ in range(7):
            before = {name: part.clone() for name, part in _tree.pack(state, "s").items()}
            once, again = method.step(problem, state), method.step(problem, state)
            after = _tree.pack(state, "s")
            assert _tree.equal(once, again)
            assert all(torch.equal(before[name], after[name]) for name in before), "the step changed its argument"
            new = _tree.pack(once, "s")
            assert [(n, t.shape, t.dtype) for n, t in new.items()] == [(n, t.shape, t.dtype) for n, t in after.items()]
            state = once


@every_solver
def test_zero_steps_return_the_start(solver):
    problem = CERTIFIED["noisy"]().problem
    result = solved(problem, solver, steps=0)
    torch.testing.assert_close(result.z, starts(), rtol=0, atol=0)
    torch.testing.assert_close(result.signal, problem.generator(starts()), rtol=0, atol=0)
    assert set(result.status) == {gp.Status.MAX_STEPS}
    assert result.steps.tolist() == [0] * ITEMS


@pytest.mark.parametrize("solver", [name for name in SOLVERS if name not in OTHER_PASSES])
@pytest.mark.parametrize("case", ["noisy", "signal linf"])
def test_an_iteration_is_one_forward_and_one_backward_pass(solver, case):
    problem = CERTIFIED[case]().problem
    forwards, backwards = [], []
    module = nn.Sequential(problem.generator.module, nn.Identity())
    module[1].register_full_backward_hook(lambda *_: backwards.append(1))
    module.register_forward_hook(lambda *_: forwards.append(1))
    generator = gp.Generator(module, (LATENT,), problem.generator.signal_shape)
    counted = gp.Problem(generator, problem.loss, problem.on_signal, problem.on_latent)
    generator.preconditioner()  # what was remembered is not counted again
    counts = []
    for steps in (20, 50):
        forwards.clear()
        backwards.clear()
        result = solved(counted, solver, steps=steps, tolerance=0)
        assert (result.forwards, result.backwards) == (len(forwards), len(backwards))
        counts.append((result.forwards - 1, result.backwards))
    assert counts == [(20, 20), (50, 50)], "after the start, one forward and one backward pass per iteration"


@pytest.mark.slow
@every_solver
def test_float32_and_maps_as_latents(solver):
    module = nn.Sequential(nn.Flatten(), nn.Linear(8, 12), nn.ELU(), nn.Linear(12, 32), nn.Unflatten(1, (2, 4, 4)))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.4)
    generator = gp.Generator(module, (2, 2, 2), (2, 4, 4))
    operator = gp.operators.Gaussian(24, generator.signal_shape)
    with torch.no_grad():
        y = operator(generator(generator.sample_latent(4, seed=1)))
    problem = gp.Problem(generator, gp.LeastSquares(operator, y), on_latent=gp.Ball(6.0))
    result = gp.solve(problem, SOLVERS[solver](), stop=gp.MaxSteps(300), seed=2)
    start = problem.objective(generator.sample_latent(4, seed=2))
    assert result.signal.dtype == torch.float32
    assert result.z.shape == (4, 2, 2, 2)
    assert (result.objective < 0.05 * start).all()
    assert (result.z.flatten(1).norm(dim=1) <= 6.0 * (1 + 1e-5)).all()


@pytest.mark.slow
def test_the_papers_dual_leaves_a_gap_that_shrinks_with_the_penalty():
    """Bounded duals cannot reach lam*: the gap plateaus at O(1/rho), and the status says so."""
    problem = CERTIFIED["noisy"]().problem
    gaps = []
    for rho in (10.0, 100.0, 1000.0):
        solver = gp.ADMM(dual=gp.duals.Paper(1e-3), penalty=gp.penalties.Constant(rho))
        result = gp.solve(problem, solver, stop=gp.MaxSteps(4000), z0=starts(), tolerance=1e-9, patience=500)
        assert gp.Status.CONVERGED not in result.status
        gaps.append(result.gap)
    ratios = torch.stack([gaps[0] / gaps[1], gaps[1] / gaps[2]])
    assert ((ratios > 5) & (ratios < 20)).all(), ratios


def test_appendix_f_admm_with_an_exact_step_follows_gradient_descent():
    """|z+ - (z - beta grad(L o G)(z))| <= beta (sigma kappa + kappa nu_L) |w - G(z)| along a run."""
    problem = CERTIFIED["noisy"]().problem
    beta, kappa = 0.05, torch.linalg.matrix_norm(problem.generator.module.matrix, 2)
    solver = gp.ExactADMM(beta=beta, penalty=gp.penalties.Constant(1.0), dual=gp.duals.Constant(0.2))
    nu = problem.loss.curvature(starts())[1]
    with torch.no_grad():
        state = solver.start(problem, starts())
        for _ in range(60):
            following = solver.step(problem, state)
            value = problem.evaluate(state.x, state.z)
            slope = problem.signal_gradient(state.x, value.residual) @ problem.generator.module.matrix
            distance = (following.z - (state.z - beta * slope)).norm(dim=1)
            gap = (state.w - state.x).norm(dim=1)
            if state.k[0] >= 1:
                assert (distance <= beta * kappa * (state.sigma + nu) * gap * (1 + 1e-9) + 1e-12).all()
                assert (gap > 1e-8).any(), "the inequality must not be empty"
                found = gp.theory.compare_with_descent(problem, state, following, beta, float(kappa))
                assert (found.identity < 1e-12).all(), "ADMM's step in z, without its duals"
                assert torch.allclose(found.distance, distance, atol=1e-12)
                assert torch.allclose(found.bound, beta * kappa * (state.sigma + nu) * gap)
            state = following
