"""Attacks: against foolbox, per item, inside the ball, and stronger where they know the defence."""

from __future__ import annotations

import warnings

import pytest
import torch

import genprior as gp
from genprior import samples
from genprior.defence.attacks import (
    LatentAttack,
    ProjectedGradientAttack,
    accuracy,
    into_ball,
    predictions,
    straight_through,
)

PAPER = {"size": 0.2, "step": 0.01, "steps": 30}


@pytest.fixture(scope="module")
def classifier():
    return gp.load_classifier("mnist")


@pytest.fixture(scope="module")
def digits():
    return samples.digits(24)


def foolbox_attack(classifier, pictures, labels, *, random_start):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # foolbox imports names that scipy wants elsewhere
        import foolbox

    model = foolbox.PyTorchModel(classifier, bounds=(0, 1))
    attack = foolbox.attacks.LinfPGD(abs_stepsize=PAPER["step"], steps=PAPER["steps"], random_start=random_start)
    return attack(model, pictures, labels, epsilons=PAPER["size"])[1]


def test_equals_foolbox_where_nothing_is_random(classifier, digits):
    pictures, labels = digits
    ours = ProjectedGradientAttack(**PAPER, random_start=False)(classifier, pictures, labels)
    theirs = foolbox_attack(classifier, pictures, labels, random_start=False)
    # a gradient of about zero may get another sign from another order of summation, and a path may fork there
    assert ((ours - theirs).abs() < 1e-5).double().mean() > 0.99
    assert (predictions(classifier, ours) == predictions(classifier, theirs)).all()


def test_equals_foolbox_within_its_randomness(classifier, digits):
    pictures, labels = digits
    ours = [
        accuracy(classifier, ProjectedGradientAttack(**PAPER)(classifier, pictures, labels, seed=seed), labels)
        for seed in range(2)
    ]
    torch.manual_seed(0)
    theirs = accuracy(classifier, foolbox_attack(classifier, pictures, labels, random_start=True), labels)
    assert max(*ours, theirs) <= 0.05, "undefended, at the paper's size"
    assert abs(sum(ours) / 2 - theirs) <= 0.05


@pytest.mark.parametrize("keep", ["last", "worst"])
def test_inside_the_ball_and_the_range_for_every_batch_size(classifier, digits, keep):
    pictures, labels = digits[0][:5], digits[1][:5]
    attack = ProjectedGradientAttack(size=0.1, step=0.03, steps=4, keep=keep)
    whole = attack(classifier, pictures, labels, seed=3)
    assert (whole - pictures).abs().max() <= 0.1 + 1e-6 and whole.min() >= 0 and whole.max() <= 1
    torch.testing.assert_close(attack(classifier, pictures, labels, seed=3, batch_size=2), whole)
    assert not torch.equal(attack(classifier, pictures, labels, seed=4), whole)


def test_items_do_not_mix(classifier, digits):
    pictures, labels = digits[0][:4], digits[1][:4]
    attack = ProjectedGradientAttack(size=0.2, step=0.05, steps=3, random_start=False)
    whole = attack(classifier, pictures, labels)
    single = torch.cat([attack(classifier, pictures[i : i + 1], labels[i : i + 1]) for i in range(4)])
    torch.testing.assert_close(whole, single, atol=1e-5, rtol=0)


def test_worst_is_never_weaker_than_last(digits):
    pictures, labels = digits
    swing = torch.tensor([[1.0, -1.0]])

    def classify(x):  # the loss rises and falls again along the path
        level = x.flatten(1).mean(1, keepdim=True)
        return torch.sin(40 * level) * swing

    def loss(x):
        return torch.nn.functional.cross_entropy(classify(x), labels % 2, reduction="none")

    options = {"size": 0.3, "step": 0.05, "steps": 9, "random_start": False}
    last = ProjectedGradientAttack(**options)(classify, pictures, labels % 2)
    worst = ProjectedGradientAttack(**options, keep="worst")(classify, pictures, labels % 2)
    assert (loss(worst) >= loss(last)).all() and (loss(worst) > loss(last)).any()


def test_a_linear_classifier_is_attacked_to_the_corner():
    """For logits (c.x, 0) and label 0 the worst point of the ball is known: x - size sign(c)."""
    c = torch.randn(16, generator=torch.Generator().manual_seed(0))
    pictures = torch.full((3, 1, 4, 4), 0.5)
    labels = torch.zeros(3, dtype=torch.long)

    def classify(x):
        score = x.flatten(1) @ c
        return torch.stack([score, torch.zeros_like(score)], dim=1)

    found = ProjectedGradientAttack(size=0.1, step=0.02, steps=12)(classify, pictures, labels)
    torch.testing.assert_close(found, pictures - 0.1 * c.sign().reshape(1, 1, 4, 4))


def test_straight_through_is_the_defence_forward_and_the_identity_backward(classifier, digits):
    pictures, labels = digits[0][:3], digits[1][:3]

    def rounded(x):
        assert not x.requires_grad
        return x.round()

    seen = straight_through(classifier, rounded)
    x = pictures.clone().requires_grad_()
    torch.testing.assert_close(seen(x), classifier(pictures.round()))
    (through,) = torch.autograd.grad(torch.nn.functional.cross_entropy(seen(x), labels, reduction="sum"), x)
    at = pictures.round().requires_grad_()
    (direct,) = torch.autograd.grad(torch.nn.functional.cross_entropy(classifier(at), labels, reduction="sum"), at)
    torch.testing.assert_close(through, direct)


def test_knowing_the_defence_beats_not_knowing_it(classifier, digits):
    """Rounding pixels stops the plain attack, not the one that knows of it."""
    pictures, labels = digits
    naive = ProjectedGradientAttack(size=0.3, step=0.03, steps=20)(classifier, pictures, labels)
    knowing = ProjectedGradientAttack(size=0.3, step=0.03, steps=20, keep="worst", random_start=False)(
        straight_through(classifier, torch.round), pictures, labels
    )

    def read(x):
        return accuracy(lambda y: classifier(y.round()), x, labels)

    assert read(knowing) <= read(naive)


def test_latent_attack_finds_misread_pictures_of_the_generator(classifier):
    generator = gp.load_generator("mnist")
    z = generator.sample_latent(8, seed=5)
    pictures = generator(z).detach().clamp(0, 1)
    labels = predictions(classifier, pictures)
    found = LatentAttack(size=0.3, steps=40, weight=3.0)(generator, classifier, pictures, labels, z)
    assert (found - pictures).abs().max() <= 0.3 + 1e-6 and found.min() >= 0 and found.max() <= 1
    assert accuracy(classifier, found, labels) <= 0.75


def test_into_ball_is_the_nearest_point():
    """Each coordinate alone: brute force over a fine grid of the allowed interval."""
    random = torch.Generator().manual_seed(1)
    x, centre = 3 * torch.rand(50, 1, generator=random) - 1, torch.rand(50, 1, generator=random)
    found = into_ball(x, centre, 0.2)
    grid = torch.linspace(0, 1, 20001)
    for point, middle, got in zip(x, centre, found, strict=True):
        allowed = grid[(grid - middle).abs() <= 0.2 + 1e-6]
        assert abs(float(allowed[(allowed - point).abs().argmin()]) - float(got)) < 1e-4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": -1.0}, "size must be a finite number of at least 0"),
        ({"step": 0.0}, "step must be a finite number above 0"),
        ({"keep": "best"}, "keep must be 'last' or 'worst', got 'best'"),
        ({"low": 1.0, "high": 1.0}, "high must be a finite number above 1"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        ProjectedGradientAttack(**options)


def test_bad_pictures(classifier, digits):
    pictures, labels = digits[0][:2], digits[1][:2]
    with pytest.raises(ValueError, match=r"pictures lie in \[0, 255\], expected \[0, 1\]: divide bytes by 255"):
        ProjectedGradientAttack()(classifier, (255 * pictures / pictures.max()), labels)
    with pytest.raises(ValueError, match="expected 2 integers: one class per image"):
        ProjectedGradientAttack()(classifier, pictures, labels.float())
    with pytest.raises(ValueError, match="expected 2 integers"):
        accuracy(classifier, pictures, labels[:1])


def test_an_attack_can_start_elsewhere_and_stays_in_the_ball(classifier, digits):
    pictures, labels = digits[0][:4], digits[1][:4]
    attack = ProjectedGradientAttack(size=0.1, step=0.01, steps=0, random_start=False)
    found = attack(classifier, pictures, labels, start=torch.ones_like(pictures))
    torch.testing.assert_close(found, (pictures + 0.1).clamp(max=1))
    with pytest.raises(ValueError, match=r"start has shape \(3, 1, 28, 28\), expected \(4, 1, 28, 28\)"):
        attack(classifier, pictures, labels, start=pictures[:3])
