"""Noisy data and sets, where rounding and the last steps decide: what has converged says so, and is what is returned."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

import genprior as gp

ITEMS = 20


def generator(latent, signal, dtype):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(latent, 64), nn.ELU(), nn.Linear(64, signal)).to(dtype)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3 if parameter.ndim == 2 else 0.1)
    return gp.Generator(module, latent, signal)


def noisy(latent, dtype, level=0.01):
    G = generator(latent, 5 * latent, dtype)
    A = gp.operators.Gaussian(3 * latent, G.signal_shape, seed=0, dtype=dtype)
    y = A(G(G.sample_latent(ITEMS, seed=1))).detach()
    noise = torch.randn(y.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return gp.Problem(G, gp.LeastSquares(A, y + level * noise.to(dtype)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("latent", [4, 10])
@pytest.mark.parametrize(
    ("solver", "steps"),
    [(gp.Auto(), 40), (gp.LBFGS(), 80), (gp.LevenbergMarquardt(), 120)],
    ids=["auto", "lbfgs", "lm"],
)
def test_noisy_data_end_in_convergence_soon(solver, steps, latent, dtype):
    """Where |Ax - y| is far below |y|, rounding of the signal moves the objective more than its own last digits."""
    problem = noisy(latent, dtype)
    result = gp.solve(problem, solver, stop=gp.MaxSteps(1000), z0=problem.generator.sample_latent(ITEMS, seed=5))
    ended = np.array([status.name for status in result.status])
    assert (ended == "CONVERGED").mean() >= 0.8, dict(zip(*np.unique(ended, return_counts=True), strict=True))
    assert float(result.steps.double().mean()) <= steps


TERMS = {
    "l1": lambda y: 0.1 * gp.L1(),
    "l1 around the data": lambda y: gp.L1().around(y),
    "linf": lambda y: 0.3 * gp.LInf(),
    "box": lambda y: gp.Box(-0.6, 0.6),
}


@pytest.mark.parametrize("name", TERMS)
def test_the_dual_does_not_wait_where_nothing_is_left_to_gain(name):
    G = generator(4, 12, torch.float64)
    x = G(G.sample_latent(ITEMS, seed=1)).detach()
    y = x + 0.05 * torch.randn(x.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    problem = gp.Problem(G, gp.SquaredDistance(y), on_signal=TERMS[name](y))
    result = gp.solve(problem, stop=gp.MaxSteps(1000), z0=G.sample_latent(ITEMS, seed=5))
    assert {status.name for status in result.status} == {"CONVERGED"}
    assert float(result.steps.double().mean()) < 100  # three times as many if it moved every sixteenth step only


def constrained():
    G = generator(4, 12, torch.float64)
    x = G(G.sample_latent(6, seed=1)).detach()
    y = x + 0.05 * torch.randn(x.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    edge = float(x.abs().quantile(0.8))
    return G, y, edge, gp.Problem(G, gp.SquaredDistance(y), on_signal=gp.Box(-edge, edge))


def least(G, y, edge, z):
    """The minimum in the box, by scipy from ``z``."""

    def value(point):
        leaf = torch.tensor(point)[None].requires_grad_()
        loss = (G(leaf) - y).square().sum()
        return loss.item(), torch.autograd.grad(loss, leaf)[0][0].numpy()

    room = {"type": "ineq", "fun": lambda point: (edge - G(torch.tensor(point)[None]).detach()[0].abs()).numpy()}
    return minimize(value, z, jac=True, constraints=room, method="SLSQP", options={"maxiter": 300, "ftol": 1e-12}).fun


def test_what_converged_on_the_edge_of_a_set_is_what_is_returned():
    """Its signal may be past the edge by the tolerance; an early iterate inside, with a far larger objective, is no answer."""
    G, y, edge, problem = constrained()
    result = gp.solve(problem, stop=gp.MaxSteps(1000))
    over = (result.signal.abs() - edge).amax(dim=1)
    assert (over > -1e-3).sum() >= 3, "the box must matter"
    for i, status in enumerate(result.status):
        assert status.name == "CONVERGED"
        assert float(over[i]) <= 1e-6 * float(result.signal[i].norm())
        assert float(result.objective[i]) == pytest.approx(least(G, y[i], edge, result.z[i].numpy()), rel=1e-4)
    assert bool(problem.on_signal(result.w).isfinite().all())


@pytest.mark.parametrize("feasibility", [1e-9, 1e-6, 1e-2])
def test_the_problem_says_what_is_feasible_and_so_does_the_result(feasibility):
    _, _, _, problem = constrained()
    problem = gp.Problem(problem.generator, problem.loss, problem.on_signal, feasibility=feasibility)
    result = gp.solve(problem, stop=gp.MaxSteps(300))
    torch.testing.assert_close(problem.objective(result.z), result.objective, rtol=1e-9, atol=0)
    over = problem.on_signal.violation(result.signal)
    assert torch.equal(over <= feasibility * result.signal.norm(dim=1), result.objective.isfinite())


def test_a_call_gives_the_same_bits_whatever_was_asked_before():
    problem = noisy(4, torch.float32)
    runs = []
    for _ in range(2):
        runs.append(gp.solve(problem, restarts=2, seed=0, stop=gp.MaxSteps(30)))
        problem.objective(runs[0].z)
    assert torch.equal(runs[0].z, runs[1].z)
    fresh = gp.solve(noisy(4, torch.float32), restarts=2, seed=0, stop=gp.MaxSteps(30))
    assert torch.equal(runs[0].z, fresh.z)
