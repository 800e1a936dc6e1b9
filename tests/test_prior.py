"""The maximum a posteriori problem: the latent distribution as a term, and a linear model whose answer is known."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

import genprior as gp

F64 = torch.float64


def generator(latent, size=4):
    module = torch.nn.Linear(size, 12, dtype=F64)
    with torch.no_grad():
        module.weight.copy_(torch.randn(12, size, generator=torch.Generator().manual_seed(1), dtype=F64))
    return gp.Generator(module, (size,), (12,), latent=latent)


def draws(size=4):
    return torch.randn(50, size, generator=torch.Generator().manual_seed(2), dtype=F64)


@pytest.mark.parametrize("scale", [0.5, 2.0])
@pytest.mark.parametrize("widen", [1.0, 3.0])
def test_a_normal_prior_is_its_log_density(scale, widen):
    z = draws()
    expected = -stats.norm(scale=widen * scale).logpdf(z.numpy()).sum(1)
    ours = gp.prior_term(generator(gp.Normal(scale)), widen)(z).numpy()
    np.testing.assert_allclose(ours - ours[0], expected - expected[0], rtol=1e-12, atol=1e-12)


def test_a_uniform_prior_is_its_box():
    term, z = gp.prior_term(generator(gp.Uniform(-1.0, 0.5))), draws()
    inside = ((z >= -1) & (z <= 0.5)).all(1)
    assert torch.equal(term(z) == 0, inside)
    assert bool((term(z)[~inside] == math.inf).all())


def test_a_truncated_prior_is_both_where_the_cut_matters():
    z = draws()
    narrow = gp.prior_term(generator(gp.TruncatedNormal(1.5)), widen=1.0)
    inside = z.norm(dim=1) <= 1.5
    assert torch.equal(narrow(z).isfinite(), inside)
    torch.testing.assert_close(narrow(z)[inside], 0.5 * z.square().sum(1)[inside])
    wide = gp.prior_term(generator(gp.TruncatedNormal(9.0)), widen=1.0)
    assert bool(wide(10 * z).isfinite().all())


@pytest.mark.parametrize("widen", [1.0, 1.8])
def test_of_a_linear_generator_it_is_the_posterior_mean(widen):
    G, sigma = generator(gp.Normal(0.7)), 0.3 + torch.arange(5, dtype=F64) / 5
    A = gp.operators.Gaussian(5, 12, seed=1, dtype=F64)
    truth = G(G.sample_latent(3, seed=3).to(F64)).detach()
    y = A(truth) + sigma * torch.randn(3, 5, generator=torch.Generator().manual_seed(4), dtype=F64)
    result = gp.solve(gp.map_problem(G, gp.LeastSquares(A, y, noise=sigma), widen=widen), seed=1, restarts=1)
    J = (A.matrix @ G.module.weight.detach()) / sigma[:, None]
    offset = (y - A(G.module.bias.detach().expand(3, 12))) / sigma
    mean = torch.linalg.solve(J.T @ J + torch.eye(4, dtype=F64) / (widen * 0.7) ** 2, J.T @ offset.T).T
    torch.testing.assert_close(result.z, mean, rtol=1e-5, atol=1e-6)
    assert result.misfit is not None


def test_the_weight_follows_the_noise_and_units_do_not_matter():
    """Measurements in other units, with their noise, have the same answer."""
    G, A = generator(gp.Normal()), gp.operators.Identity(12)
    y = G(G.sample_latent(2, seed=5).to(F64)).detach() + 0.5

    def answer(unit):
        loss = gp.LeastSquares(unit * A, unit * y, noise=unit * 0.4)
        return gp.solve(gp.map_problem(G, loss), seed=1, restarts=1).z

    torch.testing.assert_close(answer(1.0), answer(1000.0), rtol=1e-5, atol=1e-6)


def test_what_has_no_density_or_noise_is_refused():
    G = generator(gp.Normal())
    with pytest.raises(ValueError, match="map_problem weighs the prior against the noise, but LeastSquares"):
        gp.map_problem(G, gp.LeastSquares(gp.operators.Identity(12), torch.zeros(1, 12, dtype=F64)))
    forward, y = gp.operators.Identity(12), torch.ones(1, 12, dtype=F64)
    with pytest.raises(
        ValueError, match=r"but NonLinear.* has no noise level: give NonLinear\(forward, y, noise=sigma\)"
    ):
        gp.map_problem(G, gp.NonLinear(forward, y))
    for noise in (0.1, gp.losses.PoissonLikelihood()):
        assert gp.map_problem(G, gp.NonLinear(forward, y, noise=noise)).batch == 1
    with pytest.raises(ValueError, match="widen must be a finite number above 0"):
        gp.prior_term(G, 0)
