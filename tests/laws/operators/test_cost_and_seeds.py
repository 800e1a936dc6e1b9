"""What an operator costs, and where its random numbers come from."""

import math
import resource
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from genprior import operators as ops

from .instances import F64, random

few = settings(derandomize=True, deadline=None, max_examples=15)
RANDOM = [
    lambda seed: ops.Gaussian(30, (1, 5, 8), seed),
    lambda seed: ops.SubsampledFourier(20, (1, 5, 8), seed),
    lambda seed: ops.SubsampledHadamard(30, (1, 5, 8), seed),
]


class Watch(TorchDispatchMode):
    """Count eigendecompositions and remember the largest tensor made."""

    def __init__(self):
        super().__init__()
        self.eigh, self.largest = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.eigh += "eigh" in str(func)
        for t in out if isinstance(out, tuple | list) else (out,):
            if isinstance(t, torch.Tensor):
                self.largest = max(self.largest, t.numel())
        return out


def test_a_wide_matrix_is_factorised_once_and_no_square_of_the_signal_is_made():
    m, d = 10, 300
    a, v = ops.Gaussian(m, d), torch.randn(2, d, generator=torch.Generator().manual_seed(0))
    with Watch() as watch:
        for rho in (0.1, 1.0, torch.tensor([0.2, 3.0])):
            a.resolvent(v, rho)
        a.gram_bounds(), a.row_form(), a.rows(torch.tensor([0])).resolvent(v, 7.0)
    assert watch.eigh == 1
    assert watch.largest <= m * d


def test_construction_alone_factorises_nothing():
    with Watch() as watch:
        a = ops.Gaussian(10, 30)
        a.adjoint(a(torch.ones(1, 30)))
    assert watch.eigh == 0


@pytest.mark.parametrize("warm", [False, True])
def test_items_are_factorised_once_however_often_they_are_selected(warm):
    a, v = ops.Dense(random(3, 4, 6)), random(5, 6)
    index = torch.tensor([0, 2, 2, 1, 0])
    with Watch() as watch:
        if warm:
            a.resolvent(v[:3], 1.0)
        picked = a.rows(index)
        picked.resolvent(v, 1.0), picked.rows(index[:2]).resolvent(v[:2], 2.0), a.resolvent(v[:3], 3.0)
        moved = a.to(dtype=torch.float32)
        moved.resolvent(v[:3].float(), 1.0)
    assert watch.eigh == 1


def test_the_check_of_shapes_costs_microseconds():
    a, x = ops.Identity((1, 28, 28)), torch.zeros(20, 1, 28, 28)
    best = math.inf
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(1000):
            a(x)
        best = min(best, (time.perf_counter() - start) / 1000)
    assert best < 20e-6


def test_hadamard_of_a_million_values_in_bounded_memory():
    d = 2**20
    a = ops.SubsampledHadamard(d // 4, (1024, 1024))
    x = torch.randn(1, 1024, 1024, generator=torch.Generator().manual_seed(0))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Watch() as watch:
        y = a(x)
        back = a.adjoint(y)
    assert watch.largest <= d
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB
    torch.testing.assert_close(a(back), 4 * y, rtol=1e-3, atol=1e-4)
    assert float((y**2).sum() / (x**2).sum()) == pytest.approx(1, abs=0.02)


@few
@given(st.integers(1, 300), st.data())
def test_hadamard_rows_are_orthogonal_for_every_size(d, data):
    m = data.draw(st.integers(1, d))
    a = ops.SubsampledHadamard(m, d, seed=data.draw(st.integers(0, 99)), dtype=F64)
    y = random(2, m)
    torch.testing.assert_close(a(a.adjoint(y)), d / m * y, rtol=1e-10, atol=1e-11)
    assert a.dense().shape == (m, d)


def test_two_rounds_mix_a_signal_of_one_value():
    a = ops.SubsampledHadamard(784, 784, dtype=F64)
    columns = a.dense()
    assert float(columns.abs().amax(0).median()) < 0.5  # no column stays concentrated in a small block


@few
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 50))
def test_dense_resolvent_for_random_sizes(m, d, seed):
    matrix, v = random(m, d, seed=seed), random(2, d, seed=seed + 1)
    expected = torch.linalg.solve(matrix.T @ matrix + 0.3 * torch.eye(d, dtype=F64), v.T).T
    torch.testing.assert_close(ops.Dense(matrix).resolvent(v, 0.3), expected, rtol=1e-8, atol=1e-9)


@few
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 50))
def test_fourier_and_blur_for_random_sizes(h, w, seed):
    v = random(2, 3, h, w, seed=seed)
    kernel = random((h + 1) // 2, (w + 1) // 2, seed=seed)
    for a in (ops.Blur(kernel, (3, h, w)), ops.SubsampledFourier((h * w + 1) // 2, (3, h, w), seed, dtype=F64)):
        w_ = a.resolvent(v, 0.3)
        torch.testing.assert_close(a.adjoint(a(w_)) + 0.3 * w_, v, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("make", RANDOM)
def test_a_seed_gives_one_operator_and_leaves_the_global_generator_alone(make):
    state = torch.random.get_rng_state()
    x = torch.arange(40.0).reshape(1, 1, 5, 8)
    assert torch.equal(make(3)(x), make(3)(x))
    assert not torch.equal(make(3)(x), make(4)(x))
    make(3).gram_bounds(), make(3).resolvent(x, 1.0)
    (make(3) @ ops.Identity((1, 5, 8))).gram_bounds()
    assert torch.equal(torch.random.get_rng_state(), state)


def test_gaussian_entries_have_variance_one_over_m():
    matrix = ops.Gaussian(200, 500, dtype=F64).matrix * math.sqrt(200)
    assert float(matrix.mean()) == pytest.approx(0, abs=4 / math.sqrt(1e5))
    assert float(matrix.var()) == pytest.approx(1, abs=4 * math.sqrt(2 / 1e5))
    assert float((matrix**4).mean()) == pytest.approx(3, abs=4 * math.sqrt(96 / 1e5))


def test_gaussian_agrees_between_dtypes():
    assert torch.equal(ops.Gaussian(3, 4, dtype=F64).matrix.float(), ops.Gaussian(3, 4).matrix)
    assert ops.Gaussian(3, 4).dtype == torch.float32


@pytest.mark.slow
@pytest.mark.parametrize("m", [100, 392, 784, 1500])
def test_the_estimated_norm_is_a_little_too_large_on_crowded_spectra(m):
    for seed in range(4):  # power iteration stops 2% too low at m=1500, seed=3
        a = ops.Gaussian(m, 784, seed)
        top = float(torch.linalg.matrix_norm(a.matrix, 2) ** 2)
        estimate = float(ops.Linear(a, a.adjoint, 784).gram_bounds()[1])
        assert top <= estimate <= 1.05 * top


def test_random_frequencies_are_counted_and_hold_zero():
    for seed in range(5):
        mask = ops.SubsampledFourier(7, (4, 5), seed)._mask
        assert int(mask.sum()) == 7 and bool(mask[0, 0])


def test_hadamard_preserves_the_norm_on_average():
    x = random(1, 100)
    energies = [float((ops.SubsampledHadamard(20, 100, s, dtype=F64)(x) ** 2).sum()) for s in range(300)]
    assert sum(energies) / 300 == pytest.approx(float((x**2).sum()), rel=0.05)


def test_the_matrix_of_the_caller_may_change_later():
    matrix = torch.eye(2)
    a = ops.Dense(matrix)
    matrix.zero_()
    assert torch.equal(a(torch.ones(1, 2)), torch.ones(1, 2))


def test_measurements_of_the_identity_are_not_the_signal():
    x = torch.ones(2, 4)
    y = ops.Identity(4)(x)
    y += 1
    assert torch.equal(x, torch.ones(2, 4))


def test_numpy_seeds_and_a_dtype_that_comes_first():
    A = ops.Gaussian(2, 5, seed=np.int64(1))
    assert torch.equal(A.matrix, ops.Gaussian(2, 5, seed=1).matrix)
    assert ops.SubsampledHadamard(2, 4, seed=np.int64(1)).seed == 1
    assert A.to(torch.float64).dtype == torch.float64
    assert (A @ ops.Identity(5)).to(torch.float64).dtype == torch.float64
