"""Verdicts must be true: no CONVERGED away from the optimum, none that depends on units, starts that count."""

from __future__ import annotations

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import genprior as gp
from genprior.models.examples import soft_discs
from tests.laws.certified import CERTIFIED
from tests.laws.solvers import ADMM, SOLVERS, SQUARES_ONLY

F64 = torch.float64
BASELINES = [name for name in SOLVERS if name not in ADMM + SQUARES_ONLY]


def linear(latent: int, signal: int, seed: int, scale: float = 1.0) -> tuple[gp.Generator, np.ndarray]:
    module = nn.Linear(latent, signal, bias=False, dtype=F64)
    matrix = np.random.default_rng(seed).normal(size=(signal, latent)) / np.sqrt(latent)
    module.weight.data = torch.tensor(scale * matrix)
    return gp.Generator(module, latent, signal), scale * matrix


def normal(*shape: int, seed: int) -> Tensor:
    return torch.tensor(np.random.default_rng(seed).normal(size=shape))


@pytest.mark.parametrize("solver", [name for name in ADMM if "Newton" not in name])
@pytest.mark.parametrize("term", [1e-3 * gp.SquaredL2(), 1e-3 * gp.L1(), 1e-3 * gp.L2()], ids=repr)
def test_the_first_step_does_not_throw_the_start_away(solver, term):
    """In ADMM's first iteration nothing is pulled back: no step length is known, so the prox of H must not act at full."""
    generator = soft_discs(2, 16)
    with torch.no_grad():
        y = generator(generator.sample_latent(3, seed=1))
        problem = gp.Problem(generator, gp.SquaredDistance(y), on_latent=term)
        z0, method = generator.sample_latent(3, seed=2), SOLVERS[solver]()
        state = method.step(problem, method.start(problem, z0))
        torch.testing.assert_close(state.z, z0, rtol=0, atol=0)
        assert (method.step(problem, state).z != z0).any()


@pytest.mark.parametrize("solver", BASELINES)
@pytest.mark.parametrize(
    ("term", "oracle"),
    [(2 * gp.LInf(), lambda w: 2 * cp.norm_inf(w)), (0.5 * gp.L1(), lambda w: 0.5 * cp.norm1(w))],
    ids=["linf", "l1"],
)
def test_baselines_do_not_claim_convergence_away_from_the_optimum(solver, term, oracle):
    generator, matrix = linear(3, 12, seed=1)
    y = normal(2, 12, seed=2)
    problem = gp.Problem(generator, gp.SquaredDistance(y), on_signal=term)
    result = gp.solve(problem, SOLVERS[solver](), stop=gp.MaxSteps(800), seed=3)
    for item in range(2):
        z = cp.Variable(3)
        program = cp.Problem(cp.Minimize(cp.sum_squares(matrix @ z - y[item].numpy()) + oracle(matrix @ z)))
        program.solve(solver=cp.CLARABEL)
        excess = float(result.objective[item]) / program.value - 1
        assert excess > -1e-7
        assert excess < 0.15, "a subgradient method should come near"
        assert result.status[item] is not gp.Status.CONVERGED or excess < 1e-4


@pytest.mark.parametrize("solver", [*BASELINES, "ExactADMM"])
def test_infeasible_points_do_not_win(solver):
    """The unconstrained minimiser lies far outside the box: it must be neither the best iterate nor convergence."""
    generator, matrix = linear(3, 12, seed=3)
    truth = torch.full((1, 3), 3.0, dtype=F64)
    problem = gp.Problem(generator, gp.SquaredDistance(generator(truth).detach()), on_signal=gp.Box(-0.3, 0.3))
    result = gp.solve(problem, SOLVERS[solver](), z0=truth + 1e-8, stop=gp.MaxSteps(2000))
    z = cp.Variable(3)
    data = (matrix @ truth[0].numpy()).ravel()
    program = cp.Problem(cp.Minimize(cp.sum_squares(matrix @ z - data)), [cp.abs(matrix @ z) <= 0.3])
    program.solve(solver=cp.CLARABEL)
    violation = float(gp.Box(-0.3, 0.3).violation(result.signal))
    assert violation < 1e-6 or result.status[0] is not gp.Status.CONVERGED
    if solver in ("GradientDescent", "ProjectedGradient"):
        return  # a constant step on a non-smooth penalty may go nowhere; that it says so is enough
    assert violation < 0.15
    loss = float(problem.loss(result.signal))
    assert loss == pytest.approx(program.value, rel=0.1)


@pytest.mark.parametrize("solver", BASELINES)
@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_units_do_not_change_the_verdict(solver, scale):
    """l_inf without a loss, in other units of the signal: same status, same steps, same relative objective."""

    def run(unit: float) -> gp.Result:
        generator, _ = linear(3, 20, seed=4, scale=unit)
        problem = gp.Problem(generator, on_signal=gp.LInf().around(unit * normal(2, 20, seed=5)))
        return gp.solve(problem, SOLVERS[solver](), stop=gp.MaxSteps(150), seed=6)

    plain, scaled = run(1.0), run(scale)
    assert plain.status == scaled.status
    assert plain.steps.tolist() == scaled.steps.tolist()
    torch.testing.assert_close(scaled.objective / scale, plain.objective, rtol=1e-2, atol=1e-3)


class Cliff(nn.Module):
    """Slope 1e6 beyond z = 3, about 1 before."""

    def forward(self, z: Tensor) -> Tensor:
        steep = z + 1e6 * torch.relu(z - 3.0)
        return torch.cat([steep, z.flip(1), z.sum(dim=1, keepdim=True)], dim=1)


@pytest.mark.parametrize("solver", ["GradientDescent", "LBFGS", "Adam", "QuasiNewton", "LevenbergMarquardt"])
def test_a_steep_place_early_does_not_excuse_a_slope_later(solver):
    generator = gp.Generator(Cliff(), 2, 5, dtype=F64)
    problem = gp.Problem(generator, gp.SquaredDistance(torch.tensor([[0.3, -0.2, 0.5, 0.1, 0.9]], dtype=F64)))
    z0 = torch.tensor([[3.2, 0.0]], dtype=F64)
    optimum = gp.solve(problem, gp.LBFGS(), z0=0 * z0, stop=gp.MaxSteps(500)).objective
    result = gp.solve(problem, SOLVERS[solver](), z0=z0, stop=gp.MaxSteps(1500))
    assert result.status[0] is not gp.Status.CONVERGED or float(result.objective) < 1.001 * float(optimum) + 1e-9


@pytest.mark.parametrize("term", [gp.Ball(1.0), gp.Box(-0.3, 0.3), 0.2 * gp.SquaredL2()], ids=repr)
def test_lbfgs_with_a_latent_term_does_not_freeze(term):
    generator, _ = linear(4, 30, seed=6)
    operator = gp.operators.Gaussian(15, (30,), dtype=F64)
    problem = gp.Problem(generator, gp.LeastSquares(operator, 2 * normal(200, 15, seed=7)), on_latent=term)
    options = {"stop": gp.MaxSteps(400), "tolerance": 1e-7, "seed": 8}
    reference = gp.solve(problem, gp.GradientDescent(), **options)
    result = gp.solve(problem, gp.LBFGS(), **options)
    torch.testing.assert_close(result.objective, reference.objective, rtol=1e-5, atol=1e-9)


def test_an_answer_of_zero_converges():
    generator, _ = linear(3, 12, seed=9)
    problem = gp.Problem(generator, gp.SquaredDistance(0.1 * normal(2, 12, seed=10)), on_signal=10 * gp.L1())
    solver = gp.ExactADMM(z_step=gp.z_steps.Gradient(), dual=gp.duals.Constant())
    result = gp.solve(problem, solver, stop=gp.MaxSteps(3000), tolerance=1e-5, seed=1)
    assert result.converged
    assert (result.signal.abs() < 1e-3).all()


@pytest.mark.parametrize("solver", ["GradientDescent", "LBFGS", "ExactADMM Adam", "Auto"])
def test_a_saturated_start_does_not_mislead_the_steps(solver):
    """Far out the logistic loss is flat: its curvature there says nothing about the steps that are safe further in."""
    generator, matrix = linear(3, 8, seed=11)
    inputs, labels = normal(60, 8, seed=12), torch.sign(normal(60, seed=13))
    risk = gp.EmpiricalRisk(lambda w, s: nn.functional.softplus(-s[1] * (w @ s[0].T)), (inputs, labels))
    problem = gp.Problem(generator, risk)
    z0 = 20 * normal(2, 3, seed=14)
    result = gp.solve(problem, SOLVERS[solver](), z0=z0, stop=gp.MaxSteps(3000))
    z = cp.Variable(3)
    margins = cp.multiply(-labels.numpy(), inputs.numpy() @ (matrix @ z))
    program = cp.Problem(cp.Minimize(cp.sum(cp.logistic(margins)) / 60))
    program.solve(solver=cp.CLARABEL)
    torch.testing.assert_close(result.objective, torch.full((2,), program.value, dtype=F64), rtol=1e-3, atol=0)


def test_a_trial_that_went_astray_is_no_unit_for_the_verdict_on_the_base():
    problem = CERTIFIED["noisy"]().problem
    solver = gp.LBFGS().solver(problem)
    with torch.no_grad():
        state = solver.start(problem, problem.generator.sample_latent(problem.batch, seed=1))
        for _ in range(6):
            state = solver.step(problem, state)
        wild = problem.generator.evaluate(1e12 * (1 + state.z))
        astray = replace(state, common=replace(state.common, at=wild))
    for calm, wild in zip(solver.residuals(problem, state), solver.residuals(problem, astray), strict=True):
        assert torch.equal(calm, wild)
