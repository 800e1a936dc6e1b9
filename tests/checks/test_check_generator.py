"""check_generator: our generators pass, broken ones fail with the finding that names the fault."""

import pytest
import torch
from torch import nn

import genprior as gp
from genprior.checks import check_generator
from genprior.models import examples
from tests.checks.parts import tiny_generator, tiny_module

GOOD = {
    "tiny float64": tiny_generator,
    "mlp": lambda: examples.random_mlp(5, 12, (1, 4, 4)),
    "dcgan": lambda: examples.random_dcgan(8, 4),
    "soft discs": lambda: examples.soft_discs(2, 8),
    "relu": lambda: gp.Generator(nn.Sequential(nn.Linear(3, 9), nn.ReLU(), nn.Linear(9, 8)), 3, 8),
    "uniform law": lambda: gp.Generator(tiny_module(), 3, 8, latent=gp.Uniform(-1.0, 1.0)),
    "batch norm in eval mode": lambda: gp.Generator(nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8)).eval(), 3, 8),
}


@pytest.mark.parametrize("name", GOOD)
def test_good_generators(name):
    report = check_generator(GOOD[name]())
    assert report.ok, str(report)
    assert len(report.findings) == 7


class Made(nn.Module):
    """The tiny network, followed by a fault."""

    def __init__(self, fault):
        super().__init__()
        self.inside, self.fault = tiny_module(), fault

    def forward(self, z):
        return self.fault(self.inside, z)


class WrongSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (1 + x.tanh() ** 2)  # a sign is wrong


class SlightlyWrongSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor=1.05):
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return ctx.factor * g, None


class LosesOne(torch.autograd.Function):
    """The gradient of one latent number is lost."""

    @staticmethod
    def forward(ctx, z):
        return z.clone()

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        g[:, 0] = 0
        return g


def quantised(levels):
    """Rounded, with the gradient of what was there before (straight through)."""

    def fault(inside, z):
        x = torch.sigmoid(inside(z))
        return x + ((x * levels).round() / levels - x).detach()

    return fault


def changed_in_place(inside, z):
    x = torch.tanh(inside(z))
    y = x * x
    x.data.mul_(0.9)  # autograd does not notice
    return y


def random_module(inside, z):
    return inside(z) + 0.1 * torch.randn(len(z), 8, dtype=z.dtype)


def alone_only_fails(inside, z):
    if len(z) < 2:
        raise ValueError("more than one item, please")
    return inside(z)


BAD = {
    "random": (random_module, "same latent, same signal", "switch its noise off"),
    "mixes items": (lambda g, z: g(z) - g(z).mean(dim=0), "items do not influence each other", "compute per item"),
    "batch standardised": (
        lambda g, z: nn.functional.batch_norm(g(z), None, None, training=True),
        "items do not influence each other",
        "minibatch statistics",
    ),
    "NaN": (lambda g, z: g(z) * torch.nan, "finite values and gradients", "check the weights"),
    "NaN gradient": (lambda g, z: g(z) + (0 * z[:, :1]).sqrt(), "finite values and gradients", "check the weights"),
    "ignores z": (lambda g, z: g(0 * z), "signals differ between latents", "z is ignored"),
    "detaches z": (lambda g, z: g(z.detach()), "runs forward and backward", "detaches or ignores z"),
    "wrong sign in backward": (lambda g, z: WrongSlope.apply(g(z)), "gradient equals differences", "custom backward"),
    "backward 5% long": (lambda g, z: SlightlyWrongSlope.apply(g(z)), "gradient equals differences", "custom backward"),
    "backward 1% long": (lambda g, z: SlightlyWrongSlope.apply(g(z), 1.01), "gradient equals differences", "0 of 12"),
    "half detached": (lambda g, z: g(z) + g(z.detach()) / 2, "gradient equals differences", "a detach"),
    "one latent lost": (lambda g, z: g(LosesOne.apply(z)), "gradient equals differences", "custom backward"),
    "8 bits, straight through": (quantised(255), "gradient equals differences", "a surrogate gradient"),
    "20 steps, straight through": (quantised(20), "gradient equals differences", "a surrogate gradient"),
    "changed in place": (changed_in_place, "gradient equals differences", "custom backward"),
    "wrong shape": (lambda g, z: g(z)[:, :7], "runs forward and backward", "correct signal_shape"),
    "two tensors": (lambda g, z: (g(z), z), "runs forward and backward", "expected one tensor"),
    "no such method": (lambda g, z: g(z).no_such_method(), "runs forward and backward", "no_such_method"),
    "fails on one item": (alone_only_fails, "items do not influence each other", "more than one item"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_generators(name):
    fault, law, words = BAD[name]
    report = check_generator(gp.Generator(Made(fault), 3, 8))
    failed = {finding.law: finding for finding in report.failures}
    assert law in failed, str(report)
    for part in (law, failed[law].measured, words):
        assert part in str(report)
    with pytest.raises(ValueError, match="FAIL"):
        report.raise_if_failed()


@pytest.mark.parametrize("name", ["random", "mixes items", "batch standardised"])
def test_one_fault_is_not_told_as_several(name):
    fault, law, _ = BAD[name]
    report = check_generator(gp.Generator(Made(fault), 3, 8))
    assert [finding.law for finding in report.failures] == [law]
    assert "gradient equals differences" not in str(report)


def test_nan_weights():
    module = tiny_module()
    with torch.no_grad():
        module[0].weight[0, 0] = torch.nan
    report = check_generator(gp.Generator(module, 3, 8))
    assert [finding.law for finding in report.failures] == ["finite values and gradients"]


@pytest.mark.parametrize(("declared", "holds"), [((0.0, 1.0), True), ((0.0, 0.5), False), ((0.4, 1.0), False)])
def test_declared_range(declared, holds):
    generator = gp.Generator(nn.Sequential(nn.Linear(3, 8), nn.Sigmoid()), 3, 8, signal_range=declared)
    with torch.no_grad():
        generator.module[0].weight.mul_(10)
    report = check_generator(generator)
    assert report.ok is holds
    if not holds:
        assert [finding.law for finding in report.failures] == ["signal range"]
        assert "declare the true signal_range" in str(report)


def test_bad_sample_count():
    with pytest.raises(ValueError, match="samples must be at least 2"):
        check_generator(tiny_generator(), samples=1)


def test_module_and_global_seed_stay_as_they_are():
    module = tiny_module()
    before = torch.get_rng_state()
    check_generator(gp.Generator(module, 3, 8))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in module.parameters())
    assert module.training


class Steps(nn.Module):
    """A staircase: its gradient is zero wherever there is one."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 8)

    def forward(self, z):
        return (20 * self.linear(z)).round() / 20


def test_a_staircase_has_no_gradient_to_follow():
    report = check_generator(gp.Generator(Steps(), 3, 8))
    assert [finding.law for finding in report.failures] == ["gradient equals differences"]
    assert "the gradient is zero" in str(report)


def relu_images(seed):
    """Many kinks: in float32 differences that are wide enough for rounding lie across them."""
    torch.manual_seed(seed)
    layers = [nn.Unflatten(1, (16, 1, 1)), nn.ConvTranspose2d(16, 64, 4), nn.ReLU()]
    for width in (64, 32):
        layers += [nn.ConvTranspose2d(width, width // 2, 4, 2, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Sigmoid())


@pytest.mark.parametrize("seed", [4, 19, 23, 25])
def test_kinks_are_no_fault(seed):
    report = check_generator(gp.Generator(relu_images(seed), 16, (1, 32, 32)))
    assert report.ok, str(report)
    assert "float64" in str(report)


class Single(nn.Module):
    """Works in float32 whatever it is cast to."""

    def __init__(self, fault=None):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.fault = nn.Linear(3, 8), fault

    def double(self):
        return self

    def forward(self, z):
        if z.dtype != torch.float32:
            raise TypeError("float32, please")
        x = self.layer(z).tanh()
        return x if self.fault is None else self.fault(x)


def test_a_module_that_cannot_be_cast_is_judged_as_it_is():
    report = check_generator(gp.Generator(Single(), 3, 8))
    assert report.ok, str(report)
    assert "torch.float32 only, because it cannot be cast to float64: " in str(report)
    report = check_generator(gp.Generator(Single(SlightlyWrongSlope.apply), 3, 8))
    assert [finding.law for finding in report.failures] == ["gradient equals differences"]


def test_the_module_stays_in_its_dtype():
    module = nn.Sequential(nn.Linear(3, 8), nn.ReLU())
    before = [p.clone() for p in module.parameters()]
    check_generator(gp.Generator(module, 3, 8))
    assert all(torch.equal(p, b) and p.dtype == torch.float32 for p, b in zip(module.parameters(), before, strict=True))
