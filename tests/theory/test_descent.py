"""Appendix F with a generator that is not linear; the linear case is in tests/laws/test_solvers.py."""

import pytest
import torch

import genprior as gp
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


def test_bad_input():
    case = problem()
    start = SOLVER.start(case, case.generator.sample_latent(3))
    with pytest.raises(ValueError, match="after at least one step"):
        gp.theory.compare_with_descent(case, start, SOLVER.step(case, start), 0.02, 1.0)
    with pytest.raises(ValueError, match="without terms"):
        gp.theory.compare_with_descent(problem(gp.Ball(1.0)), start, start, 0.02, 1.0)
