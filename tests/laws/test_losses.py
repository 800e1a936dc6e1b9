"""Losses: value, gradient and curvature against direct formulas and finite differences. A new loss is one line here."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch.nn.functional import softplus

import genprior as gp
from genprior import operators as ops
from genprior.losses import NoLoss

from .operators.instances import F64, INSTANCES, ITEMS, coin, matrices, measurements, random

pytestmark = pytest.mark.filterwarnings("ignore:y has numbers where")  # data at random, also beside the mask

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """A loss, and its value for item i at a flat numpy vector, written independently."""

    name: str
    make: Callable[[], gp.Loss]
    value: Callable[[int, np.ndarray], float]
    shape: tuple[int, ...]
    exact: bool = True
    """Whether curvature is known rather than estimated."""

    def __str__(self):
        return self.name


def least_squares(instance):
    a = instance.make()
    y = measurements(a)
    matrix, target = matrices(instance, a), y.numpy().reshape(ITEMS, -1)

    def value(i, w):
        return 0.5 * np.linalg.norm(matrix[i] @ w - target[i]) ** 2

    def make():
        return gp.LeastSquares(instance.make(), y)

    return Case(f"least squares, {instance}", make, value, a.signal_shape, instance.exact_bounds)


def distance(name, weight):
    y = random(ITEMS, 2, 3, seed=4)
    weights = np.broadcast_to(weight.numpy() if isinstance(weight, torch.Tensor) else weight, ITEMS)

    def value(i, w):
        return weights[i] * ((w - y[i].numpy().ravel()) ** 2).sum()

    return Case(f"squared distance, {name}", lambda: gp.SquaredDistance(y, weight), value, (2, 3))


def noisy(name, instance, noise):
    """Least squares with a noise level: a number, or numpy broadcasts it against the measurements."""
    plain = least_squares(instance)
    a = instance.make()
    y, matrix = measurements(a), matrices(instance, a)
    sigma = np.broadcast_to(noise, y.shape).reshape(ITEMS, -1)

    def value(i, w):
        return 0.5 * np.linalg.norm((matrix[i] @ w - y[i].numpy().ravel()) / sigma[i]) ** 2

    exact = instance.exact_bounds and not (instance.name == "fourier per item" or np.ndim(noise) > 1)
    return Case(f"{name}, {instance}", lambda: gp.LeastSquares(instance.make(), y, noise), value, plain.shape, exact)


def positive(*shape):
    return 0.3 + random(*shape, seed=71).abs()


BY_NAME = {instance.name: instance for instance in INSTANCES}
NOISY = [
    noisy("one sigma", BY_NAME["dense m<d"], 0.3),
    noisy("one sigma", BY_NAME["mask weights"], 0.3),
    noisy("one sigma", BY_NAME["fourier per item"], 0.3),
    noisy("sigma per measurement", BY_NAME["identity"], positive(2, 3)),
    noisy(
        "sigma per measurement", BY_NAME["mask per item"], positive(*BY_NAME["mask per item"].make().measurement_shape)
    ),
    noisy("sigma per item", BY_NAME["dense m>d"], positive(ITEMS, 1)),
    noisy("sigma of each", BY_NAME["dense m>d"], positive(ITEMS, *BY_NAME["dense m>d"].make().measurement_shape)),
]


def likelihood(name, instance, make, entry, least):
    """A likelihood, and that of one measurement in numpy; ``least`` keeps the measurements where it allows any."""
    a = instance.make()
    y, matrix = a.measured(measurements(a).abs().round() + least), matrices(instance, a)
    seen = a.measured(torch.ones_like(y)).numpy().reshape(ITEMS, -1) != 0

    def value(i, w):
        return sum(entry(u, k) for u, k in zip((matrix[i] @ w)[seen[i]], y[i].numpy().ravel()[seen[i]], strict=True))

    return Case(f"{name}, {instance}", lambda: make(instance.make(), y), value, a.signal_shape, False)


def poisson_entry(a, k):
    u = 2 * a + 30
    return u - k + (k * np.log(k / u) if k else 0)


def huber_entry(a, k, delta=0.7, sigma=0.5):
    r = abs(a - k) / sigma
    return r * r / 2 if r <= delta else delta * (r - delta / 2)


LIKELIHOODS = [
    *(
        likelihood("poisson", BY_NAME[name], lambda A, y: gp.Poisson(A, y, 2.0, 30.0), poisson_entry, 0)
        for name in ("identity", "dense m<d", "mask weights", "mask per item", "dense per item m>d")
    ),
    *(
        likelihood("huber", BY_NAME[name], lambda A, y: gp.Huber(A, y, 0.7, noise=0.5), huber_entry, 0)
        for name in ("identity", "dense m>d", "mask per item")
    ),
]
INPUTS, LABELS = random(7, 4, seed=5), random(7, seed=6).sign()
MANY_INPUTS, MANY_LABELS = random(ITEMS, 7, 4, seed=7), random(ITEMS, 7, seed=8).sign()
WEIGHT = torch.tensor([0.5, 2.0, 0.0], dtype=F64)


def margins(w, inputs):
    return w.flatten(1) @ inputs.T if inputs.ndim == 2 else (inputs @ w.flatten(1)[..., None])[..., 0]


def logistic(w, samples):
    return softplus(-samples[1] * margins(w, samples[0]))


def quadratic(w, samples):
    return 0.5 * margins(w, samples) ** 2


def risk(name, loss, samples, **options):
    def pick(i):
        parts = samples if isinstance(samples, tuple) else (samples,)
        return [(part[i] if options.get("per_item") else part).numpy() for part in parts]

    def value(i, w):
        if loss is logistic:
            inputs, labels = pick(i)
            return np.logaddexp(0, -labels * (inputs @ w)).mean()
        return 0.5 * ((pick(i)[0] @ w) ** 2).mean()

    return Case(f"risk, {name}", lambda: gp.EmpiricalRisk(loss, samples, **options), value, (2, 2), False)


RISKS = [
    risk("logistic", logistic, (INPUTS, LABELS)),
    risk("logistic per item", logistic, (MANY_INPUTS, MANY_LABELS), per_item=True),
    risk("quadratic", quadratic, INPUTS),
    risk("quadratic per item", quadratic, MANY_INPUTS, per_item=True),
    risk("quadratic, smoothness given", quadratic, INPUTS, smoothness=50.0, strong_convexity=1e-3),
]
CASES = [
    *(least_squares(instance) for instance in INSTANCES),
    distance("weight 1", 1.0),
    distance("weight 0.3", 0.3),
    distance("weight 0-dim", torch.tensor(0.7, dtype=F64)),
    distance("weight per item", WEIGHT),
    *RISKS,
    *NOISY,
    *LIKELIHOODS,
    Case("none", NoLoss, lambda i, w: 0.0, (2, 3)),
]
every = pytest.mark.parametrize("case", CASES, ids=str)


def points(case, seed=21):
    return random(ITEMS, *case.shape, seed=seed)


def gradient(loss, w):
    return loss.gradient(w, loss.evaluate(w)[1])


def differences(case, w, h=1e-5):
    """Central differences of the independent value."""
    out = np.zeros((ITEMS, w[0].numel()))
    for i in range(ITEMS):
        flat = w[i].numpy().ravel()
        for j in range(flat.size):
            e = h * np.eye(flat.size)[j]
            out[i, j] = (case.value(i, flat + e) - case.value(i, flat - e)) / (2 * h)
    return out.reshape(w.shape)


@every
def test_value(case):
    w = points(case)
    expected = [case.value(i, w[i].numpy().ravel()) for i in range(ITEMS)]
    loss = case.make()
    np.testing.assert_allclose(loss(w), expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(loss.evaluate(w)[0], expected, rtol=1e-10, atol=1e-12)


@every
def test_gradient(case):
    w = points(case)
    loss = case.make()
    ours = gradient(loss, w)
    assert ours.shape == w.shape
    assert not ours.requires_grad
    np.testing.assert_allclose(ours, differences(case, w), rtol=1e-6, atol=1e-6)
    with torch.no_grad():
        assert torch.equal(gradient(loss, w), ours)


@every
def test_curvature_bounds_the_gradient(case):
    """``mu |a - b|^2 <= <grad(a) - grad(b), a - b>`` and ``|grad(a) - grad(b)| <= nu |a - b|``, near b for estimates."""
    loss, b = case.make(), points(case)
    mu, nu = loss.curvature(b)
    assert mu.shape == nu.shape == (ITEMS,)
    assert mu.dtype == nu.dtype == F64
    for seed in range(5):
        move = random(*b.shape, seed=100 + seed) * (1.0 if case.exact else 1e-3)
        change = (gradient(loss, b + move) - gradient(loss, b)).flatten(1)
        move = move.flatten(1)
        assert bool((change.norm(dim=1) <= nu * move.norm(dim=1) * (1 + 1e-6) + 1e-12).all())
        assert bool(((change * move).sum(1) >= mu * move.square().sum(1) * (1 - 1e-6) - 1e-12).all())


@pytest.mark.parametrize("case", [c for c in CASES if c.exact], ids=str)
def test_curvature_is_attained(case):
    """The constants are not only bounds: some direction has exactly that curvature (Hessian by differences)."""
    loss, b = case.make(), points(case)
    d = b[0].numel()
    unit = torch.eye(d, dtype=F64).reshape(d, *case.shape)
    columns = [(gradient(loss, b + e) - gradient(loss, b)).flatten(1) for e in unit]
    values = torch.linalg.eigvalsh(torch.stack(columns, dim=2))
    mu, nu = loss.curvature(b)
    torch.testing.assert_close(nu, values[:, -1], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(mu, values[:, 0], rtol=1e-9, atol=1e-9)


def true_hessian_norms(risk, w):
    unit = torch.eye(w[0].numel(), dtype=F64).reshape(-1, *w.shape[1:])
    h = 1e-5
    columns = [(gradient(risk, w + h * e) - gradient(risk, w - h * e)).flatten(1) / (2 * h) for e in unit]
    return torch.linalg.eigvalsh(torch.stack(columns, dim=2))[:, -1]


@pytest.mark.parametrize("case", RISKS[:4], ids=str)
@pytest.mark.parametrize("size", [1e-3, 1.0, 4.0])
def test_risk_curvature_is_the_hessian_norm_with_a_margin(case, size):
    loss, w = case.make(), size * points(case)
    nu = loss.curvature(w)[1]
    truth = torch.maximum(true_hessian_norms(loss, w), true_hessian_norms(loss, 0 * w))
    assert bool((nu >= truth).all())
    assert bool((nu <= 1.11 * truth).all())


def test_risk_curvature_of_a_linear_loss_is_zero():
    mu, nu = gp.EmpiricalRisk(lambda w, s: w @ s.T, INPUTS).curvature(random(2, 4))
    assert mu.tolist() == nu.tolist() == [0.0, 0.0]


def test_risk_constants_are_used():
    loss = gp.EmpiricalRisk(quadratic, INPUTS, smoothness=3.0, strong_convexity=0.5)
    mu, nu = loss.curvature(random(2, 4))
    assert (mu.tolist(), nu.tolist()) == ([0.5, 0.5], [3.0, 3.0])
    assert gp.EmpiricalRisk(quadratic, INPUTS, strong_convexity=1e6).curvature(random(2, 4))[1].tolist() == [1e6] * 2


@every
@pytest.mark.parametrize("warm", [False, True], ids=["fresh", "used"])
def test_rows_with_repeats_are_the_items_alone(case, warm):
    loss, w = case.make(), points(case)
    if warm:
        loss(w)
        loss.curvature(w)
    index = torch.tensor([2, 0, 2, 1])
    part = loss.rows(index)
    assert part.batch == (None if loss.batch is None else 4)
    values, slopes, (mu, nu) = part(w[index]), gradient(part, w[index]), part.curvature(w[index])
    for row, i in enumerate(index.tolist()):
        alone = case.make().rows(torch.tensor([i]))
        one = w[i : i + 1]
        torch.testing.assert_close(values[row : row + 1], alone(one), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(slopes[row : row + 1], gradient(alone, one), rtol=1e-10, atol=1e-11)
        for ours, theirs in zip((mu, nu), alone.curvature(one), strict=True):
            slack = 1e-9 if case.exact else 1e-7  # Lanczos magnifies the rounding of products with other batches
            torch.testing.assert_close(ours[row : row + 1], theirs, rtol=slack, atol=slack)
    assert loss.batch in (None, ITEMS)


def test_rows_of_per_item_weights():
    loss = gp.SquaredDistance(random(3, 2), WEIGHT).rows(torch.tensor([1, 1, 0]))
    assert loss.weight.tolist() == [2.0, 2.0, 0.5]


def test_rows_keep_the_factorisation():
    operator = ops.Gaussian(4, 6, dtype=F64)
    loss = gp.LeastSquares(operator, random(3, 4))
    loss(random(3, 6))
    part = loss.rows(torch.tensor([1]))
    assert part.form is loss.form
    assert torch.equal(part.target, loss.target[1:2])


def test_one_application_of_the_operator_gives_value_and_gradient():
    matrix, calls = random(3, 5), []

    def count(name, result):
        calls.append(name)
        return result

    operator = ops.Linear(lambda x: count("A", x @ matrix.T), lambda y: count("AT", y @ matrix), 5, 3, dtype=F64)
    gradient(gp.LeastSquares(operator, random(2, 3)), random(2, 5))
    assert calls == ["A", "AT"]


@pytest.mark.parametrize("instance", INSTANCES, ids=str)
def test_backprojection(instance):
    a = instance.make()
    y = measurements(a)
    expected = np.einsum("bmd,bm->bd", matrices(instance, a).conj(), y.numpy().reshape(ITEMS, -1)).real
    ours = gp.LeastSquares(a, y).backprojection()
    np.testing.assert_allclose(ours.numpy().reshape(ITEMS, -1), expected, rtol=1e-10, atol=1e-11)


# -- what is refused ------------------------------------------------------------------------------------------------

Y = random(2, 4)
GAUSSIAN = ops.Gaussian(4, 6, dtype=F64)
NAN, INF = Y.clone(), Y.clone()
NAN[0, 0] = math.nan
INF[1, 2] = -math.inf


def squared(**options):
    return lambda: gp.SquaredDistance(**({"y": Y} | options))


def lstsq(y, operator=GAUSSIAN):
    return lambda: gp.LeastSquares(operator, y)


def noise_of(sigma):
    return lambda: gp.LeastSquares(GAUSSIAN, Y, noise=sigma)


def empirical(*args, **options):
    return lambda: gp.EmpiricalRisk(*args, **options)


BAD = [
    (squared(y=NAN), ValueError, "y holds 1 NaN or infinite values of 8: remove or mask them first"),
    (squared(y=INF), ValueError, "y holds 1 NaN or infinite values"),
    (squared(y=Y[0]), ValueError, "y has shape (4,), expected a batch axis first: use y[None]"),
    (squared(y=Y[:0]), ValueError, "y is an empty batch, shape (0, 4)"),
    (squared(y=Y.int()), TypeError, "y must hold floating-point numbers, got torch.int32: use y.float()"),
    (squared(y=Y.tolist()), TypeError, "y must be a torch.Tensor, got list"),
    (squared(y=torch.complex(Y, Y)), TypeError, "y must hold floating-point numbers, got torch.complex128"),
    (squared(weight=-1.0), ValueError, "weight must be a finite number of at least 0, got -1.0"),
    (squared(weight=torch.tensor([1.0, -2.0])), ValueError, "weight must hold finite numbers of at least 0"),
    (squared(weight=torch.ones(3)), ValueError, "weight has 3 values for 2 items in y: give one number or one each"),
    (squared(weight=torch.ones(2, 1)), ValueError, "weight must be a number or a floating-point tensor of shape (B,)"),
    (squared(weight="1"), TypeError, "weight must be a number"),
    (lstsq(NAN), ValueError, "y holds 1 NaN or infinite values of 8"),
    (lstsq(INF), ValueError, "y holds 1 NaN or infinite values of 8"),
    (lstsq(Y[0]), ValueError, "y has shape (4,), expected a batch axis first: use y[None]"),
    (lstsq(Y[:0]), ValueError, "y is an empty batch"),
    (lstsq(Y.int()), TypeError, "y must hold floating-point numbers, got torch.int32"),
    (
        lstsq(torch.zeros(2, 300), ops.Gaussian(392, 400)),
        ValueError,
        "measurements have 300 values, but the operator gives 392: another m? is y transposed (y.T)?",
    ),
    (
        lstsq(random(1, 4, 3), ops.Identity((1, 4, 3))),
        ValueError,
        "y has shape (1, 4, 3), the shape of one item: add the batch axis with y[None]",
    ),
    (
        lstsq(random(2, 4, 3), ops.Identity((1, 4, 3))),
        ValueError,
        "y has shape (2, 4, 3), but the operator gives (B, 1, 4, 3)",
    ),
    (
        lstsq(random(2, 3, 4), ops.Mask(coin(ITEMS, 3, 4), per_item=True, dtype=F64)),
        ValueError,
        "y has 2 items, but the operator is made for 3",
    ),
    (lstsq(Y, torch.eye(4)), TypeError, "operator must be a genprior.operators.Operator, got Tensor: wrap a matrix in"),
    (lstsq(Y, lambda x: x), TypeError, "got function: wrap a matrix in operators.Dense, functions in operators.Linear"),
    (
        lstsq(torch.complex(Y, Y)),
        TypeError,
        "y is complex (torch.complex128), but Gaussian(4, (6,), seed=0) gives real",
    ),
    (lstsq(torch.complex(Y, Y), ops.Identity(4)), TypeError, "y is complex"),
    (noise_of(0.0), ValueError, "noise must be a finite number above 0, got 0.0"),
    (noise_of(torch.tensor(-1.0)), ValueError, "noise must be a finite number above 0, got -1.0"),
    (noise_of("0.1"), TypeError, "noise must be a number"),
    (
        noise_of(torch.ones(6)),
        ValueError,
        "noise has shape (6,), expected a number, (4,) (one per measurement), (2, 4)",
    ),
    (
        noise_of(torch.tensor([1.0, 0, 1, 1])),
        ValueError,
        "noise must hold numbers above 0, got 0: what is known exactly",
    ),
    (noise_of(torch.tensor([1.0, NAN[0, 0], 1, 1])), ValueError, "noise holds 1 NaN"),
    (lambda: gp.Poisson(ops.Identity(4), -Y.abs()), ValueError, "y has 8 negative values (down to -2.18), but counts"),
    (
        lambda: gp.Poisson(ops.Identity(4), Y.abs(), gain=0.0),
        ValueError,
        "gain must be a finite number above 0, got 0.0",
    ),
    (
        lambda: gp.Poisson(ops.Identity(4), Y.abs(), background=-1),
        ValueError,
        "background must be a finite number of at",
    ),
    (
        lambda: gp.Poisson(ops.Identity(4), Y.abs().int()),
        TypeError,
        "y must hold floating-point numbers, got torch.int32",
    ),
    (lambda: gp.Poisson(ops.SubsampledFourier(2, (4,), dtype=F64), Y.abs()), TypeError, "gives complex measurements"),
    (
        lambda: gp.Poisson(ops.Identity(4), torch.complex(Y, Y)),
        TypeError,
        "y is complex (torch.complex128), but counts",
    ),
    (
        lambda: gp.Poisson(torch.eye(4), Y.abs()),
        TypeError,
        "operator must be a genprior.operators.Operator, got Tensor",
    ),
    (lambda: gp.Huber(ops.Identity(4), Y, delta=0.0), ValueError, "delta must be a finite number above 0, got 0.0"),
    (lambda: gp.Huber(ops.Identity(4), Y, noise=0.0), ValueError, "noise must be a finite number above 0, got 0.0"),
    (lambda: gp.Huber(ops.Identity(4), Y, noise=torch.ones(3)), ValueError, "noise has shape (3,), expected a number"),
    (empirical("logistic", INPUTS), TypeError, "loss must be a function of (w, samples), got str"),
    (empirical(quadratic, INPUTS.tolist()), TypeError, "samples must be a tensor or a tuple of tensors, got list"),
    (empirical(quadratic, INPUTS[:0]), ValueError, "samples are empty, shape (0, 4)"),
    (empirical(quadratic, torch.tensor(1.0)), ValueError, "samples are empty, shape ()"),
    (empirical(quadratic, NAN), ValueError, "samples holds 1 NaN or infinite values"),
    (empirical(quadratic, INPUTS, smoothness=0), ValueError, "smoothness must be a finite number above 0"),
    (empirical(quadratic, INPUTS, strong_convexity=-1), ValueError, "strong_convexity must be a finite number of at"),
    (empirical(logistic, (MANY_INPUTS, MANY_LABELS[:2]), per_item=True), ValueError, "samples have [3, 2] items"),
]


@pytest.mark.parametrize(("make", "kind", "message"), BAD, ids=[f"{i} {row[2][:40]}" for i, row in enumerate(BAD)])
def test_refused_at_once(make, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        make()


MISFITS = [
    (gp.SquaredDistance(Y), (5,), F64, ValueError, "y has shape (2, 4), expected (B, 5): y must have the shape of the"),
    (gp.SquaredDistance(Y), (4,), torch.float32, TypeError, "y has dtype torch.float64, but the generator works in"),
    (gp.SquaredDistance(Y.float(), torch.ones(2, dtype=F64)), (4,), torch.float32, TypeError,
     "weight has dtype torch.float64"),
    (gp.LeastSquares(GAUSSIAN, Y), (7,), F64, ValueError, "operator takes signals of shape (6,), but the generator gives"),
    (gp.LeastSquares(GAUSSIAN, Y), (6,), torch.float32, TypeError, "operator works in torch.float64, but the generator"),
    (gp.LeastSquares(ops.Identity(4), Y), (4,), torch.float32, TypeError, "y has dtype torch.float64"),
    (gp.EmpiricalRisk(lambda w, s: w.sum(1), INPUTS), (4,), F64, ValueError,
     "loss gave (2,) for 2 signals, expected (2, n)"),
    (gp.EmpiricalRisk(lambda w, s: (w @ s.T).T, INPUTS), (4,), F64, ValueError, "loss gave (7, 2) for 2 signals"),
    (gp.EmpiricalRisk(lambda w, s: 1.0, INPUTS), (4,), F64, ValueError, "loss gave float for 2 signals"),
    (gp.EmpiricalRisk(lambda w, s: w[:2], MANY_INPUTS, per_item=True), (4,), F64, ValueError,
     "loss gave (2, 4) for 3 signals"),
]  # fmt: skip


@pytest.mark.parametrize(("loss", "shape", "dtype", "kind", "message"), MISFITS)
def test_refused_for_a_generator(loss, shape, dtype, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        loss.check(shape, CPU, dtype)


@every
def test_what_fits_is_accepted(case):
    case.make().check(case.shape, CPU, F64)


def test_another_device_is_refused():
    with pytest.raises(ValueError, match="y is on cpu, but the generator is on meta"):
        gp.SquaredDistance(Y).check((4,), torch.device("meta"), F64)
    with pytest.raises(ValueError, match="y is on cpu, but the generator is on meta"):
        gp.LeastSquares(ops.Identity(4), Y).check((4,), torch.device("meta"), F64)


def test_what_is_not_measured_is_told():
    mask = gp.operators.Mask(torch.tensor([True, False, True]))
    picture = torch.tensor([[1.0, 0.5, 1.0]])
    with pytest.warns(UserWarning, match=r"y has numbers where Mask measures nothing \(0.33 of \|y\|\)"):
        gp.LeastSquares(mask, picture)
    assert float(gp.LeastSquares(mask, mask.measured(picture))(picture)[0]) == 0


def test_a_weight_is_kept_as_it_was():
    weight = torch.ones(2)
    loss = gp.SquaredDistance(torch.zeros(2, 3), weight)
    weight.zero_()
    assert loss(torch.ones(2, 3)).tolist() == [3.0, 3.0]


def test_risks_without_samples_or_with_exchanged_constants():
    with pytest.raises(ValueError, match="samples are an empty tuple"):
        gp.EmpiricalRisk(lambda w, s: w, ())
    with pytest.raises(ValueError, match="is above smoothness"):
        gp.EmpiricalRisk(lambda w, s: w, torch.ones(2), smoothness=1.0, strong_convexity=2.0)


def test_rows_have_the_bits_of_the_whole():
    y = torch.randn(20, 300, generator=torch.Generator().manual_seed(1))
    index = torch.tensor([3])
    asked, fresh = (gp.LeastSquares(ops.Gaussian(300, 784), y) for _ in range(2))
    whole = asked.target[index]
    assert torch.equal(asked.rows(index).target, whole)
    assert torch.equal(fresh.rows(index).target, whole)


# -- the misfit -------------------------------------------------------------------------------------------------------


def counted(*shape, seed):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


MEASURED = ops.Mask(coin(40, 50, seed=3), dtype=F64)
TRUTH = counted(20, 40, 50, seed=1)
SIGMAS = 0.1 + counted(40, 50, seed=2)


def drawn(name):
    """A loss of data that were drawn by its own noise, around the truth."""
    noise = random(*TRUTH.shape, seed=9)
    if name == "poisson":
        rates = 3 * TRUTH + 0.1
        y = torch.poisson(rates, generator=torch.Generator().manual_seed(4))
        return gp.Poisson(MEASURED, MEASURED.measured(y), 3.0, 0.1)
    if name == "complex":
        A = ops.SubsampledFourier(700, (40, 50), dtype=F64)
        y = A.measured(A(TRUTH) + 0.3 * torch.complex(noise, random(*TRUTH.shape, seed=10)))
        return gp.LeastSquares(A, y, noise=0.3)
    if name == "huber":  # by rejection, from a density with tails that are as long
        wide = 6 * torch.tan(math.pi * (counted(40, *TRUTH.shape, seed=5) - 0.5))
        kept = torch.where(wide.abs() <= 0.7, -(wide**2) / 2, 0.7**2 / 2 - 0.7 * wide.abs()).exp() * (
            1 + (wide / 6) ** 2
        )
        r = wide.gather(0, (kept / kept.max() > counted(40, *TRUTH.shape, seed=6)).double().argmax(0, keepdim=True))[0]
        return gp.Huber(MEASURED, MEASURED.measured(TRUTH + 0.5 * r), 0.7, noise=0.5)
    return gp.LeastSquares(MEASURED, MEASURED.measured(TRUTH + SIGMAS * noise), noise=SIGMAS)


@pytest.mark.parametrize("name", ["gaussian", "complex", "poisson", "huber"])
def test_the_misfit_of_the_truth_is_its_expectation(name):
    loss = drawn(name)
    value, expected = loss.misfit(TRUTH)
    assert value.shape == expected.shape == (20,)
    assert float(value.mean() / expected.mean()) == pytest.approx(1, abs=0.03)
    if name == "complex":
        assert expected.tolist() == [1400.0] * 20
    index = torch.tensor([3, 3, 0])
    torch.testing.assert_close(loss.rows(index).misfit(TRUTH[index]).ratio, loss.misfit(TRUTH).ratio[index])


def test_without_noise_there_is_no_misfit():
    assert gp.LeastSquares(GAUSSIAN, Y).misfit(random(2, 6)) is None
    assert gp.SquaredDistance(Y).misfit(Y) is None


def test_a_noise_level_leaves_the_users_units():
    w, sigma = random(2, 6), 0.03
    plain, scaled = gp.LeastSquares(GAUSSIAN, Y), gp.LeastSquares(GAUSSIAN, Y, noise=sigma)
    torch.testing.assert_close(scaled(w), plain(w) / sigma**2)
    torch.testing.assert_close(scaled.relative_residual(scaled(w)), plain.relative_residual(plain(w)))
    assert scaled.observed()[0] is GAUSSIAN
    assert torch.equal(scaled.observed()[1], Y)
    scores = scaled.start_scores(random(5, 6), 2)
    torch.testing.assert_close(scores, plain.start_scores(random(5, 6), 2) / sigma**2)


@pytest.mark.parametrize("make", [lambda A, y: gp.Poisson(A, y, 2.0, 30.0), lambda A, y: gp.Huber(A, y, 0.7)])
def test_start_scores_are_the_losses(make):
    A = ops.Dense(random(4, 6).abs())
    loss, signals = make(A, random(3, 4).abs().round()), random(5, 6)
    for row, item in zip(loss.start_scores(signals, 3), range(3), strict=True):
        torch.testing.assert_close(row, loss.rows(torch.full((5,), item))(signals))


def test_readout_noise_adds_its_variance():
    rates = 3 * TRUTH + 0.1
    y = torch.poisson(rates, generator=torch.Generator().manual_seed(4)) + 2 * random(*TRUTH.shape, seed=11)
    loss = gp.Poisson(MEASURED, MEASURED.measured(y).clamp_min(-4), 3.0, 0.1, readout=2.0)
    assert float(loss.misfit(TRUTH).ratio.mean()) == pytest.approx(1, abs=0.03)
    operator, plain = loss.observed()
    torch.testing.assert_close(plain.mean(), MEASURED(TRUTH).mean(), rtol=0.05, atol=0)
    assert operator is MEASURED


def test_counts_forbid_means_that_cannot_be():
    loss = gp.Poisson(ops.Identity(2), torch.tensor([[1.0, 0.0]] * 3), background=0.5)
    w = torch.tensor([[-0.5, 0.0], [1.0, -0.5], [1.0, -0.6]])
    assert loss(w).isinf().tolist() == [True, False, True]
    assert bool((loss.gradient(w, loss.evaluate(w)[1])[[0, 2], [0, 1]] < 0).all())  # back into the domain
    assert loss(w.fill_(math.nan)).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
def test_counts_far_above_their_mean_have_a_finite_value(dtype):
    """For ``u`` below ``eps y`` the ratio ``u/y - 1`` is -1, whose log1p is infinite; around 1/2 both forms meet."""
    y = torch.tensor([[20.0, 1e4, 20.0, 20.0, 20.0]], dtype=dtype)
    u = torch.tensor([[1e-9, 1e-30, 9.999999, 10.000001, 20.0]], dtype=dtype)
    exact = [a - b + b * (math.log(b) - math.log(a)) for a, b in zip(u[0].tolist(), y[0].tolist(), strict=True)]
    found = gp.losses.PoissonLikelihood().value(u, y)[0].tolist()
    assert found == pytest.approx(exact, rel=20 * torch.finfo(dtype).eps, abs=0)


class OwnSquares(gp.LeastSquares):
    """Losses of users, to see that they stay theirs."""


class OwnHuber(gp.Huber):
    """The same for a likelihood."""


@pytest.mark.parametrize("kind", [OwnSquares, OwnHuber])
@pytest.mark.parametrize("shape", [(4,), (3, 4), (3, 1)], ids=str)
def test_an_operator_that_learns_its_shapes_late(kind, shape):
    """The loss is the one for the matrix, with any noise level; and of its own class, as a whole and of some items."""
    matrix, y, w, noise = random(4, 6), random(3, 4), random(3, 6), 0.5 + random(*shape).abs()
    late = kind(ops.Linear(lambda x: x @ matrix.T, lambda v: v @ matrix), y, noise=noise)
    loss = late.bound((6,), CPU, F64)
    assert loss.operator.measurement_shape == (4,)
    direct = kind(ops.Dense(matrix), y, noise=noise)
    torch.testing.assert_close(loss(w), direct(w))
    torch.testing.assert_close(loss.gradient(w, loss.evaluate(w)[1]), direct.gradient(w, direct.evaluate(w)[1]))
    index = torch.tensor([2, 0])
    torch.testing.assert_close(loss.rows(index)(w[index]), direct(w)[index])
    assert type(loss) is type(loss.rows(index)) is type(direct.rows(index)) is kind
    with pytest.raises(ValueError, match="measurements have 3 values, but the operator gives 4"):
        kind(ops.Linear(lambda x: x @ matrix.T, lambda v: v @ matrix), y[:, :3]).bound((6,), CPU, F64)


def test_rows_of_a_subclass_are_of_its_class():
    class Near(gp.SquaredDistance):
        pass

    class Measured(gp.NonLinear):
        pass

    for loss in (Near(Y), Measured(torch.square, Y)):
        assert type(loss.rows(torch.tensor([1]))) is type(loss)
