"""What people get wrong at first, and what they are told."""

import warnings

import pytest
import torch
from torch import nn

import genprior as gp
from genprior import operators as ops
from genprior.losses import NoLoss

SHAPE = (1, 8, 8)
torch.manual_seed(0)
NETWORK = nn.Sequential(nn.Linear(4, 16), nn.ELU(), nn.Linear(16, 64), nn.Sigmoid(), nn.Unflatten(1, SHAPE))
G = gp.Generator(NETWORK, 4, SHAPE, signal_range=(0.0, 1.0))
A = ops.Gaussian(32, SHAPE, seed=0)
X = G(G.sample_latent(3, seed=1)).detach()
Y = A(X)
P = gp.Problem(G, gp.LeastSquares(A, Y))


class Conditional(nn.Module):
    def forward(self, z, label):
        return NETWORK(z)


class OwnFault(nn.Module):
    def forward(self, z):
        return NETWORK[:2](nn.functional.pad(z, "everywhere"))


def failing(w, samples):
    return w @ samples


def fourier():
    return ops.SubsampledFourier(torch.ones(8, 8), SHAPE)


MISTAKES = {
    "half precision": (
        lambda: gp.Problem(gp.Generator(nn.Linear(4, 8).half(), 4, 8), gp.SquaredDistance(torch.ones(2, 8))),
        TypeError,
        r"float16, expected float32 or float64: use module\.float\(\)",
    ),
    "class of a module": (lambda: gp.Generator(Conditional, 4, SHAPE), TypeError, r"the class Conditional: call it"),
    "conditional": (
        lambda: gp.Generator(Conditional(), 4, SHAPE)(torch.zeros(2, 4)),
        ValueError,
        r"'label'\): the module",
    ),
    "line": (lambda: gp.Generator(OwnFault(), 4, 8)(torch.zeros(2, 4)), ValueError, r"test_mistakes\.py line \d+\)"),
    "weight of TV": (lambda: gp.TotalVariation(0.1), TypeError, "positional"),
    "real Fourier data": (lambda: gp.LeastSquares(fourier(), X), TypeError, r"y is real .* gives complex .*y = A\(x\)"),
    "bytes": (lambda: gp.SquaredDistance((X * 255).byte()), TypeError, r"images use y\.float\(\) / 255, for other"),
    "bytes around": (lambda: gp.L1().around((X * 255).byte()), TypeError, r"use y\.float\(\) / 255, for other"),
    "list": (lambda: gp.LeastSquares(A, [*Y]), TypeError, r"got list: use torch\.stack\(y\)"),
    "nothing": (lambda: gp.Problem(G), ValueError, "neither loss nor terms: give loss=gp.LeastSquares"),
    "module": (lambda: gp.Problem(NETWORK, P.loss), TypeError, r"got Sequential: wrap it: gp\.Generator\(module"),
    "order": (lambda: gp.Problem(P.loss, G), TypeError, "got LeastSquares: the generator comes first"),
    "term as loss": (lambda: gp.Problem(G, gp.L1()), TypeError, "got L1: give it as on_signal="),
    "loss as term": (lambda: gp.Problem(G, on_signal=P.loss), TypeError, "got LeastSquares: give it as loss="),
    "class of a loss": (
        lambda: gp.Problem(G, gp.LeastSquares),
        TypeError,
        r"got LeastSquares, the class itself: write",
    ),
    "class of a term": (lambda: gp.Problem(G, on_signal=gp.L1), TypeError, r"write gp\.L1\(\.\.\.\), with brackets"),
    "data as a term": (lambda: gp.Problem(G, on_signal=X), TypeError, r"use gp\.L1\(\)\.around\(y\)"),
    "class of a solver": (lambda: gp.solve(P, gp.Adam), TypeError, r": write gp\.Adam\(\)"),
    "name of a solver": (lambda: gp.solve(P, "adam"), TypeError, r"got 'adam': write gp\.Adam\(\)"),
    "another name": (lambda: gp.solve(P, "newton"), TypeError, r"got 'newton'$"),
    "mask without channels": (
        lambda: gp.LeastSquares(ops.Mask(torch.ones(8, 8)), X),
        ValueError,
        r"made for \(1, 8, 8\)\? Mask\(mask, signal_shape=G\.signal_shape\)",
    ),
    "transposed": (lambda: gp.LeastSquares(A, Y.T), ValueError, r"is y transposed \(y\.T\)\?"),
    "failing loss": (
        lambda: gp.Problem(G, gp.EmpiricalRisk(failing, torch.ones(5, 3))),
        ValueError,
        r"loss failed on w of shape \(2, 1, 8, 8\) .*called as loss\(w, samples\)",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_the_fix_is_named(name):
    call, kind, words = MISTAKES[name]
    with pytest.raises(kind, match=words):
        call()


@pytest.mark.parametrize(
    "parts",
    [
        {"loss": gp.SquaredDistance(255 * X)},
        {"on_signal": 0.1 * gp.L1().around(255 * X)},
        {"loss": gp.LeastSquares(ops.Mask(torch.ones(SHAPE)), 255 * X)},
    ],
    ids=["distance", "around", "mask"],
)
def test_pictures_on_another_scale_are_warned_about(parts):
    with pytest.warns(
        UserWarning, match=r"y has values from .* to 1\d\d, but the generator makes \[0, 1\]: divide by 255"
    ):
        gp.Problem(G, **parts)


def test_noise_and_weights_are_no_other_scale():
    noisy = X + 2 * torch.randn(X.shape, generator=torch.Generator().manual_seed(0))
    weighted = ops.Mask(torch.full(SHAPE, 100.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gp.Problem(G, gp.SquaredDistance(noisy), on_signal=gp.L1().around(noisy))
        gp.Problem(G, gp.LeastSquares(weighted, weighted(noisy)))
        gp.Problem(G, gp.LeastSquares(A, 100 * Y))
        gp.Problem(gp.Generator(NETWORK, 4, SHAPE), gp.SquaredDistance(255 * X))


def test_a_problem_without_a_loss_may_be_meant():
    assert gp.Problem(G, NoLoss()).batch is None


def test_a_set_that_is_never_reached():
    result = gp.solve(gp.Problem(G, P.loss, on_signal=gp.Box(2, 3)), stop=gp.MaxSteps(3))
    assert all("no iterate satisfied the constraint" in text and "bounds" in text for text in result.advice)
    assert not any("allow more steps" in text for text in result.advice)


def test_short_reprs():
    result = gp.solve(P, stop=gp.MaxSteps(3))
    assert repr(result) == f"Result({result.summary()})"
    lines = result.history.to_csv().count("\n") - 1
    assert repr(result.history).startswith(f"History(3 items, {lines} records: step, seconds")
    assert repr(P.loss) == "LeastSquares(Gaussian(32, (1, 8, 8), seed=0), y (3, 32))"
    assert repr(NoLoss()) == "NoLoss()"
    assert repr(gp.EmpiricalRisk(failing, (X, Y))) == "EmpiricalRisk(failing, samples (3, 1, 8, 8), (3, 32))"
    assert repr(gp.checks.check_operator(A)) == "Report(Gaussian(32, (1, 8, 8), seed=0): all laws hold)"


def test_the_summary_tells_the_relative_residual():
    result = gp.solve(P, stop=gp.MaxSteps(3))
    expected = (A(result.signal) - Y).norm(dim=1) / Y.norm(dim=1)
    torch.testing.assert_close(result.residual, expected, rtol=1e-3, atol=1e-6)
    assert f"median relative residual {expected.median():.2g}"[:28] in result.summary()
    centred = gp.solve(gp.Problem(G, gp.SquaredDistance(X + 1, 0.3)), stop=gp.MaxSteps(3))
    expected = (centred.signal - X - 1).flatten(1).norm(dim=1) / (X + 1).flatten(1).norm(dim=1)
    torch.testing.assert_close(centred.residual, expected, rtol=1e-3, atol=1e-6)
    held = gp.solve(gp.Problem(G, P.loss, on_latent=gp.Ball(1.0)), stop=gp.MaxSteps(3))
    torch.testing.assert_close(held.residual, (A(held.signal) - Y).norm(dim=1) / Y.norm(dim=1), rtol=1e-3, atol=1e-6)
    assert gp.solve(gp.Problem(G, on_signal=gp.L1().around(X)), stop=gp.MaxSteps(1)).residual is None
