"""Sums, multiples, transposes and stacks: the rules of arithmetic, on every operator of the table."""

import copy
import pickle

import numpy as np
import pytest
import torch

import genprior as gp
from genprior import operators as ops
from genprior._batch import dot, square
from genprior._clock import limiting
from genprior._fingerprint import fingerprint

from .instances import (
    ALGEBRA,
    F64,
    FACTORS,
    INSTANCES,
    ITEMS,
    MANY_BLURS,
    MANY_MASKS,
    MATRICES,
    MATRIX,
    MIX,
    ROWS,
    SMOOTH,
    SPECTRUM,
    every,
    flat,
    matrices,
    measurements,
    random,
    signals,
)

close = torch.testing.assert_close
REAL = [instance for instance in INSTANCES if not instance.make().complex_measurements]
CLOSED = [instance for instance in INSTANCES if instance.make().closed_form]
every_real = pytest.mark.parametrize("instance", REAL, ids=str)
EXTREME = [1e-6, 1e6, torch.tensor([1e-6, 1.0, 1e6], dtype=F64)]


def similar(a):
    """Another operator with the shapes of ``a``."""
    return a @ ops.Linear(lambda x: x.flip(1), lambda x: x.flip(1), a.signal_shape, a.signal_shape, dtype=F64)


@every
def test_sums_and_differences(instance):
    a = instance.make()
    b, x, y = similar(a), signals(a), measurements(a)
    close((a + b)(x), a(x) + b(x))
    close((a - b)(x), a(x) - b(x), rtol=1e-11, atol=1e-12)
    close((a + b).adjoint(y), a.adjoint(y) + b.adjoint(y))
    close((a - b).adjoint(y), a.adjoint(y) - b.adjoint(y), rtol=1e-11, atol=1e-12)
    close((a + b - a)(x), b(x), rtol=1e-10, atol=1e-11)
    close(sum([a, b])(x), (a + b)(x))


@every
@pytest.mark.parametrize("factor", [-0.7, 2, np.float64(0.3), FACTORS, torch.tensor(4.0)], ids=str)
def test_multiples(instance, factor):
    a = instance.make()
    x, y = signals(a), measurements(a)
    wide = [torch.as_tensor(factor, dtype=F64).reshape(-1, *(1,) * (t.ndim - 1)) for t in (x, y)]
    for scaled in (factor * a, a * factor):
        close(scaled(x), wide[1] * a(x))
        close(scaled.adjoint(y), wide[0] * a.adjoint(y))
    close((a / factor)(x), a(x) / wide[1])
    squares = wide[0].flatten() ** 2
    low, high = (factor * a).gram_bounds()
    close(low, (squares * a.gram_bounds()[0]).reshape(low.shape).to(low))
    close(high, (squares * a.gram_bounds()[1]).reshape(high.shape).to(high))


@every
def test_multiples_are_multiplied_out(instance):
    a = instance.make()
    if isinstance(a, ops.Scaled):
        a = a.operator
    negative = -a
    assert -negative is a and 1 * a is a and (4 * (a / 4)) is a
    assert (2 * (3 * a)).factor == 6 and (2 * (3 * a)).operator is a
    twice = FACTORS * (FACTORS * a)
    assert twice.operator is a
    close(twice.factor, FACTORS**2)


@every_real
def test_the_transpose_swaps_forward_and_adjoint(instance):
    a = instance.make()
    t, x, y = a.T, signals(a), measurements(a)
    assert (t.signal_shape, t.measurement_shape) == (a.measurement_shape, a.signal_shape)
    close(t(y), a.adjoint(y))
    close(t.adjoint(x), a(x))
    close(t.dense(), a.dense().mT)
    if instance.exact_bounds:
        close(t.norm(), a.norm(), rtol=1e-6, atol=1e-9, check_dtype=False)


@every_real
def test_the_transpose_of_the_transpose_is_the_operator(instance):
    a = instance.make()
    if isinstance(a, ops.Sum | ops.Scaled | ops.Composition):  # expressions are written anew, of the same operators
        assert repr(a.T.T) == repr(a)
        assert all(new.T is old.T or new is old or new.parts for new, old in zip(a.T.T.parts, a.parts, strict=True))
    elif isinstance(a, ops.Transpose):  # a.T is the operator within, whose transpose is made anew
        assert a.T is a.operator and a.T.T.operator is a.operator
    else:
        assert a.T.T is a


@every_real
@pytest.mark.parametrize("rho", EXTREME, ids=str)
def test_resolvent_of_the_transpose(instance, rho):
    a = instance.make()
    if a.closed_form:
        full = matrices(instance, a)
        _compare(a.T, full.swapaxes(1, 2), rho)


@pytest.mark.parametrize("instance", CLOSED, ids=str)
@pytest.mark.parametrize("rho", EXTREME, ids=str)
def test_closed_forms_hold_for_every_rho(instance, rho):
    a = instance.make()
    full = matrices(instance, a)
    _compare(a, full, rho)
    _compare(30 * a, 30 * full, rho)
    _compare(FACTORS * a, FACTORS.numpy()[:, None, None] * full, rho)
    eye = np.broadcast_to(0.2 * np.eye(full.shape[2]), (ITEMS, full.shape[2], full.shape[2]))
    _compare(ops.Stack(a, 0.2 * ops.Identity(a.signal_shape)), np.concatenate([full, eye], axis=1), rho)


def _compare(a, full, rho):
    """The resolvent against numpy, as closely as the condition of the system allows."""
    assert a.closed_form
    v = signals(a)
    _, values, vectors = np.linalg.svd(np.concatenate([full.real, full.imag], axis=1))
    squares = np.zeros((ITEMS, vectors.shape[-1]))
    squares[:, : values.shape[1]] = values**2
    shifted = squares + np.broadcast_to(np.asarray(rho), (ITEMS,))[:, None]
    expected = np.einsum("bkd,bk,bkc,bc->bd", vectors, 1 / shifted, vectors, flat(v))
    # with a square matrix in its row form, digits cancel as if it had a null space
    condition = shifted.max(1) / (np.asarray(rho) if a.resolvent_method == "thin SVD" else shifted.min(1))
    error = np.linalg.norm(flat(a.resolvent(v, rho)) - expected, axis=1)
    assert (error <= 2e-14 * condition * np.linalg.norm(expected, axis=1)).all()


@pytest.mark.slow
@every
def test_a_stack_measures_both_and_bounds_its_norm(instance):
    a = instance.make()
    b, x = similar(a), signals(a)
    both = ops.Stack(a, b)
    parts = both.split(both(x))
    close(parts[0], a(x))
    close(parts[1], b(x))
    close(both.join(parts), both(x))
    close(square(both(x)), square(a(x)) + square(b(x)))
    top, total = torch.maximum(a.norm(), b.norm()) ** 2, a.norm() ** 2 + b.norm() ** 2
    exact = torch.linalg.matrix_norm(_real(both.to(dtype=F64).dense(), -2), 2) ** 2
    low, high = both.gram_bounds()
    assert (high.double() >= exact * (1 - 1e-6)).all() and (high.double() <= 1.05 * exact).all()
    assert (high <= total * (1 + 1e-6)).all() and (exact >= top.double() / 1.05 - 1e-9).all()
    assert (low >= 0).all() and (low <= high * (1 + 1e-9)).all()


@every
def test_the_layout_of_a_stack(instance):
    a = instance.make()
    both = ops.Stack(a, ops.Identity(a.signal_shape))
    y = measurements(both)
    first, second = both.split(y)
    assert first.shape == (ITEMS, *a.measurement_shape) and second.shape == (ITEMS, *a.signal_shape)
    assert not second.is_complex()
    close(both.adjoint(y), a.adjoint(first) + second)
    kept = both.measured(y)
    assert kept.shape == y.shape and kept.dtype == y.dtype
    close(kept, both.join([a.measured(first), second]))
    close(both.measured(kept), kept)


def test_an_expression_is_written_as_it_reads():
    g, b = ops.Gaussian(4, 6), ops.SubsampledHadamard(4, 6)
    texts = {
        2 * g: "2 * Gaussian(4, (6,), seed=0)",
        -g: "-Gaussian(4, (6,), seed=0)",
        g / 4: "0.25 * Gaussian(4, (6,), seed=0)",
        g.T: "Gaussian(4, (6,), seed=0).T",
        g + b: "Gaussian(4, (6,), seed=0) + SubsampledHadamard(4, (6,), seed=0)",
        g - b: "Gaussian(4, (6,), seed=0) - SubsampledHadamard(4, (6,), seed=0)",
        g - 3 * b: "Gaussian(4, (6,), seed=0) - 3 * SubsampledHadamard(4, (6,), seed=0)",
        2 * (g + g): "2 * (Gaussian(4, (6,), seed=0) + Gaussian(4, (6,), seed=0))",
        (g @ b.T): "Gaussian(4, (6,), seed=0) @ SubsampledHadamard(4, (6,), seed=0).T",
        (g + b) @ ops.Downsample(2, 12): (
            "(Gaussian(4, (6,), seed=0) + SubsampledHadamard(4, (6,), seed=0)) @ Downsample(2, (12,))"
        ),
        (g @ b.T).T: "SubsampledHadamard(4, (6,), seed=0) @ Gaussian(4, (6,), seed=0).T",
        ops.Stack(g, 2 * b): "Stack(Gaussian(4, (6,), seed=0), 2 * SubsampledHadamard(4, (6,), seed=0))",
        torch.ones(3) * g: "tensor(3) * Gaussian(4, (6,), seed=0)",
    }
    for operator, text in texts.items():
        assert repr(operator) == text


def test_transposes_of_expressions_are_expressions_of_transposes():
    a, b = MIX.make(), MANY_MASKS.make()
    assert isinstance(a.T, ops.Composition) and a.T.inner.T is a.outer and a.T.outer.T is a.inner
    assert isinstance((a + b).T, ops.Sum) and isinstance((3 * a).T, ops.Scaled)
    assert b.T is b and ops.Identity(3).T.measurement_shape == (3,)


def test_a_complex_operator_has_no_transpose():
    for a in (SPECTRUM.make(), ops.Stack(SPECTRUM.make(), SMOOTH.make()), 2 * SPECTRUM.make()):
        with pytest.raises(TypeError, match=r"has no \.T: its signals would be the complex .* use A\.adjoint\(y\)"):
            _ = a.T


LATE = {
    "scaled": lambda f: 2 * f,
    "per item": lambda f: FACTORS * f,
    "sum": lambda f: f + ops.Identity(12) - f,
    "stack": lambda f: ops.Stack(f, ops.Identity(12)),
    "transpose": lambda f: f.T,
    "transpose with its signals known": lambda f: ops.Linear(f, f.adjoint, 12, dtype=F64).T,
    "transposed sum": lambda f: (f + ops.Identity(12)).T,
    "composition": lambda f: (2 * f) @ (f / 2),
}


@pytest.mark.parametrize("case", LATE.values(), ids=LATE.keys())
def test_shapes_may_be_known_late(case):
    matrix = random(12, 12, seed=4)
    late = case(ops.Linear(lambda x: x @ matrix.T, lambda y: y @ matrix, tolerance=1e-9, max_iterations=500))
    early = case(ops.Dense(matrix))
    bound = late.bound((12,), torch.device("cpu"), F64)
    assert bound.measurement_shape == early.measurement_shape and bound.bound((12,), torch.device("cpu"), F64) is bound
    v = random(ITEMS, 12)
    close(late(v), early(v))
    close(bound(v), early(v))
    close(bound.adjoint(bound(v)), early.adjoint(early(v)))
    close(bound.resolvent(v, 0.5), early.resolvent(v, 0.5), rtol=1e-6, atol=1e-6)
    problem_loss = gp.LeastSquares(late, early(v)).bound((12,), torch.device("cpu"), F64)
    close(problem_loss(v), torch.zeros(ITEMS, dtype=F64))


def test_settings_of_conjugate_gradients_are_those_of_the_parts_that_need_them():
    loose = ops.Linear(lambda x: 2 * x, lambda y: 2 * y, 12, dtype=F64, tolerance=1e-3, max_iterations=7)
    other = ops.Linear(lambda x: 2 * x, lambda y: 2 * y, 12, dtype=F64, tolerance=1e-4, max_iterations=9)
    for a in (2 * loose, loose.T, loose @ MATRIX.make().T, loose + loose, ops.Stack(loose, MATRIX.make())):
        assert (a.tolerance, a.max_iterations) == (1e-3, 7)
    assert ((loose + other).tolerance, ops.Stack(loose, other).max_iterations) == (1e-4, 9)


@pytest.mark.parametrize("instance", ALGEBRA, ids=str)
def test_copies_and_pickles_are_the_same_operator(instance):
    a = instance.make()
    x = signals(a)
    a.resolvent(x, 1.0)
    others = [copy.deepcopy(a)] if _has_functions(a) else [copy.deepcopy(a), pickle.loads(pickle.dumps(a))]
    for other in others:
        close(other(x), a(x))
        close(other.resolvent(x, 0.5), a.resolvent(x, 0.5))


def _has_functions(a):
    return isinstance(a, ops.Linear) or any(map(_has_functions, a.parts))


def test_measured_is_what_any_operator_measures():
    left, right = torch.tensor([True, True, False, False]), torch.tensor([False, True, True, False])
    y = torch.tensor([[1.0, 2.0, 3.0, torch.nan]])
    a, b = ops.Mask(left), ops.Mask(right)
    assert (a + b).measured(y).tolist() == [[1, 2, 3, 0]]
    assert (2 * a).measured(y).tolist() == [[1, 2, 0, 0]] and not (0 * a).measured(y).any()
    factors = torch.tensor([0.0, 1.0])
    assert (factors * a).measured(y.expand(2, 4)).tolist() == [[0, 0, 0, 0], [1, 2, 0, 0]]
    both = ops.Stack(a, b)
    assert both.measured(torch.cat([y, y], 1)).tolist() == [[1, 2, 0, 0, 0, 2, 3, 0]]
    mixed = ops.Stack(ops.SubsampledFourier(torch.tensor([1, 0, 0, 0]), 4), a)
    y = torch.full((1, 8), 1 + 1j)
    assert mixed.measured(y).tolist() == [[1 + 1j, 0, 0, 0, 1, 1, 0, 0]]


def test_items_of_a_stack_are_factorised_once():
    a = ops.Stack(MATRIX.make(), MATRICES.make())
    x = signals(a)
    a.resolvent(x, 1.0)
    twin = a._twin
    picked = a.rows(torch.tensor([2, 0]))
    assert picked._twin is not None and picked._twin._factors is not None and a._twin is twin
    close(picked.resolvent(x[[2, 0]], 1.0), a.resolvent(x, 1.0)[[2, 0]])


def test_a_sum_of_the_identity_and_something_small_is_known_to_be_invertible():
    low, high = (ops.Identity((2, 4, 6)) - 0.2 * SMOOTH.make()).gram_bounds()
    assert float(low) == pytest.approx(0.8**2, rel=1e-5) and 1 <= float(high) <= 1.2**2


def test_the_bounds_of_a_stack_with_the_identity_are_exact():
    a = ops.Stack(ROWS.make(), 0.5 * ops.Identity((2, 4, 6)))
    low, high = a.gram_bounds()
    assert (float(low), float(high)) == pytest.approx((0.25, 48 / 20 + 0.25))


def test_dense_and_norms_per_item_of_a_factor():
    a = FACTORS * MATRIX.make()
    close(a.norm(), FACTORS.abs() * MATRIX.make().norm())
    assert a.dense().shape == (ITEMS, 5, 12)


@pytest.mark.parametrize(
    "case", [lambda f: 2 * f, lambda f: f - f.T.T, lambda f: f.T, lambda f: ops.Stack(f, ops.Identity(12))]
)
def test_bounds_found_in_a_hurry_are_found_again(case):
    matrix = random(12, 12, seed=5)
    a = case(ops.Linear(lambda x: x @ matrix.T, lambda y: y @ matrix, 12, dtype=F64))
    with limiting(lambda: 1e-9):
        a.gram_bounds()
    assert a._hurried
    low, high = a.gram_bounds()
    assert not a._hurried and a.gram_bounds()[1] is high
    exact = torch.linalg.matrix_norm(a.dense(), 2) ** 2
    assert exact <= high <= 1.05 * exact + 1e-12 and low <= high


def test_the_fingerprint_knows_the_parts_and_ignores_what_was_derived():
    a = ops.Stack(MATRIX.make(), 2 * MATRIX.make())
    before = fingerprint(a)
    a.resolvent(signals(a), 1.0), a.gram_bounds(), a.row_form()
    assert fingerprint(a) == before
    one, other = (ops.Linear(f, lambda y: y, 12, 12, dtype=F64) for f in (lambda x: 1 * x, lambda x: x * 1))
    assert fingerprint(2 * one) == fingerprint(2 * one) != fingerprint(2 * other)
    assert fingerprint(2 * one) != fingerprint(3 * one)


# -- the losses and solvers use them as any other ------------------------------------------------------------------

SOLVED = [
    i for i in ALGEBRA if "transposed" not in i.name or i.name.startswith(("dense per item", "composition", "2 *"))
]


@pytest.mark.slow
@pytest.mark.parametrize("instance", SOLVED, ids=str)
@pytest.mark.parametrize("solver", [gp.ExactADMM(), gp.QuasiNewton()], ids=["admm", "quasi-newton"])
def test_least_squares_solves_as_with_the_explicit_matrix(instance, solver):
    a = instance.make()
    a.tolerance, a.max_iterations = 1e-12, 1000
    shape, size = a.signal_shape, int(np.prod(a.signal_shape))
    weights = random(size, 4, seed=30)
    module = torch.nn.Sequential(torch.nn.Linear(4, size), torch.nn.Unflatten(1, shape)).double()
    with torch.no_grad():
        module[0].weight.copy_(weights)
        module[0].bias.zero_()
    generator = gp.Generator(module, latent_shape=4, signal_shape=shape)
    x = generator(random(ITEMS, 4, seed=31)).detach() + 0.1 * random(ITEMS, *shape, seed=32)
    y = a(x)
    full = torch.as_tensor(matrices(instance, a).copy())
    explicit, measured = ops.Dense(_real(full, 1), shape), _real(y.flatten(1), 1)
    results = [
        gp.solve(gp.Problem(generator, gp.LeastSquares(operator, target)), solver, stop=gp.MaxSteps(6), restarts=1)
        for operator, target in ((a, y), (explicit, measured))
    ]
    slack = 1e-4 if instance.exact_bounds else 0.02  # norms that are 1% too large lead to other penalties
    close(results[0].objective, results[1].objective, rtol=slack, atol=1e-9)
    if instance.name != "zero * dense":
        close(results[0].signal, results[1].signal, rtol=10 * slack, atol=10 * slack)


def _real(values, dim):
    return torch.cat([values.real, values.imag], dim=dim) if values.is_complex() else values


@pytest.mark.parametrize("instance", ALGEBRA, ids=str)
def test_public_checks_pass(instance):
    a = instance.make()
    report = gp.checks.check_operator(a, dtype=F64)
    assert not report.failures, str(report)


def test_a_per_item_blur_scaled_per_item_keeps_items_apart():
    a = FACTORS * MANY_BLURS.make()
    x = signals(a)
    other = x.clone()
    other[0] = 100
    assert torch.equal(a(x)[1:], a(other)[1:]) and torch.equal(a.resolvent(x, 0.1)[1:], a.resolvent(other, 0.1)[1:])
    assert float((dot(a(x), a(x)) - square(a(x))).abs().max()) == 0
