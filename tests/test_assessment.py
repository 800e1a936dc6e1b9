"""What is said about an answer follows from its own numbers, from the noise, and from the other items."""

import math

import pytest
import torch
from torch import nn

import genprior as gp
from genprior import Status
from genprior.assessment import JOB, PYTHON, Concern, Facts, ResidualSummary, assess
from genprior.cli.flags import words_of_recover

GOOD = Facts(Status.CONVERGED, steps=50, objective=0.3, residual=0.12)
OTHERS = ResidualSummary.of([0.1, 0.11, 0.12, 0.13, 0.15, 0.2, 0.12, 0.09])


def changed(**fields):
    return Facts(**{**GOOD.__dict__, **fields})


def test_a_good_item_has_no_concern_and_says_its_residual():
    found = assess(GOOD, OTHERS)
    assert found.good and found.concern is None
    assert "0.12" in found.advice and "poor" not in found.advice


@pytest.mark.parametrize(
    ("fields", "concern"),
    [
        ({"residual": 0.68}, Concern.LOST),
        ({"status": Status.SETTLED, "residual": 0.68}, Concern.LOST),
        ({"status": Status.MAX_STEPS, "improving": True}, Concern.IMPROVING),
        ({"status": Status.MAX_STEPS, "improving": True, "residual": 0.68}, Concern.IMPROVING),
        ({"status": Status.MAX_STEPS, "improving": True, "residual": 5e-4}, None),  # nothing is left to fit
        ({"status": Status.MAX_STEPS, "improving": True, "residual": 0.12, "noise": 0.11}, None),
        ({"status": Status.MAX_STEPS}, None),
        ({"status": Status.OUT_OF_TIME, "steps": 0}, Concern.NOT_BEGUN),
        ({"status": Status.SETTLED, "objective": math.inf}, Concern.INFEASIBLE),
        ({"status": Status.DIVERGED}, Concern.DIVERGED),
        ({"representable": False}, Concern.DIVERGED),
        ({"status": Status.STALLED}, Concern.STALLED),
        ({"latent": 3.0}, Concern.FAR_OUT),
        ({"latent": 1.4}, None),
        ({"status": Status.TARGET}, None),
    ],
)
def test_concerns(fields, concern):
    assert assess(changed(**fields), OTHERS).concern is concern


def test_residuals_of_the_noise_are_no_loss():
    """One item is ten times as noisy as the others, and is known to be."""
    assert assess(changed(residual=0.68, noise=0.6), OTHERS).good
    assert "noise" in assess(changed(residual=0.68, noise=0.6), OTHERS).advice
    assert assess(changed(residual=0.68, noise=0.1), OTHERS).concern is Concern.LOST


def test_a_second_minimum_among_noisy_items_is_a_loss():
    """Residuals of twelve curves with noise; more starts fit the second one as well as the others."""
    noisy = [0.181, 0.478, 0.184, 0.164, 0.176, 0.192, 0.155, 0.115, 0.227, 0.106, 0.225, 0.137]
    found = [assess(changed(residual=r), ResidualSummary.of(noisy)).concern for r in noisy]
    assert found == [None, Concern.LOST] + [None] * 10


def test_a_spread_of_residuals_is_no_loss():
    wide = ResidualSummary.of([0.01, 0.03, 0.1, 0.3, 0.02, 0.05, 0.2])
    assert assess(changed(residual=0.3), wide).good


def test_exact_fits_lose_nobody():
    """Beside residuals of 1e-7, one of 1e-3 is a thousand times as large, and fine."""
    assert assess(changed(residual=1e-3), ResidualSummary.of([1e-7] * 10)).good


def test_a_single_item_is_lost_only_where_it_explains_little():
    assert assess(changed(residual=0.9), ResidualSummary.of([0.9])).concern is Concern.LOST
    assert assess(changed(residual=0.4), ResidualSummary.of([0.4])).good


def test_cautions_are_told_in_the_words_of_who_asks():
    facts = changed(latent=1.5, bound=True, penalty=0.4)
    python, command = assess(facts, OTHERS, PYTHON).advice, assess(facts, OTHERS, words_of_recover()).advice
    assert "on_latent" in python and "--latent-ball" in command and "on_latent" not in command
    job = assess(facts, OTHERS, JOB).advice
    assert "latent_ball=" in job and "--" not in job
    for text in (python, command, job):
        assert "outside the generator's latent distribution" in text and "bound" in text and "40%" in text


class Lumpy(nn.Module):
    """A circle, and a far-off valley of its own: items that start there do not come out."""

    def forward(self, z):
        angle = torch.atan(z[:, :1])
        return torch.cat([torch.cos(angle), torch.sin(angle), 0.01 * z[:, 1:]], dim=1)


def test_the_lost_item_among_good_ones_is_named():
    """The data of the last item are opposite to the half of the circle that the generator can make."""
    G = gp.Generator(Lumpy(), 2, 3)
    angle = torch.linspace(-1.0, 1.0, 8)
    y = torch.stack([torch.cos(angle), torch.sin(angle), torch.zeros(8)], dim=1) + 0.05 * torch.sin(
        torch.arange(24.0)
    ).reshape(8, 3)
    y[5] = -y[5]
    result = gp.solve(gp.Problem(G, gp.SquaredDistance(y), on_latent=gp.Ball(4.0)), z0=torch.zeros(8, 2))
    assert result.attention[:1] == (5,) and result.assessments[5].concern is Concern.LOST
    assert all(result.assessments[i].good for i in range(8) if i != 5), result.advice
    assert "item 5, lost" in result.summary().splitlines()[1]


def test_the_reach_of_latents():
    random = torch.Generator().manual_seed(0)
    for distribution in (gp.Normal(2.0), gp.TruncatedNormal(10.0), gp.Uniform(-1.0, 3.0)):
        draws = distribution.sample(2000, (64,), random)
        reach = distribution.reach(draws)
        assert reach.shape == (2000,) and reach.max() <= 1
        centre = distribution.centre
        assert (distribution.reach(centre + 3 * (draws - centre)) > 1).float().mean() > 0.9


def test_bounds_and_penalties_are_seen():
    torch.manual_seed(0)
    G = gp.Generator(nn.Linear(3, 6), 3, 6)
    y = G(torch.tensor([[3.0, 0.0, 0.0], [0.1, 0.0, 0.0]])).detach()
    result = gp.solve(gp.Problem(G, gp.SquaredDistance(y), on_latent=gp.Ball(1.0)))
    assert result.bound.tolist() == [True, False]
    boxed = gp.solve(gp.Problem(G, gp.SquaredDistance(y), on_signal=gp.Box(-10.0, float(y[0].max()) - 0.3)))
    assert boxed.bound.tolist() == [True, False]
    ridged = gp.solve(gp.Problem(G, gp.SquaredDistance(y), on_latent=5.0 * gp.SquaredL2()))
    expected = 2.5 * ridged.z.square().sum(dim=1) / ridged.objective
    torch.testing.assert_close(ridged.penalty, expected, rtol=1e-4, atol=1e-6)
