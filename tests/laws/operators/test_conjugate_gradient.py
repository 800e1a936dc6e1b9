"""Conjugate gradients against numpy, and what happens when something is wrong with the data."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from genprior.operators import conjugate_gradient

from .instances import F64, random

few = settings(derandomize=True, deadline=None, max_examples=25)


def spd(items, n, seed):
    root = random(items, n, n, seed=seed)
    return root @ root.mT / n + 0.1 * torch.eye(n, dtype=F64)


def product(matrix):
    return lambda x: (matrix @ x[:, :, None])[:, :, 0]


@few
@given(st.integers(1, 4), st.integers(1, 12), st.integers(0, 1000), st.booleans())
def test_random_systems_against_numpy(items, n, seed, warm):
    matrix, rhs = spd(items, n, seed), random(items, n, seed=seed + 1)
    start = random(items, n, seed=seed + 2) if warm else None
    result = conjugate_gradient(product(matrix), rhs, start, tolerance=1e-10)
    expected = np.linalg.solve(matrix.numpy(), rhs.numpy()[:, :, None])[:, :, 0]
    np.testing.assert_allclose(result.solution.numpy(), expected, rtol=1e-6, atol=1e-7)
    assert bool((result.residual <= 1e-10).all())


@few
@given(st.integers(1, 8), st.integers(0, 1000))
def test_a_batch_equals_single_runs(n, seed):
    scale = torch.tensor([1.0, 1e-4, 1e4], dtype=F64)
    matrix = spd(3, n, seed)
    matrix[1] = torch.eye(n, dtype=F64)  # done after one iteration while the others go on
    rhs = random(3, n, seed=seed + 1) * scale[:, None]
    together = conjugate_gradient(product(matrix), rhs)
    for b in range(3):
        alone = conjugate_gradient(product(matrix[b : b + 1]), rhs[b : b + 1])
        assert int(alone.iterations) == int(together.iterations[b])
        torch.testing.assert_close(alone.solution[0], together.solution[b], rtol=1e-12, atol=0)
        torch.testing.assert_close(alone.residual[0], together.residual[b], rtol=1e-6, atol=1e-15)


def test_warm_start_from_the_solution_takes_no_iterations():
    matrix, rhs = spd(2, 6, 0), random(2, 6)
    solution = torch.linalg.solve(matrix, rhs[:, :, None])[:, :, 0]
    result = conjugate_gradient(product(matrix), rhs, solution)
    assert result.iterations.tolist() == [0, 0]
    assert torch.equal(result.solution, solution)


def test_a_good_start_saves_iterations():
    matrix, rhs = spd(1, 40, 0), random(1, 40)
    cold = conjugate_gradient(product(matrix), rhs)
    near = cold.solution + 1e-5 * random(1, 40, seed=9)
    assert conjugate_gradient(product(matrix), rhs, near).iterations < cold.iterations


def test_zero_right_hand_side_gives_zero_even_from_a_start():
    matrix, rhs = spd(2, 4, 0), torch.zeros(2, 4, dtype=F64)
    for start in (None, random(2, 4)):
        result = conjugate_gradient(product(matrix), rhs, start)
        assert not result.solution.any() and not result.iterations.any() and not result.residual.any()


def test_a_non_finite_item_is_nan_and_harms_no_other():
    matrix, rhs = spd(3, 4, 0), random(3, 4)
    clean = conjugate_gradient(product(matrix), rhs)
    rhs[1, 2] = torch.nan
    result = conjugate_gradient(product(matrix), rhs)
    assert bool(result.solution[1].isnan().all())
    assert torch.equal(result.solution[[0, 2]], clean.solution[[0, 2]])


def test_a_non_finite_start_counts_as_none():
    matrix, rhs = spd(2, 4, 0), random(2, 4)
    start = torch.full_like(rhs, torch.inf)
    assert torch.equal(
        conjugate_gradient(product(matrix), rhs, start).solution, conjugate_gradient(product(matrix), rhs).solution
    )


def test_breakdown_keeps_the_last_finite_iterate():
    negative = -torch.eye(3, dtype=F64)[None]
    result = conjugate_gradient(product(negative), random(1, 3))
    assert not result.solution.any() and result.iterations.tolist() == [0] and float(result.residual) == 1


def test_an_operator_that_overflows_for_one_item_harms_no_other():
    matrix, rhs = spd(3, 4, 0), random(3, 4)
    clean = conjugate_gradient(product(matrix), rhs)
    matrix[1] = torch.inf
    result = conjugate_gradient(product(matrix), rhs)
    assert not result.solution[1].any() and float(result.residual[1]) == 1
    assert torch.equal(result.solution[[0, 2]], clean.solution[[0, 2]])


def test_iterations_are_limited_and_the_residual_is_honest():
    matrix, rhs = spd(1, 60, 0), random(1, 60)
    result = conjugate_gradient(product(matrix), rhs, max_iterations=3)
    true = torch.linalg.vector_norm(rhs - product(matrix)(result.solution)) / torch.linalg.vector_norm(rhs)
    assert result.iterations.tolist() == [3]
    assert float(result.residual) == pytest.approx(float(true), rel=1e-6) and float(true) > 1e-6
