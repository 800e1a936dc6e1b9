"""Limits are promises: whatever a solver prepares counts, is scaled to them, and no pass begins when the time is over."""

import time

import pytest
import torch
from torch import nn

import genprior as gp

PASS = 0.08


class Slow(nn.Module):
    """Takes as long for each item and pass, forward and back."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 20)).double()

    def forward(self, z):
        time.sleep(PASS * len(z) / 2)
        x = self.net(z)
        if x.requires_grad:
            x.register_hook(lambda _: time.sleep(PASS * len(z) / 2))
        return x


def problem():
    G = gp.Generator(Slow(), 12, 20)
    with torch.no_grad():
        y = G.module.net(G.sample_latent(2, seed=7))
    return gp.Problem(G, gp.SquaredDistance(y))


CURVATURE = {
    "Auto": gp.Auto(),
    "LM": gp.LevenbergMarquardt(),
    "ADMM Gauss-Newton": gp.ADMM(z_step=gp.z_steps.GaussNewton()),
    "ADMM Gauss-Newton, CG": gp.ADMM(z_step=gp.z_steps.GaussNewton(dense=False)),
    "QuasiNewton, refreshed": gp.QuasiNewton(refresh=1),
    "Adam": gp.Adam(),
}


@pytest.mark.parametrize("solver", CURVATURE.values(), ids=CURVATURE)
@pytest.mark.usefixtures("simulated_clock")
def test_a_time_limit_is_overrun_by_one_pass_at_most_and_a_step_is_made(solver):
    limit = 6 * PASS
    result = gp.solve(problem(), solver, stop=gp.Seconds(limit), tolerance=0)
    assert set(result.status) == {gp.Status.OUT_OF_TIME}
    assert limit <= result.seconds < limit + (2 + 1e-6) * PASS, "a pass of both items"
    assert result.steps.min() >= 1


@pytest.mark.parametrize("solver", CURVATURE.values(), ids=CURVATURE)
@pytest.mark.parametrize("passes", [8, 20])
def test_a_limit_of_passes_too(solver, passes, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    result = gp.solve(problem(), solver, stop=gp.MaxPasses(passes), tolerance=0)
    assert result.steps.min() >= 1
    assert result.forwards + result.backwards <= passes + 6


def test_a_rough_preconditioner_is_for_its_run_alone(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    posed = problem()
    gp.solve(posed, gp.QuasiNewton(), stop=gp.MaxPasses(6), tolerance=0)
    fresh = problem()
    torch.testing.assert_close(
        posed.generator.preconditioner().matrix, fresh.generator.preconditioner().matrix, rtol=0, atol=0
    )


def test_limits_of_combined_rules():
    seconds, steps, passes = gp.Seconds(5), gp.MaxSteps(3), gp.MaxPasses(7)
    inf = float("inf")
    assert (seconds | steps).limits() == (5, inf)
    assert (seconds & steps).limits() == (inf, inf), "the steps may hold the time up"
    assert (seconds | passes | gp.Seconds(2)).limits() == (2, 7)
    assert (seconds & gp.Seconds(9)).limits() == (9, inf)


@pytest.mark.parametrize("solver", CURVATURE.values(), ids=CURVATURE)
def test_without_a_limit_nothing_is_scaled(solver, monkeypatch):
    """The same bits with a limit that is never felt."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    free = gp.solve(problem(), solver, stop=gp.MaxSteps(6))
    far = gp.solve(problem(), solver, stop=gp.MaxSteps(6) | gp.Seconds(1e6))
    assert torch.equal(free.z, far.z)


APPLICATION = 0.03


def slow_operator():
    """A user's operator that takes long each time: 60 Lanczos steps, or one solve by conjugate gradients, are too many."""
    matrix = torch.randn(10, 20, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    def apply(x):
        time.sleep(APPLICATION)
        return x @ matrix.T

    def adjoint(y):
        time.sleep(APPLICATION)
        return y @ matrix

    return gp.operators.Linear(apply, adjoint, signal_shape=20, measurement_shape=10, dtype=torch.float64)


def behind_a_slow_operator(term=None):
    torch.manual_seed(0)
    G = gp.Generator(nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 20)).double(), 12, 20)
    operator = slow_operator()
    y = operator(G(G.sample_latent(2, seed=7))).detach()
    return gp.Problem(G, gp.LeastSquares(operator, y), on_signal=term)


OPERATOR_SOLVERS = CURVATURE | {
    "linearized": gp.LinearizedADMM(),
    "exact": gp.ExactADMM(),
    "L-BFGS": gp.LBFGS(),
    "projected": gp.ProjectedGradient(),
}


@pytest.mark.parametrize("term", [None, 0.01 * gp.L1()], ids=["smooth", "l1"])
@pytest.mark.parametrize("solver", OPERATOR_SOLVERS.values(), ids=OPERATOR_SOLVERS)
def test_slow_operators_are_within_the_limit_too(solver, term, simulated_clock):
    if term is not None and isinstance(solver, gp.LevenbergMarquardt):
        return  # it is for sums of squares
    limit = 40 * APPLICATION
    result = gp.solve(behind_a_slow_operator(term), solver, stop=gp.Seconds(limit), tolerance=0)
    assert set(result.status) == {gp.Status.OUT_OF_TIME}
    assert result.seconds < limit + 10 * APPLICATION, "a step applies it a few times"
    assert result.steps.min() >= 1


def test_what_was_estimated_in_a_hurry_is_found_again(simulated_clock):
    posed = behind_a_slow_operator()
    operator = posed.loss.operator
    gp.solve(posed, gp.LinearizedADMM(), stop=gp.Seconds(10 * APPLICATION), tolerance=0)
    exact = torch.linalg.matrix_norm(operator.dense(), 2)
    assert exact <= operator.norm() <= 1.05 * exact


class Counted(nn.Module):
    """Notes how many rows go through it, forward and back."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(70, 80), nn.Tanh(), nn.Linear(80, 90)).double()
        self.forwards = self.backwards = 0

    def forward(self, z):
        self.forwards += len(z)
        x = self.net(z)
        if x.requires_grad:
            x.register_hook(self.back)
        return x

    def back(self, gradient):
        self.backwards += len(gradient)


def prepared(items, **options):
    """The module, and the result, of a run that ends before its first step."""
    generator = gp.Generator(Counted(), 70, 90)
    module = generator.module
    with torch.no_grad():
        y = module.net(generator.sample_latent(items, seed=7))
    return module, gp.solve(gp.Problem(generator, gp.SquaredDistance(y)), stop=gp.MaxSteps(0), **options)


@pytest.mark.parametrize("items", [1, 4, 12, 40])
def test_preparation_costs_little_beside_the_searches_of_the_items(items):
    """At most 12 passes of one row for the preconditioner, 16 of each for the pool, and 4 for the start."""
    module, result = prepared(items)
    assert 0 < module.forwards + module.backwards <= 12 + (16 + 4) * items
    assert result.forwards + result.backwards <= 12 + 16 + 8, "passes of the batch"


def test_the_preconditioner_of_a_run_is_the_same_however_it_is_split_and_whatever_ran_before():
    module = Counted().net  # without counts, which would change its contents
    whole, split, later = (gp.Generator(module, 70, 90) for _ in range(3))
    y = whole(whole.sample_latent(6, seed=7)).detach()
    later.preconditioner()
    gp.solve(gp.Problem(later, gp.SquaredDistance(y[:1])), stop=gp.MaxSteps(2))
    runs = [
        gp.solve(gp.Problem(G, gp.SquaredDistance(y)), stop=gp.MaxSteps(5), batch_size=size, tolerance=0)
        for G, size in ((whole, None), (split, 2), (later, None))
    ]
    torch.testing.assert_close(runs[0].z, runs[1].z, rtol=1e-9, atol=1e-9)
    assert torch.equal(runs[0].z, runs[2].z)
