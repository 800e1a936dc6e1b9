"""The ridge of quasi-Newton steps towards the prior: how strong it is at first, how it falls, that it ends."""

from __future__ import annotations

import itertools

import torch

import genprior as gp
from genprior.solvers.trial.globalisation import EnergyChange
from tests.laws.certified import CERTIFIED

RULE = gp.trial.Ridge(6.0)


def course(case, steps=150, near=None):
    """The problem and the states of a run, from random starts, or from between them (``near`` 1) and a solution (0)."""
    certified = CERTIFIED[case]()
    problem = certified.problem
    solver = gp.QuasiNewton(ridge=RULE.weight).solver(problem)
    z = problem.generator.sample_latent(problem.batch, seed=3).double()
    if near is not None:
        solution = gp.solve(problem, stop=gp.MaxSteps(300)).z
        z = solution + near * (z - solution)
    states = [solver.start(problem, z)]
    for _ in range(steps):
        states.append(solver.step(problem, states[-1]))
    return problem, states


def typical(problem, state):
    """The mean curvature in z, and the energy between random signals."""
    average = problem.generator.preconditioner()
    signals = problem.generator(problem.generator.sample_latent(32)).flatten(1)
    torch.testing.assert_close(average.variance, signals.var(dim=0).sum())
    return state.model.curvature * torch.linalg.eigvalsh(
        average.matrix
    ).mean(), state.model.curvature * average.variance


def test_at_starts_far_off_it_is_the_weight_times_the_typical_curvature():
    problem, states = course("noisy", 1, near=6.0)
    mean, energy = typical(problem, states[0])
    assert (states[0].trial.energy > RULE.far * energy).all()
    torch.testing.assert_close(states[1].ridge.weight, RULE.weight * mean)


def test_slopes_of_fine_detail_count_only_as_far_as_they_move_the_signal():
    """Latents make waves of 40 periods: slopes 40 times as steep as those of a linear generator of the same variance."""

    class Waves(torch.nn.Module):
        def forward(self, z):
            return torch.sin(40 * z)

    generator = gp.Generator(Waves(), 6, 6, dtype=torch.float64)
    problem = gp.Problem(generator, gp.SquaredDistance(5 * torch.ones(2, 6, dtype=torch.float64)))
    solver = gp.QuasiNewton(ridge=RULE.weight).solver(problem)
    state = solver.step(problem, solver.start(problem, generator.sample_latent(2, seed=3)))
    average = generator.preconditioner()
    assert average.values.mean() > 100 * average.variance / 6
    expected = RULE.weight * state.model.curvature * RULE.local * average.variance / 6
    torch.testing.assert_close(state.ridge.weight, expected)


def test_warm_starts_are_held_less_by_the_square_of_their_energy():
    problem, states = course("in range", 1, near=0.1)
    mean, energy = typical(problem, states[0])
    share = states[0].trial.energy / (RULE.far * energy)
    assert (share < 0.2).all()
    torch.testing.assert_close(states[1].ridge.weight, RULE.weight * mean * share**2)


def test_units_of_the_signal_and_of_the_latent_do_not_matter():
    """Signals a thousand times as large, latents ten times as wide: the ridge has the unit of energy over latents squared."""
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
    other = gp.Problem(gp.Generator(Rescaled(), 5, 12, latent=gp.Normal(10.0)), gp.SquaredDistance(1000 * y))
    first, second = (
        gp.QuasiNewton().solver(problem).start(problem, start).ridge.first_weight
        for problem, start in ((plain, z), (other, 10 * z))
    )
    torch.testing.assert_close(second, 1000.0**2 / 10**2 * first)


def test_it_falls_with_every_accepted_step_and_stays_after_a_rejected_one():
    _, states = course("noisy")
    falls = 0
    for old, new in itertools.pairwise(states[1:]):
        accepted = new.model.accepted > old.model.accepted
        assert (new.ridge.share[accepted] < old.ridge.share[accepted]).all()
        assert torch.equal(new.ridge.share[~accepted], old.ridge.share[~accepted])
        falls += int((new.ridge.weight < old.ridge.weight).sum())
        energy = new.base.energy / new.ridge.first_energy
        assert (new.ridge.weight <= states[0].ridge.first_weight * torch.minimum(energy, new.ridge.share)).all()
    assert falls > 20


def test_it_ends():
    _, states = course("noisy")
    assert (states[-1].ridge.weight == 0).all()
    assert (states[1].ridge.weight > 0).all()


def fall(before, after, promised):
    values = [torch.tensor([value], dtype=torch.float64) for value in (before, after, promised)]
    return EnergyChange(*values, torch.tensor([True]), torch.tensor([True]))


def test_slow_steps_and_settled_ones_end_it_sooner():
    _, states = course("noisy", 1)
    ridge = type(states[1].ridge)(*(torch.ones(1, dtype=torch.float64) for _ in range(4)))
    usual = RULE.next(ridge, fall(1.0, 0.8, 0.3)).share
    slow = RULE.next(ridge, fall(1.0, 0.999, 0.3)).share
    settled = RULE.next(ridge, fall(1.0, 0.999, 1e-6)).share
    assert settled < slow < usual < 1


def test_there_is_none_where_the_energy_is_below_zero_or_was_infinite():
    problem, states = course("signal linf", 2)
    ridge, energy = states[-1].ridge, torch.full_like(states[-1].base.energy, -1.0)
    yes = torch.ones_like(energy, dtype=torch.bool)
    below = RULE.next(ridge, EnergyChange(energy, energy, -energy, yes, yes))
    assert (below.weight == 0).all()
    lost = type(ridge)(ridge.weight, ridge.share, ridge.first_weight, torch.full_like(energy, torch.inf))
    assert (RULE.next(lost, EnergyChange(-energy, -energy, -energy, yes, yes)).weight == 0).all()
    infinite = torch.full_like(energy, torch.inf)
    assert (RULE.start(problem, states[-1].model.curvature, infinite).first_weight == 0).all()
