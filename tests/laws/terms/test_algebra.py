"""``c * term``, ``term.around(y)``, and what is refused."""

import math

import numpy as np
import pytest
import torch

from genprior.terms import (
    L1,
    L2,
    Around,
    Ball,
    Box,
    Indicator,
    L1Ball,
    LInf,
    Scaled,
    Simplex,
    SquaredL2,
    Sum,
    TotalVariation,
    Zero,
)
from genprior.terms.sums import total

CPU = torch.device("cpu")
Y = torch.arange(6.0).reshape(2, 3)


def test_factors_are_multiplied_out() -> None:
    term = 2 * (L1() * 3)
    assert isinstance(term, Scaled)
    assert term.term == L1()
    assert term.factor == 6
    assert isinstance(np.float64(2) * L1(), Scaled)


def test_factor_zero_drops_the_term() -> None:
    assert 0 * L1() == Zero()
    assert Box(0, 1) * 0.0 == Zero()
    assert 3 * Zero() == 0 * Zero() == torch.tensor([1.0, 2.0]) * Zero() == Zero()


def test_factor_zero_of_an_item_gives_zero_even_where_the_value_overflows() -> None:
    term = torch.tensor([0.0, 1.0]) * SquaredL2()
    assert term(torch.full((2, 3), 1e30)).tolist() == [0.0, math.inf]


def test_sums_are_flat_and_drop_zeros() -> None:
    one, two, three = L1(), LInf(), Ball(1.0)
    assert (one + two + three).parts == (one + (two + three)).parts == sum([one, two, three]).parts == (one, two, three)
    assert one + Zero() is one
    assert Zero() + Zero() == Zero()
    assert sum([one]) is one
    assert [type(part) for part in (L2() + (one + two).around(Y)).parts] == [L2, Around, Around]
    assert 0 * (one + two) == Zero()
    with pytest.raises(TypeError, match="unsupported operand"):
        one + 1
    with pytest.raises(TypeError, match="unsupported operand"):
        1 + one


def test_boxes_intersect() -> None:
    box = Box(-1, Y[0]) + Box(0, 1.5) + Box(-math.inf, 9)
    assert isinstance(box, Box)
    assert (box.low, box.high.tolist()) == (0, [0.0, 1.0, 1.5])
    assert isinstance(Box(0, 1) + L1() + Box(-1, 0.5), Sum)
    with pytest.raises(ValueError, match=r"Box\(low=0, high=1\) and Box\(low=2, high=3\) have no point in common"):
        Box(0, 1) + Box(2, 3)


def test_what_a_sum_knows_of_itself() -> None:
    assert (L1() + Box(0, 1)).separable and not (L2() + Box(0, 1)).separable
    assert (Ball(1.0) + Box(0, 1)).is_indicator and not (L1() + Box(0, 1)).is_indicator
    assert (L1() + Box(0, 1)).finite == L1()
    assert (L1() + Box(0, 1)).around(Y).finite.centre.equal(Y)
    assert (L1() + Box(0, 1)).tolerance == (L1() + Ball(1.0)).tolerance == (L1() + SquaredL2()).tolerance == 0
    assert (L2() + Box(0, 1)).tolerance == (TotalVariation() + Box(0, 1)).tolerance == 1e-8
    assert (TotalVariation() + Ball(1.0)).tolerance == TotalVariation().tolerance
    assert (Sum((L2(), Box(0, 1)), inner_tolerance=1e-3) + L1()).tolerance == 1e-3
    assert (torch.ones(2) * L1() + L2()).batch == 2


def test_bounds_of_the_work_of_a_sum() -> None:
    v = torch.randn(2, 3, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    make = [TotalVariation(dims=1) * 2, Box(-0.4, 0.5)]
    exact, loose = (Sum(tuple(make), tolerance, 20000).prox(v, 1.0) for tolerance in (1e-14, 1e-4))
    moved = (v - loose).flatten(1).norm(dim=1)
    assert ((loose - exact).flatten(1).norm(dim=1) <= 1e-2 * moved).all()
    assert not torch.allclose(loose, exact, atol=1e-9)
    assert Sum(tuple(make), 1e-14, 2).prox(v, 1.0).isfinite().all()


@pytest.mark.parametrize("part", [L2(), LInf(), L2().around(0.2) + LInf()], ids=repr)
@pytest.mark.parametrize("tolerance", [1e-1, 1e-3, 1e-5])
def test_the_gap_bounds_the_error_of_a_sum(part, tolerance) -> None:
    """``|x - x*| <= sqrt(tolerance) |x - v|``, and no look at the gap is passed by that could have ended the work."""
    v = torch.randn(20, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    parts = (part, Box(-0.05, 0.3), L1().around(0.1))
    exact, loose = (Sum(total(*parts).parts, at, 20000).prox(v, 1.0) for at in (1e-15, tolerance))
    assert ((loose - exact).norm(dim=1) <= tolerance**0.5 * (v - loose).norm(dim=1) + 1e-9).all()
    shorter = Sum(total(*parts).parts, 1e-15, 300).prox(v, 1.0)
    torch.testing.assert_close(shorter, exact, rtol=0, atol=1e-7)


@pytest.mark.parametrize("s", [0.5, 1.0])
def test_the_fenchel_gap_of_a_norm(s: float) -> None:
    """The conjugate of ``t |x|_inf`` is 0 where ``|q|_1 <= t``: the gap is ``t |x|_inf - <q, x>``."""
    random = torch.Generator().manual_seed(0)
    x, y, there = (torch.randn(4, 6, generator=random, dtype=torch.float64) for _ in range(3))
    t = torch.tensor([0.1, 0.5, 2.0, 50.0], dtype=torch.float64)
    part = dual.Plain(LInf(), t)
    at = part.step(y, x, s)
    assert (at.q.abs().sum(dim=1) <= t + 1e-12).all()
    torch.testing.assert_close(part.gap(there, at)[0], t * LInf()(there) - (at.q * there).sum(dim=1))


def test_an_empty_intersection_is_refused() -> None:
    for term in (Ball(1.0) + Box(2, 3), Simplex() + Box(2, 3), Box(0, 1).around(5.0) + Box(0, 1)):
        with pytest.raises(ValueError, match=r"constraints in R have no point in common"):
            term.check("R", (3,), CPU, torch.float32)
    (Ball(1.0) + Box(0.2, 3) + Simplex()).check("R", (3,), CPU, torch.float32)


@pytest.mark.parametrize("term", [Box(-1, 1), Ball(1.0), L1Ball(1.0), Simplex()], ids=repr)
def test_tiny_factor_leaves_an_indicator(term: Indicator) -> None:
    x = torch.tensor([[5.0, 5.0], [0.5, 0.5]])
    assert (1e-60 * term)(x).tolist() == [math.inf, 0.0]


def test_nan_is_infeasible_and_does_not_hang() -> None:
    x = torch.full((1, 4, 4), math.nan)
    assert Ball(1.0)(x).isinf().all()
    assert Box(0, 1)(x).isinf().all()
    assert TotalVariation().prox(x, 1.0).isnan().all()


def test_reprs() -> None:
    assert repr(0.1 * L1()) == "0.1 * L1()"
    assert repr((2 * LInf()).around(Y)) == "(2 * LInf()).around(<float32 tensor (2, 3)>)"
    assert repr(L2().around(Y, shared=True)) == "L2().around(<float32 tensor (2, 3)>, shared=True)"
    assert repr(Box(0, Y)) == "Box(low=0, high=<float32 tensor (2, 3)>)"


def test_moving_reaches_every_tensor() -> None:
    term = (torch.ones(2) * Box(-Y[0], Y[0])).around(Y).to(dtype=torch.float64)
    term.check("R", (3,), CPU, torch.float64)
    assert term.prox(Y.double(), 1.0).dtype == torch.float64
    assert term.centre.dtype == term.term.factor.dtype == term.term.term.low.dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 1.0, 1e4])
def test_own_projections_are_feasible_in_large_signals(dtype: torch.dtype, offset: float) -> None:
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(2, 3, 64, 64, generator=generator, dtype=dtype)
    y = offset * torch.randn(2, 3, 64, 64, generator=generator, dtype=dtype)
    for term in (Ball(1e-3), L1Ball(2.0), Simplex(3.0), Box(-0.01, 0.01)):
        for scale in (1e-3, 1.0, 1e5):
            assert term.around(y)(term.around(y).prox(scale * v, 1.0)).eq(0).all()
        assert term(term.prox(v, 1.0)).eq(0).all()
        assert term(term.prox(v, 1.0) + 1e-2).isinf().all()


def test_sorting_is_exact_far_from_the_ball() -> None:
    v = torch.full((1, 4096), 1e6)
    torch.testing.assert_close(L1Ball(1.0).prox(v, 1.0), torch.full((1, 4096), 1 / 4096))
    torch.testing.assert_close(Simplex(1.0).prox(-v, 1.0), torch.full((1, 4096), 1 / 4096))


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: -1 * L1(), ValueError, r"factor of a term must be a finite number of at least 0, got -1"),
        (lambda: math.nan * L1(), ValueError, r"factor of a term must be .* got nan"),
        (lambda: torch.tensor([1.0, -1.0]) * L1(), ValueError, r"factor of a term must hold finite numbers"),
        (lambda: torch.tensor([1.0, 0.0]) * Ball(1.0), ValueError, r"factor of a term must hold .* above 0"),
        (lambda: torch.tensor([1.0, 0.0]) * (L1() + Ball(1.0)), ValueError, r"factor of a term must hold .* above 0"),
        (lambda: torch.tensor([1.0, 0.0]) * (L1() + Ball(1.0)).around(Y), ValueError, r"factor of a term must hold"),
        (
            lambda: torch.ones(2) * L1() + torch.ones(3) * L2(),
            ValueError,
            r"numbers of items \(parts\[0\]: 2, parts\[1\]: 3\)",
        ),
        (lambda: Sum((L1(), 2.0)), TypeError, r"parts must be terms, got 2.0 \(float\)"),
        (lambda: Sum((L1(), L2()), inner_tolerance=0), ValueError, r"inner_tolerance must be"),
        (lambda: Sum((L1(), L2()), max_iterations=0), ValueError, r"max_iterations must be"),
        (lambda: 1e200 * (1e200 * L1()), ValueError, r"product of factors"),
        (lambda: True * L1(), TypeError, r"must be a number, got True"),
        (lambda: "2" * L1(), TypeError, r"unsupported|can't multiply"),
        (lambda: L1().around(Y / 0), ValueError, r"y of around\(y\) holds 6 NaN or infinite values of 6"),
        (lambda: L1().around(math.inf), ValueError, r"y of around\(y\) must be a finite number"),
        (lambda: L1().around(Y[0]), ValueError, r"expected \(B, \*shape\).*shared=True"),
        (lambda: L1().around(Y.numpy()), TypeError, r"y of around\(y\) must be a torch.Tensor, got ndarray: use"),
        (lambda: (torch.ones(3) * L1()).around(Y), ValueError, r"different numbers of items \(term: 3, centre: 2\)"),
        (lambda: torch.ones(3) * L1().around(Y), ValueError, r"different numbers of items \(factor: 3, term: 2\)"),
        (lambda: torch.ones(3) * (torch.ones(2) * L1()), ValueError, r"different numbers of items"),
        (lambda: Box(1, 0), ValueError, r"low must not be above high.*Box\(low=1, high=0\).*exchanged"),
        (lambda: Box(math.inf, math.inf), ValueError, r"not empty"),
        (lambda: Box(math.nan, 0), ValueError, r"low holds NaN"),
        (lambda: Box(0, "1"), TypeError, r"high must be a number or a tensor, got '1'"),
        (lambda: Box(0, torch.tensor(1)), TypeError, r"high must hold floating-point numbers, got torch.int64"),
        (lambda: Box(Y, torch.ones(2)), ValueError, r"low has shape \(2, 3\), high \(2,\)"),
        (lambda: Ball(0.0), ValueError, r"radius must be a finite number above 0, got 0.0"),
        (lambda: L1Ball(torch.tensor([1.0, -1.0])), ValueError, r"radius must hold finite numbers above 0"),
        (lambda: Simplex(math.inf), ValueError, r"total must be a finite number above 0"),
        (lambda: Ball("1"), TypeError, r"radius must be a number"),
        (lambda: TotalVariation(tolerance=0.0), ValueError, r"tolerance must be .* above 0"),
        (lambda: TotalVariation(max_iterations=0), ValueError, r"max_iterations must be at least 1"),
        (lambda: TotalVariation(dims=0), ValueError, r"dims must be at least 1"),
        (lambda: TotalVariation(dims=2)(Y), ValueError, r"x has shape \(3,\), which has no 2 axes of space or time"),
        (
            lambda: TotalVariation()(torch.ones(1, 8, 50)),
            ValueError,
            r"x has shape \(8, 50\), which may be 8 channels of 50 values \(dims=1\) or an image of 8 x 50 \(dims=2\)",
        ),
        (lambda: TotalVariation().prox(torch.ones(1, 8, 50), 1.0), ValueError, r"v has shape \(8, 50\), which may be"),
        (lambda: L1().prox(Y, -1.0), ValueError, r"step t must be a number of at least 0, got -1.0"),
        (lambda: L2().prox(Y, math.nan), ValueError, r"step t must be a number of at least 0, got nan"),
        (lambda: Ball(1.0).prox(Y, -1.0), ValueError, r"step t must be a number of at least 0"),
        (lambda: L1().prox(Y, torch.ones(3)), ValueError, r"step t has 3 numbers, but the batch has 2 items"),
        (lambda: L1().prox(Y, torch.ones(2, 1)), ValueError, r"step t has shape \(2, 1\), expected .*\(2, 3\)"),
        (lambda: Ball(torch.ones(3)).prox(Y, 1.0), ValueError, r"radius has 3 numbers, but the batch has 2 items"),
        (lambda: L1().around(Y)(Y[:1]), ValueError, r"has 2 items, but the batch has 1.*rows\(index\)"),
        (lambda: L1().around(Y)(torch.ones(2, 4)), ValueError, r"has shape \(2, 3\), expected \(B, 4\)"),
        (lambda: L1().around(Y, shared=True)(Y), ValueError, r"has shape \(2, 3\), expected \(3,\): leave shared out"),
        (lambda: Box(0, Y.abs()).prox(Y, 1.0), ValueError, r"bounds have no batch axis"),
    ],
)
def test_refused(make, error, match) -> None:
    with pytest.raises(error, match=match):
        make()


@pytest.mark.parametrize(
    ("term", "error", "match"),
    [
        (L1().around(Y), ValueError, r"R: y of around\(y\) has shape \(2, 3\), expected \(B, 1, 4, 4\): was y made for"),
        (L1().around(torch.ones(1, 4, 4)), ValueError, r"R: y of .* add the batch axis with \[None\]"),
        (2 * L1().around(torch.ones(2, 1, 4, 4).double()), TypeError, r"centre of R has dtype torch.float64"),
        (Ball(torch.ones(2).double()), TypeError,
         r"radius of R has dtype torch.float64, but the signal works in torch.float32"),
        (Box(0, torch.ones(2, 1, 4, 4)), ValueError, r"high of R has shape .* does not broadcast to the signal \(1, 4, 4\)"),
        (Box(torch.zeros(3), 1), ValueError, r"low of R has shape \(3,\)"),
    ],
)  # fmt: skip
def test_check_refuses(term, error, match) -> None:
    with pytest.raises(error, match=match):
        term.check("R", (1, 4, 4), CPU, torch.float32)


def test_check_refuses_another_device() -> None:
    with pytest.raises(ValueError, match=r"centre of R is on cpu, but the signal is on meta"):
        L1().around(Y).check("R", (3,), torch.device("meta"), torch.float32)


def test_total_variation_must_know_its_axes() -> None:
    (2 * TotalVariation()).check("R", (5,), CPU, torch.float32)
    (2 * TotalVariation(dims=1)).check("R", (8, 50), CPU, torch.float32)
    with pytest.raises(ValueError, match=r"R has shape \(8, 50\), which may be 8 channels"):
        (2 * TotalVariation()).check("R", (8, 50), CPU, torch.float32)


PARAMETERS = {
    "factor": lambda c: c * L1(),
    "radius": Ball,
    "l1 radius": L1Ball,
    "total": Simplex,
    "low": lambda c: Box(-c, 1.0),
    "high": lambda c: Box(-1.0, c),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_what_a_caller_changes_later_does_not_reach_a_term(name: str) -> None:
    given = torch.tensor([0.5, 0.7])
    term, x = PARAMETERS[name](given), torch.tensor([[3.0, 1.0], [2.0, -4.0]])
    before = term.prox(x, 0.3)
    given.fill_(0.1)
    assert torch.equal(term.prox(x, 0.3), before)


def test_a_dtype_may_come_first_as_with_tensors() -> None:
    term = (torch.tensor([0.5, 0.7]) * L1()).to(torch.float64)
    assert isinstance(term, Scaled) and isinstance(term.factor, torch.Tensor)
    assert term.factor.dtype == torch.float64


def test_a_box_is_judged_entry_by_entry() -> None:
    wide, small = torch.zeros(1, 784), torch.zeros(1, 784)
    wide[0, 0], small[0, 0] = -10.0, -1e-7
    assert Box(0.0, 1e6)(wide).item() == math.inf
    assert Box(0.0, 1.0)(small).item() == 0
    y = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    budget = Box(-8 / 255, 8 / 255).around(y)
    corner = y + 8 / 255 * torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).sign()
    assert budget(corner).item() == 0
    corner[0, 0, 0, 0] += 1e-4 * (corner - y)[0, 0, 0, 0].sign()
    assert budget(corner).item() == math.inf
    assert budget(budget.prox(corner, 1.0)).item() == 0
    assert Box(0.0, 1.0)(torch.full((1, 2), math.nan)).item() == math.inf


def test_a_ball_around_a_large_centre() -> None:
    y = 256 * torch.ones(1, 10_000)
    ball = Ball(1.0).around(y)
    off = torch.zeros_like(y)
    off[0, 0] = 1.1
    assert ball(y + off).item() == math.inf
    assert ball(ball.prox(y + off, 1.0)).item() == 0


def test_extreme_steps_and_points() -> None:
    v = torch.tensor([[3.0, -4.0, 0.0]])
    assert LInf().prox(v, math.inf).tolist() == [[0.0, 0.0, 0.0]]
    x = torch.zeros(1, 3, requires_grad=True)
    (slope,) = torch.autograd.grad(Ball(1.0).prox(x, 1.0).sum(), x)
    assert slope.tolist() == [[1.0, 1.0, 1.0]]


def test_the_subgradient_of_the_largest_entry_is_as_exact_as_its_dtype() -> None:
    x = torch.tensor([[2.0, -2.0, 2.0, 1.0]], dtype=torch.float64)
    assert LInf().subgradient(x).abs().sum().item() == pytest.approx(1.0, abs=1e-15)


class Positive(Indicator):
    """A set of a person's own that says nothing about its size."""

    def project(self, v: torch.Tensor) -> torch.Tensor:
        return v.clamp(min=0)


class Even(SquaredL2):
    """An indicator that is no ``Indicator``."""

    is_indicator = True

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where((x < 0).any(dim=1), math.inf, 0.0)


@pytest.mark.parametrize("term", [Positive(), Even()], ids=["set", "term"])
def test_sets_of_ones_own_around_a_centre(term: Indicator) -> None:
    y = torch.ones(2, 3)
    x = torch.tensor([[1.5, 1.0, 2.0], [1.5, 0.5, 2.0]])
    assert term.around(y)(x).tolist() == [0.0, math.inf]
    assert (2 * term)(x - y).tolist() == [0.0, math.inf]
