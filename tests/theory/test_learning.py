"""Statistical learning: the bound on simulated regressions, the Rademacher estimates against enumeration."""

import itertools
import math

import pytest
import torch
from torch import nn

import genprior as gp
from genprior.lab.regressions import curve, simulate
from genprior.theory import generalisation, loss_constants, rademacher, rademacher_regression
from genprior.theory.learning import Estimate


def regression_loss(w, samples):
    x, y = samples
    return 0.5 * (w @ x.T - y) ** 2


@pytest.fixture(scope="module")
def small():
    """Eight samples in the plane: all 256 sign patterns can be enumerated."""
    random = torch.Generator().manual_seed(4)
    x = torch.randn(8, 2, generator=random, dtype=torch.float64)
    y = x @ torch.tensor([0.3, -0.2], dtype=torch.float64) + 0.1 * torch.randn(8, generator=random, dtype=torch.float64)
    return x, y


def enumerated(x, y, radius):
    """``E_e max_{|w| <= radius} |1/m sum e_i x_i (<x_i, w> - y_i)|`` by all signs and a fine grid of the circle."""
    angles = torch.linspace(0, 2 * math.pi, 2001, dtype=torch.float64)
    lengths = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    circle = radius * torch.stack([angles.cos(), angles.sin()], dim=1)
    w = (lengths[:, None, None] * circle).reshape(-1, 2)
    gradients = (w @ x.T - y)[:, :, None] * x  # (points, m, 2)
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=len(x))), dtype=torch.float64)
    sums = torch.einsum("em,pmd->epd", signs, gradients) / len(x)
    return float(sums.norm(dim=2).max(dim=1).values.mean())


def test_both_estimates_enclose_the_complexity(small):
    x, y = small
    truth = enumerated(x, y, 1.5)
    plane = gp.Generator(nn.Linear(2, 2, bias=False).double(), 2, 2)
    plane.module.weight.data = torch.eye(2).double()
    risk = gp.EmpiricalRisk(regression_loss, small)
    low = rademacher(risk, plane, 1.5, draws=256, ascent=40)
    high = rademacher_regression(x, -y, 1.5, draws=256)
    assert low.side == "lower" and high.side == "upper"
    assert low.mean - 3 * low.error <= truth <= high.mean + 3 * high.error
    assert low.mean >= truth - 4 * low.error, "the ascent finds the maximum on a ball"
    assert high.mean <= 1.6 * truth


def brackets(x, r, width):
    """``width |1/m sum e_i x_i x_i^T| + |1/m sum e_i r_i x_i|`` for all patterns of signs, in the order of their bits."""
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=len(x))), dtype=torch.float64)
    matrices = torch.einsum("em,md,mc->edc", signs, x, x) / len(x)
    return width * torch.linalg.matrix_norm(matrices, 2) + ((signs * r) @ x / len(x)).norm(dim=1)


def test_the_error_of_the_upper_estimate_has_a_bound(small):
    """No sign changes a draw by more than the swing counts, and even two draws are not too low more often than is said."""
    x, y = small
    values = brackets(x, -y, 1.5).reshape(*(2,) * len(x))
    changes = [float((values.select(k, 0) - values.select(k, 1)).abs().max()) for k in range(len(x))]
    swing = rademacher_regression(x, -y, 1.5).swing
    assert 0.5 * swing < math.hypot(*changes) <= swing
    for draws in (2, 32):
        found = [rademacher_regression(x, -y, 1.5, draws=draws, seed=seed) for seed in range(60)]
        above = [generalisation(estimate, 1.0, 8, 1.0, eps=0.5).rademacher for estimate in found]
        assert sum(bound < float(values.mean()) for bound in above) <= 60 * math.exp(-2.5)
        assert any(estimate.mean < float(values.mean()) for estimate in found), "the allowance is needed"


def test_an_estimate_of_which_nothing_is_known_is_called_so():
    plain = Estimate(1.0, 0.1, 8, "upper")
    assert generalisation(plain, 1.0, 5, 1.0).estimated and generalisation(plain, 1.0, 5, 1.0).rademacher == 1.3
    assert not generalisation(1.3, 1.0, 5, 1.0).estimated


def test_a_range_has_less_than_the_whole_ball(small):
    torch.manual_seed(0)
    curve = gp.Generator(nn.Sequential(nn.Linear(1, 2), nn.Tanh()).double(), 1, 2)
    risk = gp.EmpiricalRisk(regression_loss, small)
    assert rademacher(risk, curve, 1.0, draws=64).mean < rademacher_regression(small[0], -small[1], math.sqrt(2)).mean


def test_two_hundred_regressions():
    """The bound holds in more than a share 1 - exp(-eps) of them, and it is not empty."""
    previous = math.inf
    for samples in (100, 1000, 6000):
        found = simulate(samples, seed=samples)
        assert len(found.error) == 200
        assert (found.error <= found.bound).double().mean() >= found.probability
        assert (found.gradient_error <= found.gradient_bound).double().mean() >= found.probability
        assert found.bound.max() < previous, "more samples, a smaller bound"
        previous = float(found.bound.max())
    assert found.bound.median() < 1.2, "of what is possible"
    assert found.gradient_bound.median() < 40 * found.gradient_error.median()


class Helix(nn.Module):
    def forward(self, z):
        return curve(z[:, 0])


def test_a_regression_solved_with_the_range_as_the_prior():
    """R is the indicator of W, H keeps the latent in its interval: ADMM's answer is within the bound of the true weights."""
    random = torch.Generator().manual_seed(0)
    generator = gp.Generator(Helix(), 1, 3, dtype=torch.float64)
    truth = generator(torch.tensor([[0.4]]).double())
    x = torch.randn(1500, 3, generator=random, dtype=torch.float64)
    x = math.sqrt(3) * x / x.norm(dim=1, keepdim=True)
    y = x @ truth[0] + 0.2 * (2 * torch.rand(1500, generator=random, dtype=torch.float64) - 1)
    risk = gp.EmpiricalRisk(regression_loss, (x, y), smoothness=1.2)
    problem = gp.Problem(generator, risk, on_signal=gp.Ball(1.0), on_latent=gp.Ball(1.0))
    result = gp.solve(
        problem, gp.ExactADMM(rho=1.0), stop=gp.MaxSteps(60), z0=torch.zeros(1, 1).double(), progress=False
    )
    grid = curve(torch.linspace(-1, 1, 4001, dtype=torch.float64))
    best = grid[risk(grid).argmin()]
    assert (result.signal[0] - best).norm() < 5e-3, "the minimiser over the range, found by brute force"
    width, spread = 1.2, 2 * math.sqrt(3) * (math.sqrt(3) * 1.2 + 0.2)
    high = rademacher_regression(x, x @ truth[0] - y, width)
    low = rademacher(risk, generator, 1.0, draws=8)
    assert 0 < low.mean < high.mean
    found = generalisation(high, spread, 1500, zeta=1.0)
    assert found.rademacher == high.mean + high.swing * math.sqrt(5 / (2 * high.draws)) and not found.estimated
    assert (result.signal[0] - truth[0]).norm() <= found.bound(5e-3)
    curvature = loss_constants(problem, 1.0)
    assert 0.8 < curvature.restricted_mu <= curvature.restricted_nu < 1.2, "near that of the population, 1"


def test_the_bound_falls_as_one_over_the_root_of_m():
    few, many = (simulate(samples, regressions=50) for samples in (500, 8000))
    assert few.bound.median() / many.bound.median() == pytest.approx(4, rel=0.05)
    assert few.error.median() / many.error.median() == pytest.approx(4, rel=0.4)


def test_the_bound_needs_the_rademacher_complexity():
    """Weights that are chosen after the samples: what a rich W can make of few samples, the other term does not see.

    ``l((u, v), j) = u v_j`` with ``|v_j| <= 1``, at u = 0: its gradient is ``v_j`` in the direction of u, and nothing else.
    """
    random, atoms, m = torch.Generator().manual_seed(0), 20_000, 400
    seen = torch.randint(0, atoms, (m,), generator=random)
    v = -torch.ones(atoms)
    v[seen] = 1.0
    error = float(v[seen].mean() - v.mean())
    sums = torch.zeros(16, atoms).index_add_(1, seen, torch.randint(0, 2, (16, m), generator=random) * 2.0 - 1)
    best = sums.abs().sum(dim=1) / m  # max_v |1/m sum e_i v_(j_i)|, for each draw of signs
    complexity = Estimate(float(best.mean()), float(best.std()) / 4, 16, "upper")
    assert error <= generalisation(complexity, 2.0, m, 1.0).gradient
    assert error > 3 * generalisation(0.0, 2.0, m, 1.0).gradient


def test_the_bound_needs_the_spread():
    """A rare sample that none of them shows: gradients that are all zero have no complexity, and a wrong mean."""
    random, m, rare = torch.Generator().manual_seed(0), 100, 1e-3
    count = (torch.rand(400, m, generator=random) < rare).sum(dim=1)  # of ones among zeros, W a single point
    error = (count / m - rare).abs()
    mean_of_sums = {0: 0.0, 1: 1.0, 2: 1.0, 3: 1.5}  # E |sum of so many signs|
    bounds = [generalisation(mean_of_sums[int(c)] / m, 1.0, m, 1.0) for c in count]
    whole = torch.tensor([bound.gradient for bound in bounds])
    without = torch.tensor([2 * bound.rademacher for bound in bounds])
    assert (error <= whole).double().mean() >= bounds[0].probability
    assert (error <= without).double().mean() < 0.5 * bounds[0].probability


def test_the_numbers_of_the_bound():
    found = generalisation(0.5, 2.0, 50, 4.0, eps=3.0)
    assert found.gradient == pytest.approx(1 + 6 * math.sqrt(5 / 100))
    assert found.distance == pytest.approx(2 * found.gradient / 4) and found.bound(0.25) == pytest.approx(
        found.distance + 0.25
    )
    assert generalisation(0.5, 2.0, 50, 4.0, convex=True).distance == pytest.approx(found.distance / 2)
    assert found.probability == pytest.approx(1 - math.exp(-3))


def test_restricted_strong_convexity_of_an_empirical_loss(small):
    """Along a line, in a plane that the samples span: the curvature of the regression in the line's direction."""
    x, y = small
    line = gp.Generator(nn.Linear(1, 2, bias=False).double(), 1, 2)
    problem = gp.Problem(line, gp.EmpiricalRisk(regression_loss, (x, y)))
    way = line.module.weight.data[:, 0] / line.module.weight.data.norm()
    truth = float((x @ way).square().mean())
    found = loss_constants(problem, 2.0, points=16)
    assert found.restricted_mu == pytest.approx(truth, rel=1e-6) and found.restricted_nu == pytest.approx(
        truth, rel=1e-6
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: generalisation(-1, 1, 5, 1), "rademacher must be"),
        (lambda: generalisation(Estimate(1.0, 0.1, 8, "lower"), 1, 5, 1), "from the lower side, which bounds nothing"),
        (lambda: generalisation(Estimate(1.0, 0.1, 7, "upper"), 1, 5, 1), "a mean over 7 draws.*at least 8"),
        (lambda: generalisation(1, 1, 0, 1), "samples must be"),
        (lambda: generalisation(1, 1, 5, 0), "zeta must be"),
        (lambda: generalisation(1, 1, 5, 1, eps=0), "eps must be"),
        (lambda: rademacher_regression(torch.ones(3, 2), torch.ones(2), 1.0), "inputs must have shape"),
        (lambda: rademacher_regression(torch.ones(3, 2), torch.ones(3), -1.0), "width must be"),
        (lambda: rademacher_regression(torch.ones(3, 2), torch.ones(3), math.inf), "width must be"),
        (lambda: rademacher_regression(torch.ones(3, 2), torch.ones(3), 1.0, draws=1), "draws must be at least 2"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_samples_per_item_are_refused():
    risk = gp.EmpiricalRisk(lambda w, s: (w[:, None] - s).square().sum(dim=2), torch.zeros(2, 5, 3), per_item=True)
    with pytest.raises(ValueError, match="samples per item"):
        rademacher(risk, gp.Generator(nn.Linear(1, 3), 1, 3), 1.0)
