"""The exact w step against cvxpy, for every pair of loss and term that ``choose`` tells apart. A new pair is one line."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import softplus

import genprior as gp
from genprior import operators as ops
from genprior.losses import NoLoss, exact_step
from genprior.losses.exact_step import (
    DiagonalProx,
    EntrywiseProx,
    ExactStep,
    OrthogonalRows,
    Prox,
    QuadraticRows,
    Resolvent,
    RowCoordinates,
    Split,
)
from genprior.solvers.admm.exact import Inner, choose, inner_proximal_gradient
from genprior.terms import L1, L2, Ball, Box, L1Ball, LInf, Simplex, SquaredL2, TotalVariation, Zero

from .operators import reference as ref
from .operators.instances import F64, coin, random
from .terms.instances import both, half_square, norm, nothing, sharp, variation, within

pytestmark = [
    pytest.mark.filterwarnings("ignore:y has numbers where"),  # data at random, also beside the mask
    pytest.mark.filterwarnings("ignore:Solution may be inaccurate"),  # logarithms, to the last digit that is asked for
]

B, SHAPE, D = 3, (2, 3), 6
IMAGE = (4, 5)
CENTRE, CENTRES = random(B, *SHAPE, seed=31), random(B, *IMAGE, seed=32)
WEIGHTS = torch.tensor([0.5, 1.0, 3.0], dtype=F64)
RHO = torch.tensor([0.3, 1.0, 4.0], dtype=F64)
TIGHT = gp.w_steps.Exact(tolerance=1e-13, max_iterations=20_000)


class Same(nn.Module):
    """The identity in float64."""

    def __init__(self):
        super().__init__()
        self.register_buffer("zero", torch.zeros((), dtype=F64))

    def forward(self, z):
        return z + self.zero


def generator(shape):
    return gp.Generator(Same(), shape, shape)


@dataclass(frozen=True)
class Smooth:
    """A loss and the same as a cvxpy expression of one flat item."""

    name: str
    make: Callable[[], gp.Loss | None]
    oracle: Callable[[cp.Expression, int], cp.Expression]
    shape: tuple[int, ...] = SHAPE


def squares(name, make, matrix, shape=SHAPE, noise=None):
    """``1/2 |(A w - y)/sigma|^2`` with the explicit matrix ``(m, d)``, or one per item."""
    matrix = np.broadcast_to(matrix, (B, *matrix.shape[-2:]))
    a = make()
    sigma = np.ones(B) if noise is None else np.broadcast_to(noise, (B, *a.measurement_shape)).reshape(B, -1)
    y = random(B, *a.measurement_shape, seed=41)
    if a.complex_measurements:
        y = torch.complex(y, random(*y.shape, seed=42))

    def oracle(w, i):
        target = y[i].numpy().ravel()
        real, imaginary = matrix[i].real @ w - target.real, matrix[i].imag @ w - target.imag
        parts = (cp.multiply(1 / sigma[i], part) for part in (real, imaginary))
        return 0.5 * sum(cp.sum_squares(part) for part in parts)

    def loss():
        operator = make()
        operator.tolerance = 1e-14  # of conjugate gradients, where they are used
        made = gp.LeastSquares(operator, y, noise)
        made.whitened.tolerance = 1e-14
        return made

    return Smooth(name, loss, oracle, shape)


def counts(name, make, matrix, gain=2.0, background=3.0, least=0):
    """Poisson counts with the explicit matrix; where nothing was counted, the domain ends at a point with a finite slope."""
    matrix = np.broadcast_to(matrix, (B, *matrix.shape[-2:]))
    random_rates = 4 * random(B, *make().measurement_shape, seed=43).abs()
    y = make().measured(torch.poisson(random_rates, generator=torch.Generator().manual_seed(1)) + least)

    def oracle(w, i):
        seen, target = np.abs(matrix[i]).sum(1) > 0, y[i].numpy().ravel()
        if not seen.any():
            return cp.Constant(0)
        u, k = gain * (matrix[i][seen] @ w) + background, target[seen]
        constant = (k - k * np.log(np.where(k > 0, k, 1))).sum()
        return cp.sum(u) - k @ cp.log(u) - constant

    return Smooth(name, lambda: gp.Poisson(make(), y, gain, background), oracle)


def outliers(name, make, matrix, delta, noise):
    matrix = np.broadcast_to(matrix, (B, *matrix.shape[-2:]))
    y = make().measured(random(B, *make().measurement_shape, seed=44))
    sigma = np.broadcast_to(noise, y.shape).reshape(B, -1)

    def oracle(w, i):
        residual = cp.multiply(1 / sigma[i], matrix[i] @ w - y[i].numpy().ravel())
        return cp.sum(cp.huber(residual, delta)) / 2

    return Smooth(name, lambda: gp.Huber(make(), y, delta, noise), oracle)


WIDE, TALL, MANY = random(4, D), random(9, D, seed=1), random(B, 4, D, seed=2)
MASK, MASKS = random(*SHAPE, seed=3).abs() * coin(*SHAPE), random(B, *SHAPE, seed=4).abs() * coin(B, *SHAPE)
KERNEL, FREQUENCIES = random(2, 2, seed=5), coin(*SHAPE, seed=6)
BLURRED = ref.convolution(KERNEL.numpy(), SHAPE)


def diagonal(weights):
    return np.stack([np.diag(w.numpy().ravel()) for w in weights])


def blur():
    return ops.Blur(KERNEL, SHAPE, dtype=F64)


HADAMARD = ops.SubsampledHadamard(4, SHAPE, seed=3, dtype=F64)

wide = squares("wide", lambda: ops.Dense(WIDE, SHAPE), WIDE.numpy())
many = squares("wide per item", lambda: ops.Dense(MANY, SHAPE), MANY.numpy())
tall = squares("tall", lambda: ops.Dense(TALL, SHAPE), TALL.numpy())
identity = squares("identity", lambda: ops.Identity(SHAPE), np.eye(D))
mask = squares("mask", lambda: ops.Mask(MASK), diagonal(MASK[None])[0])
masks = squares("mask per item", lambda: ops.Mask(MASKS, per_item=True), diagonal(MASKS))
blurred = squares("blur", blur, BLURRED)
fourier = squares(
    "fourier", lambda: ops.SubsampledFourier(FREQUENCIES, SHAPE, dtype=F64), ref.fourier(FREQUENCIES.numpy())
)
hadamard = squares("hadamard", lambda: HADAMARD, ref.hadamard(HADAMARD))
means = squares("downsample", lambda: ops.Downsample(2, (4, 2)), ref.averaging(2, (4, 2)), (4, 2))
composed = squares("mask after blur", lambda: ops.Mask(MASK) @ blur(), np.diag(MASK.numpy().ravel()) @ BLURRED)
function = squares("linear", lambda: ops.Linear(lambda x: x.flatten(1) @ TALL.T, None, SHAPE, dtype=F64), TALL.numpy())

SIGMA, SIGMAS = 0.3 + random(*SHAPE, seed=61).abs(), 0.3 + random(B, *SHAPE, seed=62).abs()
LEVELS = torch.tensor([0.2, 1.0, 3.0], dtype=F64)
wide_noise = squares("wide, noise", lambda: ops.Dense(WIDE, SHAPE), WIDE.numpy(), noise=0.3)
wide_noises = squares("wide, noise per measurement", lambda: ops.Dense(WIDE, SHAPE), WIDE.numpy(),
                      noise=0.2 + random(4, seed=63).abs())  # fmt: skip
wide_levels = squares("wide, noise per item", lambda: ops.Dense(WIDE, SHAPE), WIDE.numpy(), noise=LEVELS[:, None])
wide_each = squares("wide, noise of every number", lambda: ops.Dense(WIDE, SHAPE), WIDE.numpy(),
                    noise=0.2 + random(B, 4, seed=64).abs())  # fmt: skip
tall_noises = squares("tall, noise per measurement", lambda: ops.Dense(TALL, SHAPE), TALL.numpy(),
                      noise=0.2 + random(9, seed=65).abs())  # fmt: skip
identity_noise = squares("identity, noise", lambda: ops.Identity(SHAPE), np.eye(D), noise=0.3)
identity_noises = squares("identity, noise per measurement", lambda: ops.Identity(SHAPE), np.eye(D), noise=SIGMA)
mask_noises = squares("mask, noise of every number", lambda: ops.Mask(MASK), diagonal(MASK[None])[0], noise=SIGMAS)
masks_noises = squares("mask per item, noise", lambda: ops.Mask(MASKS, per_item=True), diagonal(MASKS), noise=SIGMA)
hadamard_noises = squares("hadamard, noise per measurement", lambda: HADAMARD, ref.hadamard(HADAMARD),
                          noise=0.2 + random(4, seed=66).abs())  # fmt: skip
fourier_noise = squares("fourier, noise", lambda: ops.SubsampledFourier(FREQUENCIES, SHAPE, dtype=F64),
                        ref.fourier(FREQUENCIES.numpy()), noise=0.3)  # fmt: skip
poisson = counts("poisson", lambda: ops.Identity(SHAPE), np.eye(D))
poisson_some = counts("poisson, no zeros", lambda: ops.Identity(SHAPE), np.eye(D), least=1)
poisson_mask = counts("poisson mask", lambda: ops.Mask(MASK), diagonal(MASK[None])[0])
poisson_masks = counts("poisson mask per item", lambda: ops.Mask(MASKS, per_item=True), diagonal(MASKS))
poisson_wide = counts("poisson wide", lambda: ops.Dense(WIDE.abs(), SHAPE), WIDE.abs().numpy(), least=1)
poisson_signed = counts("poisson, rows of both signs", lambda: ops.Dense(WIDE, SHAPE), WIDE.numpy(), least=1)
huber = outliers("huber", lambda: ops.Identity(SHAPE), np.eye(D), 0.7, 0.5)
huber_mask = outliers("huber mask, noise of every number", lambda: ops.Mask(MASK), diagonal(MASK[None])[0], 1.3, SIGMAS)
huber_wide = outliers("huber wide", lambda: ops.Dense(WIDE, SHAPE), WIDE.numpy(), 0.7, 0.2 + random(4, seed=63).abs())

SAMPLES, LABELS = random(8, D, seed=7), random(8, seed=8).sign()


def logistic(w, samples):
    return softplus(-samples[1] * (w.flatten(1) @ samples[0].T))


risk = Smooth(
    "logistic risk",
    lambda: gp.EmpiricalRisk(logistic, (SAMPLES, LABELS)),
    lambda w, i: cp.sum(cp.logistic(cp.multiply(-LABELS.numpy(), SAMPLES.numpy() @ w))) / 8,
)
no_loss = Smooth("no loss", NoLoss, lambda w, i: cp.Constant(0))
no_loss_image = Smooth("no loss", NoLoss, lambda w, i: cp.Constant(0), IMAGE)


def distance(name, centre, weight, shape=SHAPE):
    weights = np.broadcast_to(weight.numpy() if isinstance(weight, torch.Tensor) else weight, B)
    return Smooth(
        name,
        lambda: gp.SquaredDistance(centre, weight),
        lambda w, i: weights[i] * cp.sum_squares(w - centre[i].numpy().ravel()),
        shape,
    )


near = distance("distance", CENTRE, 0.7)
near_each = distance("distance per item", CENTRE, torch.tensor([0.0, 0.5, 2.0], dtype=F64))
near_image = distance("distance", CENTRES, 0.7, IMAGE)

TV = TotalVariation(tolerance=1e-13, max_iterations=20_000)
TABLE = [
    # loss, term, the term for cvxpy, method, words of its name
    (wide, Zero(), nothing, OrthogonalRows, "thin SVD"),
    (many, Zero(), nothing, OrthogonalRows, "thin SVD"),
    (mask, Zero(), nothing, OrthogonalRows, "diagonal"),
    (masks, Zero(), nothing, OrthogonalRows, "diagonal"),
    (identity, Zero(), nothing, OrthogonalRows, "diagonal"),
    (hadamard, Zero(), nothing, OrthogonalRows, "orthogonal rows"),
    (means, Zero(), nothing, OrthogonalRows, "orthogonal rows"),
    (tall, Zero(), nothing, Resolvent, "thin SVD"),
    (blurred, Zero(), nothing, Resolvent, "FFT"),
    (fourier, Zero(), nothing, Resolvent, "FFT"),
    (composed, Zero(), nothing, Resolvent, "conjugate gradient"),
    (function, Zero(), nothing, Resolvent, "conjugate gradient"),
    (wide, Zero().around(CENTRE), nothing, QuadraticRows, "thin SVD"),
    (wide, SquaredL2(), half_square(), QuadraticRows, "thin SVD"),
    (many, WEIGHTS * SquaredL2(), half_square(WEIGHTS.numpy()), QuadraticRows, "thin SVD"),
    (wide, 0.4 * SquaredL2().around(CENTRE), half_square((0.4,) * 3, CENTRE), QuadraticRows, "thin SVD"),
    (mask, (WEIGHTS * SquaredL2()).around(CENTRE), half_square(WEIGHTS.numpy(), CENTRE), QuadraticRows, "diagonal"),
    (fourier, 2 * SquaredL2().around(0.3), half_square((2,) * 3, 0.3 + 0 * CENTRE), Resolvent, "FFT"),
    (tall, SquaredL2().around(CENTRE[0], shared=True), half_square(centre=CENTRE[:1].expand(B, *SHAPE)), Resolvent, "SVD"),
    (composed, 0.4 * SquaredL2().around(CENTRE), half_square((0.4,) * 3, CENTRE), Resolvent, "conjugate gradient"),
    (near, Zero(), nothing, Prox, "prox of Zero"),
    (near_each, Zero(), nothing, Prox, "prox of Zero"),
    (near, L1(), norm(1), Prox, "prox of L1"),
    (near_each, WEIGHTS * L1(), norm(1, WEIGHTS.numpy()), Prox, "prox of L1"),
    (near, LInf().around(CENTRE), norm("inf", centre=CENTRE), Prox, "prox of LInf"),
    (near_each, 2.0 * LInf().around(CENTRE), norm("inf", (2,) * 3, CENTRE), Prox, "prox of"),
    (near, Box(-0.2, 0.4), within(lambda x, i: [x >= -0.2, x <= 0.4]), Prox, "prox of Box"),
    (near, Simplex(), within(lambda x, i: [x >= 0, cp.sum(x) == 1]), Prox, "prox of Simplex"),
    (near_each, L1Ball(0.8), within(lambda x, i: [cp.norm1(x) <= 0.8]), Prox, "prox of L1Ball"),
    (near, SquaredL2(), half_square(), Prox, "prox of SquaredL2"),
    (near_image, 0.3 * TV, variation(IMAGE, 0.3), Prox, "prox of"),
    (no_loss, L1(), norm(1), Prox, "prox of L1"),
    (no_loss, 0.5 * L2().around(CENTRE), norm(2, (0.5,) * 3, CENTRE), Prox, "prox of"),
    (no_loss, LInf().around(CENTRE), norm("inf", centre=CENTRE), Prox, "prox of LInf"),
    (no_loss, 0.5 * L1().around(CENTRE), norm(1, (0.5,) * 3, CENTRE), Prox, "prox of"),
    (no_loss, Ball(0.9), within(lambda x, i: [cp.norm(x) <= 0.9]), Prox, "prox of Ball"),
    (no_loss_image, TV.around(CENTRES), variation(IMAGE, 1.0, CENTRES), Prox, "TotalVariation, iterative"),
    (mask, L1(), norm(1), DiagonalProx, "one step per coordinate"),
    (masks, L1(), norm(1), DiagonalProx, "one step per coordinate"),
    (masks, WEIGHTS * L1().around(CENTRE), norm(1, WEIGHTS.numpy(), CENTRE), DiagonalProx, "one step per coordinate"),
    (mask, Box(-0.2, 0.4), within(lambda x, i: [x >= -0.2, x <= 0.4]), DiagonalProx, "prox of Box"),
    (masks, Box(-0.2, 0.4), within(lambda x, i: [x >= -0.2, x <= 0.4]), DiagonalProx, "prox of Box"),
    (identity, LInf(), norm("inf"), DiagonalProx, "prox of LInf"),
    (identity, 0.3 * L2().around(CENTRE), norm(2, (0.3,) * 3, CENTRE), DiagonalProx, "prox of"),
    (identity, Simplex(), within(lambda x, i: [x >= 0, cp.sum(x) == 1]), DiagonalProx, "prox of Simplex"),
    (wide, L1(), norm(1), Inner, "inner proximal gradient"),
    (many, 0.3 * L1(), norm(1, (0.3,) * 3), Inner, "inner proximal gradient"),
    (wide, Box(-0.2, 0.4), within(lambda x, i: [x >= -0.2, x <= 0.4]), Inner, "inner proximal gradient"),
    (wide, LInf().around(CENTRE), norm("inf", centre=CENTRE), Inner, "inner proximal gradient"),
    (tall, Simplex(), within(lambda x, i: [x >= 0, cp.sum(x) == 1]), Inner, "inner proximal gradient"),
    (mask, LInf(), norm("inf"), Inner, "inner proximal gradient"),
    (fourier, L1(), norm(1), Inner, "inner proximal gradient"),
    (composed, L1(), norm(1), Inner, "inner proximal gradient"),
    (near, Box(-0.2, 0.4) + 0.3 * L1(), both(within(lambda x, i: [x >= -0.2, x <= 0.4]), norm(1, (0.3,) * 3)), Prox,
     "prox of Box + L1"),
    (mask, Box(-0.2, 0.4) + 0.3 * L1(), both(within(lambda x, i: [x >= -0.2, x <= 0.4]), norm(1, (0.3,) * 3)), DiagonalProx,
     "one step per coordinate"),
    (masks, L1() + WEIGHTS * SquaredL2().around(CENTRE), both(norm(1), half_square(WEIGHTS.numpy(), CENTRE)), DiagonalProx,
     "prox of"),
    (wide, SquaredL2() + WEIGHTS * SquaredL2().around(CENTRE), both(half_square(), half_square(WEIGHTS.numpy(), CENTRE)),
     QuadraticRows, "thin SVD"),
    (tall, 0.5 * SquaredL2() + 0.2 * SquaredL2().around(1.0),
     both(half_square((0.5,) * 3), half_square((0.2,) * 3, 1 + 0 * CENTRE)), Resolvent, "SVD"),
    (near_image, sharp(0.3 * TV + Box(-0.4, 0.5)), both(variation(IMAGE, 0.3), within(lambda x, i: [x >= -0.4, x <= 0.5])),
     Prox, "TotalVariation + Box, iterative, relative gap 1e-13"),
    (wide, sharp(Box(-0.2, 0.4) + 0.3 * L2()), both(within(lambda x, i: [x >= -0.2, x <= 0.4]), norm(2, (0.3,) * 3)),
     Inner, "inner proximal gradient"),
    (wide_noise, Zero(), nothing, OrthogonalRows, "thin SVD"),
    (wide_noises, Zero(), nothing, OrthogonalRows, "thin SVD"),
    (wide_levels, Zero(), nothing, OrthogonalRows, "thin SVD"),
    (wide_each, Zero(), nothing, Resolvent, "conjugate gradient"),
    (tall_noises, Zero(), nothing, Resolvent, "thin SVD"),
    (identity_noise, Zero(), nothing, OrthogonalRows, "diagonal"),
    (identity_noises, Zero(), nothing, OrthogonalRows, "diagonal"),
    (mask_noises, Zero(), nothing, OrthogonalRows, "diagonal"),
    (masks_noises, Zero(), nothing, OrthogonalRows, "diagonal"),
    (hadamard_noises, Zero(), nothing, OrthogonalRows, "orthogonal rows"),
    (fourier_noise, Zero(), nothing, Resolvent, "FFT"),
    (wide_noises, SquaredL2(), half_square(), QuadraticRows, "thin SVD"),
    (mask_noises, SquaredL2(), half_square(), QuadraticRows, "diagonal"),
    (identity_noise, LInf(), norm("inf"), DiagonalProx, "prox of LInf"),
    (identity_noises, L1(), norm(1), DiagonalProx, "one step per coordinate"),
    (mask_noises, Box(-0.2, 0.4), within(lambda x, i: [x >= -0.2, x <= 0.4]), DiagonalProx, "prox of Box"),
    (identity_noises, LInf(), norm("inf"), Inner, "inner proximal gradient"),
    (poisson, Zero(), nothing, EntrywiseProx, "one equation per entry"),
    (poisson_mask, Zero(), nothing, EntrywiseProx, "one equation per entry"),
    (poisson_masks, WEIGHTS * SquaredL2().around(CENTRE), half_square(WEIGHTS.numpy(), CENTRE), EntrywiseProx, "one"),
    (poisson, Box(-0.2, 0.4), within(lambda x, i: [x >= -0.2, x <= 0.4]), EntrywiseProx, "one equation per entry"),
    (poisson_some, L1(), norm(1), Inner, "inner proximal gradient"),
    (poisson_wide, Zero(), nothing, Inner, "inner proximal gradient"),
    (poisson_signed, Zero(), nothing, Inner, "inner proximal gradient"),
    (poisson_wide, Box(0.0, 0.4), within(lambda x, i: [x >= 0, x <= 0.4]), Inner, "inner proximal gradient"),
    (huber, Zero(), nothing, EntrywiseProx, "one equation per entry"),
    (huber_mask, SquaredL2(), half_square(), EntrywiseProx, "one equation per entry"),
    (huber_mask, Box(-0.2, 0.4), within(lambda x, i: [x >= -0.2, x <= 0.4]), EntrywiseProx, "one equation per entry"),
    (huber_wide, Zero(), nothing, Inner, "inner proximal gradient"),
    (huber, LInf(), norm("inf"), Inner, "inner proximal gradient"),
    (risk, Zero(), nothing, Inner, "inner proximal gradient"),
    (risk, Box(-0.2, 0.4), within(lambda x, i: [x >= -0.2, x <= 0.4]), Inner, "inner proximal gradient"),
    (risk, WEIGHTS * SquaredL2().around(CENTRE), half_square(WEIGHTS.numpy(), CENTRE), Inner, "inner"),
]  # fmt: skip
every = pytest.mark.parametrize(
    ("loss", "term", "oracle", "method", "words"), TABLE, ids=[f"{row[0].name}, {row[1]!r}" for row in TABLE]
)


def problem_of(loss, term):
    return gp.Problem(generator(loss.shape), loss=loss.make(), on_signal=term)


def data(loss, problem=None, rho=RHO):
    """x, lam, an old w, and rho, all per item; lam in the range of A^T where an ADMM run would keep it there."""
    x, lam, w = (random(B, *loss.shape, seed=seed) for seed in (51, 52, 53))
    if problem is not None and type(choose(problem, 1e-6, 100)) is OrthogonalRows:
        lam = problem.loss.form.adjoint(problem.loss.form.forward(lam))
    return x, lam, w, rho


def step(problem, x, lam, w, rho, w_step=TIGHT):
    """The exact step from any (x, lam, w), with the memory that an ADMM run would have."""
    residual = problem.loss.evaluate(x)[1]
    memory = w_step.start(problem, x, residual)
    if isinstance(memory, RowCoordinates):
        gram = problem.loss.form.gram
        image = problem.loss.form.forward(lam)
        memory = replace(memory, eta=torch.where(image.abs() < 1e-9, 0.0, -image / gram))
    zero = torch.zeros_like(rho)
    return w_step(problem, Split(w, lam, x, residual, rho, zero, zero + 1, 1.0), memory)


def minimise(loss, oracle, i, x, lam, rho):
    w = cp.Variable(x[i].numel())
    value, constraints = oracle(w, i)
    centre, slope = x[i].numpy().ravel(), lam[i].numpy().ravel()
    smooth = loss.oracle(w, i) + slope @ w + float(rho[i]) / 2 * cp.sum_squares(w - centre)
    program = cp.Problem(cp.Minimize(smooth + value), constraints)
    program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    return w.value.reshape(x[i].shape), program.value


def objective(problem, w, x, lam, rho):
    gap = (w - x).flatten(1)
    linear = (w.flatten(1) * lam.flatten(1)).sum(1)
    return problem.loss(w) + problem.on_signal(w) + linear + rho / 2 * gap.square().sum(1)


@every
def test_the_minimiser(loss, term, oracle, method, words):
    problem = problem_of(loss, term)
    x, lam, w, rho = data(loss, problem)
    ours, _, _ = step(problem, x, lam, w, rho)
    assert ours.dtype == F64
    values = objective(problem, ours, x, lam, rho)
    for i in range(B):
        theirs, least = minimise(loss, oracle, i, x, lam, rho)
        np.testing.assert_allclose(ours[i], theirs, atol=3e-5)
        # The constant of a shifted quadratic is in both, that of cvxpy's linear term too.
        assert float(values[i]) == pytest.approx(least, rel=1e-7, abs=1e-7)


@every
def test_the_method_and_its_name(loss, term, oracle, method, words):
    problem = problem_of(loss, term)
    assert type(choose(problem, 1e-6, 100)) is method
    name = gp.w_steps.Exact(1e-5, 77).name(problem)
    assert words in name
    assert name.startswith("inner" if method is Inner else "closed form (")
    assert method is not Inner or name.endswith("(relative residual 1e-05, at most 77 iterations)")
    assert words in gp.ExactADMM().plan(problem)


@every
def test_a_batch_equals_single_calls(loss, term, oracle, method, words):
    problem = problem_of(loss, term)
    x, lam, w, rho = data(loss, problem)
    together, _, _ = step(problem, x, lam, w, rho)
    for i in range(B):
        one = torch.tensor([i])
        alone, _, _ = step(problem.rows(one), x[one], lam[one], w[one], rho[one])
        torch.testing.assert_close(together[one], alone, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("method", [OrthogonalRows, Resolvent, Prox, DiagonalProx, EntrywiseProx, Inner])
def test_the_table_covers_every_method(method):
    assert sum(row[3] is method for row in TABLE) >= 4


@pytest.mark.parametrize("rho", [0.01, 1.0])
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_a_quadratic_term_costs_no_digits_in_float32(scale, rho):
    """Where ``A^T A`` is far above rho, nothing may cancel: against float64."""
    matrix, y, x, lam = (
        random(*shape, seed=k).float() for k, shape in enumerate([(100, 784), (3, 100), (3, 784), (3, 784)])
    )
    A = ops.Dense(scale * matrix)
    problem = gp.Problem(gp.Generator(nn.Linear(3, 784), 3, 784), gp.LeastSquares(A, y), on_signal=1e-3 * SquaredL2())
    w, _, _ = step(problem, x, lam, x, torch.full((3,), rho))
    exact_a, total = A.matrix.double(), rho + 1e-3
    right = exact_a.T @ y.double().T + rho * x.double().T - lam.double().T
    expected = torch.linalg.solve(exact_a.T @ exact_a + total * torch.eye(784, dtype=F64), right).T
    assert float((w - expected).norm() / expected.norm()) < 1e-5


def test_there_is_no_other_method():
    ours = {kind for kind in exact_step.StepWithMemory.__subclasses__() if kind is not ExactStep} | {EntrywiseProx}
    assert ours == {EntrywiseProx, OrthogonalRows, QuadraticRows, Resolvent, Prox, DiagonalProx, Inner}


# -- ADMM steps by hand ---------------------------------------------------------------------------------------------


def curved(shape, latent=3):
    torch.manual_seed(3)
    size = int(np.prod(shape))
    module = nn.Sequential(nn.Linear(latent, 5), nn.Tanh(), nn.Linear(5, size), nn.Unflatten(1, shape)).double()
    return gp.Generator(module, latent, shape)


@pytest.mark.parametrize(
    "loss", [wide, many, mask, masks, identity, hadamard, means, tall, blurred], ids=lambda c: c.name
)
def test_every_admm_step_is_the_direct_solution(loss):
    """With a penalty that grows and a dual that moves, 50 steps long: nothing that is carried along goes stale."""
    G = curved(loss.shape)
    problem = gp.Problem(G, loss=loss.make())
    solver = gp.ExactADMM(rho=0.2, n=3, scales=4, dual=gp.duals.Paper(0.5))
    state = solver.start(problem, G.sample_latent(B))
    matrix = problem.loss.operator.dense().double()
    matrix = matrix if matrix.ndim == 3 else matrix.expand(B, *matrix.shape)
    y = problem.loss.y.flatten(1)
    eye, penalties = torch.eye(matrix.shape[2], dtype=F64), set()
    for _ in range(50):
        old, state = state, solver.step(problem, state)
        penalties.add(float(state.rho[0]))
        gram = matrix.mT @ matrix + state.rho[:, None, None] * eye
        right = (matrix.mT @ y[..., None])[..., 0] - old.lam.flatten(1) + state.rho[:, None] * state.x.flatten(1)
        direct = np.linalg.solve(gram.numpy(), right.numpy()[..., None])[..., 0]
        np.testing.assert_allclose(state.w.flatten(1), direct, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(
            state.lam, old.lam + state.sigma.reshape(-1, *(1,) * len(loss.shape)) * (state.w - state.x), atol=1e-12
        )
        if isinstance(state.w_memory, RowCoordinates):
            carried = -problem.loss.form.adjoint(state.w_memory.eta)
            torch.testing.assert_close(carried, old.lam, rtol=1e-9, atol=1e-10)
    assert penalties == {0.4, 0.8, 1.6, 3.2}
    assert bool((state.lam.flatten(1).norm(dim=1) > 1e-3).all())


def test_orthogonal_rows_use_one_adjoint_and_no_forward():
    calls = []
    loss = wide.make()
    form = loss.form
    loss._form = type(form)(
        lambda x: calls.append("A") or form.forward(x), lambda y: calls.append("AT") or form.adjoint(y),
        form.gram, form.rotate,
    )  # fmt: skip
    problem = gp.Problem(generator(SHAPE), loss=loss)
    x, lam, w, rho = data(wide)
    residual = loss.evaluate(x)[1]
    memory = TIGHT.start(problem, x, residual)
    calls.clear()
    TIGHT(problem, Split(w, lam, x, residual, rho, 0 * rho, 1 + 0 * rho, 1.0), memory)
    assert calls == ["AT"]


# -- the inner solver -----------------------------------------------------------------------------------------------


def inner(loss, term, *, smoothness=None, tolerance=1e-9, max_iterations=5000, rows=None):
    problem = problem_of(loss, term)
    x, lam, w, rho = data(loss)
    if rows is not None:
        problem, x, lam, w, rho = problem.rows(rows), x[rows], lam[rows], w[rows], rho[rows]
    nu = problem.loss.curvature(x)[1] if smoothness is None else torch.full_like(rho, smoothness)
    solution = inner_proximal_gradient(
        problem, start=w, lam=lam, centre=x, rho=rho, smoothness=nu, tolerance=tolerance, max_iterations=max_iterations
    )
    return solution, problem, (x, lam, w, rho)


INNER = [(wide, 0.5 * L1()), (wide, Box(-0.2, 0.4)), (risk, Zero()), (risk, L1())]
every_inner = pytest.mark.parametrize(("loss", "term"), INNER, ids=[f"{a.name}, {b!r}" for a, b in INNER])


def residual_at(problem, w, x, lam, rho, nu):
    """The prox-gradient residual of the subproblem at w, relative to ``(nu + rho) |w| + |lam|``."""
    length = (nu + rho).reshape(-1, 1, 1)
    slope = problem.loss.gradient(w, problem.loss.evaluate(w)[1]) + lam + rho.reshape(-1, 1, 1) * (w - x)
    ahead = problem.on_signal.prox(w - slope / length, 1 / (nu + rho))
    size = (length * w).flatten(1).norm(dim=1) + lam.flatten(1).norm(dim=1)
    return (length * (w - ahead)).flatten(1).norm(dim=1) / size


@every_inner
def test_inner_reports_its_residual(loss, term):
    for tolerance in (1e-2, 1e-5, 1e-9):
        solution, problem, (x, lam, _, rho) = inner(loss, term, tolerance=tolerance)
        assert bool((solution.residual <= tolerance).all())
        assert bool((solution.iterations < 5000).all())
        true = residual_at(problem, solution.w, x, lam, rho, solution.smoothness)
        assert bool((true <= 2 * tolerance).all())
    loose = inner(loss, term, tolerance=1e-2)[0].iterations
    assert bool((loose < solution.iterations).all())


@every_inner
def test_inner_stops_at_max_iterations_and_says_so(loss, term):
    solution, *_ = inner(loss, term, tolerance=1e-12, max_iterations=3)
    assert solution.iterations.tolist() == [3.0] * B
    assert bool((solution.residual > 1e-12).all())


@every_inner
@pytest.mark.parametrize("factor", [0.0, 1e-6, 1e-2])
def test_inner_backtracks_from_a_smoothness_that_is_far_too_small(loss, term, factor):
    right, problem, (x, *_) = inner(loss, term)
    nu = float(problem.loss.curvature(x)[1].max())
    solution, *_ = inner(loss, term, smoothness=factor * nu)
    torch.testing.assert_close(solution.w, right.w, rtol=1e-6, atol=1e-6)
    assert bool((solution.smoothness > factor * nu).all())
    assert bool((solution.smoothness <= 2.2 * nu).all())
    assert bool((solution.residual <= 1e-9).all())


def test_inner_starts_on_a_flat_piece():
    """Where every margin is met, here also at 0, a squared hinge has no curvature: nu is estimated as 0."""

    def hinge(w, samples):
        return torch.relu(-1 - w.flatten(1) @ samples.T) ** 2

    samples = random(5, D, seed=9).abs()
    problem = gp.Problem(generator(SHAPE), loss=gp.EmpiricalRisk(hinge, samples))
    flat, lam = torch.full((1, *SHAPE), 5.0, dtype=F64), torch.full((1, *SHAPE), 4.0, dtype=F64)
    assert problem.loss.curvature(flat)[1].tolist() == [0.0]
    rho = torch.tensor([0.5], dtype=F64)
    ours, _, memory = step(problem, flat, lam, flat, rho)
    w = cp.Variable(D)
    loss = cp.sum_squares(cp.pos(-1 - samples.numpy() @ w)) / 5
    cp.Problem(cp.Minimize(loss + 4 * cp.sum(w) + 0.25 * cp.sum_squares(w - 5))).solve(solver=cp.CLARABEL)
    np.testing.assert_allclose(ours.flatten(), w.value, atol=1e-5)
    assert float(memory.residual) <= TIGHT.tolerance
    assert float(memory.smoothness) > 0


@every_inner
def test_inner_items_freeze_one_by_one(loss, term):
    solution, *_ = inner(loss, term)
    assert len(set(solution.iterations.tolist())) > 1
    for i in range(B):
        alone, *_ = inner(loss, term, rows=torch.tensor([i]))
        torch.testing.assert_close(alone.w[0], solution.w[i], rtol=1e-12, atol=1e-12)
        assert alone.iterations[0] == solution.iterations[i]


def test_the_options_of_the_exact_step_reach_the_inner_solver():
    problem = problem_of(wide, L1())
    x, lam, w, rho = data(wide)
    short = step(problem, x, lam, w, rho, gp.w_steps.Exact(tolerance=1e-12, max_iterations=2))
    loose = step(problem, x, lam, w, rho, gp.w_steps.Exact(tolerance=1e-1))
    tight = step(problem, x, lam, w, rho, gp.w_steps.Exact(tolerance=1e-10))
    assert bool((short.memory.residual > 1e-12).all())
    assert bool((tight.memory.residual <= 1e-10).all())
    assert bool((loose.memory.residual <= 1e-1).all())
    assert bool((loose.memory.residual > tight.memory.residual).all())
    assert not torch.equal(short[0], tight[0])


def test_the_inner_solver_is_warm_started_and_remembers_its_smoothness():
    problem = problem_of(wide, L1())
    x, lam, w, rho = data(wide)
    solution, _, memory = step(problem, x, lam, w, rho)
    again = inner_proximal_gradient(
        problem, start=solution, lam=lam, centre=x, rho=rho, smoothness=memory.smoothness,
        tolerance=1e-9, max_iterations=100,
    )  # fmt: skip
    assert again.iterations.tolist() == [1.0] * B


@pytest.mark.slow
@pytest.mark.parametrize("term", [Box(0.0, 1.0), 1e-3 * L1()], ids=repr)
def test_rounding_is_not_taken_for_a_smoothness_too_small(term):
    """In float32 short moves must not let the smoothness grow from step to step, or w would stop moving."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(5, 30), nn.ELU(), nn.Linear(30, 60), nn.Sigmoid())
    G = gp.Generator(layers, 5, 60)
    A = ops.Gaussian(25, 60)
    y = A(G(G.sample_latent(2, seed=3))).detach()
    problem = gp.Problem(G, gp.LeastSquares(A, y), on_signal=term)
    solver = gp.ExactADMM(z_step=gp.z_steps.Adam())
    state = solver.start(problem, G.sample_latent(2, seed=9))
    nu = state.w_memory.smoothness
    with torch.no_grad():
        for _ in range(60):
            state = solver.step(problem, state)
    assert bool((state.w_memory.residual <= 1e-6).all())
    assert bool((state.w_memory.smoothness <= 2 * nu).all())
