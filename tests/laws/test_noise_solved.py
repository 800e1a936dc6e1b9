"""Whole problems with likelihoods and terms of measurements, through a linear generator: against cvxpy."""

import cvxpy as cp
import numpy as np
import pytest
import torch

import genprior as gp
from genprior import operators as ops

from .operators.instances import F64, random

S, D, M, ITEMS = 4, 12, 9, 3
pytestmark = pytest.mark.filterwarnings("ignore:Solution may be inaccurate")


def generator(shift=4.0):
    module = torch.nn.Linear(S, D, dtype=F64)
    with torch.no_grad():
        module.weight.copy_(0.4 * random(D, S, seed=1))
        module.bias.fill_(shift)
    return gp.Generator(module, (S,), (D,), latent=gp.Normal())


G = generator()
WEIGHT, BIAS = G.module.weight.detach().numpy(), G.module.bias.detach().numpy()
EYE, POSITIVE, SIGNED = ops.Identity(D), ops.Dense(random(M, D, seed=2).abs() / 4), ops.Dense(random(M, D, seed=3) / 3)
MOSTLY = ops.Dense(random(M, D, seed=2).abs() / 4 - 0.05)
KNOWN = ops.Mask(torch.arange(D) % 3 > 0, dtype=F64)


def truth():
    return G(G.sample_latent(ITEMS, seed=4).to(F64)).detach()


def counts(A, gain=6.0, background=0.5):
    rates = gain * A(truth()) + background
    y = torch.poisson(rates, generator=torch.Generator().manual_seed(5))
    return A.measured(y)


def data(A):
    y = A(truth()) + 0.05 * random(ITEMS, *A.measurement_shape, seed=6)
    y[:, 1] += 2.0
    return A.measured(y)


def poisson(A, y, gain=6.0, background=0.5):
    seen = A.measured(torch.ones_like(y))[0].numpy().ravel() > 0

    def oracle(a, k):
        u, k = gain * a[seen] + background, k[seen]
        return cp.sum(u) - k @ cp.log(u) - (k - k * np.log(np.where(k > 0, k, 1))).sum()

    return y, {"loss": gp.Poisson(A, y, gain, background)}, oracle


def huber(A, y):
    sigma = 0.05 + 0.1 * torch.arange(y[0].numel(), dtype=F64).reshape(y[0].shape) / y[0].numel()
    scaled = 1 / sigma.numpy().ravel()

    def oracle(a, k):
        return cp.sum(cp.huber(cp.multiply(scaled, a - k), 1.0)) / 2

    return y, {"loss": gp.Huber(A, y, 1.0, noise=sigma)}, oracle


def through(A, y, term, order):
    return y, {"on_signal": term.around(y).through(A)}, lambda a, k: cp.norm(a - k, order)


CASES = {
    "poisson, identity": (EYE, *poisson(EYE, counts(EYE))),
    "poisson, mask": (KNOWN, *poisson(KNOWN, counts(KNOWN))),
    "poisson, positive rows": (POSITIVE, *poisson(POSITIVE, counts(POSITIVE))),
    "poisson, rows of both signs": (MOSTLY, *poisson(MOSTLY, counts(MOSTLY))),
    "huber, general": (SIGNED, *huber(SIGNED, data(SIGNED))),
    "l1, general": (SIGNED, *through(SIGNED, data(SIGNED), gp.L1(), 1)),
    "linf, general": (SIGNED, *through(SIGNED, data(SIGNED), gp.LInf(), "inf")),
}


def problem(case):
    return gp.Problem(G, on_latent=0.1 * gp.SquaredL2(), **CASES[case][2])


def best(case):
    A, y, _, oracle = CASES[case]
    matrix, values, latents = A.dense().numpy(), [], []
    for i in range(ITEMS):
        z = cp.Variable(S)
        objective = oracle(matrix @ (WEIGHT @ z + BIAS), y[i].numpy().ravel()) + 0.05 * cp.sum_squares(z)
        program = cp.Problem(cp.Minimize(objective))
        program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
        values.append(program.value)
        latents.append(z.value)
    return torch.tensor(values, dtype=F64), torch.from_numpy(np.stack(latents))


@pytest.mark.parametrize("case", CASES)
def test_the_default_solver_finds_the_minimum(case):
    value, z = best(case)
    result = gp.solve(problem(case), stop=gp.MaxSteps(400), seed=1, restarts=1)
    sharp = "loss" in CASES[case][2]
    torch.testing.assert_close(result.objective, value, rtol=1e-6 if sharp else 1e-3, atol=1e-6)
    torch.testing.assert_close(result.z, z, rtol=1e-3, atol=1e-3 if sharp else 3e-2)


def test_a_start_with_impossible_means_is_told():
    """At these latents mean counts are negative: nothing but another start helps, and the advice says what is wrong."""
    where, z0 = problem("poisson, identity"), -60.0 * torch.ones(ITEMS, S, dtype=F64)
    assert bool(where.objective(z0).isinf().all())
    result = gp.solve(where, z0=z0, stop=gp.MaxSteps(5))
    assert not any(status.good for status in result.status)
    assert "the loss or on_signal is infinite" in result.advice[0]


def test_trials_with_impossible_means_are_rejected():
    """From close to the border, where the first steps lead out of the domain."""
    where = problem("poisson, identity")
    z = torch.stack([t * torch.ones(S, dtype=F64) for t in torch.linspace(-20, 20, 400)])
    finite = (
        gp.Problem(G, **CASES["poisson, identity"][2]).rows(torch.zeros(400, dtype=torch.long)).objective(z).isfinite()
    )
    z0 = z[finite][[0, -1, 0]]
    result = gp.solve(where, z0=z0, stop=gp.MaxSteps(400))
    torch.testing.assert_close(result.objective, best("poisson, identity")[0], rtol=1e-6, atol=1e-6)


def test_the_pool_prefers_possible_means():
    where, signals = problem("poisson, identity"), torch.cat([-truth(), truth()])
    scores = where.start_scores(signals, ITEMS)
    assert bool(scores[:, :ITEMS].isinf().all())
    assert bool(scores[:, ITEMS:].isfinite().all())
