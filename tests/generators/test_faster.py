"""A quicker copy of a generator computes the same."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

import genprior as gp
from genprior.generators.faster import fold_batch_norms


class Residual(nn.Module):
    """The first convolution's output goes two ways: its BatchNorm must stay."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2)
        self.second, self.other = nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return y + self.other(self.second(torch.relu(self.norm(y))))


class Twice(nn.Module):
    """One convolution, two places, one BatchNorm between: folding would change the second place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(torch.relu(self.norm(self.conv(x))))


class Untraceable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)) if float(x.detach().abs().sum()) > 0 else x


def wrapped(middle: nn.Module, channels: int = 2) -> nn.Module:
    return nn.Sequential(nn.Linear(5, channels * 16), nn.Unflatten(1, (channels, 4, 4)), middle)


MODULES = {
    "convolution": (lambda: wrapped(nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ELU())), 1),
    "no bias": (lambda: wrapped(nn.Sequential(nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3))), 1),
    "not affine": (lambda: wrapped(nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, affine=False))), 1),
    "transposed": (lambda: wrapped(nn.Sequential(nn.ConvTranspose2d(2, 3, 4, 2, 1), nn.BatchNorm2d(3), nn.Tanh())), 1),
    "groups": (lambda: wrapped(nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.BatchNorm2d(4))), 1),
    "transposed groups": (lambda: wrapped(nn.Sequential(nn.ConvTranspose2d(2, 4, 3, groups=2), nn.BatchNorm2d(4))), 0),
    "linear": (lambda: nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ELU(), nn.Linear(8, 6)), 1),
    "linear, not affine": (lambda: nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8, affine=False)), 1),
    "another axis": (
        lambda: nn.Sequential(nn.Linear(5, 12), nn.Unflatten(1, (3, 4)), nn.Linear(4, 6), nn.BatchNorm1d(3)),
        0,
    ),
    "one of two": (
        lambda: nn.Sequential(
            nn.Linear(5, 12), nn.BatchNorm1d(12), nn.Unflatten(1, (3, 4)), nn.Linear(4, 6), nn.BatchNorm1d(3)
        ),
        1,
    ),
    "after an activation": (lambda: nn.Sequential(nn.Linear(5, 8), nn.ELU(), nn.BatchNorm1d(8)), 0),
    "two ways": (lambda: wrapped(Residual()), 1),
    "used twice": (lambda: wrapped(Twice()), 0),
    "untraceable": (lambda: wrapped(Untraceable()), 0),
    "weight norm": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(5, 8)), nn.BatchNorm1d(8)),
        0,
    ),
    "none": (lambda: nn.Sequential(nn.Linear(5, 8), nn.ELU()), 0),
}


def made(name: str) -> tuple[nn.Module, int]:
    make, folds = MODULES[name]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        module = make().double().eval()
        for part in module.modules():
            if isinstance(part, _BatchNorm):
                part.running_mean.normal_()
                part.running_var.uniform_(0.5, 4)
                if part.affine:
                    nn.init.normal_(part.weight)
                    nn.init.normal_(part.bias)
    return module, folds


def generator(name: str) -> tuple[gp.Generator, int]:
    module, folds = made(name)
    with torch.no_grad():
        shape = module(torch.zeros(2, 5).double()).shape[1:]
    return gp.Generator(module, 5, shape, latent=gp.Normal(2.0), signal_range=(-9, 9)), folds


@pytest.mark.parametrize("name", MODULES)
def test_signals_and_gradients_stay(name):
    G, folds = generator(name)
    quick = G.faster()
    z = G.sample_latent(3, seed=2).requires_grad_()
    x, y = G(z), quick(z)
    torch.testing.assert_close(y, x, rtol=1e-11, atol=1e-11)
    v = torch.randn_like(x)
    torch.testing.assert_close(quick.backward(z, y, v), G.backward(z, x, v), rtol=1e-10, atol=1e-10)
    assert (quick.latent, quick.signal_range, quick.latent_shape) == (G.latent, G.signal_range, G.latent_shape)
    assert fold_batch_norms(G.module)[1] == folds
    assert sum("folded" in remark for remark in quick.speedups) == (folds > 0)


def test_the_callers_module_stays():
    module, _ = made("convolution")
    weights = {name: value.clone() for name, value in module.state_dict().items()}
    gp.Generator(module, 5, (3, 2, 2)).faster()
    assert all(torch.equal(value, weights[name]) for name, value in module.state_dict().items())
    assert module[0].weight.requires_grad and isinstance(module[2][1], nn.BatchNorm2d)


def test_a_change_that_is_not_equal_is_not_made(monkeypatch):
    G, _ = generator("convolution")
    monkeypatch.setattr("genprior.generators.faster._fused", lambda layer, norm: layer)
    quick = G.faster()
    assert not any("folded" in remark for remark in quick.speedups)
    z = G.sample_latent(2)
    torch.testing.assert_close(quick(z), G(z))


def test_compiled(monkeypatch):
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    G, _ = generator("linear")
    quick = G.faster(compile=True)
    assert quick.speedups[-1] == "compiled"
    z = G.sample_latent(3)
    torch.testing.assert_close(quick(z), G(z))
    torch.testing.assert_close(quick.jacobian(z), G.jacobian(z))
    A = gp.operators.Gaussian(4, G.signal_shape, dtype=torch.float64)
    problem = gp.Problem(quick, gp.LeastSquares(A, A(G(z)).detach()))
    assert gp.solve(problem, gp.Adam(), stop=gp.MaxSteps(3), z0=z).forwards == 4


def test_a_known_preconditioner_goes_along_while_it_fits():
    module, _ = made("linear")
    G = gp.Generator(module, 5, 6, preconditioner=torch.eye(5))
    assert torch.equal(G.faster().preconditioner().matrix, torch.eye(5).double())
    with torch.no_grad():
        module[0].weight.mul_(2)
    assert not torch.equal(G.faster().preconditioner().matrix, torch.eye(5).double())
