"""A loss from outside of the package that brings its own exact w step."""

import pytest
import torch
from torch import nn

import genprior as gp
from genprior.terms import L1, Box, Zero

F64 = torch.float64


class HuberStep(gp.losses.ExactStep):
    name = "closed form (Huber)"

    def __init__(self, loss, term):
        self.loss, self.term = loss, term

    def __call__(self, v, rho, start):
        self.loss.calls.append(len(v))
        rho = rho.reshape(-1, *(1,) * (v.ndim - 1))
        difference = v - self.loss.y
        return self.term.prox(v - difference.clamp(-(1 + rho) / rho, (1 + rho) / rho) / (1 + rho), 1.0)


class Huber(gp.losses.Loss):
    """``sum h(w - y)`` with ``h(d) = d^2/2`` up to 1 and ``|d| - 1/2`` beyond."""

    def __init__(self, y, closed=True, calls=None):
        self.y, self.closed, self.batch = y, closed, len(y)
        self.calls = [] if calls is None else calls

    def evaluate(self, w):
        d = w - self.y
        value = torch.where(d.abs() <= 1, d.square() / 2, d.abs() - 0.5)
        return value.flatten(1).sum(1), d

    def gradient(self, w, residual):
        return residual.clamp(-1, 1)

    def curvature(self, w):
        return w.new_zeros(len(w)), w.new_ones(len(w))

    def rows(self, index):
        return Huber(self.y[index], self.closed, self.calls)

    def check(self, signal_shape, device, dtype):
        assert tuple(self.y.shape[1:]) == tuple(signal_shape)

    def exact_step(self, term):
        known = isinstance(term, Zero) or (term.is_indicator and term.separable)
        return HuberStep(self, term) if self.closed and known else None


def generator():
    torch.manual_seed(0)
    return gp.Generator(nn.Sequential(nn.Linear(3, 6), nn.ELU(), nn.Linear(6, 12)).double(), 3, 12)


def problem(term=None, closed=True):
    G = generator()
    truth = G(G.sample_latent(3, seed=5).double()).detach()
    y = truth + 3 * torch.eye(3, 12, dtype=F64)
    return gp.Problem(G, Huber(y, closed), on_signal=term)


@pytest.mark.parametrize("term", [None, Box(-0.5, 0.5)], ids=repr)
def test_admm_uses_it_and_agrees_with_the_inner_solver(term):
    own, inner = problem(term), problem(term, closed=False)
    solver = gp.ADMM(w_step=gp.w_steps.Exact(tolerance=1e-12, max_iterations=5000), z_step=gp.z_steps.Adam())
    results = [gp.solve(p, solver, stop=gp.MaxSteps(30), restarts=1, tolerance=0, seed=1) for p in (own, inner)]
    assert "closed form (Huber)" in results[0].plan
    assert "inner proximal gradient" in results[1].plan
    assert len(own.loss.calls) >= 30
    assert not inner.loss.calls
    torch.testing.assert_close(results[0].w, results[1].w, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(results[0].objective, results[1].objective, rtol=1e-6, atol=1e-7)


def test_the_presets_and_auto_use_it():
    for solver in (gp.ExactADMM(), gp.Auto(), gp.QuasiNewton()):
        own = problem(Box(-0.5, 0.5))
        result = gp.solve(own, solver, stop=gp.MaxSteps(20), restarts=1, tolerance=0, seed=1)
        assert "closed form (Huber)" in result.plan
        assert len(own.loss.calls) >= 20


def test_other_terms_are_left_to_the_inner_solver():
    own = problem(0.1 * L1())
    result = gp.solve(own, gp.ExactADMM(), stop=gp.MaxSteps(3), seed=1)
    assert "inner proximal gradient" in result.plan
    assert not own.loss.calls


def test_auto_agrees_with_the_inner_solver():
    own, inner = (gp.solve(problem(Box(-0.5, 0.5), closed), stop=gp.MaxSteps(150), seed=1) for closed in (True, False))
    torch.testing.assert_close(own.objective, inner.objective, rtol=1e-3, atol=1e-6)


def test_the_step_against_a_grid():
    """In one variable, against the least value on a grid."""
    loss, grid = Huber(torch.tensor([[0.3]], dtype=F64)), torch.linspace(-4, 4, 80001, dtype=F64)[:, None]
    wide = Huber(loss.y.expand(len(grid), 1))
    for rho in (0.2, 1.0, 5.0):
        for v in (-3.0, -0.6, 0.5, 3.5):
            w = loss.exact_step(Box(-1, 1))(torch.tensor([[v]], dtype=F64), torch.tensor([rho], dtype=F64), loss.y)
            values = wide(grid) + Box(-1, 1)(grid) + rho / 2 * (grid[:, 0] - v) ** 2
            assert float(w) == pytest.approx(float(grid[values.argmin()]), abs=2e-4)


def test_misfits():
    class Shapeless(HuberStep):
        def __call__(self, v, rho, start):
            return v.flatten()

    class Wrong(Huber):
        def exact_step(self, term):
            return self.answer(self, term)

    p = problem()
    wrong = Wrong(p.loss.y)
    other = gp.Problem(p.generator, wrong)
    wrong.answer = Shapeless
    with pytest.raises(
        ValueError, match=r"exact step 'closed form \(Huber\)' gave \(36,\) for signals of shape \(3, 12\)"
    ):
        gp.solve(other, gp.ExactADMM(), stop=gp.MaxSteps(2))
    wrong.answer = lambda loss, term: lambda v, rho, start: v
    with pytest.raises(
        TypeError, match=r"Wrong.exact_step gave a function, expected a genprior.losses.ExactStep or None"
    ):
        gp.solve(other, gp.ExactADMM(), stop=gp.MaxSteps(2))
