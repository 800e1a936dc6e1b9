"""Lasso and total variation without a generator, against cvxpy: value and argument, for every type of resolvent."""

import cvxpy as cp
import numpy as np
import pytest
import torch

from genprior import operators as ops
from genprior.baselines import lasso, total_variation
from genprior.baselines.weights import column_norm
from genprior.operators import GramForm

from .operators.instances import F64, random

B, IMAGE, D = 3, (4, 5), 20
WEIGHTS = torch.tensor([0.05, 0.3, 1.5], dtype=F64)
TIGHT = {"tolerance": 1e-8, "max_iterations": 20_000}


class Rotation(ops.Operator):
    """An orthonormal basis that says so, as a user would write it."""

    def __init__(self, shape):
        self.signal_shape = self.measurement_shape = shape
        matrix = random(D, D, seed=5)
        self.matrix = torch.linalg.qr(matrix).Q

    def _forward(self, x):
        return (x.reshape(len(x), -1) @ self.matrix.T).reshape(len(x), *self.signal_shape)

    def _adjoint(self, y):
        return (y.reshape(len(y), -1) @ self.matrix).reshape(len(y), *self.signal_shape)

    def gram_form(self):
        return GramForm(1.0)

    transposed_gram_form = gram_form


def frame(count):
    """Coefficients of a basis that is not orthonormal, more or fewer than signal values."""
    both = torch.cat([torch.linalg.qr(random(D, D, seed=6)).Q, torch.eye(D, dtype=F64)], dim=1)
    matrix = both[:, :count] * torch.linspace(0.5, 1.5, count, dtype=F64)
    return ops.Linear(
        lambda v: (v @ matrix.T).reshape(-1, *IMAGE),
        signal_shape=(count,),
        dtype=F64,
        tolerance=1e-12,
        max_iterations=99,
    )


def by_cg():
    inner, outer = ops.Blur(0.7, IMAGE, dtype=F64), ops.Mask(random(*IMAGE, seed=7) > -0.5, dtype=F64)
    blur = ops.Linear(inner, inner.adjoint, IMAGE, dtype=F64, tolerance=1e-12, max_iterations=99)
    return outer @ blur


OPERATORS = {
    "gaussian": lambda: ops.Gaussian(12, IMAGE, seed=1, dtype=F64),
    "identity": lambda: ops.Identity(IMAGE),
    "mask per item": lambda: ops.Mask(random(B, *IMAGE, seed=8) > 0, per_item=True, dtype=F64),
    "blur": lambda: ops.Blur(0.8, IMAGE, dtype=F64),
    "fourier": lambda: ops.SubsampledFourier(7, IMAGE, dtype=F64),
    "conjugate gradients": by_cg,
}


def measurements(operator):
    y = random(B, *operator.measurement_shape, seed=9)
    y = torch.complex(y, random(*y.shape, seed=10)) if operator.complex_measurements else y
    return operator.measured(y)


def minimum(operator, y, i, term, weight, size=D):
    """Argument and value by cvxpy, for item i."""
    one = operator if operator.batch is None else operator.rows(torch.tensor([i]))
    columns = (
        one(torch.eye(size, dtype=F64).reshape(size, *one.signal_shape)) if one.batch is None else one.dense()[0].T
    )
    matrix, target = columns.reshape(size, -1).numpy().T, y[i].numpy().ravel()
    w = cp.Variable(size)
    squares = cp.sum_squares(matrix.real @ w - target.real) + cp.sum_squares(matrix.imag @ w - target.imag)
    problem = cp.Problem(cp.Minimize(0.5 * squares + weight * term(w)))
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
    return w.value, problem.value


def variation(w):
    image = cp.reshape(w, IMAGE, order="C")
    down = cp.vstack([image[1:] - image[:-1], np.zeros((1, IMAGE[1]))])
    right = cp.hstack([image[:, 1:] - image[:, :-1], np.zeros((IMAGE[0], 1))])
    return cp.sum(cp.norm(cp.vstack([cp.vec(down, order="C"), cp.vec(right, order="C")]), axis=0))


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("method", ["lasso", "lasso in a basis", "total variation"])
def test_answer_is_the_minimiser(name, method):
    operator = OPERATORS[name]()
    y = measurements(operator)
    basis = Rotation(IMAGE)
    if method == "total variation":
        found, term = total_variation(operator, y, WEIGHTS, dims=2, **TIGHT), variation
    elif method == "lasso":
        found, term = lasso(operator, y, weight=WEIGHTS, **TIGHT), cp.norm1
    else:
        found, term = lasso(operator, y, basis, WEIGHTS, **TIGHT), lambda w: cp.norm1(basis.matrix.numpy().T @ w)
    assert found.converged.all()
    for i, weight in enumerate(WEIGHTS.tolist()):
        argument, value = minimum(operator, y, i, term, weight)
        assert found.objective[i].item() == pytest.approx(value, rel=1e-6, abs=1e-8)
        if name in {"identity", "blur"} or (name == "gaussian" and method != "total variation"):
            np.testing.assert_allclose(
                found.signal[i].numpy().ravel(), argument, atol=2e-5
            )  # elsewhere it need not be unique


@pytest.mark.parametrize("count", [8, 30])
def test_a_basis_that_is_not_orthonormal(count):
    operator, basis = ops.Gaussian(12, IMAGE, seed=1, dtype=F64), frame(count)
    y = measurements(operator)
    found = lasso(operator, y, basis, WEIGHTS, tolerance=1e-6)
    for i, weight in enumerate(WEIGHTS.tolist()):
        argument, value = minimum(operator @ basis, y, i, cp.norm1, weight, count)
        assert found.objective[i].item() == pytest.approx(value, rel=1e-5)
        expected = basis(torch.as_tensor(argument)[None])[0]
        torch.testing.assert_close(operator(found.signal[i : i + 1])[0], operator(expected[None])[0], atol=1e-3, rtol=0)


@pytest.mark.parametrize("solve", [lasso, total_variation])
def test_every_item_is_solved_alone(solve):
    operator = ops.Mask(random(B, *IMAGE, seed=8) > 0, per_item=True, dtype=F64)
    y = measurements(operator)
    together = solve(operator, y, weight=WEIGHTS)
    for i in range(B):
        one = torch.tensor([i])
        alone = solve(operator.rows(one), y[one], weight=WEIGHTS[one])
        torch.testing.assert_close(alone.signal[0], together.signal[i], rtol=0, atol=1e-12)
        assert alone.steps[0] == together.steps[i]


@pytest.mark.parametrize("unit", [1e-12, 1e6])
def test_units_do_not_matter(unit):
    operator = ops.Gaussian(12, IMAGE, seed=1)
    y = measurements(OPERATORS["gaussian"]()).float()
    plain, scaled = lasso(operator, y, weight=0.3), lasso(operator, unit * y, weight=unit * 0.3)
    torch.testing.assert_close(scaled.signal / unit, plain.signal, rtol=1e-2, atol=2e-3)
    assert torch.equal(lasso(operator, y).signal, lasso(operator, y).signal)


def test_a_path_of_weights_is_walked_in_fewer_steps():
    operator = OPERATORS["gaussian"]()
    y = measurements(operator)
    near = lasso(operator, y, weight=0.11, tolerance=1e-6)
    warm = lasso(operator, y, weight=0.1, start=near, tolerance=1e-6)
    cold = lasso(operator, y, weight=0.1, tolerance=1e-6)
    torch.testing.assert_close(warm.signal, cold.signal, atol=1e-4, rtol=0)
    assert warm.steps.sum() < cold.steps.sum()


def test_default_weight_follows_the_noise():
    operator = ops.Identity(IMAGE)
    y = measurements(operator)
    noise = torch.tensor([0.1, 0.2, 0.4], dtype=F64)
    weight = lasso(operator, y, noise=noise).weight
    torch.testing.assert_close(weight / weight[0], noise / noise[0])
    assert (0.05 * noise < weight).all() and (weight < noise * np.sqrt(2 * np.log(D))).all()
    assert (lasso(3 * operator, 3 * y, noise=noise).weight - 3 * weight).abs().max() < 1e-12
    largest = y.flatten(1).abs().amax(1)
    assert (lasso(operator, y).weight < 0.1 * largest).all()
    assert (lasso(operator, y).weight > 0).all()


def test_large_weights_give_zero_and_zero_data_too():
    operator = ops.Gaussian(12, IMAGE, seed=1, dtype=F64)
    y = measurements(operator)
    largest = operator.adjoint(y).flatten(1).abs().amax(1)
    assert lasso(operator, y, weight=1.01 * largest).signal.abs().max() < 1e-6
    assert lasso(operator, 0 * y).signal.abs().max() == 0
    flat = total_variation(operator, y, weight=1e3, dims=2).signal
    assert (flat - flat.mean((1, 2), keepdim=True)).abs().max() < 1e-6


def test_bad_input_is_named():
    operator = ops.Gaussian(12, IMAGE, seed=1, dtype=F64)
    y = measurements(operator)
    with pytest.raises(ValueError, match="weight has 2 numbers for 3 items"):
        lasso(operator, y, weight=torch.ones(2, dtype=F64))
    with pytest.raises(ValueError, match=r"weight .* at least 0"):
        total_variation(operator, y, weight=-1.0)
    with pytest.raises(ValueError, match=r"basis gives signals of shape \(3,\)"):
        lasso(operator, y, ops.Identity((3,)))
    with pytest.raises(TypeError, match="basis must be"):
        lasso(operator, y, basis=torch.eye(20))
    with pytest.raises(ValueError, match="12"):
        lasso(operator, y[:, :3])
    with pytest.raises(ValueError, match="does not know the shape"):
        lasso(ops.Linear(lambda x: x, lambda y: y), y)
    with pytest.raises(ValueError, match="start has signals"):
        lasso(operator, y, start=lasso(operator, y[:1]))


@pytest.mark.parametrize("tolerance", [1e-1, 1e-3])
def test_the_residual_bounds_what_is_missing_from_optimality(tolerance):
    """Far from convergence: ``A^T (A w - y) + q = 0`` and w in the normal cone of the box ``|q| <= weight`` at q."""
    operator = OPERATORS["gaussian"]()
    y = measurements(operator)
    found = lasso(operator, y, weight=WEIGHTS, tolerance=tolerance)
    w, q, bound = found.signal, found.point.q, WEIGHTS[:, None, None]
    assert (q.abs() <= bound + 1e-12).all() and (found.residual <= tolerance).all()
    gradient = operator.adjoint(operator(w) - y)
    slope = (gradient + q).flatten(1).norm(dim=1) / operator.adjoint(y).flatten(1).norm(dim=1)
    inside = q.abs() < bound - 1e-12
    cone = torch.where(inside, 0, torch.where(q > 0, w.clamp_min(0), w.clamp_max(0)))
    corner = (w - cone).flatten(1).norm(dim=1) / w.flatten(1).norm(dim=1)
    assert (torch.maximum(slope, corner) <= found.residual * (1 + 1e-6) + 1e-12).all()
    assert (torch.maximum(slope, corner) > 0.01 * tolerance * (found.steps > 10)).any()


def test_noise_in_a_coefficient_of_complex_measurements():
    """The real and the imaginary part have sigma each: the spread of ``A^T noise`` is that of the draws."""
    operator = ops.SubsampledFourier(12, IMAGE, dtype=F64)
    draws = torch.complex(random(4000, *IMAGE, seed=1), random(4000, *IMAGE, seed=2))
    spread = operator.adjoint(operator.measured(draws)).square().mean().sqrt()
    found = column_norm(operator, random(2, *IMAGE))
    torch.testing.assert_close(found, spread.expand(2), rtol=0.1, atol=0)
