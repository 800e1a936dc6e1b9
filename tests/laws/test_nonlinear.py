"""Losses of measurements that are not linear: values, gradients, columns, starts, solutions, and what is refused."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import nn

import genprior as gp
from genprior.losses import PoissonLikelihood
from genprior.solvers import envelope
from genprior.testing import LossLaws
from tests.resuming import Crash, assert_same_run, stop_at

from .operators.instances import F64, random

ITEMS = 3
W, V = random(5, 6, seed=1), random(5, 6, seed=2)
EXPOSURES = random(ITEMS, 5, seed=3).abs() + 0.2
SIGMA = random(5, seed=4).abs() + 0.3


def product(x):
    return x.flatten(1) @ W.T


@dataclass(frozen=True)
class Case:
    """A loss, and its residual for item i at a flat numpy vector, written independently; or its value."""

    name: str
    make: Callable[[], gp.NonLinear]
    residual: Callable[[int, np.ndarray], np.ndarray] | None
    value: Callable[[int, np.ndarray], float] | None = None

    def __str__(self):
        return self.name

    def __call__(self, i, w):
        return self.value(i, w) if self.residual is None else 0.5 * (self.residual(i, w) ** 2).sum()


def case(name, forward, theirs, *, y=None, sigma=1.0, **options):
    y = random(ITEMS, 5, seed=5) if y is None else y

    def residual(i, w):
        e = (theirs(i, w) - y[i].numpy()) / np.asarray(sigma)
        return np.stack([e.real, e.imag], axis=-1).ravel() if np.iscomplexobj(e) else e.ravel()

    return Case(name, lambda: gp.NonLinear(forward, y, **options), residual)


COUNTS = random(ITEMS, 5, seed=6).abs().mul(5).round()
w, v = W.numpy(), V.numpy()
CASES = [
    case("intensities", lambda x: product(x).square(), lambda i, x: (w @ x) ** 2),
    case("magnitudes", lambda x: product(x).abs(), lambda i, x: abs(w @ x)),
    case(
        "complex",
        lambda x: product(x) * torch.exp(1j * (x.flatten(1) @ V.T)),
        lambda i, x: (w @ x) * np.exp(1j * (v @ x)),
        y=torch.complex(random(ITEMS, 5, seed=7), random(ITEMS, 5, seed=8)),
        sigma=0.5,
        noise=0.5,
    ),
    case("saturated", lambda x: product(x).tanh(), lambda i, x: np.tanh(w @ x), sigma=SIGMA.numpy(), noise=SIGMA),
    case(
        "exposure per item",
        lambda x, t: torch.expm1(t * product(x).tanh()),
        lambda i, x: np.expm1(EXPOSURES[i].numpy() * np.tanh(w @ x)),
        parameters=EXPOSURES,
    ),
    Case(
        "counts",
        lambda: gp.NonLinear(lambda x: product(x).exp(), COUNTS, noise=PoissonLikelihood(2.0, 0.5)),
        None,
        lambda i, x: sum(
            u - k + (k * np.log(k / u) if k else 0)
            for u, k in zip(2 * np.exp(w @ x) + 0.5, COUNTS[i].numpy(), strict=True)
        ),
    ),
]
SQUARES = [one for one in CASES if one.residual is not None]
every = pytest.mark.parametrize("case", CASES, ids=str)
squares = pytest.mark.parametrize("case", SQUARES, ids=str)


def points(seed=21):
    return random(ITEMS, 2, 3, seed=seed)


def jacobian(case, x, h=1e-6):
    """De by differences of the independent residual, ``(B, m, d)``."""
    out = []
    for i in range(ITEMS):
        flat = x[i].numpy().ravel()
        steps = h * np.eye(flat.size)
        out.append(
            np.stack([(case.residual(i, flat + e) - case.residual(i, flat - e)) / (2 * h) for e in steps], axis=1)
        )
    return np.stack(out)


@every
def test_value_and_gradient(case):
    loss, x = case.make(), points()
    expected = [case(i, x[i].numpy().ravel()) for i in range(ITEMS)]
    value, residual = loss.evaluate(x)
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    np.testing.assert_allclose(loss(x), expected, rtol=1e-10)
    slopes = np.stack(
        [scipy.optimize.approx_fprime(x[i].numpy().ravel(), lambda p, i=i: case(i, p)) for i in range(ITEMS)]
    )
    np.testing.assert_allclose(loss.gradient(x, residual).flatten(1), slopes, rtol=1e-4, atol=1e-5)


@squares
def test_residual_and_its_columns(case):
    loss, x = case.make(), points()
    e = loss.squares(x, loss.evaluate(x)[1])
    np.testing.assert_allclose(e, np.stack([case.residual(i, x[i].numpy().ravel()) for i in range(ITEMS)]), rtol=1e-10)
    tangents = torch.eye(6, dtype=F64).reshape(6, 1, 2, 3).expand(6, ITEMS, 2, 3)
    columns = loss.squares_jvp(x, tangents).permute(1, 2, 0)
    np.testing.assert_allclose(columns, jacobian(case, x), rtol=1e-6, atol=1e-8)


@squares
def test_curvature_is_that_of_the_gauss_newton_matrix(case):
    loss, x = case.make(), points()
    matrix = jacobian(case, x)
    largest = np.linalg.norm(matrix, ord=2, axis=(1, 2)) ** 2
    mu, nu = loss.curvature(x)
    assert mu.tolist() == [0.0] * ITEMS
    assert (nu.numpy() > 0.98 * largest).all() and (nu.numpy() < 1.11 * largest).all()
    along = (np.einsum("bmd,bd->bm", matrix, x.flatten(1).numpy()) ** 2).sum(1) / x.flatten(1).square().sum(1).numpy()
    np.testing.assert_allclose(loss.typical_curvature(x), along, rtol=1e-5)


@every
def test_starts_are_ranked_by_the_loss(case):
    loss, pool = case.make(), random(7, 2, 3, seed=9)
    expected = [[case(i, signal.numpy().ravel()) for signal in pool] for i in range(ITEMS)]
    np.testing.assert_allclose(loss.start_scores(pool, ITEMS), expected, rtol=1e-9)


class TestLaws(LossLaws):
    """The laws of all losses, those of convex ones aside."""

    shape = (2, 3)

    def instances(self):
        return {one.name: one.make for one in CASES}


# -- solutions -----------------------------------------------------------------------------------------------------------


def curved(size=4, signal=12, seed=0):
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(size, 10), nn.Tanh(), nn.Linear(10, signal)).double()
    return gp.Generator(module, size, signal)


def intensities(m=20, signal=12, seed=3):
    matrix = random(m, signal, seed=seed)
    return lambda x: (x @ matrix.T).square()


def posed(items=4, **options):
    G, f = curved(), intensities()
    x = G(G.sample_latent(items, seed=5)).detach()
    return gp.Problem(G, gp.NonLinear(f, f(x)), **options), x


@pytest.mark.parametrize(
    "solver",
    [gp.Auto(), gp.QuasiNewton(), gp.LBFGS(), gp.LevenbergMarquardt(), gp.LevenbergMarquardt(refresh=1)],
    ids=repr,
)
def test_exact_data_are_fitted_to_rounding(solver):
    problem, x = posed()
    found = gp.solve(problem, solver, restarts=8, progress=False)
    assert found.converged
    torch.testing.assert_close(found.signal, x, rtol=0, atol=1e-4)
    assert bool((found.residual < 1e-5).all())


def test_residual_jacobian_by_differences():
    problem, _ = posed()
    G, loss, h = problem.generator, problem.loss, 1e-6
    z, d = G.sample_latent(4, seed=1), random(4, 4, seed=2)

    def e(z):
        return loss.squares(G(z).detach(), None)

    M = envelope.residual_jacobian(problem, z, G(z).detach())
    torch.testing.assert_close(
        (M @ d[:, :, None])[:, :, 0], (e(z + h * d) - e(z - h * d)) / (2 * h), rtol=1e-6, atol=1e-8
    )


def test_one_call_of_f_and_one_backward_pass_per_step():
    calls = {"forward": 0, "backward": 0}
    f = intensities()

    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            calls["forward"] += 1
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            calls["backward"] += 1
            return g

    G = curved()
    x = G(G.sample_latent(2, seed=5)).detach()
    problem = gp.Problem(G, gp.NonLinear(lambda x: f(Counted.apply(x)), f(x) + 1.0))
    counts = []
    for steps in (5, 15):
        calls.update(forward=0, backward=0)
        solver = gp.QuasiNewton()
        gp.solve(problem, solver, restarts=1, stop=gp.MaxSteps(steps), check_every=100, tolerance=1e-12, progress=False)
        counts.append(dict(calls))
    assert {name: counts[1][name] - counts[0][name] for name in calls} == {"forward": 10, "backward": 10}


class Once(torch.autograd.Function):
    """A square with a gradient, and neither forward mode nor a second derivative."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g


def test_a_function_with_gradients_alone():
    G, A = curved(), random(20, 12, seed=3)
    x = G(G.sample_latent(3, seed=5)).detach()
    problem = gp.Problem(G, gp.NonLinear(lambda x: Once.apply(x @ A.T), (x @ A.T).square()))
    found = gp.solve(problem, restarts=8, progress=False)  # Auto asks for Gauss-Newton matrices, and goes on without
    torch.testing.assert_close(found.signal, x, rtol=0, atol=1e-4)
    with pytest.raises(ValueError, match="forward has gradients but no Jacobian"):
        gp.solve(problem, gp.LevenbergMarquardt(), progress=False)
    assert G.no_jacobian is None, "the generator has one"


TERMS = {
    "l1": lambda away: 0.5 * gp.L1().around(away),
    "quadratic": lambda away: 0.7 * gp.SquaredL2().around(away),
    "box": lambda away: gp.Box(-0.4, 0.4),
}


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize(
    "solver",
    [gp.Auto(), gp.ADMM(z_step=gp.z_steps.Spectral(), dual=gp.duals.Adaptive()), gp.ExactADMM()],
    ids=["auto", "spectral", "exact"],
)
def test_terms_on_the_signal_against_brute_force(name, solver):
    """The least value over a grid of two latent numbers, refined by Nelder and Mead, for a loss that is not convex."""
    G, f = curved(2, 9), intensities(12, 9)
    x = G(G.sample_latent(1, seed=5)).detach()
    problem = gp.Problem(G, gp.NonLinear(f, f(x)), on_signal=TERMS[name](x + 0.3 * random(1, 9, seed=6)))
    axis = torch.linspace(-4, 4, 41, dtype=F64)
    grid = torch.cartesian_prod(axis, axis)
    values = torch.cat(
        [problem.rows(torch.zeros(len(part), dtype=torch.long)).objective(part) for part in grid.split(1000)]
    )
    best = grid[values.argsort()[:2]]

    def value(z):
        return min(float(problem.objective(torch.tensor(z[None]))), 1e9)

    options = {"xatol": 1e-10, "fatol": 1e-12}
    expected = min(scipy.optimize.minimize(value, z.numpy(), method="Nelder-Mead", options=options).fun for z in best)
    found = gp.solve(problem, solver, z0=best.reshape(1, 2, 2), restarts=2, stop=gp.MaxSteps(500), progress=False)
    loose = 2e-5 if isinstance(solver, gp.Auto) else 1e-3
    assert float(found.objective) == pytest.approx(expected, rel=loose, abs=1e-6)


def test_converged_is_stationary():
    """Where a solve says CONVERGED, scipy's BFGS finds nothing lower nearby."""
    problem, _ = posed(6, on_latent=0.05 * gp.SquaredL2())
    found = gp.solve(problem, restarts=1, progress=False)
    assert found.converged
    for i in range(6):
        one = problem.rows(torch.tensor([i]))
        best = scipy.optimize.minimize(
            lambda z, one=one: float(one.objective(torch.tensor(z[None]))), found.z[i].numpy()
        )
        assert best.fun == pytest.approx(float(found.objective[i]), rel=1e-8, abs=1e-10)


@pytest.mark.parametrize("solver", [gp.Auto(), gp.ExactADMM()], ids=["auto", "exact"])
def test_resumed_runs_give_the_same_bits(solver, tmp_path):
    def solve(**options):
        problem, _ = posed(3, on_signal=0.1 * gp.L1())
        return gp.solve(problem, solver, stop=gp.MaxSteps(40), restarts=2, seed=1, progress=False, **options)

    whole = solve()
    file = gp.Checkpoint(tmp_path / "run", steps=7)
    with pytest.raises(Crash):
        solve(checkpoint=file, callbacks=[stop_at(20, Crash())])
    assert_same_run(solve(checkpoint=file), whole)


def test_a_certificate_is_not_given():
    problem, _ = posed()
    with pytest.raises(ValueError, match=r"a certificate needs a convex loss.*got NonLinear"):
        gp.theory.certify(problem)


# -- what is refused -----------------------------------------------------------------------------------------------------


class Mixing(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, x):
        return self.change(x)


RAMP = gp.Generator(nn.Sequential(nn.Linear(3, 6), nn.ReLU()).double(), 3, 6)
WRONG = {
    "shape": (lambda x: x[:, :5], "forward gave shape .4, 5. for 4 signals, expected .4, 6.*correct forward, or y"),
    "one number": (lambda x: x.sum(), "forward gave shape .. for 4 signals"),
    "detached": (lambda x: x.detach() * 2, "forward is not differentiable"),
    "numpy": (lambda x: torch.as_tensor(np.tanh(x.numpy())), r"forward failed .*numpy.*written with torch throughout"),
    "argmax": (lambda x: nn.functional.one_hot(x.argmax(1), 6).double(), "forward is not differentiable"),
    "rounded": (lambda x: (4 * x).round(), "the derivative of forward is zero at 4 samples"),
    "logarithm": (lambda x: x.log(), "forward gave .* NaN or infinite measurements.*logarithm"),
    "root": (lambda x: x.sqrt(), "the derivative of forward is NaN or infinite.*square root has no derivative at 0"),
    "batch mean": (lambda x: x - x.mean(0), "other measurements when it is called with other items"),
    "batch norm": (nn.BatchNorm1d(6).double(), "other measurements when it is called with other items.*module.eval"),
    "dropout": (nn.Dropout(0.5), "other measurements when it is called with other items"),
    "fixed batch": (lambda x: x * torch.ones(2, 6, dtype=F64), "forward failed on samples.*for any n"),
    "float32": (lambda x: x.float(), "forward gave torch.float32, but y is torch.float64"),
    "complex": (lambda x: x * 1j, "forward gave torch.complex128, but y is torch.float64"),
    "a list": (lambda x: [x], "forward gave list, expected a torch.Tensor"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_functions_are_refused_when_the_problem_is_made(name):
    forward, message = WRONG[name]
    with pytest.raises((ValueError, TypeError), match=message):
        gp.Problem(RAMP, gp.NonLinear(forward, random(2, 6)))


def test_wrong_arguments_are_refused():
    y = random(2, 6)
    for arguments, options, message in (
        ((3, y), {}, "forward must be a function"),
        ((product, y[0]), {}, "expected a batch axis"),
        ((product, y), {"noise": 0.0}, "noise must be a finite number above 0"),
        ((product, y), {"noise": torch.zeros(6)}, "noise must hold numbers above 0"),
        ((product, y), {"noise": torch.ones(5)}, "noise has shape"),
        ((product, y), {"parameters": [1.0]}, r"parameters\[0\] must be a tensor with one row per item"),
        ((product, y), {"parameters": random(3, 6)}, r"parameters\[0\] has shape .3, 6. for 2 items"),
        ((product, -y.abs()), {"noise": PoissonLikelihood()}, "counts are at least 0"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            gp.NonLinear(*arguments, **options)
    with pytest.raises(TypeError, match=r"y has dtype torch.float32"):
        gp.Problem(RAMP, gp.NonLinear(torch.tanh, y.float()))


def test_a_derivative_that_is_lost_on_the_way_is_told():
    """At all samples the root has a derivative; where the search goes, its argument is negative."""
    net = nn.Linear(2, 3).double()
    with torch.no_grad():
        net.weight.copy_(torch.eye(3, 2))
        net.bias.fill_(6.0)
    G = gp.Generator(net, 2, 3)
    loss = gp.NonLinear(lambda x: torch.where(x > 0, x, 0.0 * x).sqrt(), -torch.ones(1, 3, dtype=F64))
    problem = gp.Problem(G, loss)
    with pytest.warns(UserWarning, match="NaN or infinite at a signal of the search: the square root"):
        gp.solve(problem, restarts=1, stop=gp.MaxSteps(60), progress=False)


def test_the_check_is_not_counted_and_happens_once():
    calls = []

    def f(x):
        calls.append(len(x))
        return x.tanh()

    G = curved(3, 6)
    problem = gp.Problem(G, gp.NonLinear(f, random(1, 6)))
    assert G.forwards == G.backwards == 0
    assert calls == [4, 2], "more signals than y has items, and some of them alone"
    problem.rows(torch.tensor([0, 0]))
    assert len(calls) == 2


# -- starts --------------------------------------------------------------------------------------------------------------


def test_a_lost_sign_is_found_from_the_nearest_samples():
    """Magnitudes: half of the random starts end at a wrong sign pattern, none of those chosen by their measurements."""
    torch.manual_seed(1)
    G = gp.Generator(nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 30), nn.Sigmoid()).double(), 6, 30)
    A = random(24, 30, seed=5)
    x = G(2 * G.sample_latent(12, seed=4)).detach()
    problem = gp.Problem(G, gp.NonLinear(lambda x: (x @ A.T).abs(), (x @ A.T).abs()))

    def share(**options):
        found = gp.solve(problem, progress=False, **options)
        return float(((found.signal - x).norm(dim=1) < 0.05 * x.norm(dim=1)).double().mean())

    assert share() == 1.0
    assert math.isfinite(share(z0=G.sample_latent(12, seed=9), restarts=1))


def test_a_constraint_is_penalised_although_the_loss_is_flat_at_zero():
    """Intensities have the gradient 0 at the signal 0, where the weight of a convex loss's penalty comes from."""
    G, f = curved(2, 9), intensities(12, 9)
    x = G(G.sample_latent(2, seed=5)).detach()
    problem = gp.Problem(G, gp.NonLinear(f, 100 * f(x)), on_signal=gp.Box(-0.01, 0.01))
    z = G.sample_latent(2, seed=6)
    point = problem.evaluate(G(z).detach(), z)
    outside = problem.on_signal.violation(G(z).detach())
    assert bool(((point.score - point.loss) > 10 * outside).all())
