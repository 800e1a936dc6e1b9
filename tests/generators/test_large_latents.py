"""Large latents, of which no matrix is kept: the mean eigenvalue, the ridge that follows from it, and bounded memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import genprior as gp
from genprior.generators import ScaledIdentity, preconditioner
from genprior.generators.preconditioner import Variance, completed, estimated, scaled_identity
from tests.laws.certified import CERTIFIED

F64 = torch.float64


def decoder(width=4, side=17, seed=0):
    """A random convolutional decoder of ``width * side * side`` latents; 1156 here."""
    layers: list[nn.Module] = [nn.Conv2d(width, 16, 3, padding=1), nn.SiLU()]
    for channels in (16, 1):
        layers += [nn.Upsample(scale_factor=2), nn.Conv2d(16, channels, 3, padding=1), nn.SiLU()]
    module = nn.Sequential(*layers[:-1], nn.Tanh())
    random = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=1.4 / max(1, parameter[0].numel()) ** 0.5, generator=random)
    return gp.Generator(module, (width, side, side), (1, 4 * side, 4 * side))


def measured(generator, items=2):
    operator = gp.operators.SubsampledHadamard(2000, generator.signal_shape, seed=0)
    truth = generator(generator.sample_latent(items, seed=7)).detach()
    return gp.Problem(generator, gp.LeastSquares(operator, operator(truth))), truth


def test_the_mean_eigenvalue_is_that_of_the_gram_matrix():
    generator = decoder(2, 6)
    z = generator.draw(400, torch.Generator().manual_seed(0))
    exact = generator.jacobian(z).square().sum(dim=(1, 2)).mean() / 72
    found = scaled_identity(generator, 400, 1)
    torch.testing.assert_close(found.values, exact.expand(72), rtol=0.05, atol=0)
    torch.testing.assert_close(found.matrix, exact * torch.eye(72), rtol=0.05, atol=0)


def test_one_of_a_broken_generator_is_the_identity():
    class Broken(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            return z / 0

    assert torch.equal(scaled_identity(gp.Generator(Broken(), 3, 3), 2, 2).matrix, torch.eye(3))


@pytest.mark.parametrize("latent", [gp.Normal(), gp.Uniform(-2.0, 3.0)])
def test_the_variance_of_a_linear_generator_is_that_of_its_entries(latent):
    torch.manual_seed(0)
    module = nn.Linear(5, 40).double()
    generator = gp.Generator(module, 5, 40, latent=latent)
    exact = module.weight.square().sum() * generator.spread**2
    torch.testing.assert_close(estimated(generator, 4000, 1).variance, exact, rtol=0.05, atol=0)
    torch.testing.assert_close(completed(generator, torch.eye(5), 4000).variance, exact, rtol=0.05, atol=0)
    torch.testing.assert_close(estimated(generator, 1, 4000).variance, exact, rtol=0.05, atol=0)


def test_the_variance_is_exact_in_parts_and_where_signals_are_much_alike():
    signals = 1e3 + torch.randn(20, 3, 4, generator=torch.Generator().manual_seed(0))
    variance = Variance()
    for part in signals.split([1, 7, 12]):
        variance.add(part)
    exact = signals.double().var(dim=0).sum().float()
    torch.testing.assert_close(variance.total(torch.tensor(1.0)), exact, rtol=1e-4, atol=0)


def test_large_latents_have_one_and_a_given_matrix_stays():
    large = decoder()
    assert isinstance(large.preconditioner(), ScaledIdentity)
    given = gp.Generator(decoder().module, large.latent_shape, large.signal_shape, preconditioner=torch.eye(1156))
    assert torch.equal(given.preconditioner().matrix, torch.eye(1156))


@pytest.mark.parametrize("case", ["in range", "noisy", "latent l1", "latent box", "signal l1"])
def test_quasi_newton_finds_the_optimum_without_a_matrix(case, monkeypatch):
    monkeypatch.setattr(preconditioner, "LARGEST_DENSE", 0)
    certified = CERTIFIED[case]()
    result = gp.solve(certified.problem, gp.QuasiNewton(refresh=4), stop=gp.MaxSteps(400))
    assert set(result.status) == {gp.Status.CONVERGED}
    torch.testing.assert_close(result.objective, torch.as_tensor(certified.optimum), rtol=1e-4, atol=1e-6)


def test_the_ridge_saves_passes():
    problem, truth = measured(decoder())
    z0 = problem.generator.sample_latent(2, seed=8)
    errors = []
    for solver in (gp.Auto(), gp.LBFGS(20)):
        result = gp.solve(problem, solver, z0=z0, stop=gp.MaxPasses(40), tolerance=0)
        errors.append(float((result.signal - truth).norm() / truth.norm()))
    assert errors[0] < 0.8 * errors[1]


@pytest.mark.parametrize(("side", "pairs"), [(34, 50), (400, 6), (1000, 5)])
def test_the_memory_of_an_item_is_bounded(side, pairs):
    generator = gp.Generator(nn.Identity(), (4, side, side), (4, side, side))
    problem = gp.Problem(generator, gp.SquaredDistance(torch.zeros(1, 4, side, side)))
    assert gp.Auto().choice(problem).memory == pairs
