"""The checker of Proposition 1 on a table of modules."""

import itertools

import pytest
import torch
from torch import nn

import genprior as gp
from genprior.models.generators import ConvGenerator, ResidualGenerator
from tests.theory.networks import Mild


def chain(*activations, widths=(3, 6, 12)):
    layers = []
    for (inside, outside), activation in zip(itertools.pairwise(widths), activations, strict=True):
        layers += [nn.Linear(inside, outside), activation]
    return nn.Sequential(*layers)


def deficient():
    net = chain(nn.ELU(), nn.Tanh())
    with torch.no_grad():
        net[2].weight[:, 1] = 2 * net[2].weight[:, 0]
    return net


def deficient_convolution():
    net = nn.Sequential(nn.Unflatten(1, (3, 1, 1)), nn.ConvTranspose2d(3, 3, 2), nn.ELU())
    with torch.no_grad():
        net[1].weight[2] = net[1].weight[0]
    return net


def equal_kernels():
    layer = nn.ConvTranspose2d(12, 12, 3, padding=1)
    with torch.no_grad():
        layer.weight[1] = layer.weight[0]
    return layer


class Own(nn.Module):
    def forward(self, z):
        return z.sin()


GOOD = {
    "elu": lambda: chain(nn.ELU(), nn.Sigmoid()),
    "softplus": lambda: chain(nn.Softplus(), nn.Tanh()),
    "celu, softsign": lambda: chain(nn.CELU(0.5), nn.Softsign()),
    "nested": lambda: nn.Sequential(chain(nn.ELU(), nn.ELU()), nn.Unflatten(1, (3, 4)), nn.Identity()),
    "batch norm": lambda: nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ELU()).eval(),
    "up-convolution": lambda: nn.Sequential(
        nn.Linear(3, 8),
        nn.Unflatten(1, (2, 2, 2)),
        nn.ELU(),
        nn.ConvTranspose2d(2, 2, 4, stride=2, padding=1),
        nn.Tanh(),
    ),
    "up-sampling": lambda: nn.Sequential(nn.Unflatten(1, (3, 1, 1)), nn.Upsample(scale_factor=2.0), nn.Conv2d(3, 4, 1)),
    "no activation": lambda: nn.Linear(3, 3),
}
BAD = {
    "relu": (lambda: chain(nn.ReLU(), nn.Tanh()), ["1 (ReLU) is C1", "1 (ReLU) is strictly increasing"], "use ELU"),
    "leaky": (lambda: chain(nn.LeakyReLU(0.2), nn.Tanh()), ["1 (LeakyReLU) is C1"], "softplus"),
    "elu with a kink": (lambda: chain(nn.ELU(0.5), nn.Tanh()), ["1 (ELU) is C1"], "alpha = 1"),
    "selu": (lambda: chain(nn.ELU(), nn.SELU()), ["3 (SELU) is C1"], "use ELU"),
    "silu": (lambda: chain(nn.SiLU(), nn.Tanh()), ["1 (SiLU) is strictly increasing"], "use ELU"),
    "flat at zero": (lambda: chain(nn.Tanhshrink(), nn.Tanh()), ["1 (Tanhshrink) is strictly increasing"], "use ELU"),
    "narrowing": (
        lambda: chain(nn.ELU(), nn.ELU(), widths=(3, 8, 5)),
        ["2 (Linear) does not narrow"],
        "at least 8 outputs",
    ),
    "narrow at the start": (lambda: nn.Linear(3, 2), ["the module (Linear) does not narrow"], "at least 3 outputs"),
    "rank": (deficient, ["2 (Linear) has full column rank"], "perturb"),
    "rank of a convolution": (deficient_convolution, ["1 (ConvTranspose2d) has full column rank"], "perturb"),
    "pooling": (
        lambda: nn.Sequential(nn.Linear(3, 16), nn.ELU(), nn.Unflatten(1, (1, 4, 4)), nn.AvgPool2d(2)),
        ["3 (AvgPool2d) does not narrow"],
        "at least 16 outputs",
    ),
    "an average that blurs all away": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.Unflatten(1, (1, 2, 2)), nn.AvgPool2d(3, stride=1, padding=1)),
        ["2 (AvgPool2d) has full column rank"],
        "perturb",
    ),
    "equal kernels, too large to factorise": (
        lambda: nn.Sequential(nn.Linear(3, 12 * 144), nn.Unflatten(1, (12, 12, 12)), equal_kernels()),
        ["2 (ConvTranspose2d) has full column rank"],
        "perturb",
    ),
    "softmax": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Softmax(dim=1)), ["a chain of known layers"], "torch.nn"),
    "layer norm": (lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)), ["a chain of known layers"], "constants"),
    "one's own": (Own, ["a chain of known layers"], "Sequential"),
    "a sum": (lambda: Mild(torch.eye(3), torch.eye(3), 0.1), ["a chain of known layers"], "sums"),
    "bundled, mnist": (lambda: ConvGenerator(3, 5), ["7 (ConvTranspose2d) does not narrow"], "at least 980 outputs"),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_fits_passes(name):
    torch.manual_seed(0)
    report = gp.theory.check_proposition1(GOOD[name](), 3)
    assert report.ok, str(report)


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_named_with_advice(name):
    torch.manual_seed(0)
    make, laws, advice = BAD[name]
    report = gp.theory.check_proposition1(make().double(), 3)
    assert [finding.law for finding in report.failures] == laws
    assert all(advice in finding.advice for finding in report.failures[:1])


def test_what_was_not_looked_at_does_not_pass():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 12 * 144), nn.Unflatten(1, (12, 12, 12)), nn.ConvTranspose2d(12, 12, 3, padding=1))
    report = gp.theory.check_proposition1(net, 3)
    assert not report.ok and not report.failures
    assert [finding.law for finding in report.unchecked] == ["2 (ConvTranspose2d) has full column rank"]
    assert str(report).startswith("Proposition 1: 1 not checked")


def test_the_bundled_residual_one():
    torch.manual_seed(0)
    report = gp.theory.check_proposition1(ResidualGenerator(3, 1), 3, ranks=False)
    assert not report.ok
    assert (
        report.failures[0].law == "a chain of known layers"
        and "2 (UpBlock) is a sum of 2 chains" in report.failures[0].measured
    )
    assert report.failures[-1].law == "7 (Conv2d) does not narrow" or "does not narrow" in report.failures[-1].law


def test_a_generator_or_a_module_with_its_shape():
    net = GOOD["elu"]()
    assert str(gp.theory.check_proposition1(gp.Generator(net, 3, 12))) == str(gp.theory.check_proposition1(net, 3))
    with pytest.raises(ValueError, match="latent_shape must be given"):
        gp.theory.check_proposition1(net)
