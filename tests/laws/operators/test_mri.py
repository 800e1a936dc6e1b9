"""Coils, k-space and complex signals, beside the table: layouts, what counts as measured, mistakes."""

import re

import pytest
import torch

import genprior as gp
from genprior import operators as ops

from .instances import F64, random

SIZE = (4, 5)
MASK = torch.tensor([[True, False, True, True, False]])
X = random(2, 3, *SIZE, seed=60)
MAPS = torch.complex(random(3, *SIZE, seed=61), random(3, *SIZE, seed=62))


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("kept", [MASK, MASK[:, :4].T, random(*SIZE, seed=63) > 0])
def test_packed_measurements_are_those_that_are_not_zero(kept, centred):
    whole = ops.Fourier((3, *SIZE), kept, centred=centred, dtype=F64)(X)
    packed = ops.Fourier((3, *SIZE), kept, centred=centred, packed=True, dtype=F64)(X)
    wide = kept.expand(*SIZE)
    torch.testing.assert_close(packed.reshape(2, 3, -1), whole[..., wide])
    assert (whole[..., ~wide] == 0).all()


@pytest.mark.parametrize("centred", [False, True])
def test_what_was_not_measured_is_ignored(centred):
    A = ops.Fourier((3, *SIZE), MASK, centred=centred, dtype=F64)
    y = A(X)
    spoilt = torch.where(MASK.expand(*SIZE), y, torch.nan)
    assert torch.equal(A.measured(spoilt), y)


def test_shifts_are_those_of_torch():
    y = ops.Fourier((3, *SIZE), centred=True, dtype=F64)(X)
    axes = (-2, -1)
    expected = torch.fft.fftshift(torch.fft.fftn(torch.fft.ifftshift(X, dim=axes), dim=axes, norm="ortho"), dim=axes)
    torch.testing.assert_close(y, expected)


def test_complex_operators_follow_complex_ones():
    """A mask on k-space, twice; the numbers are those of torch."""
    A = ops.Mask(MASK.expand(1, *SIZE), dtype=F64) @ ops.Fourier((1, *SIZE), dtype=F64) @ ops.Complex((2, *SIZE))
    x = X[:, :2]
    image = torch.complex(x[:, :1], x[:, 1:])
    torch.testing.assert_close(A(x), MASK * torch.fft.fftn(image, dim=(-2, -1), norm="ortho"))


def test_an_exact_step_with_rows_in_complex_numbers():
    """Orthogonal rows of one complex image: ADMM's closed form, to the solution of the ridge."""
    A = ops.Fourier((1, *SIZE), MASK, packed=True, dtype=F64) @ ops.Complex((2, *SIZE))
    loss = gp.LeastSquares(A, A(X[:, :2]))
    step = loss.exact_step(gp.Zero())
    assert step is not None and "FFT" in step.name
    v, rho = X[:, 1:], torch.tensor([0.3, 2.0], dtype=F64)
    w = A.resolvent(A.adjoint(loss.y) + rho[:, None, None, None] * v, rho)
    gradient = A.adjoint(A(w) - loss.y) + rho[:, None, None, None] * (w - v)
    assert gradient.abs().max() < 1e-12


BAD = {
    "maps without coils": (lambda: ops.Coils(torch.ones(4)), "maps has shape (4,), expected (C, H, W)"),
    "maps of another size": (lambda: ops.Coils(MAPS, (1, 8, 8)), "make the maps for these signals"),
    "maps for two channels": (lambda: ops.Coils(MAPS, (2, *SIZE)), "write Coils(maps) @ Complex((2, 4, 5))"),
    "mask of another size": (
        lambda: ops.Fourier((1, *SIZE), torch.ones(3, 3) > 0),
        "kept has shape (3, 3), expected a mask",
    ),
    "no mask": (lambda: ops.Fourier((1, *SIZE), [1, 0]), "kept must be a boolean torch.Tensor"),
    "nothing kept": (lambda: ops.Fourier((1, *SIZE), MASK & False), "keeps nothing"),
    "weights": (lambda: ops.Fourier((1, *SIZE), 0.5 * MASK), "must be a boolean mask"),
    "packed per item": (
        lambda: ops.Fourier((1, *SIZE), MASK.expand(2, *SIZE), per_item=True, packed=True),
        "leave out packed",
    ),
    "odd channels": (lambda: ops.Complex((3, 4)), "even number of channels"),
    "coils after the transform": (lambda: ops.Coils(MAPS) @ ops.Fourier((3, *SIZE)), "shapes must agree"),
    "real signals inside": (lambda: ops.Coils(MAPS).on_complex()(X[:, :1]), "must hold complex floating-point numbers"),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD.keys())
def test_mistakes_are_explained(case):
    call, words = case
    with pytest.raises((ValueError, TypeError), match=re.escape(words)):
        call()
