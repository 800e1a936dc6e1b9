"""The pull of quasi-Newton steps towards the law: how strong it is at first, how it falls, that it ends."""

from __future__ import annotations

import itertools
from dataclasses import replace

import torch

import genprior as gp
from tests.laws.certified import CERTIFIED

SOLVER = gp.QuasiNewton(ridge=6.0)


def course(case, steps=150):
    """The problem and the states of a run."""
    problem = CERTIFIED[case]().problem
    states = [SOLVER.start(problem, problem.generator.sample_latent(problem.batch, seed=3).double())]
    for _ in range(steps):
        states.append(SOLVER.step(problem, states[-1]))
    return problem, states


def unit_of(problem):
    """The squared length of a typical latent."""
    return problem.generator.latent_shape[0] * problem.generator.spread**2


def test_at_a_typical_latent_it_is_first_worth_half_of_ridge_times_the_energy():
    problem, states = course("noisy", 1)
    torch.testing.assert_close(0.5 * states[1].ridge * unit_of(problem), 3.0 * states[0].energy)


def test_it_falls_with_the_energy_or_with_the_steps_whichever_is_less():
    problem, states = course("noisy")
    factors, by_energy, by_steps = set(), 0, 0
    for old, new in itertools.pairwise(states[1:]):
        accepted = new.accepted > old.accepted
        factors |= {round(value, 6) for value in (new.share / old.share)[accepted].tolist()}
        assert torch.equal(new.share[~accepted], old.share[~accepted])
        energy = new.base_energy / new.first_energy
        left = torch.minimum(energy, new.share)
        expected = 6.0 / unit_of(problem) * new.first_energy * left**1.3
        torch.testing.assert_close(new.ridge, torch.where(new.share > 1e-4, expected, 0.0))
        by_energy, by_steps = by_energy + int((energy < new.share).sum()), by_steps + int((energy > new.share).sum())
    assert factors == {0.92, 0.8, 0.3}, "a usual step, a slow one, and one at the minimum for this pull"
    assert by_energy and by_steps


def test_it_ends():
    _, states = course("noisy")
    assert (states[-1].ridge == 0).all()
    assert (states[1].ridge > 0).all()


def test_there_is_none_where_the_energy_is_below_zero_or_was_infinite():
    problem, states = course("signal linf", 2)
    state = states[-1]
    energy = torch.full_like(state.base_energy, -1.0)
    assert (SOLVER._ridge(problem, state, energy, state.share) == 0).all()
    lost = replace(state, first_energy=torch.full_like(energy, torch.inf))
    assert (SOLVER._ridge(problem, lost, -energy, state.share) == 0).all()
