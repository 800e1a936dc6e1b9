"""The proof of convergence against derivatives by autograd, in float64."""

import pytest
import torch
from torch import nn

import genprior as gp
from genprior.solvers.base import Multiplier
from genprior.solvers.optimality import PASSES, optimality

F64 = torch.float64
ITEMS, LATENT, SIGNAL, DATA = 4, 5, 12, 8


def parts(unit=1.0):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(LATENT, 16), nn.Tanh(), nn.Linear(16, SIGNAL)).double()
    with torch.no_grad():
        net[2].weight.mul_(unit)
        net[2].bias.mul_(unit)
    G = gp.Generator(net, LATENT, SIGNAL)
    matrix = torch.randn(DATA, SIGNAL, dtype=F64)
    y = unit * torch.randn(ITEMS, DATA, dtype=F64)
    z = torch.randn(ITEMS, LATENT, dtype=F64)
    return G, net, matrix, y, z


def exact(net, matrix, y, z, own):
    """Residual and unit by autograd, item by item."""
    found = []
    for one, data in zip(z, y, strict=True):
        jacobian = torch.func.jacrev(net)(one)
        with torch.no_grad():
            x = net(one)
        f = matrix.T @ (matrix @ x - data)
        unit = torch.maximum((matrix.T @ data).norm(), (matrix.T @ (matrix @ x)).norm()) + f.norm()
        h = own(one)
        whole = torch.linalg.matrix_norm(jacobian, 2) * unit + h.norm()
        found.append((jacobian.T @ f + h).norm() / whole)
    return torch.stack(found)


@pytest.mark.parametrize("unit", [1.0, 1e-100, 1e100])
@pytest.mark.parametrize("weight", [0.0, 0.5, 1e4])
def test_gradient_and_scale_are_those_of_the_point(unit, weight):
    """Never smaller than the truth, for |DG| is estimated from below, and not much larger; in all units."""
    G, _, matrix, y, z = parts(unit)
    c = weight * unit**2
    problem = gp.Problem(
        G, gp.LeastSquares(gp.operators.Dense(matrix, (SIGNAL,)), y), on_latent=c * gp.SquaredL2() if c else None
    )
    primal_residual, found = optimality(problem, z, torch.ones(ITEMS, dtype=F64))
    _, net, _, y, _ = parts()
    truth = exact(net, matrix, y, z, lambda one: weight * one).detach()
    assert (found >= truth * (1 - 1e-6)).all() and (found <= 3 * truth).all()
    assert (primal_residual == 0).all()


def test_it_costs_what_it_says():
    G, _, matrix, y, z = parts()
    problem = gp.Problem(G, gp.LeastSquares(gp.operators.Dense(matrix, (SIGNAL,)), y))
    optimality(problem, z, torch.ones(ITEMS, dtype=F64))
    assert (G.forwards, G.backwards) == PASSES


@pytest.mark.parametrize("far", [1.0, 1e3, 1e6])
def test_a_ball_hides_no_gradient(far):
    """Data far outside: t = 1/(nu |DG|^2) would step over the whole ball, and divide what is left by a huge t."""
    G, net, matrix, y, z = parts()
    z = z / z.norm(dim=1, keepdim=True)
    problem = gp.Problem(G, gp.LeastSquares(gp.operators.Dense(matrix, (SIGNAL,)), far * y), on_latent=gp.Ball(1.0))
    _, found = optimality(problem, z, torch.ones(ITEMS, dtype=F64))
    for i in range(ITEMS):
        jacobian = torch.func.jacrev(net)(z[i])
        with torch.no_grad():
            f = matrix.T @ (matrix @ net(z[i]) - far * y[i])
        g = jacobian.T @ f
        along = (g * z[i]).sum()
        tangent = g - along * z[i] if along < 0 else g
        assert found[i] > 0.05 * tangent.norm() / (torch.linalg.matrix_norm(jacobian, 2) * 3 * far * y[i].norm())


def test_a_multiplier_must_be_one():
    """min |w - y|_1 with w = z: the multiplier of the solution proves it, another does not, and no other point has one."""
    G = gp.Generator(nn.Identity(), 6, 6, dtype=F64)
    y = torch.randn(3, 6, dtype=F64, generator=torch.Generator().manual_seed(1))
    problem = gp.Problem(G, on_signal=gp.L1().around(y))
    ones, zero = torch.ones(3, dtype=F64), torch.zeros(3, 6, dtype=F64)
    proved = optimality(problem, y, ones, Multiplier(zero, 2 * ones))
    assert torch.maximum(*proved).max() < 1e-12
    _, wrong = optimality(problem, y, ones, Multiplier(zero + 0.5, 2 * ones))
    assert (wrong > 0.1).all()
    away = optimality(problem, y + 0.3, ones, Multiplier(zero, 2 * ones))
    assert (torch.maximum(*away) > 0.1).all()


def test_data_that_cannot_be_squared_are_refused():
    torch.manual_seed(0)
    G = gp.Generator(nn.Linear(3, 4), 3, 4)
    tiny = nn.Linear(3, 4)
    with torch.no_grad():
        tiny.weight.mul_(1e-25)
        tiny.bias.mul_(1e-25)
    for generator, size in ((G, 1e25), (gp.Generator(tiny, 3, 4), 1e-25)):
        with pytest.raises(ValueError, match=r"cannot be represented in float32.*float64"):
            gp.solve(gp.Problem(generator, gp.SquaredDistance(torch.full((2, 4), size))))
    result = gp.solve(gp.Problem(G, gp.SquaredDistance(torch.tensor([[1e25] * 4, [0.5] * 4]))))
    assert result.status[0] is gp.Status.DIVERGED and "float64" in result.advice[0]
    assert result.status[1] is gp.Status.CONVERGED


class Sigmoid(nn.Module):
    """Pixels in (0, 1), of which the first is nearly 0 for all z."""

    def __init__(self):
        super().__init__()
        random = torch.Generator().manual_seed(1)
        self.matrix = torch.randn(SIGNAL, LATENT, generator=random, dtype=F64)
        self.offset = torch.zeros(SIGNAL, dtype=F64)
        self.offset[0] = -14

    def forward(self, z):
        return torch.sigmoid(z @ self.matrix.T + self.offset)


@pytest.mark.parametrize("name", ["log", "counts"])
def test_a_pixel_that_z_does_not_move_is_no_unit(name):
    """Its part of the gradient in the signal is huge, and nothing comes back: beside it any gradient would look short."""
    G = gp.Generator(Sigmoid(), LATENT, SIGNAL, dtype=F64)
    x = G(G.sample_latent(ITEMS, seed=1)).detach()
    z = G.sample_latent(ITEMS, seed=2)
    losses = {
        "log": lambda: gp.NonLinear(torch.log, x.log()),
        "counts": lambda: gp.Poisson(gp.operators.Identity(SIGNAL), 20 * x + 1, gain=20),
    }
    _, found = optimality(gp.Problem(G, losses[name]()), z, x.norm(dim=1))
    assert (found > 0.05).all()


class Sphere(nn.Module):
    def forward(self, z):
        return z / z.norm(dim=1, keepdim=True)


def test_parts_that_vanish_on_the_way_back_are_no_unit():
    """On a sphere ``DG(z)^T x`` is zero wherever z is: minima must be found to converge nevertheless."""
    G = gp.Generator(Sphere(), LATENT, LATENT, dtype=F64)
    y = torch.randn(ITEMS, LATENT, dtype=F64, generator=torch.Generator().manual_seed(1))
    result = gp.solve(
        gp.Problem(G, gp.LeastSquares(gp.operators.Identity(LATENT), y)), stop=gp.MaxSteps(100), restarts=1
    )
    assert result.converged
    torch.testing.assert_close(result.signal, Sphere()(y), rtol=0, atol=1e-4)
