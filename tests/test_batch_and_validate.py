"""The helpers below everything: arithmetic per item, and the checks of what a person passes in."""

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from genprior import _batch, _validate

F64 = torch.float64
few = settings(max_examples=25, deadline=None, derandomize=True)
shapes = st.lists(st.integers(1, 4), min_size=2, max_size=4)


def random(*shape, seed=0, complex_too=False):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=random, dtype=F64)
    return torch.complex(x, torch.randn(*shape, generator=random, dtype=F64)) if complex_too else x


@few
@given(shape=shapes, complex_too=st.booleans())
def test_norm_square_and_dot_per_item(shape, complex_too):
    x, y = (random(*shape, seed=seed, complex_too=complex_too) for seed in (0, 1))
    for i in range(shape[0]):
        a, b = x[i].numpy().ravel(), y[i].numpy().ravel()
        assert float(_batch.norm(x)[i]) == pytest.approx(np.linalg.norm(a))
        assert float(_batch.square(x)[i]) == pytest.approx(np.linalg.norm(a) ** 2)
        assert float(_batch.dot(x, y)[i]) == pytest.approx(np.vdot(a, b).real, abs=1e-12)
    assert _batch.norm(x).shape == _batch.square(x).shape == _batch.dot(x, y).shape == (shape[0],)
    assert _batch.dot(x, y).dtype == F64


def test_flat():
    assert _batch.flat(random(3, 2, 4)).shape == (3, 8)
    assert _batch.flat(random(3)).shape == (3, 1)
    pairs = _batch.flat(random(3, 2, complex_too=True))
    assert pairs.shape == (3, 4)
    assert not pairs.is_complex()


@few
@given(shape=shapes)
def test_spread_multiplies_item_by_item(shape):
    x, value = random(*shape), random(shape[0], seed=3)
    product = _batch.spread(value, x) * x
    for i in range(shape[0]):
        assert torch.equal(product[i], value[i] * x[i])


def test_spread_leaves_the_rest_alone():
    x = random(2, 3)
    for value in (2.0, torch.tensor(2.0), random(2, 3, seed=1), random(3, 1, 1)):
        assert _batch.spread(value, x) is value
    assert _batch.spread(random(2), random(2)).shape == (2,)


@pytest.mark.parametrize("value", [2, 2.0, torch.tensor(2.0), torch.tensor([2.0, 2.0, 2.0])])
@pytest.mark.parametrize("complex_too", [False, True])
def test_column(value, complex_too):
    column = _batch.column(value, random(3, 4, complex_too=complex_too))
    assert column.tolist() == [2.0] * 3
    assert column.dtype == F64


def test_ratio():
    a, b = torch.tensor([0.0, 0.0, 1.0, 0.0]), torch.tensor([0.0, 2.0, 4.0, math.inf])
    assert _batch.ratio(a, b).tolist() == [0.0, 0.0, 0.25, 0.0]
    assert float(_batch.ratio(torch.tensor([1.0]), torch.tensor([0.0]))) > 1e29


@pytest.mark.parametrize(
    ("given_", "expected"), [(3, (3,)), ((3, 4), (3, 4)), ([5], (5,)), (torch.Size([2, 1]), (2, 1))]
)
def test_shape(given_, expected):
    assert _validate.shape("s", given_) == expected


@pytest.mark.parametrize("bad", [0, -1, (), (0, 3), (3, 2.0), True, (True,), ("3",)])
def test_bad_shape(bad):
    with pytest.raises(
        ValueError, match=re.escape(f"s must be positive whole numbers without the batch axis, got {bad!r}")
    ):
        _validate.shape("s", bad)


def test_whole():
    assert _validate.whole("n", 1) == 1
    assert _validate.whole("n", 0, least=0) == 0
    for bad in (1.0, True, "1", None):
        with pytest.raises(TypeError, match=re.escape(f"n must be a whole number, got {bad!r}")):
            _validate.whole("n", bad)
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        _validate.whole("n", 0)


def test_number():
    assert _validate.number("t", 2) == 2.0
    assert isinstance(_validate.number("t", 2), float)
    assert _validate.number("t", np.float64(0.5)) == 0.5
    assert _validate.number("t", 0, least=0) == 0.0


NUMBERS = [
    (0, {"above": 0}, ValueError, "t must be a finite number above 0, got 0"),
    (-1e-9, {"least": 0}, ValueError, "t must be a finite number of at least 0, got -1e-09"),
    (0.5, {"above": 0, "least": 1}, ValueError, "t must be a finite number above 0 and of at least 1, got 0.5"),
    (math.nan, {}, ValueError, "t must be a finite number"),
    (math.inf, {"above": 0}, ValueError, "got inf"),
    (True, {}, TypeError, "t must be a number, got True (bool)"),
    ("1", {}, TypeError, "t must be a number, got '1' (str)"),
    (None, {}, TypeError, "t must be a number, got None (NoneType)"),
]


@pytest.mark.parametrize(("value", "limits", "kind", "message"), NUMBERS)
def test_bad_number(value, limits, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        _validate.number("t", value, **limits)


def test_per_item():
    for good in (1.0, torch.tensor(1.0), torch.tensor([1.0, 2.0])):
        assert _validate.per_item("c", good, above=0) is good
    for bad in (torch.tensor([1.0, 0.0]), torch.tensor([1.0, math.nan]), torch.tensor(-1.0)):
        with pytest.raises(ValueError, match="c must hold finite numbers above 0, got"):
            _validate.per_item("c", bad, above=0)
    with pytest.raises(ValueError, match="c must hold finite numbers of at least 0"):
        _validate.per_item("c", torch.tensor([-1.0]), least=0)
    for bad in (torch.ones(2, 1), torch.tensor([1, 2])):
        with pytest.raises(ValueError, match=r"c must be a number or a floating-point tensor of shape \(B,\)"):
            _validate.per_item("c", bad)
    with pytest.raises(ValueError, match="c must be a finite number above 0, got -1"):
        _validate.per_item("c", -1, above=0)


def test_tensor():
    x = random(2, 3)
    assert _validate.tensor("x", x) is x
    z = random(2, 3, complex_too=True)
    assert _validate.tensor("x", z, complex_too=True) is z
    with pytest.raises(TypeError, match=r"x must hold floating-point numbers, got torch\.complex128"):
        _validate.tensor("x", z)
    with pytest.raises(TypeError, match=r"x must hold floating-point numbers, got torch\.bool: use x\.float\(\)"):
        _validate.tensor("x", x > 0)
    with pytest.raises(TypeError, match=r"x must be a torch\.Tensor, got ndarray: use torch\.as_tensor"):
        _validate.tensor("x", x.numpy())
    x[0, 0], x[1, 1] = math.nan, -math.inf
    with pytest.raises(ValueError, match="x holds 2 NaN or infinite values of 6: remove or mask them first"):
        _validate.tensor("x", x)
    z[0, 0] = complex(0, math.nan)
    with pytest.raises(ValueError, match="x holds 1 NaN"):
        _validate.tensor("x", z, complex_too=True)


BATCHES = [
    (torch.zeros(2, 3), (4,), "", "y has shape (2, 3), expected (B, 4)"),
    (torch.zeros(2, 3), (4,), "another size?", "y has shape (2, 3), expected (B, 4): another size?"),
    (torch.zeros(1, 4), (1, 4), "another?", "y has shape (1, 4), expected (B, 1, 4): add the batch axis with [None]"),
    (torch.zeros(3), None, "", "y has shape (3,), expected a batch axis first: use y[None]"),
    (torch.tensor(0.0), (4,), "", "y has shape (), expected (B, 4)"),
    (torch.zeros(0, 4), (4,), "", "y is an empty batch, shape (0, 4): give at least one item"),
]


@pytest.mark.parametrize(("value", "shape", "hint", "message"), BATCHES)
def test_bad_batch(value, shape, hint, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        _validate.batch("y", value, shape, hint)


def test_good_batch():
    y = torch.zeros(2, 3, 4)
    assert _validate.batch("y", y, (3, 4)) is y
    assert _validate.batch("y", y, None) is y


def test_same_place():
    y, cpu, meta = torch.zeros(2), torch.device("cpu"), torch.device("meta")
    assert _validate.same_place("y", y, cpu, torch.float32, "G") is y
    assert _validate.same_place("y", y, cpu, None, "G") is y
    with pytest.raises(ValueError, match=re.escape("y is on cpu, but G is on meta: use .to('meta')")):
        _validate.same_place("y", y, meta, None, "G")
    message = "y has dtype torch.float32, but G works in torch.float64: use .to(torch.float64)"
    with pytest.raises(TypeError, match=re.escape(message)):
        _validate.same_place("y", y, cpu, F64, "G")
