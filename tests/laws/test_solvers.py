"""Laws of every solver: right optimum, stationarity, batch = singles, pure step, counted passes, zero steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

import genprior as gp
from genprior.testing import KnownOptimum, SolverLaws
from tests.laws.certified import CERTIFIED, ITEMS, NONSMOOTH, SMOOTH, starts
from tests.laws.solvers import ADAPTIVE_MOMENTS, ENOUGH, OTHER_PASSES, SOLVERS, SPLITTING, SQUARES_ONLY


def known(cases: list[str]) -> dict[str, Callable[[], KnownOptimum]]:
    """Problems whose optimum cvxpy or a closed form gives."""

    def make(case: str) -> KnownOptimum:
        certified = CERTIFIED[case]()
        return KnownOptimum(certified.problem, torch.tensor(certified.optimum))

    return {case: partial(make, case) for case in cases}


LONG = {"test_it_handles_kinks", "test_float32_maps_and_a_network", "test_resumed_runs_have_the_same_bits"}
LONG |= {"test_the_status_is_honest"}


class Table(SolverLaws):
    """`make quick` takes the first problem of a table, `make test` all."""

    names: tuple[str, ...] = ()

    def instances(self):
        return {name: SOLVERS[name] for name in self.names}

    def smooth(self):
        return known(SMOOTH)

    def nonsmooth(self):
        return known(NONSMOOTH)

    def pytest_generate_tests(self, metafunc):
        long = metafunc.definition.name in LONG
        for name, table in self.tables().items():
            if name in metafunc.fixturenames:
                rows = enumerate(table.items())
                slow = [long or (i > 0 and name != "make") for i in range(len(table))]
                values = [
                    pytest.param(value, id=key, marks=[pytest.mark.slow] if slow[i] else []) for i, (key, value) in rows
                ]
                metafunc.parametrize(name, values)


USUAL = [name for name in SOLVERS if name not in [*ADAPTIVE_MOMENTS, *ENOUGH, *SQUARES_ONLY]]


class TestSplitting(Table):
    names = tuple(name for name in USUAL if name in SPLITTING and name not in OTHER_PASSES)
    splits = True


class TestSplittingWithOtherPasses(Table):
    names = tuple(name for name in USUAL if name in SPLITTING and name in OTHER_PASSES)
    splits, passes = True, None


class TestDescent(Table):
    names = tuple(name for name in USUAL if name not in SPLITTING)


class TestGaussNewton(Table):
    names = tuple(ENOUGH)
    splits, passes, steps = True, None, 300


class TestAdaptiveMoments(Table):
    """Near the optimum, not at it."""

    names = tuple(name for name in ADAPTIVE_MOMENTS if name not in SPLITTING)
    exact = False


class TestAdaptiveMomentsInADMM(Table):
    names = tuple(name for name in ADAPTIVE_MOMENTS if name in SPLITTING)
    exact, splits = False, True


class TestSquaresOnly(Table):
    names = tuple(SQUARES_ONLY)
    passes = None
    rounding_decides = True  # when the last Jacobian is taken and convergence judged

    def nonsmooth(self):
        return {}


def test_every_solver_is_in_one_class():
    tables = [TestSplitting, TestSplittingWithOtherPasses, TestDescent, TestGaussNewton]
    tables += [TestAdaptiveMoments, TestAdaptiveMomentsInADMM, TestSquaresOnly]
    assert sorted(name for table in tables for name in table.names) == sorted(SOLVERS)


def solved(problem: gp.Problem, name: str, steps: int | None = None, **options) -> gp.Result:
    options = {"z0": starts(problem.batch or ITEMS), "tolerance": 1e-8, "patience": 10_000} | options
    return gp.solve(
        problem, SOLVERS[name](), stop=gp.MaxSteps(ENOUGH.get(name, 3000) if steps is None else steps), **options
    )


@pytest.mark.slow
def test_solvers_agree_with_each_other_on_the_minimiser():
    certified = CERTIFIED["ridge"]()
    latents = {name: solved(certified.problem, name).z for name in SOLVERS}
    for name, latent in latents.items():
        error = 1e-2 if name in ADAPTIVE_MOMENTS else 1e-5
        torch.testing.assert_close(latent, latents["GradientDescent"], rtol=0, atol=error)


@pytest.mark.slow
def test_the_papers_dual_leaves_a_gap_that_shrinks_with_the_penalty():
    """Bounded duals cannot reach lam*: the gap plateaus at O(1/rho), and the status says so."""
    problem = CERTIFIED["noisy"]().problem
    gaps = []
    for rho in (10.0, 100.0, 1000.0):
        solver = gp.ADMM(dual=gp.duals.Paper(1e-3), penalty=gp.penalties.Constant(rho))
        result = gp.solve(problem, solver, stop=gp.MaxSteps(4000), z0=starts(), tolerance=1e-9, patience=500)
        assert gp.Status.CONVERGED not in result.status
        gaps.append(result.primal_residual)
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
