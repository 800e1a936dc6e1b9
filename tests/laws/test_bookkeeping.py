"""What solvers keep for verdicts, units and rare events: wrong entries change no formula, only what a user is told."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import genprior as gp
from tests.laws.certified import LATENT, SIGNAL, affine_generator, starts

F64 = torch.float64


class Constant(nn.Module):
    """The same signal for every latent: only w and the multiplier move."""

    def __init__(self, signal: Tensor) -> None:
        super().__init__()
        self.register_buffer("signal", signal)

    def forward(self, z: Tensor) -> Tensor:
        return self.signal.expand(len(z), -1) + 0.0 * z.sum(dim=1, keepdim=True)


def test_the_gap_belongs_to_the_multiplier_of_the_moment():
    """The method of multipliers by hand: ``w = argmin |w - y|^2 + c |w|_1 + <w - x, lam> + rho/2 |w - x|^2``."""
    x, y, c, rho = torch.tensor([0.5, -1.0, 2.0], dtype=F64), torch.tensor([[1.0, 0.3, -0.2]], dtype=F64), 0.4, 3.0
    problem = gp.Problem(gp.Generator(Constant(x), 2, 3), gp.SquaredDistance(y), on_signal=c * gp.L1())
    solver = gp.QuasiNewton(rho=rho, dual_every=1, growth=1.0)
    result = gp.solve(problem, solver, stop=gp.MaxSteps(6), tolerance=0, check_every=1)

    lam, expected = torch.zeros(1, 3, dtype=F64), []
    for _ in range(6):
        for moves in (True, False):
            v = (2 * y + rho * x - lam) / (2 + rho)
            r = v.sign() * (v.abs() - c / (2 + rho)).clamp_min(0) - x
            lam = lam + rho * r if moves else lam
        expected.append((r.norm() / x.norm()).item())
    torch.testing.assert_close(result.history.item(0)["gap"][1:], torch.tensor(expected, dtype=F64))


class Fenced(nn.Module):
    """A map that gives NaN for latents longer than 1.5."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = affine_generator().module

    def forward(self, z: Tensor) -> Tensor:
        return torch.where(z.norm(dim=1, keepdim=True) > 1.5, torch.nan, self.inner(z + 0.3 * z.sin()))


def test_an_item_whose_line_search_is_lost_runs_as_if_alone():
    """Two start at the fence, and their data lie beyond: trial after trial fails. The others have nothing to do with that."""
    generator = gp.Generator(Fenced(), LATENT, SIGNAL)
    truth, z0 = (nn.functional.normalize(starts(4, seed)) for seed in (1, 50))
    truth, z0 = (
        truth * torch.tensor([[4.0], [0.5], [4.0], [0.5]]),
        z0 * torch.tensor([[1.5 - 1e-6], [0.7]]).repeat(2, 1),
    )
    problem = gp.Problem(generator, gp.SquaredDistance(generator.module.inner(truth) + 0.3))
    options = {"stop": gp.MaxSteps(60), "tolerance": 0.0}
    together = gp.solve(problem, gp.QuasiNewton(), z0=z0, **options)
    for item in range(4):
        index = torch.tensor([item])
        alone = gp.solve(problem.rows(index), gp.QuasiNewton(), z0=z0[index], **options)
        torch.testing.assert_close(together.objective[index], alone.objective, rtol=1e-6, atol=1e-12)
        torch.testing.assert_close(together.z[index], alone.z, rtol=1e-6, atol=1e-6)


def test_the_papers_dual_counts_gaps_in_units_of_the_larger_signal():
    """From a dark start and from a bright one: ``lam+ - lam`` against the formula, with units from w and from the start."""
    generator = gp.Generator(nn.Linear(LATENT, SIGNAL, bias=False, dtype=F64), LATENT, SIGNAL)
    generator.module.weight.copy_(affine_generator().module.matrix)
    problem = gp.Problem(generator, gp.SquaredDistance(starts(1, seed=3) @ generator.module.weight.mT))
    solver = gp.ADMM(penalty=gp.penalties.Constant(2.0))
    for size in (1e-6, 100.0):
        with torch.no_grad():
            state = solver.start(problem, size * starts(1))
            first = state.x.norm()
            for k in range(1, 8):
                before, state = state, solver.step(problem, state)
                r = state.w - state.x
                gap = r.norm() / torch.maximum(first, state.w.norm())
                sigma = 0.01 * 2.0 / torch.clamp(k * torch.log(torch.tensor(k + 1.0)) ** 2 * gap, min=1.0)
                torch.testing.assert_close(state.lam - before.lam, sigma * r, rtol=1e-6, atol=1e-15)


# -- verdicts far from the start -------------------------------------------------------------------------------------


class Cubic(nn.Module):
    """Grows so fast that far from the origin gradients are larger by orders of magnitude."""

    def forward(self, h: Tensor) -> Tensor:
        return h + 0.2 * h**3


def least_squares(activation: nn.Module, scale: float = 1.0, seed: int = 0) -> gp.Problem:
    """Noisy measurements of four signals; operator and data in units of ``scale``."""
    random = torch.Generator().manual_seed(seed)
    module = nn.Sequential(nn.Linear(4, 12), activation, nn.Linear(12, 16)).double()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5, generator=random)
    generator, matrix = gp.Generator(module, 4, 16), torch.randn(10, 16, generator=random, dtype=F64)
    with torch.no_grad():
        y = generator(torch.randn(4, 4, generator=random, dtype=F64)) @ matrix.mT
    y = y + 0.5 * torch.randn(y.shape, generator=random, dtype=F64)
    return gp.Problem(generator, gp.LeastSquares(gp.operators.Dense(scale * matrix, (16,)), scale * y))


def stationarity(problem: gp.Problem, z: Tensor) -> Tensor:
    """``|DG^T f|`` over ``|DG| (max(|A^T y|, |A^T A x|) + |f|)`` by autograd, with ``f = A^T (A x - y)``, per item."""
    matrix, found = problem.loss.operator.matrix, []
    for latent, y in zip(z, problem.loss.y, strict=True):
        jacobian = torch.autograd.functional.jacobian(lambda v: problem.generator.module(v[None])[0], latent)
        ours, data = matrix.mT @ (matrix @ problem.generator(latent[None])[0]), matrix.mT @ y
        unit = torch.linalg.matrix_norm(jacobian, 2) * (torch.maximum(ours.norm(), data.norm()) + (ours - data).norm())
        found.append((jacobian.mT @ (ours - data)).norm() / unit)
    return torch.stack(found)


@pytest.mark.parametrize("solver", [gp.Auto(), gp.QuasiNewton(), gp.LevenbergMarquardt(), gp.LBFGS()], ids=repr)
def test_far_starts_excuse_nothing(solver):
    """The gradient at the start is larger by orders of magnitude: it must not be the unit of the verdict at the end."""
    for seed in range(2):
        problem = least_squares(Cubic(), seed=seed)
        z0 = 12 * torch.randn(4, 4, generator=torch.Generator().manual_seed(9), dtype=F64)
        result = gp.solve(problem, solver, z0=z0, tolerance=1e-3, check_every=1, stop=gp.MaxSteps(120))
        assert gp.Status.CONVERGED in result.status, "else this test says nothing"
        converged = torch.tensor([status is gp.Status.CONVERGED for status in result.status])
        assert (stationarity(problem, result.z)[converged] < 2e-3).all()


@pytest.mark.parametrize(
    "solver", [gp.LevenbergMarquardt(), gp.QuasiNewton(refresh=4), gp.LBFGS(), gp.Auto()], ids=repr
)
@pytest.mark.parametrize("scale", [2.0**20, 2.0**-20])
def test_units_of_the_data_change_no_step(solver, scale):
    """Powers of two round nothing: the iterates are the same, and so are the verdicts."""
    options = {"stop": gp.MaxSteps(25), "tolerance": 1e-9}
    plain, other = (gp.solve(least_squares(nn.Tanh(), factor), solver, **options) for factor in (1.0, scale))
    torch.testing.assert_close(other.z, plain.z, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(other.stationarity, plain.stationarity, rtol=1e-6, atol=1e-12)
    assert other.status == plain.status and torch.equal(other.steps, plain.steps)
