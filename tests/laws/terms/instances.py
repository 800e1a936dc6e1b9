"""The table of terms under test: a new term is one line here and inherits every law.

Each case says the term twice: as our object, and as a cvxpy expression of one flattened item, written independently.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import cvxpy as cp
import numpy as np
import torch
from torch import Tensor

from genprior import operators
from genprior._blocks import Block
from genprior.terms import (
    L1,
    L2,
    Ball,
    Blocks,
    Box,
    L1Ball,
    LInf,
    Simplex,
    SquaredL2,
    Sum,
    Term,
    Through,
    TotalVariation,
    Zero,
)

BATCH = 3
Oracle = Callable[[cp.Expression, int], tuple[cp.Expression, list[cp.Constraint]]]


def fixed(*shape: int, seed: int = 0) -> Tensor:
    """Numbers that are the same in every run."""
    return torch.as_tensor(np.random.default_rng(seed).normal(size=shape))


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], Term]
    shape: tuple[int, ...]
    oracle: Oracle
    accuracy: float = 1e-14  # relative, of the prox in exact arithmetic

    def term(self, dtype: torch.dtype = torch.float64) -> Term:
        return self.make().to(dtype=dtype)

    def draw(self, seed: int, dtype: torch.dtype = torch.float64, items: int = BATCH) -> Tensor:
        return (2 * fixed(items, *self.shape, seed=seed)).to(dtype)


def nothing(x, i):
    return cp.Constant(0), []


def norm(order, factor=(1.0, 1.0, 1.0), centre=None):
    def oracle(x, i):
        return factor[i] * cp.norm(x - (0 if centre is None else item(centre, i)), order), []

    return oracle


def half_square(factor=(1.0, 1.0, 1.0), centre=None):
    def oracle(x, i):
        return factor[i] / 2 * cp.sum_squares(x - (0 if centre is None else item(centre, i))), []

    return oracle


def within(constrain, centre=None):
    def oracle(x, i):
        return cp.Constant(0), constrain(x if centre is None else x - item(centre, i), i)

    return oracle


def variation(shape, factor=1.0, centre=None):
    """``shape`` are the axes of space or time: what stands before them is summed."""

    def forward(n):
        return np.eye(n, k=1) - np.diag([1.0] * (n - 1) + [0.0])  # the last row is 0

    def along(axis):
        matrix = np.eye(1)
        for k, n in enumerate(shape):
            matrix = np.kron(matrix, forward(n) if k == axis else np.eye(n))
        return matrix

    def one(signal):
        slopes = [cp.reshape(along(k) @ signal, (1, -1), order="C") for k in range(len(shape))]
        return cp.sum(cp.norm(cp.vstack(slopes), 2, axis=0))

    def oracle(x, i):
        pixels = math.prod(shape)
        shifted = x if centre is None else x - item(centre, i)
        channels = [shifted[k : k + pixels] for k in range(0, x.size, pixels)]
        return factor * sum(map(one, channels)), []

    return oracle


def both(*oracles):
    def oracle(x, i):
        values, constraints = zip(*(part(x, i) for part in oracles), strict=True)
        return sum(values), [constraint for part in constraints for constraint in part]

    return oracle


def blockwise(*parts):
    """``(first, last, centre, unit, oracle)`` of each block of a flat latent."""

    def oracle(x, i):
        values, constraints = zip(*(one(c + u * x[a:b], i) for a, b, c, u, one in parts), strict=True)
        return sum(values), [constraint for part in constraints for constraint in part]

    return oracle


def through(operator, inner):
    """The oracle of a term of measurements, from that of the term."""
    matrix = operator.dense().numpy()

    def oracle(x, i):
        return inner((matrix[i] if matrix.ndim == 3 else matrix) @ x, i)

    return oracle


def blocks(*parts):
    """``(term, shape, centre, unit)`` of each block."""
    ends = np.cumsum([0, *(math.prod(shape) for _, shape, _, _ in parts)]).tolist()
    named = [Block(f"b{k}", ends[k], shape, c, u) for k, (_, shape, c, u) in enumerate(parts)]
    return Blocks(tuple(term for term, *_ in parts), tuple(named))


def exactly(term: Term) -> Term:
    """The same for a term of measurements."""
    assert isinstance(term, Through)
    return replace(term, inner_tolerance=1e-13, max_iterations=20000)


def sharp(term: Term) -> Sum:
    """With an inner tolerance that lets the prox be compared to many digits."""
    assert isinstance(term, Sum)
    return replace(term, inner_tolerance=1e-13, max_iterations=20000)


def item(values: Tensor, i: int) -> np.ndarray:
    return values.numpy()[i].ravel()


CENTRE = fixed(BATCH, 2, 3, seed=5)
COMMON = fixed(2, 3, seed=6)
COMMONS = COMMON.expand(BATCH, 2, 3)
LOW, HIGH = -fixed(2, 3, seed=7).abs(), fixed(3, seed=8).abs()
PER_ITEM = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
SOME_ZERO = torch.tensor([0.0, 0.7, 2.0], dtype=torch.float64)
SHARP = TotalVariation(tolerance=1e-12, max_iterations=20000)
ALONG = {dims: replace(SHARP, dims=dims) for dims in (1, 2, 3)}
ONES = torch.ones(BATCH, 5, dtype=torch.float64)
IMAGES = fixed(BATCH, 6, 5, seed=9)

FEW, DATA = fixed(BATCH, 1, 1, 2, seed=11), fixed(BATCH, 4, seed=12)
MEANS = operators.Downsample(2, (1, 2, 4))
SEEN = operators.Mask(torch.tensor([[1.0, 0.5, 0.0], [2.0, 0.0, 1.0]], dtype=torch.float64))
MATRIX = operators.Dense(fixed(4, 5, seed=13))
MANY = operators.Dense(fixed(BATCH, 4, 5, seed=14))
TURNED = operators.Dense(3 * torch.linalg.qr(fixed(5, 4, seed=15))[0].T.contiguous())

CASES = [
    Case("zero", Zero, (2, 3), nothing),
    Case("zero_around", lambda: Zero().around(CENTRE), (2, 3), nothing),
    Case("l1", L1, (4,), norm(1)),
    Case("l1_scaled", lambda: 0.3 * L1(), (2, 3), norm(1, (0.3,) * 3)),
    Case("l1_per_item", lambda: SOME_ZERO * L1(), (2, 3), norm(1, SOME_ZERO.numpy())),
    Case("l1_around", lambda: L1().around(CENTRE) * 2, (2, 3), norm(1, (2,) * 3, CENTRE)),
    Case("l2", L2, (4,), norm(2)),
    Case("l2_scaled_twice", lambda: (3 * (PER_ITEM * L2())).around(COMMON, shared=True), (2, 3),
         norm(2, 3 * PER_ITEM.numpy(), COMMONS)),
    Case("squared_l2", SquaredL2, (2, 3), half_square()),
    Case("squared_l2_per_item", lambda: (PER_ITEM * SquaredL2()).around(CENTRE), (2, 3),
         half_square(PER_ITEM.numpy(), CENTRE)),
    Case("squared_l2_shared", lambda: 0.5 * SquaredL2().around(COMMON, shared=True).around(0.25), (2, 3),
         half_square((0.5,) * 3, COMMONS + 0.25)),
    Case("linf", LInf, (5,), norm("inf")),
    Case("linf_around", lambda: 1.5 * LInf().around(CENTRE), (2, 3), norm("inf", (1.5,) * 3, CENTRE)),
    Case("linf_per_item", lambda: SOME_ZERO * LInf(), (2, 3), norm("inf", SOME_ZERO.numpy())),
    Case("box", lambda: Box(-0.5, 1), (2, 3), within(lambda x, i: [x >= -0.5, x <= 1])),
    Case("box_half", lambda: Box(0, float("inf")), (4,), within(lambda x, i: [x >= 0])),
    Case("box_tensors", lambda: Box(LOW, HIGH), (2, 3),
         within(lambda x, i: [x >= LOW.numpy().ravel(), x <= np.tile(HIGH.numpy(), 2)])),
    Case("box_mixed", lambda: Box(LOW, 2.0), (2, 3), within(lambda x, i: [x >= LOW.numpy().ravel(), x <= 2])),
    Case("box_around", lambda: Box(-0.1, 0.2).around(CENTRE), (2, 3),
         within(lambda x, i: [x >= -0.1, x <= 0.2], CENTRE)),
    Case("ball", lambda: Ball(1.3), (2, 3), within(lambda x, i: [cp.norm(x) <= 1.3])),
    Case("ball_per_item", lambda: Ball(PER_ITEM).around(CENTRE), (2, 3),
         within(lambda x, i: [cp.norm(x) <= PER_ITEM[i].item()], CENTRE)),
    Case("ball_scaled", lambda: PER_ITEM * Ball(1.0).around(0.5), (2, 3), within(lambda x, i: [cp.norm(x - 0.5) <= 1])),
    Case("l1_ball", lambda: L1Ball(1.7), (5,), within(lambda x, i: [cp.norm1(x) <= 1.7])),
    Case("l1_ball_per_item", lambda: 2.0 * L1Ball(PER_ITEM), (2, 3),
         within(lambda x, i: [cp.norm1(x) <= PER_ITEM[i].item()])),
    Case("simplex", Simplex, (2, 3), within(lambda x, i: [x >= 0, cp.sum(x) == 1])),
    Case("simplex_per_item", lambda: Simplex(PER_ITEM), (5,),
         within(lambda x, i: [x >= 0, cp.sum(x) == PER_ITEM[i].item()])),
    Case("tv", lambda: SHARP, (6, 5), variation((6, 5)), 1e-6),
    Case("tv_around", lambda: 0.4 * SHARP.around(IMAGES), (6, 5), variation((6, 5), 0.4, IMAGES), 1e-6),
    Case("tv_channels", lambda: SHARP, (2, 3, 4), variation((3, 4)), 1e-6),
    Case("tv_line", lambda: ALONG[2], (1, 4), variation((1, 4)), 1e-6),
    Case("tv_1d", lambda: SHARP, (7,), variation((7,)), 1e-6),
    Case("tv_1d_channels", lambda: 0.7 * ALONG[1], (3, 7), variation((7,), 0.7), 1e-6),
    Case("tv_1d_rows", lambda: ALONG[1], (2, 2, 4), variation((4,)), 1e-6),
    Case("tv_elongated", lambda: ALONG[2], (2, 6), variation((2, 6)), 1e-6),
    Case("tv_3d", lambda: SHARP, (2, 2, 3, 2), variation((2, 3, 2)), 1e-6),
    Case("tv_3d_no_channels", lambda: 0.5 * ALONG[3], (3, 2, 3), variation((3, 2, 3), 0.5), 1e-6),
    # Sums with a prox in closed form: quadratics, separable parts, norms with balls around zero.
    Case("sum_box_l1", lambda: Box(-0.5, 1) + 0.3 * L1(), (2, 3),
         both(within(lambda x, i: [x >= -0.5, x <= 1]), norm(1, (0.3,) * 3))),
    Case("sum_positive_l1_around", lambda: Box(0, float("inf")) + SOME_ZERO * L1().around(CENTRE), (2, 3),
         both(within(lambda x, i: [x >= 0]), norm(1, SOME_ZERO.numpy(), CENTRE))),
    Case("sum_scaled", lambda: PER_ITEM * (L1() + Box(-0.3, 0.4)), (2, 3),
         both(within(lambda x, i: [x >= -0.3, x <= 0.4]), norm(1, PER_ITEM.numpy()))),
    Case("sum_around", lambda: 2 * (Box(-0.3, 0.4) + 0.5 * L1()).around(CENTRE), (2, 3),
         both(within(lambda x, i: [x >= -0.3, x <= 0.4], CENTRE), norm(1, (1,) * 3, CENTRE))),
    Case("sum_boxes", lambda: Box(-0.5, 2) + Box(LOW, float("inf")), (2, 3),
         within(lambda x, i: [x >= -0.5, x <= 2, x >= LOW.numpy().ravel()])),
    Case("sum_boxes_around", lambda: Box(-2, 2).around(CENTRE) + Box(-0.1, 0.2), (2, 3),
         both(within(lambda x, i: [x >= -2, x <= 2], CENTRE), within(lambda x, i: [x >= -0.1, x <= 0.2]))),
    Case("sum_two_l1", lambda: L1() + PER_ITEM * L1().around(CENTRE), (2, 3),
         both(norm(1), norm(1, PER_ITEM.numpy(), CENTRE))),
    Case("sum_two_l1_box", lambda: sum([L1(), 0.7 * L1().around(CENTRE), Box(-0.4, 0.6)]), (2, 3),
         both(norm(1), norm(1, (0.7,) * 3, CENTRE), within(lambda x, i: [x >= -0.4, x <= 0.6]))),
    Case("sum_squared", lambda: SquaredL2() + PER_ITEM * SquaredL2().around(CENTRE), (2, 3),
         both(half_square(), half_square(PER_ITEM.numpy(), CENTRE))),
    Case("sum_squared_numbers", lambda: 0.5 * SquaredL2().around(1.0) + PER_ITEM * SquaredL2().around(-0.5), (5,),
         both(half_square((0.5,) * 3, ONES), half_square(PER_ITEM.numpy(), -0.5 * ONES))),
    Case("sum_elastic_net", lambda: L1() + SOME_ZERO * SquaredL2().around(COMMON, shared=True), (2, 3),
         both(norm(1), half_square(SOME_ZERO.numpy(), COMMONS))),
    Case("sum_ball_half_square", lambda: Ball(PER_ITEM) + 0.5 * SquaredL2().around(CENTRE), (2, 3),
         both(within(lambda x, i: [cp.norm(x) <= PER_ITEM[i].item()]), half_square((0.5,) * 3, CENTRE))),
    Case("sum_simplex_half_square", lambda: Simplex() + SquaredL2().around(CENTRE), (2, 3),
         both(within(lambda x, i: [x >= 0, cp.sum(x) == 1]), half_square(centre=CENTRE))),
    Case("sum_ball_l1", lambda: Ball(0.8) + 0.3 * L1(), (2, 3),
         both(within(lambda x, i: [cp.norm(x) <= 0.8]), norm(1, (0.3,) * 3))),
    Case("sum_l1_l2", lambda: 0.3 * L1() + PER_ITEM * L2(), (2, 3), both(norm(1, (0.3,) * 3), norm(2, PER_ITEM.numpy()))),
    Case("sum_ball_l2_linf_around", lambda: (Ball(0.8) + 0.2 * L2() + LInf()).around(CENTRE), (2, 3),
         both(within(lambda x, i: [cp.norm(x) <= 0.8], CENTRE), norm(2, (0.2,) * 3, CENTRE), norm("inf", centre=CENTRE))),
    Case("sum_positive_l1_ball", lambda: Box(0, float("inf")) + 0.2 * L1() + Ball(0.9), (2, 3),
         both(within(lambda x, i: [x >= 0, cp.norm(x) <= 0.9]), norm(1, (0.2,) * 3))),
    Case("sum_tv_half_square", lambda: 0.3 * SHARP + PER_ITEM * SquaredL2().around(IMAGES), (6, 5),
         both(variation((6, 5), 0.3), half_square(PER_ITEM.numpy(), IMAGES)), 1e-6),
    Case("sum_tv_ball", lambda: 0.3 * SHARP + Ball(2.0), (6, 5),
         both(variation((6, 5), 0.3), within(lambda x, i: [cp.norm(x) <= 2])), 1e-6),
    # Blocks of a flat latent, each with a centre and a unit.
    Case("blocks_l1_box", lambda: blocks((0.7 * L1(), (2,), 0.5, 2.0), (Box(0, 0.4), (3,), 0.1, 0.5)), (5,),
         blockwise((0, 2, 0.5, 2.0, norm(1, (0.7,) * 3)), (2, 5, 0.1, 0.5, within(lambda x, i: [x >= 0, x <= 0.4])))),
    Case("blocks_ball_l2_nothing", lambda: blocks((PER_ITEM * L2(), (2,), 0.0, 3.0), (Zero(), (1,), 0.0, 1.0),
                                                  (Ball(1.0), (1, 2), 0.2, 0.5)), (5,),
         blockwise((0, 2, 0.0, 3.0, norm(2, PER_ITEM.numpy())), (2, 3, 0.0, 1.0, nothing),
                   (3, 5, 0.2, 0.5, within(lambda x, i: [cp.norm(x) <= 1])))),
    Case("blocks_balls", lambda: blocks((Ball(0.8), (2,), 0.0, 2.0), (Box(-0.1, 0.3), (2,), 0.0, 1.0)), (4,),
         blockwise((0, 2, 0.0, 2.0, within(lambda x, i: [cp.norm(x) <= 0.8])),
                   (2, 4, 0.0, 1.0, within(lambda x, i: [x >= -0.1, x <= 0.3])))),
    Case("blocks_squared", lambda: blocks((SquaredL2(), (2,), 0.0, 1.0), (25 * SquaredL2(), (3,), 0.0, 0.2)), (5,),
         blockwise((0, 2, 0.0, 1.0, half_square()), (2, 5, 0.0, 0.2, half_square((25,) * 3)))),
    # Terms of measurements: orthogonal rows in closed form, others by the dual.
    Case("l1_through_rows", lambda: (0.7 * L1().around(FEW)).through(MEANS), (1, 2, 4),
         through(MEANS, norm(1, (0.7,) * 3, FEW))),
    Case("linf_through_rows", lambda: PER_ITEM * LInf().around(FEW).through(MEANS), (1, 2, 4),
         through(MEANS, norm("inf", PER_ITEM.numpy(), FEW))),
    Case("l1_through_mask", lambda: L1().around(SEEN.measured(CENTRE)).through(SEEN), (2, 3),
         through(SEEN, norm(1, centre=SEEN.measured(CENTRE)))),
    Case("linf_through_a_rotation", lambda: LInf().through(TURNED), (5,), through(TURNED, norm("inf"))),
    Case("l1_through_matrix", lambda: exactly((SOME_ZERO * L1().around(DATA)).through(MATRIX)), (5,),
         through(MATRIX, norm(1, SOME_ZERO.numpy(), DATA)), 1e-6),
    Case("linf_through_matrix", lambda: 1.5 * exactly(LInf().around(DATA).through(MATRIX)), (5,),
         through(MATRIX, norm("inf", (1.5,) * 3, DATA)), 1e-6),
    Case("l2_through_many", lambda: exactly(L2().through(MANY)), (5,), through(MANY, norm(2)), 1e-6),
    Case("sum_through_box", lambda: sharp(0.5 * L1().around(DATA).through(MATRIX) + Box(-0.4, 0.5)), (5,),
         both(through(MATRIX, norm(1, (0.5,) * 3, DATA)), within(lambda x, i: [x >= -0.4, x <= 0.5])), 1e-6),
    # The others, by the dual.
    Case("sum_tv_box", lambda: sharp(0.3 * SHARP + Box(-0.4, 0.5)), (6, 5),
         both(variation((6, 5), 0.3), within(lambda x, i: [x >= -0.4, x <= 0.5])), 1e-6),
    Case("sum_tv_around_box_l1", lambda: sharp(PER_ITEM * SHARP.around(IMAGES) + Box(0, 1) + 0.1 * L1()), (6, 5),
         lambda x, i: both(variation((6, 5), PER_ITEM[i].item(), IMAGES), within(lambda x, i: [x >= 0, x <= 1]),
                           norm(1, (0.1,) * 3))(x, i), 1e-6),
    Case("sum_tv_l1", lambda: sharp(0.3 * SHARP + 0.2 * L1()), (2, 3, 4),
         both(variation((3, 4), 0.3), norm(1, (0.2,) * 3)), 1e-6),
    Case("sum_l2_box", lambda: sharp(L2() + Box(-0.3, 0.4)), (2, 3),
         both(norm(2), within(lambda x, i: [x >= -0.3, x <= 0.4])), 1e-6),
    Case("sum_linf_box", lambda: sharp(PER_ITEM * LInf() + Box(-0.3, 0.4)), (2, 3),
         both(norm("inf", PER_ITEM.numpy()), within(lambda x, i: [x >= -0.3, x <= 0.4])), 1e-6),
    Case("sum_three_norms", lambda: sharp(0.3 * L2().around(CENTRE) + 0.4 * LInf() + 0.2 * L1()), (2, 3),
         both(norm(2, (0.3,) * 3, CENTRE), norm("inf", (0.4,) * 3), norm(1, (0.2,) * 3)), 1e-6),
    Case("sum_box_ball", lambda: sharp(Box(-0.2, 0.9) + Ball(1.0)), (2, 3),
         within(lambda x, i: [x >= -0.2, x <= 0.9, cp.norm(x) <= 1]), 1e-6),
]  # fmt: skip
