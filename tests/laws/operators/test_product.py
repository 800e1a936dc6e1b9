"""Packed products: the same numbers as plain ones, and plain ones wherever somebody looks on."""

import copy
import pickle

import pytest
import torch

import genprior as gp
from genprior.generators.derivatives import prepare_forward_mode
from genprior.operators import dense as packing
from genprior.operators.dense import Product

packs = pytest.mark.skipif(not packing.can_pack(), reason="this build of torch has no packed product")


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


LARGE = numbers(300, 200), numbers(30, 300, seed=1)
SMALL = numbers(30, 20), numbers(3, 30, seed=1)


@pytest.mark.parametrize("layout", [lambda m: m, lambda m: m.T.contiguous().T], ids=["rows", "columns"])
def test_large_products_are_what_float64_says(layout):
    matrix, x = LARGE
    expected = x.double() @ matrix.double()
    product = Product(layout(matrix))
    for _ in range(2):  # packed at the first use, used packed at the second
        torch.testing.assert_close(product(x).double(), expected, rtol=1e-5, atol=1e-4)


@packs
def test_only_large_products_are_packed():
    large, small = Product(LARGE[0]), Product(SMALL[0])
    large(LARGE[1]), small(SMALL[1])
    assert large._packed is not None
    assert small._packed is None
    assert large.is_packed_for(LARGE[1]) and not large.is_packed_for(LARGE[1][:5])


@packs
@pytest.mark.parametrize("other", [torch.float64, torch.bfloat16])
def test_other_precisions_are_multiplied_as_usual(other):
    matrix, x = (t.to(other) for t in LARGE)
    product = Product(matrix)
    assert torch.equal(product(x), x @ matrix)
    assert product._packed is None


def test_one_matrix_for_each_row():
    matrices, x = numbers(4, 60, 50), numbers(4, 60, seed=1)
    torch.testing.assert_close(Product(matrices)(x), torch.einsum("bk,bkn->bn", x, matrices), rtol=1e-5, atol=1e-5)


def test_gradients_pass_through():
    matrix, x = LARGE
    product, v = Product(matrix), numbers(30, 200, seed=3)
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(product(leaf), leaf, v)
    torch.testing.assert_close(gradient, v @ matrix.T, rtol=1e-5, atol=1e-4)


def test_forward_mode_and_vmap_pass_through():
    prepare_forward_mode()
    matrix, x = LARGE
    product, tangent = Product(matrix), numbers(30, 300, seed=4)
    product(x)
    with torch.no_grad():
        _, pushed = torch.func.jvp(product, (x,), (tangent,))
        stacked = torch.func.vmap(product)(torch.stack([x, tangent]))
    torch.testing.assert_close(pushed, tangent @ matrix, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(stacked, torch.stack([x, tangent]) @ matrix, rtol=1e-5, atol=1e-4)
    with torch.no_grad(), torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangent)
        pushed = torch.autograd.forward_ad.unpack_dual(product(dual)).tangent
    torch.testing.assert_close(pushed, tangent @ matrix, rtol=1e-5, atol=1e-4)


@packs
def test_autocast_is_obeyed():
    matrix, x = LARGE
    product = Product(matrix)
    product(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert product(x).dtype == torch.bfloat16


@pytest.mark.parametrize("double", [copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))], ids=["copied", "pickled"])
def test_copies_are_whole(double):
    matrix, x = LARGE
    product = Product(matrix)
    expected = product(x)
    assert torch.equal(double(product)(x), expected)


def test_without_packing_everything_works_the_same(monkeypatch):
    monkeypatch.setattr(packing, "can_pack", lambda: False)
    matrix, x = LARGE
    product = Product(matrix)
    assert torch.equal(product(x), x @ matrix)
    assert not product.is_packed_for(x)


def test_a_build_without_the_operation_is_noticed(monkeypatch):
    class Nothing:
        def __getattr__(self, name):
            raise AttributeError(name)

    packing.can_pack.cache_clear()
    monkeypatch.setattr(torch.ops, "mkldnn", Nothing())
    assert not packing.can_pack()
    monkeypatch.undo()
    packing.can_pack.cache_clear()


def test_a_wrong_operation_is_noticed(monkeypatch):
    class Wrong:
        def _reorder_linear_weight(self, matrix):
            return matrix

        def _linear_pointwise(self, x, matrix, *rest):
            return x @ matrix

    packing.can_pack.cache_clear()
    monkeypatch.setattr(torch.ops, "mkldnn", Wrong())
    assert not packing.can_pack()
    monkeypatch.undo()
    packing.can_pack.cache_clear()


def test_dense_operators_in_float32_are_the_reference():
    """Large enough to be packed: forward, adjoint, row form, resolvent and what is left of it after a move to float64."""
    a = gp.operators.Gaussian(150, (1, 20, 20), seed=3)
    matrix = a.dense().double()
    x, y = numbers(25, 1, 20, 20), numbers(25, 150, seed=5)
    flat = x.flatten(1).double()
    form = a.row_form()
    turn = form.rotate(torch.eye(150)).double()  # A' = turn^T A
    close = {"rtol": 1e-4, "atol": 1e-4}
    for _ in range(2):
        torch.testing.assert_close(a(x).double(), flat @ matrix.T, **close)
        torch.testing.assert_close(a.adjoint(y).flatten(1).double(), y.double() @ matrix, **close)
        torch.testing.assert_close(form.forward(x).double(), flat @ matrix.T @ turn, **close)
        torch.testing.assert_close(form.adjoint(y).flatten(1).double(), y.double() @ turn.T @ matrix, **close)
        inverse = torch.linalg.inv(matrix.T @ matrix + 0.7 * torch.eye(400, dtype=torch.float64))
        torch.testing.assert_close(a.resolvent(x, 0.7).flatten(1).double(), flat @ inverse, **close)
    exact = a.to(dtype=torch.float64)
    torch.testing.assert_close(exact(x.double()), flat @ matrix.T, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(exact.resolvent(x.double(), 0.7).flatten(1), flat @ inverse, rtol=1e-9, atol=1e-9)
