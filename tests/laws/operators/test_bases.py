"""Bases beyond the laws of operators: filters, long axes, sparsity, their names, bad input."""

import numpy as np
import pytest
import scipy.fft
import torch

import genprior as gp
from genprior.operators import bases
from genprior.operators.bases import parse_basis

from . import reference

F64 = torch.float64
DB4 = [0.2303778133088965, 0.7148465705529157, 0.6308807679298589, -0.0279837694168599,
       -0.1870348117190931, 0.0308413818355607, 0.0328830116668852, -0.0105974017850690]  # fmt: skip
"""As printed in Daubechies' table of 1988, N = 4."""


@pytest.mark.parametrize(("name", "known"), [*reference.FILTERS.items(), ("db4", DB4)])
def test_filters_are_the_published_ones(name, known):
    np.testing.assert_allclose(bases.daubechies(name), known, atol=1e-12)


@pytest.mark.parametrize("moments", range(2, 11))
def test_filters_are_orthonormal_with_vanishing_moments(moments):
    low = np.array(bases.daubechies(f"db{moments}"))
    for shift in range(moments):
        assert low[2 * shift :] @ low[: len(low) - 2 * shift] == pytest.approx(float(shift == 0), abs=1e-9)
    signs = (-1.0) ** np.arange(len(low))
    for power in range(moments):
        places = np.linspace(-1, 1, len(low)) ** power
        assert abs((signs * low) @ places) < 1e-8


def test_long_axes_are_transformed_without_a_matrix():
    x = torch.randn(2, 3, 1201, generator=torch.Generator().manual_seed(0), dtype=F64)
    cosines = gp.operators.DCT((3, 1201), dims=1, dtype=F64)
    np.testing.assert_allclose(cosines.adjoint(x), scipy.fft.dct(x.numpy(), norm="ortho"), atol=1e-11)
    torch.testing.assert_close(cosines(cosines.adjoint(x)), x)
    x = x[..., :1200]
    waves = gp.operators.Wavelet((3, 1200), "db2", 2, dims=1, dtype=F64)
    expected = reference.wavelets("db2", (1200,), 2, 1) @ x.numpy()[..., None]
    np.testing.assert_allclose(waves.adjoint(x), expected[..., 0], atol=1e-12)
    torch.testing.assert_close(waves(waves.adjoint(x)), x)


def test_wavelets_need_few_coefficients_where_a_signal_is_smooth():
    """A polynomial of degree 3 has fine coefficients of db4 only at the boundary."""
    t = torch.linspace(-1, 1, 64, dtype=F64)
    coefficients = gp.operators.Wavelet((64,), "db4", 1, dtype=F64).adjoint((t**3 - t)[None])
    assert int((coefficients[0, 32:].abs() > 1e-9).sum()) <= 3


def test_an_odd_side_takes_fewer_levels():
    assert len(gp.operators.Wavelet((1, 28, 28), "haar").levels) == 2
    assert len(gp.operators.Wavelet((3, 64, 64), "haar").levels) == 6
    assert len(gp.operators.Wavelet((3, 64, 64), "db4").levels) == 4


@pytest.mark.parametrize("word", ["dct", "wavelet", "haar", "db3"])
def test_bases_by_name_are_orthonormal(word):
    basis = parse_basis(word, (3, 64, 32))
    assert basis is not None
    x = torch.randn(2, 3, 64, 32, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(basis(basis.adjoint(x)), x, atol=1e-5, rtol=1e-4)


def test_identity_needs_no_basis():
    assert parse_basis("identity", (1, 4, 4)) is None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: gp.operators.Wavelet((1, 8, 8), "sym4"), "no wavelet 'sym4'"),
        (lambda: gp.operators.Wavelet((1, 8, 8), "db11"), "no wavelet 'db11'"),
        (lambda: gp.operators.Wavelet((1, 7, 7), "haar"), "cannot be split"),
        (lambda: gp.operators.Wavelet((1, 4, 4), "db4"), "shorter wavelet"),
        (lambda: gp.operators.DCT((2, 90)), "say which with dims"),
        (lambda: parse_basis("cosine", (1, 8, 8)), "no basis 'cosine'"),
    ],
)
def test_bad_input(make, words):
    with pytest.raises(ValueError, match=words):
        make()
