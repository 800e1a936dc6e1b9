"""What a rejected trial of the quasi-Newton search is good for: the secant equation, a new direction, not a shorter step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import genprior as gp

F64 = torch.float64
BARE = gp.QuasiNewton(ridge=0), None
WITH_RIDGE = gp.QuasiNewton(ridge=12.0), 0.1 * gp.SquaredL2()
"""The model is of L(G(z)) alone: neither of the ridge nor of a quadratic H, whose curvature is known."""


class Winding(nn.Module):
    """A curve with turns: no step that looks good on the first model is."""

    def forward(self, z):
        return torch.cat([z + torch.sin(4 * z), z[:, :1] * z[:, 1:]], dim=1)


def rejected_trials(solver, on_latent, items=100, steps=30):
    """Pairs (state with a rejected trial, the state after it, where it was rejected)."""
    generator = gp.Generator(Winding(), 2, 3, dtype=F64)
    y = generator(generator.sample_latent(items, seed=1)).detach()
    problem = gp.Problem(generator, gp.SquaredDistance(y), on_latent=on_latent)
    method = solver.solver(problem)
    state, found = method.start(problem, generator.sample_latent(items, seed=2)), []
    for _ in range(steps):
        after = method.step(problem, state)
        found.append((problem, state, after, after.model.accepted == state.model.accepted))
        state = after
    return found


def pair(problem, state):
    """From the base to the trial point: the step, and by autograd the change of the gradient."""
    y = problem.loss.y

    def gradient(z):
        z = z.reshape(state.z.shape).detach().requires_grad_()
        return torch.autograd.grad(((Winding()(z) - y) ** 2).sum(), z)[0]

    z, base = state.z.detach(), state.base.z.reshape(state.z.shape)
    return z - base, gradient(z) - gradient(base)


def newton(problem, state, gradient):
    basis, model = gp.trial.Preconditioned().basis(problem), state.model
    zero = torch.zeros_like(state.objective)
    return model.newton(gradient @ basis, zero, gp.trial.Preconditioned().scaled(model)) @ basis.mT


def cosine(a, b):
    return torch.cosine_similarity(a, b, dim=1)


@pytest.mark.parametrize("case", [BARE, WITH_RIDGE], ids=["bare", "with ridge"])
def test_a_rejected_trial_with_a_clear_change_of_the_gradient_updates_the_model_and_nothing_else(case):
    seen = bent_back = 0
    for problem, state, after, rejected in rejected_trials(*case):
        step, change = pair(problem, state)
        clear = rejected & (cosine(step, change) > 2e-3)
        learned = newton(problem, after, -change)
        torch.testing.assert_close(learned[clear], step[clear], rtol=1e-6, atol=1e-9)
        long = step.norm(dim=1) > 1e-8  # the change of shorter ones is rounding, and another one in the solver
        unclear = rejected & long & (cosine(step, change) < 5e-4) & (after.search.trials > 0)
        assert torch.equal(after.model.steps[unclear], state.model.steps[unclear])
        assert torch.equal(after.model.changes[unclear], state.model.changes[unclear])
        for kept in ("z", "x", "gradient", "energy"):
            assert torch.equal(getattr(after.base, kept)[rejected], getattr(state.base, kept)[rejected])
        seen, bent_back = seen + int(clear.sum()), bent_back + int(unclear.sum())
    assert seen > 20 and bent_back > 0


def test_the_search_turns_twice_and_then_shortens():
    turned = shortened = 0
    for problem, state, after, rejected in rejected_trials(*BARE):
        step, change = pair(problem, state)
        turns = rejected & (cosine(step, change) > 2e-3) & (state.search.trials < 2)
        torch.testing.assert_close(after.search.direction[turns], newton(problem, after, after.base.gradient)[turns])
        assert torch.equal(after.search.length[turns], after.scale[turns])
        assert torch.equal(after.search.trials[turns], state.search.trials[turns] + 1)
        shortens = rejected & (state.search.trials >= 2) & (after.search.trials > 0)
        assert torch.equal(after.search.direction[shortens], state.search.direction[shortens])
        assert (after.search.length[shortens] < state.search.length[shortens]).all()
        turned, shortened = turned + int(turns.sum()), shortened + int(shortens.sum())
    assert turned > 10 and shortened > 0
