"""Laws of the latent against their distribution functions."""

import math

import numpy as np
import pytest
import scipy.stats
import torch

import genprior as gp
from genprior.generators import latents

COUNT = 4000
LAWS = [
    gp.Normal(),
    gp.Normal(2.5),
    gp.TruncatedNormal(2.0),
    gp.TruncatedNormal(3.0, 0.5),
    gp.Uniform(),
    gp.Uniform(1, 4),
]
every = pytest.mark.parametrize("law", LAWS, ids=str)


def draw(law, count=COUNT, shape=(3,), seed=0):
    return law.sample(count, shape, torch.Generator().manual_seed(seed))


@every
def test_same_seed_same_draws_and_the_global_state_is_left_alone(law):
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    first = draw(law, 5, (2, 3))
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(first, draw(law, 5, (2, 3)))
    assert not torch.equal(first, draw(law, 5, (2, 3), seed=1))
    assert first.shape == (5, 2, 3)
    assert first.dtype == torch.float64


@pytest.mark.parametrize(
    ("law", "reference"),
    [
        (gp.Normal(), scipy.stats.norm()),
        (gp.Normal(2.5), scipy.stats.norm(scale=2.5)),
        (gp.Uniform(), scipy.stats.uniform(-1, 2)),
        (gp.Uniform(1, 4), scipy.stats.uniform(1, 3)),
    ],
    ids=["normal", "wide normal", "uniform", "shifted uniform"],
)
def test_coordinates_follow_the_law(law, reference):
    sample = draw(law).flatten().numpy()
    assert scipy.stats.kstest(sample, reference.cdf).pvalue > 0.01
    assert law.spread == pytest.approx(reference.std())


BALLS = [(1, 0.7, 1.0), (2, 1.0, 1.0), (3, 2.0, 1.0), (3, 2.0, 0.5), (20, 3.0, 1.0), (20, 40.0, 1.0), (64, 8.0, 1.0)]


@pytest.mark.parametrize(("size", "radius", "scale"), BALLS)
def test_truncated_normal(size, radius, scale):
    z = draw(gp.TruncatedNormal(radius, scale), shape=(size,)).numpy()
    length = np.linalg.norm(z, axis=1)
    assert length.max() <= radius * (1 + 1e-12)
    chi = scipy.stats.chi(size, scale=scale)
    assert scipy.stats.kstest(length, lambda r: np.clip(chi.cdf(r) / chi.cdf(radius), 0, 1)).pvalue > 0.01
    directions = z / length[:, None]
    assert np.abs(directions.mean(axis=0)).max() < 4.5 / math.sqrt(COUNT * size)
    second = directions.T @ directions / COUNT
    assert np.abs(second - np.eye(size) / size).max() < 5 / (size * math.sqrt(COUNT / 3))


@pytest.mark.parametrize("radius", [1e-3, 1e-6])
@pytest.mark.parametrize("size", [2, 20])
def test_tiny_balls_are_filled_evenly(radius, size):
    z = draw(gp.TruncatedNormal(radius), shape=(size,)).numpy()
    length = np.linalg.norm(z, axis=1)
    assert np.isfinite(z).all()
    assert length.max() <= radius * (1 + 1e-12)
    # In a tiny ball the density is flat, so |z|/radius has distribution function r^size.
    assert scipy.stats.kstest(length / radius, lambda r: np.clip(r, 0, 1) ** size).pvalue > 0.01


def edge_law(size, cut):
    """Distribution function of r with the density r^(size-1) exp(-r^2/2) on [0, cut], integrated on logarithms."""
    r = cut * np.exp(np.linspace(math.log(1e-9) / size, 0, 400_001))
    log_density = (size - 1) * np.log(r / cut) - (r**2 - cut**2) / 2
    density = np.exp(log_density)
    mass = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(r))])
    return lambda x: np.interp(x, r, mass / mass[-1])


STEEP = [(512, 3.0), (1024, 9.5), (1024, 1e-3), (128, 0.02), (16384, 90.0), (16384, 1e-200), (2, 1e-150)]


@pytest.mark.slow
@pytest.mark.parametrize(("size", "radius"), STEEP)
def test_balls_that_the_normal_law_hardly_ever_meets(size, radius):
    """Their probability is below the smallest float64."""
    assert scipy.stats.chi(size).cdf(radius) < 1e-200
    z = draw(gp.TruncatedNormal(radius), 500, (size,)).numpy() / radius
    length = np.linalg.norm(z, axis=1)
    assert length.max() <= 1 + 1e-12
    assert scipy.stats.kstest(length * radius, edge_law(size, radius)).pvalue > 0.01
    directions = z / length[:, None]
    products = directions[::2] @ directions[1::2].T
    assert np.abs(products).max() < 6 / math.sqrt(size), "all in directions of their own"


@pytest.mark.parametrize(("size", "cut"), [(20, 3.0), (64, 6.0)])
def test_rejection_in_balls_that_are_met(size, cut):
    """Where draws are often rejected, so that a wrong rule would show."""
    length = latents._lengths_in_rare_ball(100_000, size, cut, torch.Generator().manual_seed(0)).numpy()
    assert scipy.stats.kstest(length, edge_law(size, cut)).pvalue > 0.01


def test_truncated_normal_of_images_uses_the_whole_item():
    z = draw(gp.TruncatedNormal(1.5), 200, (2, 3, 4))
    assert z.shape == (200, 2, 3, 4)
    assert float(z.flatten(1).norm(dim=1).max()) <= 1.5 + 1e-12


def test_truncated_spread_is_the_scale():
    assert gp.TruncatedNormal(2.0, 0.5).spread == 0.5


@pytest.mark.parametrize(("size", "radius", "scale"), [*BALLS, (512, 3.0, 1.0), (128, 15.31, 1.0)])
def test_the_unit_of_length_is_the_size_of_a_coordinate(size, radius, scale):
    law = gp.TruncatedNormal(radius, scale)
    found = float(draw(law, 2000, (size,)).square().mean().sqrt())
    assert law.spread_in((size,)) / 1.4 < found < 1.05 * law.spread_in((size,))
    assert gp.Generator(torch.nn.Linear(size, 2), size, 2, latent=law).spread == law.spread_in((size,))
    assert gp.Normal(scale).spread_in((size,)) == scale


BAD = [
    (lambda: gp.Normal(0), "scale must be a finite number above 0"),
    (lambda: gp.Normal(math.nan), "scale must be a finite number above 0"),
    (lambda: gp.TruncatedNormal(-1), "radius must be a finite number above 0"),
    (lambda: gp.TruncatedNormal(1, 0), "scale must be a finite number above 0"),
    (lambda: gp.TruncatedNormal(math.inf), "radius must be a finite number above 0"),
    (lambda: gp.Uniform(1, 1), "high must be above low, got low=1 and high=1"),
    (lambda: gp.Uniform(0, math.inf), "high must be a finite number"),
]


@pytest.mark.parametrize(("make", "message"), BAD)
def test_bad_parameters(make, message):
    with pytest.raises(ValueError, match=message):
        make()
