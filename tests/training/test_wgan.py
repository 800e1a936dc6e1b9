"""WGAN-GP: its terms against closed forms and finite differences, its schedule, what its settings do."""

import dataclasses
import math

import pytest
import torch
from torch import nn

import genprior as gp
from genprior import samples
from genprior.models.saved import load_network
from genprior.training.data import ImageSet
from genprior.training.draw import Draw
from genprior.training.task import ramp_down
from genprior.training.wgan import Wgan, WganSettings, gradient_penalty

SMALL = WganSettings(latent=4, width=2, critic_width=2, encoder_width=2, batch=8, warm_steps=3, steps=3, critic_steps=2)


def steps(task, devices, count, seed=0):
    return [task.step(k, Draw.at(seed, k, torch.device("cpu")), devices) for k in range(count)]


def weights(module):
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def trained(settings, pictures, devices):
    task = Wgan(settings, pictures, seed=0)
    steps(task, devices, settings.warm_steps + 3)
    return weights(task.average)


@pytest.fixture(scope="module")
def usual(pictures, devices):
    return trained(SMALL, pictures, devices)


# -- the penalty -----------------------------------------------------------------------------------------------------------


def test_penalty_of_a_linear_critic_is_its_length():
    critic = nn.Sequential(nn.Flatten(), nn.Linear(6, 1), nn.Flatten(0))
    real, fake = torch.randn(5, 2, 3), torch.randn(5, 2, 3)
    value = gradient_penalty(critic, real, fake, torch.rand(5))
    assert torch.allclose(value, (critic[1].weight.norm() - 1) ** 2)


def test_penalty_is_per_item_and_at_the_mixed_point():
    class Quadratic(nn.Module):
        def forward(self, x):
            return 0.5 * x.square().flatten(1).sum(1)

    real, fake, mix = torch.randn(4, 3), torch.randn(4, 3), torch.rand(4)
    between = mix[:, None] * real + (1 - mix[:, None]) * fake  # the gradient of the critic is the point itself
    expected = sum((point.norm() - 1) ** 2 for point in between) / 4
    assert torch.allclose(gradient_penalty(Quadratic(), real, fake, mix), expected)


def test_penalty_has_the_right_derivative_in_the_weights():
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1), nn.Flatten(0)).double()
    real, fake = (torch.randn(4, 3, dtype=torch.float64) for _ in range(2))
    mix = torch.rand(4, dtype=torch.float64)
    weight = critic[0].weight
    gradient_penalty(critic, real, fake, mix).backward()
    for place in [(0, 0), (3, 2)]:
        values = []
        for side in (1, -1):
            with torch.no_grad():
                weight[place] += side * 1e-6
            values.append(float(gradient_penalty(critic, real, fake, mix).detach()))
            with torch.no_grad():
                weight[place] -= side * 1e-6
        assert math.isclose(float(weight.grad[place]), (values[0] - values[1]) / 2e-6, rel_tol=1e-5)


# -- steps -----------------------------------------------------------------------------------------------------------------


def test_stages_train_what_they_should(pictures, devices):
    task = Wgan(SMALL, pictures, seed=0)
    before = {name: weights(network) for name, network in task.networks.items()}
    losses = steps(task, devices, SMALL.warm_steps)
    after = {name: weights(network) for name, network in task.networks.items()}
    assert torch.equal(before["critic"], after["critic"])
    assert not torch.equal(before["encoder"], after["encoder"])
    assert set(losses[0]) == {"reconstruction", "divergence"}
    last = task.step(SMALL.warm_steps, Draw.at(0, 99, torch.device("cpu")), devices)
    assert set(last) == set(Wgan.columns)
    assert not torch.equal(after["critic"], weights(task.critic))
    assert all(parameter.requires_grad for parameter in task.critic.parameters())


def test_evidence_is_the_textbook_bound(pictures, devices):
    task = Wgan(dataclasses.replace(SMALL, variance=0.3), pictures, seed=1)
    draw = Draw.at(0, 0, torch.device("cpu"))
    bound, error, divergence = task._evidence(draw, devices)
    again = Draw.at(0, 0, torch.device("cpu"))
    x = pictures.batch(again.index(8, len(pictures)))
    mean, log_deviation = task.encoder.gaussian(x)
    z = mean + log_deviation.exp() * again.normal(8, (4,))
    normal = torch.distributions.Normal
    kl = torch.distributions.kl_divergence(normal(mean, log_deviation.exp()), normal(0.0, 1.0)).sum(1).mean()
    likelihood = normal(task.generator(z), math.sqrt(0.3)).log_prob(x).flatten(1).sum(1).mean()
    constant = 784 * (0.5 * math.log(2 * math.pi * 0.3))
    assert torch.allclose(divergence, kl, rtol=1e-4)
    assert torch.allclose(bound, kl - likelihood - constant, rtol=1e-4)
    assert torch.allclose(error, (task.generator(z) - x).square().mean(), rtol=1e-4)


def test_average_follows_the_generator(pictures, devices):
    task = Wgan(dataclasses.replace(SMALL, averaging=0.5, warm_steps=20), pictures, seed=0)
    steps(task, devices, 10)  # up to here the share that stays is below one half
    mean = weights(task.average)
    task.step(10, Draw.at(0, 10, torch.device("cpu")), devices)
    assert torch.allclose(weights(task.average), 0.5 * mean + 0.5 * weights(task.generator))
    assert not any(parameter.requires_grad for parameter in task.average.parameters())


def test_the_critic_learns_ahead(pictures, devices, monkeypatch):
    task = Wgan(dataclasses.replace(SMALL, warm_steps=0, steps=30), pictures, seed=0)
    count, original = [0], task._critic_step

    def counted(*arguments):
        count[0] += 1
        return original(*arguments)

    monkeypatch.setattr(task, "_critic_step", counted)
    counts = []
    for k in range(12):
        count[0] = 0
        task.step(k, Draw.at(0, k, torch.device("cpu")), devices)
        counts.append(count[0])
    assert counts == [20] * 10 + [2] * 2


def test_a_vae_learns_and_a_wgan_moves_towards_the_data(devices):
    flat = samples.digits(64)[0]
    task = Wgan(
        dataclasses.replace(
            SMALL, width=4, encoder_width=8, batch=32, warm_steps=60, warm_rate=3e-3, steps=40, anchor=0.0
        ),
        ImageSet("digits", (flat * 255).round().to(torch.uint8)),
        seed=0,
    )
    losses = steps(task, devices, 100)
    assert losses[59]["reconstruction"] < 0.7 * losses[0]["reconstruction"]
    assert losses[-1]["penalty"] < 1 and torch.isfinite(losses[-1]["distance"])


def test_without_anchor_the_encoder_rests(pictures, devices):
    task = Wgan(dataclasses.replace(SMALL, warm_steps=0, anchor=0.0), pictures, seed=0)
    before = weights(task.encoder)
    losses = steps(task, devices, 1)[0]
    assert torch.equal(before, weights(task.encoder)) and "reconstruction" not in losses


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("latent", 5),
        ("width", 3),
        ("critic_width", 3),
        ("encoder_width", 3),
        ("batch", 4),
        ("warm_steps", 2),
        ("critic_steps", 1),
        ("rate", 0.01),
        ("warm_rate", 0.01),
        ("variance", 0.5),
        ("anchor", 0.5),
        ("penalty", 1.0),
        ("averaging", 0.1),
        ("steps", 9),
    ],
)
def test_every_setting_has_an_effect(pictures, devices, usual, name, value):
    assert getattr(SMALL, name) != value
    other = trained(dataclasses.replace(SMALL, **{name: value}), pictures, devices)
    assert usual.shape != other.shape or not torch.equal(usual, other)


def test_colour_pictures_and_files(colours, devices, tmp_path):
    settings = dataclasses.replace(SMALL, network="residual-generator", batch=4, warm_steps=1, steps=1)
    task = Wgan(settings, colours, seed=0)
    steps(task, devices, 2)
    task.save_samples(tmp_path, "samples")
    paths = task.finish(tmp_path, {"seed": 0})
    assert [path.name for path in paths] == ["generator.safetensors", "encoder.safetensors"]
    G = gp.load_generator(paths[0])
    assert G.latent == task.prior and G.signal_shape == (3, 64, 64)
    z = G.sample_latent(2)
    assert torch.allclose(G(z), task.average(z), atol=2e-3), "up to half precision, the average is what is saved"
    assert gp.load_encoder(paths[1])(torch.rand(2, 3, 64, 64)).shape == (2, 4)
    assert load_network(paths[0]).facts["training"]["width"] == 2
    assert (tmp_path / "samples.png").stat().st_size > 1000


def test_data_that_do_not_fit(colours):
    with pytest.raises(ValueError, match=r"conv-generator makes images \(1, 28, 28\), but the data are \(3, 64, 64\)"):
        Wgan(SMALL, colours, seed=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"network": "mlp"}, "network must be one of conv-generator, residual-generator, got 'mlp'"),
        ({"width": 0}, "width must be at least 1"),
        ({"batch": 2.5}, "batch must be a whole number"),
        ({"rate": 0.0}, "rate must be a finite number above 0"),
        ({"anchor": -1.0}, "anchor must be a finite number of at least 0"),
        ({"averaging": 1.0}, "averaging must be below 1"),
        ({"steps": 0, "warm_steps": 0}, "nothing to train"),
    ],
)
def test_bad_settings(change, message):
    with pytest.raises((ValueError, TypeError), match=message):
        dataclasses.replace(SMALL, **change)


# -- schedule and draws ----------------------------------------------------------------------------------------------------


def test_ramp():
    assert ramp_down(0, 100) == ramp_down(49, 100) == 1
    assert math.isclose(ramp_down(75, 100), 0.02 + 0.98 * 0.5)
    assert ramp_down(99, 100) < 0.05


def test_draws_depend_on_seed_and_step_alone():
    def drawn(seed, step, rank=0, world=1):
        draw = Draw.at(seed, step, torch.device("cpu"), rank, world)
        law = gp.TruncatedNormal(radius=3.0)
        return [draw.index(8, 1000), draw.latent(law, 8, (2,)), draw.normal(8, (3,)), draw.uniform(8)]

    for first, second in zip(drawn(1, 2), drawn(1, 2), strict=True):
        assert torch.equal(first, second)
    for other in (drawn(1, 3), drawn(2, 2)):
        assert not torch.equal(drawn(1, 2)[0], other[0])
    halves = [drawn(1, 2, rank, 2) for rank in range(2)]
    for whole, left, right in zip(drawn(1, 2), *halves, strict=True):
        assert torch.equal(whole, torch.cat([left, right])), "two processes share what one would draw"
