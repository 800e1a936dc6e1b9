"""check_operator: our operators pass, broken ones fail with the finding that names the fault."""

import pytest
import torch

from genprior import operators as ops
from genprior.checks import check_operator

F64 = torch.float64


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


MATRIX = random(5, 8)


def linear(fn, adjoint=None, **options):
    return ops.Linear(fn, adjoint, (8,), options.pop("measurement_shape", None), dtype=F64, **options)


GOOD = {
    "identity": lambda: ops.Identity((8,)),
    "dense": lambda: ops.Dense(MATRIX),
    "dense per item": lambda: ops.Dense(random(3, 5, 8)),
    "gaussian": lambda: ops.Gaussian(5, (2, 4), seed=3),
    "mask": lambda: ops.Mask(random(8) > 0, dtype=F64),
    "hadamard": lambda: ops.SubsampledHadamard(5, (8,), seed=1),
    "downsample": lambda: ops.Downsample(2, (1, 4, 4)),
    "blur": lambda: ops.Blur(1.0, (1, 6, 6), dtype=F64),
    "fourier": lambda: ops.SubsampledFourier(9, (1, 4, 4), dtype=F64),
    "linear": lambda: linear(lambda x: x @ MATRIX.T),
    "linear with adjoint": lambda: linear(lambda x: x @ MATRIX.T, lambda y: y @ MATRIX),
    "composition": lambda: ops.Dense(random(3, 5)) @ ops.Dense(MATRIX),
}


@pytest.mark.parametrize("name", GOOD)
def test_good_operators(name):
    report = check_operator(GOOD[name]())
    assert report.ok, str(report)
    assert len(report.findings) == 6


def test_linear_that_was_not_told_its_shape():
    operator = ops.Linear(lambda x: 2 * x, lambda y: 2 * y)
    with pytest.raises(ValueError, match="signal_shape is needed"):
        check_operator(operator)
    report = check_operator(operator, signal_shape=(8,), dtype=F64)
    assert report.ok, str(report)
    assert len(report.findings) == 5, "the norm cannot be estimated without a shape"


class SmallNorm(ops.Dense):
    def _gram_bounds(self):
        low, high = super()._gram_bounds()
        return low, 1e-3 * high


class WrongResolvent(ops.Dense):
    def _resolvent(self, v, rho, start):
        return 1.01 * super()._resolvent(v, rho, start)


def no_such_method(x):
    return x.no_such_method()


BAD = {
    "wrong adjoint": (
        lambda: linear(lambda x: x @ MATRIX.T, lambda y: 2 * (y @ MATRIX), measurement_shape=(5,)),
        "<Ax, y> = <x, A^T y>",
        "leave it out to have it derived",
    ),
    "adjoint without conjugation": (
        lambda: linear(
            torch.fft.fft,
            lambda y: torch.fft.fft(y).real,
            measurement_shape=(8,),
        ),
        "<Ax, y> = <x, A^T y>",
        "leave it out",
    ),
    "affine": (
        lambda: linear(lambda x: x @ MATRIX.T + 0.1, lambda y: y @ MATRIX, measurement_shape=(5,)),
        "A(2x - 3u) = 2Ax - 3Au",
        "the function is affine or non-linear",
    ),
    "non-linear": (
        lambda: linear(lambda x: x.abs(), lambda y: y, measurement_shape=(8,)),
        "A(2x - 3u) = 2Ax - 3Au",
        "non-linear",
    ),
    "items mixed": (
        lambda: linear(lambda x: x - x.mean(dim=0)),
        "items do not influence each other",
        "treat the first axis as the batch",
    ),
    "items cumulated": (
        lambda: linear(lambda x: x.cumsum(dim=0)),
        "items do not influence each other",
        "treat the first axis as the batch",
    ),
    "too few iterations": (
        lambda: linear(lambda x: x @ random(8, 8, seed=4).T, max_iterations=1),
        "(A^T A + rho) A.resolvent(v, rho) = v",
        "raise max_iterations",
    ),
    "wrong resolvent": (lambda: WrongResolvent(MATRIX), "(A^T A + rho) A.resolvent(v, rho) = v", "thin SVD"),
    "norm too small": (lambda: SmallNorm(MATRIX), "|Ax| <= |A| |x|", "norm too small"),
    "does not run": (lambda: linear(no_such_method, lambda y: y, measurement_shape=(8,)), "runs", "see the message"),
    "gives NaN": (
        lambda: linear(lambda x: x * torch.nan, lambda y: y, measurement_shape=(8,)),
        "<Ax, y> = <x, A^T y>",
        "",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_operators(name):
    make, law, advice = BAD[name]
    report = check_operator(make())
    failed = {finding.law: finding for finding in report.failures}
    assert law in failed, str(report)
    for part in (law, failed[law].measured, advice):
        assert part in str(report)
    with pytest.raises(ValueError, match="FAIL"):
        report.raise_if_failed()


@pytest.mark.parametrize("name", ["wrong resolvent", "norm too small", "too few iterations"])
def test_only_the_broken_law_is_blamed(name):
    make, law, _ = BAD[name]
    assert [finding.law for finding in check_operator(make()).failures] == [law]


@pytest.mark.parametrize("side", [28, 64, 256])
def test_an_adjoint_that_is_a_little_too_long_shows_at_every_size(side):
    shape = (1, side, side)

    def adjoint(factor):
        return lambda y: factor * y.roll(-3, -1)

    right, wrong = (ops.Linear(lambda x: x.roll(3, -1), adjoint(c), shape, shape) for c in (1.0, 1.002))
    assert check_operator(right).ok
    assert [finding.law for finding in check_operator(wrong).failures] == ["<Ax, y> = <x, A^T y>"]


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_a_matrix_on_any_scale_is_right(scale):
    report = check_operator(ops.Dense(scale * random(392, 784).float()))
    assert report.ok, str(report)
