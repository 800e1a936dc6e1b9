"""Where a generator does not move its signal (zero weights, dead units), a run ends with a status, and only for that item."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import genprior as gp

F64 = torch.float64
SOLVERS = {
    "auto": gp.Auto,
    "quasi-newton": gp.QuasiNewton,
    "quasi-newton, bare": lambda: gp.QuasiNewton(ridge=0, refresh=1),
    "levenberg-marquardt": gp.LevenbergMarquardt,
    "lbfgs": gp.LBFGS,
    "adam": gp.Adam,
    "exact": gp.ExactADMM,
}
SQUARES = ("levenberg-marquardt",)


def zero(dtype):
    module = nn.Linear(3, 6, dtype=dtype)
    nn.init.zeros_(module.weight)
    nn.init.constant_(module.bias, 0.5)
    return gp.Generator(module, 3, 6)


class Dead(nn.Module):
    """``(z1, z2)`` where z0 is above -1; elsewhere nothing moves."""

    def forward(self, z):
        return (z[:, :1] > -1).to(z.dtype) * z[:, 1:]


TERMS = [(gp.Zero(), gp.Zero()), (gp.Zero(), gp.Ball(2.0)), (0.1 * gp.L1(), gp.Zero())]
CASES = [(solver, terms) for solver in SOLVERS for terms in TERMS if solver not in SQUARES or terms[0] == gp.Zero()]


@pytest.mark.parametrize(("solver", "terms"), CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_zero_weights(solver, terms, dtype):
    signal, latent = terms
    problem = gp.Problem(zero(dtype), gp.SquaredDistance(torch.ones(2, 6, dtype=dtype)), signal, latent)
    result = gp.solve(problem, SOLVERS[solver](), stop=gp.MaxSteps(100), patience=20)
    assert torch.isfinite(result.z).all() and torch.equal(result.signal, torch.full((2, 6), 0.5, dtype=dtype))
    if terms == (gp.Zero(), gp.Zero()) and solver != "exact":  # whose gap need not close
        assert set(result.status) == {gp.Status.CONVERGED}, "every point is stationary"
    assert gp.Status.DIVERGED not in result.status and all(result.advice)


@pytest.mark.parametrize("solver", ["auto", "quasi-newton", "quasi-newton, bare", "lbfgs"])
def test_one_item_in_a_flat_place_does_not_hurt_the_others(solver):
    """Alone and beside others each item gives the same; the live ones find their signal, the flat one ends."""
    generator = gp.Generator(Dead(), 3, 2, dtype=F64)
    z0 = torch.tensor([[-3.0, 0.5, 1.0], [1.0, 4.0, 4.0], [2.0, -3.0, 5.0]], dtype=F64)
    y = torch.tensor([[1.0, 2.0], [6.0, 5.0], [-5.0, 3.0]], dtype=F64)  # from these starts, a flat place is uphill

    def run(rows):
        problem = gp.Problem(generator, gp.SquaredDistance(y[rows]))
        return gp.solve(problem, SOLVERS[solver](), stop=gp.MaxSteps(100), z0=z0[rows])

    together = run(slice(0, 3))
    assert together.status[0] == gp.Status.CONVERGED
    if solver in {"quasi-newton, bare", "lbfgs"}:  # the pull towards the law may lead out of the flat place
        assert torch.equal(together.signal[0], torch.zeros(2, dtype=F64))
    assert float(together.objective[1:].max()) < 1e-8
    for item in range(3):
        alone = run(slice(item, item + 1))
        assert alone.status == together.status[item : item + 1]
        torch.testing.assert_close(alone.signal, together.signal[item : item + 1], rtol=1e-7, atol=1e-7)
