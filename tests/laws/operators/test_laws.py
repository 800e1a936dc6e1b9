"""What must hold for every operator of the table."""

import numpy as np
import pytest
import torch

from genprior import operators as ops
from genprior._batch import dot, norm

from .instances import F64, ITEMS, every, every_per_item, flat, matrices, measurements, random, signals

RHOS = [1e-3, 1.0, 1e3, torch.tensor(0.7, dtype=F64), torch.tensor([1e-3, 1.0, 50.0], dtype=F64)]


def gram_matrices(instance, a):
    full = matrices(instance, a)
    return (full.conj().swapaxes(1, 2) @ full).real


def is_fixed(a):
    """A user's function may hold float64 tensors that cannot be moved."""
    return isinstance(a, ops.Linear) or any(map(is_fixed, a.parts))


@every
def test_forward_is_the_reference_matrix(instance):
    a = instance.make()
    x = signals(a)
    expected = np.einsum("bmd,bd->bm", matrices(instance, a), flat(x))
    y = a(x)
    assert tuple(y.shape) == (ITEMS, *a.measurement_shape)
    assert y.is_complex() == bool(a.complex_measurements)
    np.testing.assert_allclose(flat(y), expected, atol=1e-12)


@every
def test_dense_is_the_reference_matrix(instance):
    a = instance.make()
    a = a.to(dtype=F64)
    tolerance = 1e-12 if a.dtype == F64 else 1e-6
    np.testing.assert_allclose(a.dense().numpy(), instance.matrix(a), atol=tolerance)


@every
def test_adjoint_identity(instance):
    a = instance.make()
    x, y = signals(a), measurements(a)
    back = a.adjoint(y)
    assert back.shape == x.shape and back.dtype == F64
    torch.testing.assert_close(dot(a(x), y), dot(x, back), rtol=1e-11, atol=1e-12)


@every
@pytest.mark.parametrize("rho", RHOS, ids=["0.001", "1", "1000", "0-dim", "per item"])
def test_resolvent_solves_the_dense_system(instance, rho):
    a = instance.make()
    v = signals(a)
    column = np.broadcast_to(np.asarray(rho), (ITEMS,))
    systems = gram_matrices(instance, a) + column[:, None, None] * np.eye(flat(v).shape[1])
    expected = np.linalg.solve(systems, flat(v)[:, :, None])[:, :, 0]
    # conjugate gradients stop at a relative residual of 1e-6, which the smallest eigenvalue, rho, can magnify
    slack = 1e-6 * np.linalg.cond(systems).max() if "gradient" in a.resolvent_method else 1e-9
    error = np.linalg.norm(flat(a.resolvent(v, rho)) - expected, axis=1)
    assert (error <= slack * np.linalg.norm(expected, axis=1)).all()
    assert a.resolvent(v, rho).dtype == F64


@every
def test_conjugate_gradients_agree_with_the_resolvent(instance):
    a = instance.make()
    v = signals(a)

    def system(x):
        return a.adjoint(a(x)) + 0.5 * x

    result = ops.conjugate_gradient(system, v)
    assert bool((result.residual <= 1e-6).all())
    torch.testing.assert_close(result.solution, a.resolvent(v, 0.5), rtol=1e-4, atol=1e-4)
    again = ops.conjugate_gradient(system, v, result.solution)
    assert again.iterations.tolist() == [0] * ITEMS


@every
def test_resolvent_method_is_the_promised_one(instance):
    assert instance.make().resolvent_method.startswith(instance.method)


@every
def test_row_form(instance):
    a = instance.make()
    form = a.row_form()
    assert (form is not None) == instance.row_form
    if form is None:
        return
    x, y = signals(a), measurements(a)
    torch.testing.assert_close(norm(form.forward(x) - form.rotate(y)), norm(a(x) - y), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(dot(form.forward(x), y), dot(x, form.adjoint(y)), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(form.adjoint(form.rotate(y)), a.adjoint(y), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(form.forward(form.adjoint(y)), form.gram * y, rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(form.unrotate(form.rotate(y)), y, rtol=1e-11, atol=1e-12)


@every
def test_gram_bounds_are_the_extreme_eigenvalues(instance):
    a = instance.make()
    values = np.linalg.eigvalsh(gram_matrices(instance, a))
    low, high = a.gram_bounds()
    assert low.shape == high.shape == (() if a.batch is None else (ITEMS,))
    least, most = (v if a.batch else v[0] for v in (values[:, 0], values[:, -1]))
    if instance.exact_bounds:
        np.testing.assert_allclose(low.numpy(), least, atol=1e-5 * max(1, values.max()))
        np.testing.assert_allclose(high.numpy(), most, rtol=1e-5, atol=1e-12)
    else:
        assert (low.numpy() <= least * (1 + 1e-9) + 1e-12).all() and (low >= 0).all()
        assert (high.numpy() >= most).all() and (high.numpy() <= 1.05 * most).all()
    torch.testing.assert_close(a.norm() ** 2, high)
    assert a.gram_bounds()[1] is high


@every
def test_a_batch_equals_single_runs(instance):
    a = instance.make()
    x, y, rho = signals(a), measurements(a), random(ITEMS).abs() + 0.1
    for b in range(ITEMS):
        one, at = a.rows(torch.tensor([b])), slice(b, b + 1)
        torch.testing.assert_close(one(x[at]), a(x)[at], rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(one.adjoint(y[at]), a.adjoint(y)[at], rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(one.resolvent(x[at], rho[at]), a.resolvent(x, rho)[at], rtol=1e-9, atol=1e-10)


@every
def test_rows_without_items_of_its_own_is_itself(instance):
    a = instance.make()
    assert (a.rows(torch.tensor([1, 0])) is a) == (a.batch is None)


@every_per_item
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "factorised"])
def test_rows_selects_and_repeats(instance, warm):
    a, index = instance.make(), torch.tensor([2, 0, 2, 1, 2])
    x = signals(a)
    if warm:
        a.resolvent(x, 1.0), a.gram_bounds()
    picked = a.rows(index)
    assert picked.batch == 5 and a.batch == ITEMS
    torch.testing.assert_close(picked(x[index]), a(x)[index], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(picked.resolvent(x[index], 0.3), a.resolvent(x, 0.3)[index], rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(picked.norm(), a.norm()[index])
    again = picked.rows(torch.tensor([1, 3]))
    torch.testing.assert_close(again(x[:2]), a.rows(torch.tensor([0, 1]))(x[:2]), rtol=1e-12, atol=1e-13)


@every
def test_to_another_dtype_and_back(instance):
    a = instance.make()
    assert a.to() is a and a.to("cpu", F64) is a
    if is_fixed(a):
        return
    a.resolvent(signals(a), 1.0), a.gram_bounds()
    low = a.to(dtype=torch.float32)
    assert low.dtype in (torch.float32, None) and a.dtype in (F64, None)
    x = signals(a)
    y = low(x.float())
    assert y.dtype == (torch.complex64 if a.complex_measurements else torch.float32)
    assert low.adjoint(y).dtype == low.resolvent(x.float(), 1.0).dtype == torch.float32
    torch.testing.assert_close(y.to(a(x).dtype), a(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(low.resolvent(x.float(), 1.0).double(), a.resolvent(x, 1.0), rtol=1e-4, atol=1e-4)


@every
def test_float32_resolvent_takes_a_float64_rho(instance):
    a = instance.make()
    if not is_fixed(a):
        v = signals(a).float()
        assert a.to(dtype=torch.float32).resolvent(v, torch.ones(ITEMS, dtype=F64)).dtype == torch.float32


@every
def test_autograd_gives_the_gradient_of_least_squares(instance):
    a = instance.make()
    x, y = signals(a).requires_grad_(), measurements(a)
    residual = a(x) - y
    (0.5 * dot(residual, residual).sum()).backward()
    torch.testing.assert_close(x.grad, a.adjoint(a(x) - y).detach(), rtol=1e-10, atol=1e-11)


@every
def test_adjoint_and_resolvent_are_differentiable(instance):
    a = instance.make()
    y, v, x = measurements(a).requires_grad_(), signals(a).requires_grad_(), signals(a, seed=20)
    dot(a.adjoint(y), x).sum().backward()
    torch.testing.assert_close(y.grad, a(x).to(y.dtype), rtol=1e-10, atol=1e-11)
    if "gradient" not in a.resolvent_method:
        dot(a.resolvent(v, 0.5), x).sum().backward()
        torch.testing.assert_close(v.grad, a.resolvent(x, 0.5), rtol=1e-9, atol=1e-10)


@every
def test_arguments_are_left_alone(instance):
    a = instance.make()
    x, y = signals(a), measurements(a)
    before = x.clone(), y.clone()
    a(x), a.adjoint(y), a.resolvent(x, 2.0, start=x)
    assert torch.equal(x, before[0]) and torch.equal(y, before[1])


@every
def test_check_and_repr(instance):
    a = instance.make()
    a.check("operator", a.signal_shape, torch.device("cpu"), F64)
    with pytest.raises(ValueError, match=r"A takes signals of shape .* but the generator gives \(9, 9, 9\)"):
        a.check("A", (9, 9, 9), torch.device("cpu"), F64)
    assert len(repr(a)) < 140 * max(1, len(a.parts))
    assert a.parts or type(a).__name__ == repr(a).split("(")[0]
