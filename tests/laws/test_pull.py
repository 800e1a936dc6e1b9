"""The pull of quasi-Newton steps towards the law: how strong it is at first, how it falls, that it ends."""

from __future__ import annotations

import itertools
from dataclasses import replace

import torch

import genprior as gp
from tests.laws.certified import CERTIFIED

SOLVER = gp.QuasiNewton(ridge=6.0)


def course(case, steps=150, near=None):
    """The problem and the states of a run, from random starts or from points that are ``near`` a solution."""
    certified = CERTIFIED[case]()
    problem = certified.problem
    z = problem.generator.sample_latent(problem.batch, seed=3).double()
    if near is not None:
        solution = gp.solve(problem, stop=gp.MaxSteps(300)).z
        z = solution + near * (z - solution)
    states = [SOLVER.start(problem, z)]
    for _ in range(steps):
        states.append(SOLVER.step(problem, states[-1]))
    return problem, states


def typical(problem, state):
    """The mean curvature in z, and the energy of a linear generator at random points that goes with it."""
    values = torch.linalg.eigvalsh(problem.generator.metric())
    mean = state.curvature * values.mean()
    return mean, mean * len(values) * problem.generator.spread**2


def test_at_random_starts_it_is_first_ridge_times_the_typical_curvature():
    problem, states = course("noisy", 1)
    mean, energy = typical(problem, states[0])
    assert (states[0].energy > 0.15 * energy).all()
    torch.testing.assert_close(states[1].ridge, 6.0 * mean)


def test_warm_starts_are_pulled_less_by_the_square_of_their_energy():
    problem, states = course("in range", 1, near=0.1)
    mean, energy = typical(problem, states[0])
    share = states[0].energy / (0.15 * energy)
    assert (share < 0.2).all()
    torch.testing.assert_close(states[1].ridge, 6.0 * mean * share**2)


def test_units_of_the_signal_and_of_the_latent_do_not_matter():
    """Signals a thousand times as large, latents ten times as wide: the pull has the unit of energy over latents squared."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(5, 9), torch.nn.Tanh(), torch.nn.Linear(9, 12)).double()
    y, z = torch.randn(3, 12).double(), torch.randn(3, 5).double()

    class Rescaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module

        def forward(self, z):
            return 1000 * self.inner(z / 10)

    plain = gp.Problem(gp.Generator(module, 5, 12), gp.SquaredDistance(y))
    other = gp.Problem(gp.Generator(Rescaled(), 5, 12, law=gp.Normal(10.0)), gp.SquaredDistance(1000 * y))
    first, second = SOLVER.start(plain, z).first_ridge, SOLVER.start(other, 10 * z).first_ridge
    torch.testing.assert_close(second, 1000.0**2 / 10**2 * first)


def test_it_falls_with_the_energy_or_with_the_steps_whichever_is_less():
    _, states = course("noisy")
    factors, by_energy, by_steps = set(), 0, 0
    for old, new in itertools.pairwise(states[1:]):
        accepted = new.accepted > old.accepted
        stood = torch.minimum(old.share, new.base_energy / new.first_energy)  # a leap starts from what the pull was
        for share, before, least in zip(new.share[accepted], old.share[accepted], stood[accepted], strict=True):
            leapt = abs(share - 0.3 * least) <= 1e-6 * share
            factor = round(float(share / before), 6)
            factors.add(0.3 if leapt else "a leap that left the pull as it was" if factor == 0.3 else factor)
        assert torch.equal(new.share[~accepted], old.share[~accepted])
        energy = new.base_energy / new.first_energy
        left = torch.minimum(energy, new.share)
        expected = states[0].first_ridge * left**1.2
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
    assert (SOLVER._ridge(state, energy, state.share) == 0).all()
    lost = replace(state, first_energy=torch.full_like(energy, torch.inf))
    assert (SOLVER._ridge(lost, -energy, state.share) == 0).all()
    assert (SOLVER._first_ridge(problem, state.curvature, torch.full_like(energy, torch.inf)) == 0).all()
