"""Appendix F with a generator that is not linear; the linear case is in tests/laws/test_solvers.py."""

import pytest
import torch

import genprior as gp
from genprior.solvers.base import with_scale
from tests.theory.networks import Mild


def problem(term=None):
    torch.manual_seed(1)
    generator = gp.Generator(
        Mild(torch.randn(6, 2).double(), torch.randn(6, 2).double(), 0.5), 2, 6, dtype=torch.float64
    )
    return gp.Problem(generator, gp.SquaredDistance(torch.randn(3, 6).double(), 0.5), on_latent=term)


SOLVER = gp.ExactADMM(beta=0.02, penalty=gp.penalties.Constant(1.0), dual=gp.duals.Paper(0.3))


def test_identity_and_bound_along_a_run():
    case = problem()
    tight = 0.0
    with torch.no_grad():
        state = SOLVER.step(case, SOLVER.start(case, case.generator.sample_latent(3)))
        for _ in range(40):
            following = SOLVER.step(case, state)
            kappa = float(torch.linalg.matrix_norm(case.generator.jacobian(state.z), 2).max())
            found = gp.theory.compare_with_descent(case, state, following, 0.02, kappa)
            assert (found.identity < 1e-12).all()
            assert (found.distance <= found.bound * (1 + 1e-9)).all()
            tight = max(tight, float((found.distance / found.bound).max()))
            state = following
    assert tight > 0.3


def test_a_penalty_that_has_changed():
    """The step follows it; where it changes, the relation does not hold, and that is said."""
    case, refused = problem(), []
    solver = gp.ExactADMM(beta=0.05, penalty=gp.penalties.Doubling(0.5, n=3, scales=2), dual=gp.duals.Paper(0.3))
    with torch.no_grad():
        state = solver.step(case, solver.start(case, case.generator.sample_latent(3)))
        for k in range(1, 12):
            following = solver.step(case, state)
            if torch.equal(state.rho, following.rho):
                kappa = float(torch.linalg.matrix_norm(case.generator.jacobian(state.z), 2).max())
                found = gp.theory.compare_with_descent(case, state, following, 0.05, kappa)
                assert (found.identity < 1e-12).all() and (found.distance <= found.bound * (1 + 1e-9)).all()
                assert found.proved
            else:
                refused.append(k)
                with pytest.raises(ValueError, match="rho of item 0 changed between the states, from 1 to 2"):
                    gp.theory.compare_with_descent(case, state, following, 0.05, 1.0)
            state = following
    assert refused == [6] and not torch.equal(state.rho, state.first_rho)


def test_an_item_that_was_rolled_back_takes_shorter_steps():
    case = problem()
    with torch.no_grad():
        state = SOLVER.step(case, SOLVER.start(case, case.generator.sample_latent(3)))
        state = with_scale(state, torch.tensor([1.0, 0.5, 0.125]).double())
        found = gp.theory.compare_with_descent(case, state, SOLVER.step(case, state), 0.02, 9.0)
    assert (found.identity < 1e-12).all() and (found.distance > 0).all()


def test_a_bound_from_an_estimate_says_so():
    base = problem()
    risk = gp.EmpiricalRisk(lambda w, s: 0.5 * (w[:, None] - s).square().sum(dim=2), torch.randn(4, 6).double())
    case = gp.Problem(base.generator, risk)
    with torch.no_grad():
        state = SOLVER.step(case, SOLVER.start(case, case.generator.sample_latent(1)))
        assert not gp.theory.compare_with_descent(case, state, SOLVER.step(case, state), 0.02, 9.0).proved


def test_bad_input():
    case = problem()
    start = SOLVER.start(case, case.generator.sample_latent(3))
    with pytest.raises(ValueError, match="after at least one step"):
        gp.theory.compare_with_descent(case, start, SOLVER.step(case, start), 0.02, 1.0)
    with pytest.raises(ValueError, match="without terms"):
        gp.theory.compare_with_descent(problem(gp.Ball(1.0)), start, start, 0.02, 1.0)
