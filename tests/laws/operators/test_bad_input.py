"""Each mistake gives an error that names the argument, what was given and what to do."""

import math
import re

import numpy as np
import pytest
import torch

import genprior as gp
from genprior import operators as ops

from .instances import F64

A = ops.Gaussian(4, (1, 2, 3))
ITEMS = ops.Mask(torch.ones(3, 5), per_item=True)
X = torch.zeros(2, 1, 2, 3)
NAN = torch.full((2, 2), math.nan)
BIG = ops.SubsampledHadamard(10_000, 10_000)
FREE = ops.Linear(lambda x: 2 * x, lambda y: 2 * y)
DOUBLE = ops.Linear(lambda x: 2 * x, None, 6)
PAIR = ops.Stack(A, ops.Identity((1, 2, 3)))

BAD = {
    "matrix nan": (lambda: ops.Dense(NAN), ValueError, "matrix holds 4 NaN"),
    "matrix ints": (lambda: ops.Dense(torch.ones(2, 2, dtype=torch.int64)), TypeError, "matrix must hold floating"),
    "matrix numpy": (lambda: ops.Dense(np.eye(2)), TypeError, "matrix must be a torch.Tensor"),
    "matrix vector": (lambda: ops.Dense(torch.ones(4)), ValueError, "matrix must have shape (m, d)"),
    "matrix m=0": (lambda: ops.Dense(torch.ones(0, 4)), ValueError, "matrix must have shape (m, d)"),
    "matrix columns": (lambda: ops.Dense(torch.ones(2, 4), (1, 5)), ValueError, "matrix has 4 columns"),
    "gaussian m=0": (lambda: ops.Gaussian(0, 5), ValueError, "m must be at least 1, got 0"),
    "gaussian m float": (lambda: ops.Gaussian(2.5, 5), TypeError, "m must be a whole number, got 2.5"),
    "gaussian shape": (lambda: ops.Gaussian(2, (1, 0)), ValueError, "signal_shape must be positive"),
    "gaussian seed too large": (lambda: ops.Gaussian(2, 5, seed=2**64), ValueError, "seed must be below 2**63"),
    "fourier seed too large": (lambda: ops.SubsampledFourier(2, (3, 3), 2**64), ValueError, "seed must be below 2**63"),
    "hadamard dtype": (lambda: ops.SubsampledHadamard(2, 4, dtype=torch.int32), TypeError, "dtype must be a real"),
    "fourier dtype": (lambda: ops.SubsampledFourier(2, (3, 3), dtype=torch.int32), TypeError, "dtype must be a real"),
    "blur dtype": (lambda: ops.Blur(1.0, (3, 3), dtype=torch.complex64), TypeError, "dtype must be a real"),
    "mask dtype": (lambda: ops.Mask(torch.ones(3), dtype=torch.complex64), TypeError, "dtype must be a real"),
    "blur sigma per item": (lambda: ops.Blur(1.5, (1, 9, 9), per_item=True), ValueError, "give one kernel per item"),
    "complex matrix": (lambda: ops.Dense(torch.eye(2) + 1j), TypeError, "stack the two parts"),
    "gaussian seed": (lambda: ops.Gaussian(2, 5, seed=-1), ValueError, "seed must be at least 0"),
    "mask empty": (lambda: ops.Mask(torch.zeros(3, 3, dtype=torch.bool)), ValueError, "mask keeps nothing (m = 0)"),
    "mask item empty": (
        lambda: ops.Mask(torch.tensor([[1, 1], [0, 0]]), per_item=True),
        ValueError,
        "mask keeps nothing for items [1]",
    ),
    "mask of a picture": (
        lambda: ops.Mask(torch.tensor([0, 255], dtype=torch.uint8)),
        ValueError,
        "mask of torch.uint8 has values up to 255, expected 0 and 1: use mask > 0",
    ),
    "mask nan": (lambda: ops.Mask(NAN), ValueError, "mask holds 4 NaN"),
    "mask negative": (lambda: ops.Mask(-torch.ones(2)), ValueError, "weights of at least 0, got -1"),
    "mask list": (lambda: ops.Mask([True, False]), TypeError, "mask must be a torch.Tensor"),
    "mask complex": (lambda: ops.Mask(torch.ones(2, dtype=torch.complex64)), TypeError, "mask must hold booleans"),
    "mask shape": (lambda: ops.Mask(torch.ones(3, 2, 2), (2, 2)), ValueError, "for one mask per item use per_item"),
    "mask item shape": (
        lambda: ops.Mask(torch.ones(3, 4), (2, 3), per_item=True),
        ValueError,
        "mask has shape (4,) per signal, which does not fit signal_shape (2, 3)",
    ),
    "mask no batch": (lambda: ops.Mask(torch.ones(3), per_item=True), ValueError, "needs the batch axis first"),
    "blur sigma": (lambda: ops.Blur(-1.0, (4, 4)), ValueError, "kernel (sigma) must be a finite number above 0"),
    "blur text": (lambda: ops.Blur("wide", (4, 4)), TypeError, "kernel (sigma) must be a number"),
    "blur nan": (lambda: ops.Blur(NAN, (4, 4)), ValueError, "kernel holds 4 NaN"),
    "blur axes": (lambda: ops.Blur(torch.ones(3), (4, 4)), ValueError, "kernel has shape (3,), expected (h, w)"),
    "blur items": (
        lambda: ops.Blur(torch.ones(3, 3), (4, 4), per_item=True),
        ValueError,
        "kernel has shape (3, 3), expected (B, h, w)",
    ),
    "blur large": (lambda: ops.Blur(torch.ones(5, 3), (4, 4)), ValueError, "kernel of 5 x 3 is larger"),
    "blur channels or image": (
        lambda: ops.Blur(1.0, (8, 5000)),
        ValueError,
        "shape (8, 5000), which may be 8 channels of 5000 values (dims=1) or an image of 8 x 5000 (dims=2)",
    ),
    "downsample channels or image": (lambda: ops.Downsample(4, (8, 5000)), ValueError, "say which with dims"),
    "fourier channels or image": (lambda: ops.SubsampledFourier(4, (9, 3)), ValueError, "say which with dims"),
    "five axes": (lambda: ops.Downsample(2, (2, 2, 2, 2, 2)), ValueError, "does not tell channels from space"),
    "dims too large": (lambda: ops.Downsample(2, (4, 4), dims=3), ValueError, "has no 3 axes of space or time"),
    "dims zero": (lambda: ops.Blur(1.0, (4, 4), dims=0), ValueError, "dims must be at least 1"),
    "blur kernel for dims": (
        lambda: ops.Blur(torch.ones(3, 3), (2, 8), dims=1),
        ValueError,
        "kernel has shape (3, 3), expected (n,), or (B, n) with per_item=True, for dims=1",
    ),
    "fourier mask for dims": (
        lambda: ops.SubsampledFourier(torch.ones(8), (2, 4, 8)),
        ValueError,
        "frequencies has shape (8,), expected (4, 8), for dims=2",
    ),
    "downsample 1-D": (lambda: ops.Downsample(3, 28), ValueError, "does not divide the signals of 28 values"),
    "downsample divide": (lambda: ops.Downsample(3, (1, 28, 28)), ValueError, "factor 3 does not divide the image"),
    "downsample zero": (lambda: ops.Downsample(0, (4, 4)), ValueError, "factor must be at least 1"),
    "fourier m=0": (lambda: ops.SubsampledFourier(0, (4, 4)), ValueError, "frequencies must be at least 1"),
    "fourier m>d": (lambda: ops.SubsampledFourier(17, (4, 4)), ValueError, "frequencies must be at most 16 = 4 x 4"),
    "fourier empty": (
        lambda: ops.SubsampledFourier(torch.zeros(4, 4, dtype=torch.bool), (4, 4)),
        ValueError,
        "frequencies keeps nothing",
    ),
    "fourier shape": (
        lambda: ops.SubsampledFourier(torch.ones(3, 4), (4, 4)),
        ValueError,
        "frequencies has shape (3, 4), expected (4, 4)",
    ),
    "fourier items": (
        lambda: ops.SubsampledFourier(torch.ones(4, 4), (4, 4), per_item=True),
        ValueError,
        "frequencies has shape (4, 4), expected (B, 4, 4)",
    ),
    "fourier values": (lambda: ops.SubsampledFourier(NAN, (2, 2)), ValueError, "frequencies must be a boolean mask"),
    "fourier centred": (lambda: ops.SubsampledFourier(3, (4, 4), centred=True), ValueError, "given as a mask"),
    "hadamard m=0": (lambda: ops.SubsampledHadamard(0, 5), ValueError, "m must be at least 1"),
    "hadamard m>d": (lambda: ops.SubsampledHadamard(9, (2, 4)), ValueError, "m must be at most 8"),
    "linear fn": (lambda: ops.Linear(3), TypeError, "fn and adjoint must be functions"),
    "linear adjoint": (lambda: ops.Linear(lambda x: x), ValueError, "give one of the two"),
    "linear affine": (lambda: ops.Linear(lambda x: x + 1, None, 4), ValueError, "fn is not linear: fn(0) has norm 2"),
    "linear result": (lambda: ops.Linear(lambda x: x.sum(), None, 4), ValueError, "fn must give measurements (B, ...)"),
    "linear square": (lambda: ops.Linear(lambda x: x**2, None, 4), ValueError, "fn is not linear: fn(u + 2v)"),
    "linear modulus": (lambda: ops.Linear(torch.abs, None, 4), ValueError, "fn is not linear: fn(u + 2v)"),
    "linear other adjoint": (
        lambda: ops.Linear(lambda x: x.cumsum(1), lambda y: y.cumsum(1), 4),
        ValueError,
        "adjoint is not that of fn: <fn(u), y> differs",
    ),
    "linear adjoint without conjugation": (
        lambda: ops.Linear(torch.fft.fft, lambda y: torch.fft.fft(y).real, 8),
        ValueError,
        "adjoint is not that of fn",
    ),
    "linear matrix": (
        lambda: ops.Linear(torch.ones(3, 4)),
        TypeError,
        "got Tensor (3, 4) and NoneType: for a matrix use operators.Dense(matrix)",
    ),
    "linear numpy": (
        lambda: ops.Linear(lambda x: x.numpy(), None, 4),
        ValueError,
        "got ndarray (1, 4) for one signal: fn must use torch, not numpy",
    ),
    "linear tolerance": (lambda: ops.Linear(len, len, tolerance=0.0), ValueError, "tolerance must be a finite number"),
    "linear dense": (FREE.dense, ValueError, "dense() needs to know the shapes"),
    "linear bounds": (FREE.gram_bounds, ValueError, "gram_bounds() needs to know the shapes"),
    "dense too large": (BIG.dense, ValueError, "would hold 100,000,000 numbers, more than 50,000,000"),
    "compose shapes": (lambda: A @ ops.Identity((6,)), ValueError, "shapes must agree"),
    "compose number": (lambda: A @ 3, TypeError, "unsupported operand"),
    "compose complex": (
        lambda: (ops.Identity((2, 2)) @ ops.SubsampledFourier(1, (2, 2))).T,
        TypeError,
        "its signals would be the complex measurements",
    ),
    "compose items": (
        lambda: ITEMS @ ops.Mask(torch.ones(2, 5), per_item=True),
        ValueError,
        "made for different numbers of items",
    ),
    "compose dtype": (lambda: A @ ops.Blur(1.0, (1, 2, 3), dtype=F64), ValueError, "use .to(dtype=...)"),
    "add a number": (lambda: A + 3, TypeError, "an operator adds to an operator of the same shapes, got int"),
    "add a term": (lambda: A + gp.L1(), TypeError, "got L1: terms and losses are parts of gp.Problem"),
    "add to a term": (lambda: gp.L1() + A, TypeError, "L1"),
    "subtract a tensor": (lambda: A - X, TypeError, "an operator adds to an operator of the same shapes, got Tensor"),
    "add signals": (
        lambda: A + ops.Gaussian(4, 6),
        ValueError,
        "the signal shapes differ, (1, 2, 3) and (6,), but must agree",
    ),
    "add measurements": (
        lambda: A + ops.Gaussian(5, (1, 2, 3)),
        ValueError,
        "the measurement shapes differ, (4,) and (5,), but must agree: operators.Stack takes several types",
    ),
    "add measurements known late": (
        lambda: (FREE + ops.Linear(lambda x: x[:, :2], len))(torch.ones(2, 3)),
        ValueError,
        "its operators give (2, 3) and (2, 2): measurements that are added must have the same shape",
    ),
    "add dtype": (
        lambda: A + A.to(dtype=F64),
        ValueError,
        "but Gaussian(4, (1, 2, 3), seed=0) has torch.float64: use .to(",
    ),
    "add device": (lambda: A + A.to("meta"), ValueError, "use .to(device=...)"),
    "add items": (lambda: ITEMS + ops.Mask(torch.ones(2, 5), per_item=True), ValueError, "numbers of items, 3 and 2"),
    "factor nan": (lambda: math.nan * A, ValueError, "factor must be a finite number"),
    "factor infinite item": (lambda: torch.tensor([1.0, math.inf]) * A, ValueError, "factor must hold finite numbers"),
    "factor overflows": (lambda: 1e200 * (1e200 * A), ValueError, "factor must be a finite number"),
    "factor text": (lambda: "2" * A, TypeError, "factor must be a number, got '2' (str)"),
    "factor complex": (lambda: 1j * A, TypeError, "factor must be a number, got 1j (complex)"),
    "factor ints": (lambda: torch.tensor([1, 2]) * A, ValueError, "factor must be a number or a floating-point tensor"),
    "factor array": (lambda: np.ones(2) * A, TypeError, "factor must be a number, got array([1., 1.]) (ndarray)"),
    "factor term": (lambda: A * gp.L1(), TypeError, "factor must be a number"),
    "factor operator": (lambda: A * A, TypeError, "for first B, then A write A @ B"),
    "factor signals": (
        lambda: A * X,
        ValueError,
        "expected a number or (B,), one per item: to apply the operator write A(x)",
    ),
    "factor items": (lambda: torch.ones(2) * ITEMS, ValueError, "factor has 2 values, one per item, but Mask"),
    "factor items scaled": (
        lambda: torch.ones(2) * (torch.ones(3) * A),
        ValueError,
        "factor has 2 values, one per item",
    ),
    "factor no items": (lambda: torch.ones(0) * A, ValueError, "factor has 0 values, one per item"),
    "factor device": (lambda: torch.ones(3) * A.to("meta"), ValueError, "is on meta: use factor.to('meta')"),
    "divisor zero": (lambda: A / 0, ValueError, "divisor must not be 0, got 0"),
    "divisor zero item": (lambda: A / torch.tensor([1.0, 0.0]), ValueError, "divisor must not be 0"),
    "divisor operator": (lambda: A / A, TypeError, "divisor must be a number or one per item"),
    "apply by @": (lambda: A @ X, TypeError, "got a tensor (2, 1, 2, 3): to apply the operator write A(x)"),
    "scaled items": (lambda: (torch.ones(3) * A)(X), ValueError, "signals have 2 items"),
    "transpose complex": (lambda: ops.SubsampledFourier(1, (2, 2)).T, TypeError, "has no .T"),
    "transpose takes measurements": (lambda: A.T(X), ValueError, "signals has shape (2, 1, 2, 3), expected (B, 4)"),
    "transpose without shapes": (FREE.T.gram_bounds, ValueError, "gram_bounds() needs to know the shapes"),
    "stack nothing": (ops.Stack, ValueError, "Stack needs at least one operator, got none: write Stack(A, B)"),
    "stack list": (
        lambda: ops.Stack([A, A]),
        TypeError,
        "operator 0 of Stack must be a genprior.operators.Operator, got list",
    ),
    "stack matrix": (lambda: ops.Stack(A, torch.ones(2, 2)), TypeError, "operator 1 of Stack must be"),
    "stack signals": (
        lambda: ops.Stack(A, ops.Identity(6)),
        ValueError,
        "the signal shapes differ, (1, 2, 3) and (6,)",
    ),
    "stack dtype": (lambda: ops.Stack(A, A.to(dtype=F64)), ValueError, "use .to(dtype=...)"),
    "stack device": (lambda: ops.Stack(A, A.to("meta")), ValueError, "use .to(device=...)"),
    "stack items": (
        lambda: ops.Stack(ITEMS, ops.Mask(torch.ones(2, 5), per_item=True)),
        ValueError,
        "made for different numbers of items, 3 and 2",
    ),
    "stack adjoint without shapes": (
        lambda: ops.Stack(FREE, FREE).adjoint(torch.ones(2, 3)),
        ValueError,
        "the layout of stacked measurements needs to know the shapes",
    ),
    "split shape": (lambda: PAIR.split(torch.zeros(2, 9)), ValueError, "y have 9 values, but the operator gives 10"),
    "split dtype": (lambda: PAIR.split(torch.zeros(2, 10, dtype=F64)), TypeError, "works in torch.float32"),
    "join one tensor": (
        lambda: PAIR.join(torch.zeros(2, 10)),
        ValueError,
        "a list of 2 tensors, one for each operator",
    ),
    "join three": (lambda: PAIR.join([X, X, X]), ValueError, "a list of 2 tensors, one for each operator of Stack"),
    "join order": (lambda: PAIR.join([X, torch.zeros(2, 4)]), ValueError, "measurements[0] have 6 values"),
    "join items": (lambda: PAIR.join([torch.zeros(3, 4), X]), ValueError, "measurements have [3, 2] items"),
    "join complex": (lambda: PAIR.join([torch.zeros(2, 4), X + 1j]), TypeError, "measurements[1] must hold real"),
    "least squares of a stack": (
        lambda: gp.LeastSquares(PAIR, torch.zeros(2, 9)),
        ValueError,
        "measurements have 9 values, but the operator gives 10",
    ),
    "signals shape": (lambda: A(torch.zeros(2, 6)), ValueError, "signals has shape (2, 6), expected (B, 1, 2, 3)"),
    "signals no batch": (lambda: A(X[0]), ValueError, "add the batch axis with [None]"),
    "signals empty": (lambda: A(X[:0]), ValueError, "signals is an empty batch"),
    "signals dtype": (lambda: A(X.double()), TypeError, "use operator.to(dtype=torch.float64)"),
    "signals complex": (lambda: A(torch.complex(X, X)), TypeError, "signals must hold real floating-point numbers"),
    "signals ints": (lambda: ops.Identity(3)(torch.zeros(1, 3, dtype=torch.int64)), TypeError, "signals must hold"),
    "signals numpy": (lambda: A(X.numpy()), TypeError, "signals must be a torch.Tensor, got ndarray"),
    "signals device": (lambda: A(X.to("meta")), ValueError, "signals is on meta"),
    "signals items": (lambda: ITEMS(torch.zeros(2, 5)), ValueError, "signals have 2 items"),
    "measurements other m": (
        lambda: A.adjoint(torch.zeros(2, 3)),
        ValueError,
        "measurements have 3 values, but the operator gives 4: another m? is y transposed (y.T)?",
    ),
    "measurements shape": (
        lambda: A.adjoint(torch.zeros(2, 2, 2)),
        ValueError,
        "measurements has shape (2, 2, 2), expected (B, 4)",
    ),
    "measurements no batch": (lambda: A.adjoint(torch.zeros(4)), ValueError, "add the batch axis"),
    "measurements empty": (lambda: A.adjoint(torch.zeros(0, 4)), ValueError, "measurements is an empty batch"),
    "measurements complex": (
        lambda: A.adjoint(torch.zeros(2, 4, dtype=torch.complex64)),
        TypeError,
        "measurements must hold real floating-point numbers",
    ),
    "measurements numpy": (lambda: A.adjoint(np.zeros((2, 4))), TypeError, "measurements must be a torch.Tensor"),
    "measurements ints": (
        lambda: ops.SubsampledFourier(1, (2, 2)).adjoint(torch.zeros(1, 2, 2, dtype=torch.int64)),
        TypeError,
        "measurements must hold real or complex floating-point numbers",
    ),
    "rho zero": (lambda: A.resolvent(X, 0.0), ValueError, "rho must be a finite number above 0"),
    "rho negative item": (lambda: A.resolvent(X, torch.tensor([1.0, -1.0])), ValueError, "rho must hold finite"),
    "rho items": (lambda: A.resolvent(X, torch.ones(3)), ValueError, "rho has shape (3,), expected () or (2,)"),
    "start shape": (
        lambda: DOUBLE.resolvent(torch.zeros(2, 6), 1.0, torch.zeros(2, 5)),
        ValueError,
        "start has shape (2, 5), expected (B, 6)",
    ),
    "rows list": (lambda: ITEMS.rows([0]), TypeError, "index must be a one-dimensional tensor"),
    "rows range": (lambda: ITEMS.rows(torch.tensor([3])), ValueError, "index must name items 0 to 2"),
    "rows negative": (lambda: ITEMS.rows(torch.tensor([-1])), ValueError, "index must name items 0 to 2"),
    "rows none": (lambda: ITEMS.rows(torch.zeros(0, dtype=torch.int64)), ValueError, "at least one"),
    "to complex": (lambda: A.to(dtype=torch.complex64), TypeError, "dtype must be a real floating-point type"),
    "check device": (
        lambda: A.check("operator", (1, 2, 3), torch.device("meta"), torch.float32),
        ValueError,
        "operator is on cpu, but the generator is on meta: use operator.to('meta')",
    ),
    "check dtype": (
        lambda: A.check("operator", (1, 2, 3), torch.device("cpu"), F64),
        TypeError,
        "use operator.to(dtype=torch.float64)",
    ),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD.keys())
def test_mistakes_are_explained(case):
    call, kind, words = case
    with pytest.raises(kind, match=re.escape(words)):
        call()


def test_a_function_without_shapes_is_taken_as_it_is():
    x = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(FREE(x), 2 * x) and torch.equal(FREE.adjoint(x), 2 * x)
    torch.testing.assert_close(FREE.resolvent(x, 1.0), x / 5)
    FREE.check("operator", (9,), torch.device("cpu"), F64)
    fixed = ops.Linear(lambda x: 2 * x, lambda y: 2 * y, 3, 3, device="cpu")
    assert fixed.measurement_shape == (3,) and fixed.device == torch.device("cpu")


@pytest.mark.parametrize("shape", [None, 3], ids=["without shapes", "with shapes"])
def test_the_options_of_a_function_stay_when_it_gets_its_place(shape):
    own = ops.Linear(lambda x: 2 * x, lambda y: 2 * y, shape, tolerance=1e-3, max_iterations=7)
    bound = own.bound((3,), torch.device("cpu"), F64)
    assert bound.signal_shape == (3,) and bound.dtype == F64
    assert (bound.tolerance, bound.max_iterations) == (1e-3, 7)
    assert bound.resolvent_method == own.resolvent_method


def test_operators_on_another_device():
    here = ops.Mask(torch.ones(3, 2), per_item=True)
    a = here.to("meta")
    assert a.device == torch.device("meta") and a(torch.zeros(3, 2, device="meta")).device.type == "meta"
    for c in (torch.ones(3) * here, here - here, ops.Stack(here, 2 * ops.Identity(2)), (here @ here).T):
        y = c.to("meta")(torch.zeros(3, 2, device="meta"))
        assert y.device.type == "meta"
        if c.closed_form:
            assert c.to("meta").resolvent(torch.zeros(3, 2, device="meta"), 1.0).shape == (3, 2)
    moved = (torch.ones(3) * ops.Stack(ops.Mask(torch.ones(2)), ops.Identity(2))).to("meta")
    assert moved(torch.zeros(3, 2, device="meta")).shape == (3, 4) and moved.device == torch.device("meta")
    b = (ops.SubsampledHadamard(2, 6) @ ops.Identity(6)).to("meta")
    assert b(torch.zeros(1, 6, device="meta")).device.type == "meta"
    assert a.resolvent(torch.zeros(3, 2, device="meta"), torch.ones(3, device="meta")).shape == (3, 2)


@pytest.mark.parametrize("sigma", [1e-300, 1e-5, 1e9, 1e300])
def test_blur_of_any_width_is_finite(sigma):
    """The narrowest changes nothing, the widest leaves the mean."""
    x = torch.rand(2, 1, 6, 5, generator=torch.Generator().manual_seed(0))
    expected = x if sigma < 1 else x.mean(dim=(2, 3), keepdim=True).expand_as(x)
    assert torch.allclose(ops.Blur(sigma, (1, 6, 5))(x), expected, atol=1e-6)
