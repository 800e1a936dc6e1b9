"""What is judged, and when: trial points, points outside of a domain, neighbours that end, numbers in another precision."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import genprior as gp
from genprior import _batch
from genprior._fingerprint import fingerprint
from genprior.loop.rows import Divergence, Progress, Rows
from genprior.solvers.base import Solver

F64 = torch.float64


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


class Matrix(nn.Module):
    def __init__(self, matrix):
        super().__init__()
        self.register_buffer("matrix", matrix)

    def forward(self, z):
        return z @ self.matrix.T


def linear(matrix):
    return gp.Generator(Matrix(matrix), matrix.shape[1], matrix.shape[0])


def test_a_rejected_trial_in_a_flat_region_is_no_verdict():
    """From -8 the first trial of a tanh lands far out on the other side, where its gradient is exactly zero."""
    net = gp.Generator(Squashed(), 1, 1)
    result = gp.solve(
        gp.Problem(net, gp.SquaredDistance(torch.tensor([[-0.9]]))), gp.LBFGS(), z0=torch.tensor([[-8.0]])
    )
    assert result.status[0] != gp.Status.CONVERGED or float(result.objective) < 1e-6


class Squashed(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("one", torch.ones(()))

    def forward(self, z):
        return torch.tanh(z) * self.one


def test_without_a_verdict_nothing_has_converged():
    """Between two targets a projection judges nothing: until the first verdict, its residual is not known."""
    net = linear(torch.diag(torch.tensor([10.0, 1.0], dtype=F64)))
    z0 = torch.zeros(1, 2, dtype=F64)
    problem = gp.Problem(net, gp.SquaredDistance(torch.tensor([[-0.02, -1.0]], dtype=F64), 0.5))
    result = gp.solve(problem, gp.ProjectedGradient(z_step=gp.z_steps.Spectral()), z0=z0, stop=gp.MaxSteps(400))
    assert result.status[0] != gp.Status.CONVERGED or float(result.objective) < 1e-9


@pytest.mark.parametrize("share", [0.1, 1.0, 5.0])
def test_the_residual_in_w_is_bounded_whatever_the_dual_step(share):
    matrix, operator = normal(6, 2, seed=1), gp.operators.Dense(normal(4, 6, seed=2))
    problem = gp.Problem(linear(matrix), gp.LeastSquares(operator, normal(3, 4, seed=3)))
    solver = gp.ADMM(dual=gp.duals.Constant(share * 0.7), penalty=gp.penalties.Constant(0.7))
    state = solver.start(problem, normal(3, 2, seed=4))
    for _ in range(6):
        state = solver.step(problem, state)
        size = torch.maximum(_batch.norm(state.w), 0.1 * state.extent)
        reported = solver.residuals(problem, state)[1] * (state.units.gradient(size) + _batch.norm(state.lam))
        slope = problem.loss.gradient(state.w, problem.loss.evaluate(state.w)[1]) + state.lam
        assert bool((_batch.norm(slope) <= reported * (1 + 1e-9)).all())


@dataclass(frozen=True)
class Barrier(gp.Term):
    """``-sum log x``, infinite where an entry is not positive."""

    def __call__(self, x):
        inside = (x > 0).all(dim=1)
        return torch.where(inside, -torch.where(x > 0, x, 1.0).log().sum(dim=1), torch.inf)

    def prox(self, v, t):
        return (v + (v * v + 4 * _batch.spread(t, v)).sqrt()) / 2

    def subgradient(self, x):
        return torch.where(x > 0, -1 / x, 0.0)


@pytest.mark.parametrize("solver", [gp.Auto(), gp.ExactADMM(z_step=gp.z_steps.Gradient())], ids=["Auto", "ADMM"])
def test_a_start_outside_of_the_domain_is_no_divergence(solver):
    matrix = torch.cat([torch.eye(2, dtype=F64), torch.ones(1, 2, dtype=F64)])
    problem = gp.Problem(linear(matrix), gp.SquaredDistance(torch.full((1, 3), 2.0, dtype=F64)), on_signal=Barrier())
    result = gp.solve(problem, solver, z0=torch.full((1, 2), -1.0, dtype=F64), stop=gp.MaxSteps(2000))
    assert int(result.rollbacks[0]) == 0
    assert bool(result.objective.isfinite().all())
    z = torch.linspace(0.5, 2, 3001, dtype=F64)[:, None].expand(-1, 2)  # by symmetry both are equal
    assert float(result.objective) == pytest.approx(float(problem_on(z, matrix).min()), rel=1e-3)


def problem_on(z, matrix):
    x = z @ matrix.T
    return ((x - 2) ** 2).sum(dim=1) - x.log().sum(dim=1)


def test_progress_is_seen_once_the_domain_is_reached():
    matrix = torch.eye(2, dtype=F64)
    problem = gp.Problem(linear(matrix), gp.SquaredDistance(torch.ones(1, 2, dtype=F64)), on_signal=Barrier())
    rows = Rows.open(problem, gp.Auto().solver(problem), torch.full((1, 2), -1.0, dtype=F64))
    assert rows.marks.score.isinf().all()
    moved = rows.marks.updated(torch.tensor([3.0], dtype=F64), rows.stationarity, 40, Progress())
    assert moved.step.tolist() == [40] and moved.score.tolist() == [3.0]


class Slow(Solver):
    """Gradient descent that tells a residual which never falls: progress is in the objective alone."""

    def start(self, problem, z):
        return gp.GradientDescent(0.25).start(problem, z)

    def step(self, problem, state):
        return gp.GradientDescent(0.25).step(problem, state)

    def residuals(self, problem, state):
        return torch.zeros_like(state.score), torch.ones_like(state.score)


def test_an_item_that_meets_its_target_leaves_its_neighbours_alone():
    """The second one last improves between the end of the first and the next check: that it is seen then decides its end."""
    matrix = torch.eye(3, 2, dtype=F64)
    data = torch.tensor([[1.0, 1.0, 0.0], [3**0.5, 0.0, 1.5]], dtype=F64)
    options = {"stop": gp.Target(1e-3) | gp.MaxSteps(47), "check_every": 10, "tolerance": 0.0, "patience": 15}

    def run(items):
        problem = gp.Problem(linear(matrix), gp.SquaredDistance(data[items], 0.5))
        return gp.solve(problem, Slow(), z0=torch.zeros(len(items), 2, dtype=F64), **options)

    both, alone = run([0, 1]), run([1])
    assert both.steps[0] < both.steps[1] and both.steps[0] % 10, "the first ends between two checks"
    assert both.steps[1] == alone.steps[0] == 40 and both.status[1] == gp.Status.SETTLED
    for name in ("step", "objective", "gap", "stationarity"):
        one, other = both.history.item(1)[name], alone.history.item(0)[name]
        torch.testing.assert_close(torch.as_tensor(one), torch.as_tensor(other), rtol=0, atol=0, equal_nan=True)


def test_a_target_ends_all_restarts_of_the_item():
    matrix = normal(5, 2, seed=1)
    truth = normal(2, 2, seed=2)
    starts = torch.stack([normal(2, 2, seed=3), truth, normal(2, 2, seed=4)], dim=1)
    starts[1, 1] = 5.0

    def run(items):
        problem = gp.Problem(linear(matrix), gp.SquaredDistance(truth[:items] @ matrix.T))
        stop = gp.Target(1e-9) | gp.MaxSteps(7)
        return gp.solve(problem, gp.GradientDescent(1e-6), z0=starts[:items], stop=stop, cull_after=10**6)

    both, first = run(2), run(1)
    assert first.forwards == 1, "no restart goes on"
    assert [status.name for status in both.status] == ["TARGET", "MAX_STEPS"]
    assert both.steps.tolist() == [0, 7] and int(both.restart[0]) == 1


def test_a_row_that_is_rolled_back_gets_new_patience():
    matrix = normal(5, 2, seed=1)
    problem, solver = gp.Problem(linear(matrix), gp.SquaredDistance(normal(2, 5, seed=2))), gp.GradientDescent()
    rows = Rows.open(problem, solver, normal(2, 2, seed=3))
    rows = replace(rows, marks=replace(rows.marks, step=torch.tensor([3, 4])))
    back = rows.rolled_back(problem, solver, torch.tensor([True, False]), 700, Divergence())
    assert back.marks.step.tolist() == [700, 4]
    assert back.stalled(710, 500).tolist() == [False, True]


@pytest.mark.parametrize("kind", ["gaussian", "blur", "hadamard"])
def test_operators_moved_to_a_finer_precision_are_exact_in_it(kind):
    make = {
        "gaussian": lambda: gp.operators.Gaussian(20, (1, 6, 6), seed=0),
        "blur": lambda: gp.operators.Blur(1.2, (1, 6, 6)),
        "hadamard": lambda: gp.operators.SubsampledHadamard(20, (1, 6, 6), seed=0),
    }
    coarse = make[kind]()
    coarse.resolvent(torch.ones(1, 1, 6, 6), 0.1)
    coarse.gram_bounds()
    fine = coarse.to(dtype=F64)
    v = normal(2, 1, 6, 6, seed=1)
    u = fine.resolvent(v, 0.1)
    torch.testing.assert_close(fine.adjoint(fine(u)) + 0.1 * u, v, rtol=1e-11, atol=1e-11)
    gram = fine.dense().mT @ fine.dense()
    torch.testing.assert_close(fine.gram_bounds()[1], torch.linalg.eigvalsh(gram)[-1], rtol=1e-11, atol=0)
    form = fine.row_form()
    if form is not None:
        y = fine(normal(2, 1, 6, 6, seed=2))
        torch.testing.assert_close(
            _batch.norm(form.forward(v) - form.rotate(y)), _batch.norm(fine(v) - y), rtol=1e-11, atol=0
        )


def test_samples_in_another_precision_are_named():
    net = gp.Generator(nn.Linear(2, 3), 2, 3)
    risk = gp.EmpiricalRisk(lambda w, s: (w[:, None, :] - s).square().sum(dim=2), normal(5, 3))
    with pytest.raises(TypeError, match=r"loss gave torch.float64 .* samples"):
        gp.Problem(net, risk)


def test_a_function_with_both_shapes_is_called_in_the_precision_of_the_generator():
    matrix = normal(3, 5, seed=1)
    operator = gp.operators.Linear(lambda x: x @ matrix.T, lambda y: y @ matrix, 5, 3)
    net = linear(normal(5, 2, seed=2))
    y = operator(net(normal(2, 2, seed=3)))
    result = gp.solve(gp.Problem(net, gp.LeastSquares(operator, y)), gp.ExactADMM(z_step=gp.z_steps.Gradient()))
    assert result.signal.dtype == F64
    whole = gp.operators.Identity(3) @ operator
    assert gp.solve(gp.Problem(net, gp.LeastSquares(whole, y))).converged


def test_data_that_a_function_finds_in_its_module_tell_runs_apart():
    first, same, other = (eval("lambda w: w * y", {"y": torch.full((2,), value)}) for value in (1.0, 1.0, 2.0))
    assert fingerprint(first) == fingerprint(same) != fingerprint(other)


def test_total_variation_is_followed_by_autograd():
    term = gp.TotalVariation()
    x = normal(2, 1, 5, 4, seed=1)
    x[1] = 0.5  # flat: the gradient is zero there, not NaN
    leaf = x.clone().requires_grad_()
    value = term(leaf)
    torch.testing.assert_close(value.detach(), term(x))
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    torch.testing.assert_close(gradient, term.subgradient(x))
