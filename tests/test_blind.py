"""Blind problems: parameters of the forward model are found with the signal."""

import pytest
import torch
from torch import nn

import genprior as gp

F64 = torch.float64


def curved():
    torch.manual_seed(0)
    return gp.Generator(
        nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 12), nn.Unflatten(1, (3, 4))).double(), 4, (3, 4)
    )


A = torch.randn(20, 12, generator=torch.Generator().manual_seed(1), dtype=F64)


def measured(x, gain, shift):
    """A saturated sensor whose gain and two offsets are not known."""
    image = gain * (x.flatten(1) @ A.T)
    return torch.cat([image[:, :10] + shift[:, :1], image[:, 10:] + shift[:, 1:]], dim=1).tanh()


@pytest.fixture(scope="module")
def problem():
    """The generator with parameters, data of five items, and the truth."""
    G = curved()
    H = G.with_parameters(gain=gp.Uniform(0.05, 0.5), shift=(gp.Normal(0.2), 2))
    x = G(G.sample_latent(5, seed=3)).detach()
    truth = {"gain": torch.linspace(0.1, 0.4, 5, dtype=F64)[:, None], "shift": 0.2 * torch.ones(5, 2, dtype=F64)}
    return H, measured(x, truth["gain"], truth["shift"]), x, truth


def test_signal_and_parameters_are_found_together(problem):
    H, y, x, truth = problem
    found = gp.solve(gp.Problem(H, gp.NonLinear(measured, y)), restarts=4, stop=gp.MaxSteps(300), progress=False)
    torch.testing.assert_close(found.signal, x, rtol=0, atol=1e-3)
    assert found.signal.shape == found.w.shape == (5, 3, 4)
    assert {name: tuple(value.shape) for name, value in found.parameters.items()} == {"gain": (5, 1), "shift": (5, 2)}
    for name, value in truth.items():
        torch.testing.assert_close(found.parameters[name], value, rtol=0, atol=1e-3)
    again = H.latent.split(found.z)
    torch.testing.assert_close(again["gain"], found.parameters["gain"])
    assert all(one.signal.shape == (3, 4) for item in found.candidates for one in item)


def test_a_term_on_the_signal_leaves_the_parameters_alone(problem):
    """R counts on the signal proper; a box on a parameter holds in the parameter's own units."""
    H, y, _, _ = problem
    plain, posed = (gp.Problem(H, gp.NonLinear(measured, y), *terms) for terms in ([], [0.3 * gp.L1()]))
    z = H.sample_latent(5, seed=1)
    norms = curved()(H.latent.split(z)["z"]).abs().sum(dim=(1, 2))
    torch.testing.assert_close(posed.objective(z), plain.objective(z) + 0.3 * norms)
    bounded = gp.Problem(H, gp.NonLinear(measured, y), gp.Box(-0.6, 0.45), {"gain": gp.Box(0.15, 0.3)})
    found = gp.solve(bounded, restarts=2, stop=gp.MaxSteps(200), progress=False)
    assert found.objective.isfinite().all()
    assert float(found.signal.max()) < 0.451 and float(found.signal.min()) > -0.601
    gain = found.parameters["gain"]
    assert float(gain.min()) > 0.15 - 1e-6 and float(gain.max()) < 0.3 + 1e-6


def test_starts_draw_the_parameters_too(problem):
    H, y, _, _ = problem
    pool = H.pool(64)
    gains = H.signal_blocks[1].taken(pool.signals)
    assert 0.05 < float(gains.min()) < 0.1 and 0.45 < float(gains.max()) < 0.5
    posed = gp.Problem(H, gp.NonLinear(measured, y))
    scores = posed.start_scores(pool.signals, 5)
    blocks = H.latent.split(pool.latents)
    direct = measured(curved()(blocks["z"]), blocks["gain"], blocks["shift"]).detach()
    torch.testing.assert_close(scores, 0.5 * torch.cdist(y, direct).square(), rtol=1e-8, atol=1e-10)


def test_other_losses_are_refused(problem):
    H, y, _, _ = problem
    with pytest.raises(
        TypeError, match=r"the generator has parameters, but the loss is a SquaredDistance.*signals, gain, shift"
    ):
        gp.Problem(H, gp.SquaredDistance(torch.zeros(5, H.signal_shape[0], dtype=F64)))
    with pytest.raises(ValueError, match=r"forward failed .*it is called as forward\(signals, gain, shift\)"):
        gp.Problem(H, gp.NonLinear(lambda x: x.flatten(1), y))
    with pytest.raises(ValueError, match="at least one parameter"):
        curved().with_parameters()


def test_parameters_of_each_item_come_last(problem):
    H, y, _, _ = problem
    weights = torch.ones(5, 20, dtype=F64)
    loss = gp.NonLinear(lambda x, gain, shift, mask: mask * measured(x, gain, shift), y, parameters=weights)
    plain = gp.Problem(H, gp.NonLinear(measured, y))
    z = H.sample_latent(5, seed=1)
    torch.testing.assert_close(gp.Problem(H, loss).objective(z), plain.objective(z))
