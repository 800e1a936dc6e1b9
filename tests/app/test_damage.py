"""Damages against their definitions, written again."""

import math
from dataclasses import replace

import pytest
import torch

import genprior as gp
from genprior.app import images, registry
from genprior.app.choices import DAMAGES, Choices
from genprior.app.damage import Attacked, Blurred, Measurements, Noisy, Painted, SaltAndPepper, Signs, Smaller
from genprior.jobs.posed import simulate
from genprior.operators.parse import parse_operator

HALF = torch.zeros(28, 28, dtype=torch.bool)
HALF[:14] = True
LINEAR = [
    Measurements(m=100),
    Measurements(m=100, noise=0.1, seed=3),
    Painted(known=HALF),
    Painted(known=HALF, noise=0.2),
    Blurred(sigma=1.5),
    Smaller(factor=4),
    Noisy(noise=0.3),
    Noisy(noise=0.0),
]
CHANGED = [SaltAndPepper(level=0.3), Signs(level=0.2), Attacked(level=0.2)]


@pytest.fixture(scope="module")
def generator():
    return registry.generator("mnist")


@pytest.fixture(scope="module")
def truth():
    return registry.sample_images("mnist")[:1]


@pytest.mark.parametrize("damage", LINEAR, ids=lambda damage: damage.words((1, 28, 28)))
def test_measurements_are_those_of_the_command_lines_operator(damage, generator, truth, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    damaged = damage.apply(truth, generator)
    for name, mask in damage.files(damaged).items():
        (tmp_path / name).write_bytes(images.png(mask[None, None].float()))
    words = damage.command((1, 28, 28), "input.png")
    operator = parse_operator(words[words.index("--operator") + 1], (1, 28, 28))
    noise = damaged.measured - operator(truth)
    lost = operator(torch.ones_like(truth)) == 0
    assert not noise[lost].any(), "no noise where nothing is measured"
    spread = torch.linalg.vector_norm(noise[~lost]) / math.sqrt(noise[~lost].numel())
    assert spread == pytest.approx(damage.noise, rel=0.25, abs=1e-6)
    assert torch.equal(damaged.measured, simulate(operator, truth, damage.noise, damage.seed, [0]))
    assert ("--noise" in words) == bool(damage.noise) and "--simulate" in words
    objective = damaged.problem.evaluate(truth, generator.sample_latent(1)).objective
    assert float(objective) == pytest.approx(0.5 * float(noise.square().sum()), abs=1e-5)
    assert damaged.seen.shape == truth.shape and damaged.seen.min() >= 0 and damaged.seen.max() <= 1


def test_salt_and_pepper(generator, truth):
    damaged = SaltAndPepper(level=0.3).apply(truth, generator)
    changed = damaged.measured
    touched = changed != truth
    assert bool(((changed == 0) | (changed == 1))[touched].all())
    white = ((changed == 1) & (truth == 0)).float().sum() / (truth == 0).sum()
    assert float(white) == pytest.approx(0.15, abs=0.03)
    value = damaged.problem.evaluate(truth, generator.sample_latent(1)).objective
    mean_square = (changed - truth).square().mean()
    assert float(value) == pytest.approx(float((changed - truth).abs().sum() + 0.01 * mean_square), rel=1e-5)


def test_sign_noise(generator, truth):
    damaged = Signs(level=0.2).apply(truth, generator)
    change = damaged.measured - truth
    assert torch.allclose(change.abs(), torch.full_like(change, 0.2), atol=1e-6)
    assert float((change > 0).float().mean()) == pytest.approx(0.5, abs=0.06)
    assert float(damaged.problem.evaluate(truth, generator.sample_latent(1)).objective) == pytest.approx(
        0.2 + 0.0004, rel=1e-4
    )


def test_an_attack_stays_in_the_ball_and_is_misread(generator, truth):
    damaged = Attacked(level=0.2).apply(truth, generator)
    assert (damaged.measured - truth).abs().max() <= 0.2 + 1e-6
    classifier = gp.load_classifier("mnist")
    read = [int(classifier(x).argmax()) for x in (truth, damaged.measured)]
    assert read[0] == 7 != read[1]
    assert damaged.note == f"The classifier reads 7 before the attack and {read[1]} after."
    assert damaged.judge(truth) == "read as 7"


@pytest.mark.parametrize("damage", CHANGED, ids=lambda damage: type(damage).__name__)
def test_another_seed_another_change(damage, generator, truth):

    first, again, other = (replace(damage, seed=seed).apply(truth, generator).measured for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_many_measurements_of_a_face_take_no_matrix():
    assert "Hadamard" in Measurements(m=3072).words((3, 64, 64))
    assert "hadamard:m=3072,seed=0" in Measurements(m=3072).command((3, 64, 64), "x")
    assert "gaussian:m=100,seed=0" in Measurements(m=100).command((3, 64, 64), "x")


def test_painting_needs_paint():
    with pytest.raises(ValueError, match="paint over a part"):
        Painted()


@pytest.mark.parametrize("name", registry.GENERATORS)
@pytest.mark.parametrize("kind", DAMAGES)
def test_every_kind_takes_the_ends_of_its_scale(kind, name):
    choices = Choices()
    choices.take_generator(name)
    if kind not in choices.damage_types:
        assert (kind, name) == ("attack", "celeba")
        return
    choices.take_damage(kind)
    height = registry.generator(name).signal_shape[-1]
    choices.known = torch.arange(height) % 2 == 0
    choices.known = choices.known.expand(height, height)
    choices.take_sample(1)
    for amount in choices.scale.stops or (choices.scale.low, choices.scale.high):
        choices.amount = amount
        damaged = choices.damage().apply(choices.image, registry.generator(name))
        assert damaged.seen.shape == choices.image.shape
