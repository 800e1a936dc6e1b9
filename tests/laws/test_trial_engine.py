"""The trial engine: each search keeps its conditions, every field of every part has an effect, new parts fit in."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, fields, replace

import pytest
import torch
from torch import Tensor, nn

import genprior as gp
from genprior import _batch
from genprior.solvers.trial.globalisation import SearchState
from tests.laws.certified import CERTIFIED
from tests.laws.test_curvature import F64, curved, measured, normal

BFGS = gp.trial.Secant(memory=5, first=gp.trial.NewestPair(), clear=None)


def course(method, problem, steps=40, seed=2):
    state = method.start(problem, problem.generator.sample_latent(problem.batch, seed=seed))
    states = [state]
    for _ in range(steps):
        states.append(method.step(problem, states[-1]))
    return states


def value_and_gradient(problem, z):
    """``L(G(z))`` and its gradient by autograd, away from the engine."""
    z = z.detach().clone().requires_grad_()
    value = problem.loss(problem.generator.module(z))
    return value.detach(), torch.autograd.grad(value.sum(), z)[0]


# -- searches ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("search", [gp.trial.Armijo(c=0.3), gp.trial.WeakWolfe(0.2, 0.6)], ids=repr)
def test_accepted_trials_meet_the_conditions_and_rejected_ones_do_not(search):
    problem = measured(curved(), noise=0.1)
    method = gp.trial.TrialMethod(BFGS, search, gp.trial.Subgradients())
    seen = {True: 0, False: 0}
    for old, new in itertools.pairwise(course(method, problem)[1:]):
        base = old.base.z
        here, slope = value_and_gradient(problem, base)
        there, end = value_and_gradient(problem, old.z)
        along, started = (end * old.search.direction).sum(1), (slope * old.search.direction).sum(1)
        share = search.c if isinstance(search, gp.trial.Armijo) else search.c1
        bound = here + share * old.search.length * started
        clear = (there - bound).abs() > 1e-9 * here
        wanted = there <= bound
        if isinstance(search, gp.trial.WeakWolfe):
            wanted &= along >= search.c2 * started
            clear &= (along - search.c2 * started).abs() > 1e-9 * started.abs()
        accepted = new.model.accepted > old.model.accepted
        assert torch.equal(accepted[clear], wanted[clear])
        torch.testing.assert_close(new.base.z[accepted], old.z[accepted])
        assert torch.equal(new.base.z[~accepted], base[~accepted])
        for outcome in (True, False):
            seen[outcome] += int((accepted[clear] == outcome).sum())
    assert min(seen.values()) > 3, "both must occur"


def test_a_wolfe_search_doubles_until_it_has_an_upper_end_and_then_bisects():
    search, yes, no = gp.trial.WeakWolfe(), torch.tensor([True]), torch.tensor([False])
    s = replace(SearchState.none(torch.zeros(1, 2)), slope=torch.tensor([-1.0]), length=torch.tensor([1.0]))
    still_falling = torch.tensor([-0.95])
    lengths = []
    for decreased in (yes, yes, no, yes, no):
        judgement = search.judged(s, decreased, still_falling)
        new, length = search.next(s, judgement, no, torch.ones(1))
        assert not new.any()
        s = replace(s, length=length, low=judgement.low, high=judgement.high)
        lengths.append(float(length))
    assert lengths == [2.0, 4.0, 3.0, 3.5, 3.25]


def test_where_h_is_not_smooth_a_wolfe_search_asks_for_decrease_alone():
    search, s = gp.trial.WeakWolfe(), SearchState.none(torch.zeros(2, 3))
    s = replace(s, slope=torch.full((2,), -1.0), length=torch.ones(2))
    decreased = torch.tensor([True, False])
    assert torch.equal(search.judged(s, decreased, None).accepted, decreased)


def test_a_search_that_needs_gradients_refuses_a_direction_that_takes_none():
    with pytest.raises(ValueError, match=r"WeakWolfe.*DampedGaussNewton computes none"):
        gp.trial.TrialMethod(gp.trial.DampedGaussNewton(), gp.trial.WeakWolfe())


def test_parts_in_the_wrong_place_are_named():
    with pytest.raises(TypeError, match="search must be a Search, got Secant"):
        gp.trial.TrialMethod(gp.trial.Secant(), gp.trial.Secant())


# -- every constant is a field, and counts -------------------------------------------------------------------------------

OTHER = {
    gp.trial.Armijo(c=0.3, turns=1): {"c": 0.9, "backtrack": 0.1, "max_trials": 1, "turns": 0},
    gp.trial.WeakWolfe(): {"c1": 0.5, "c2": 0.1, "max_trials": 2},
    gp.trial.Ridge(): {
        "weight": 1.0,
        "far": 5.0,
        "local": 1e-3,
        "decay": 0.5,
        "slow_decay": 0.1,
        "settled_decay": 0.01,
        "slow": 0.9,
        "settled": 0.9,
        "power": 2.0,
        "end": 0.9,
    },
    gp.trial.Multipliers(): {"every": 2, "growth": 3.0, "rho": 9.0, "spent": 0.9, "together": 1e6, "most_growth": 1.0},
    gp.trial.Secant(refresh=4): {"memory": 2, "clear": None, "refresh": 3, "shortest": 10.0},
    gp.trial.Preconditioned(): {"floor": 0.5, "doubt": 0.0, "least_scale": 0.9},
    gp.trial.Damping(): {"refresh": 3, "first": 10.0, "poor": 0.99, "most_poor": 1, "most_growth": 1.0, "most": 1e-2},
}
LIMITED = {"refresh_share", "share", "first"}
"""What matters in limited runs (tests/test_budget.py), and the first Hessian, which has a line of its own."""
FIELDS = [(part, name) for part, others in OTHER.items() for name in others]


def composed(part):
    """A method in which the part is at work."""
    parts = {"direction": gp.trial.Secant(), "search": gp.trial.Armijo()}
    parts |= {"multipliers": gp.trial.Multipliers(), "continuation": gp.trial.Ridge()}
    match part:
        case gp.trial.Damping():
            parts = {"direction": gp.trial.DampedGaussNewton(part), "search": gp.trial.Decrease()}
        case gp.trial.Preconditioned():
            parts["direction"] = gp.trial.Secant(first=part)
        case gp.trial.Secant():
            parts |= {"direction": part, "search": gp.trial.Armijo(c=0.3, max_trials=2)}
        case gp.trial.WeakWolfe():
            parts |= {"direction": BFGS, "search": part}
        case gp.trial.Armijo():
            parts["search"] = part
        case gp.trial.Multipliers():
            parts["multipliers"] = part
        case gp.trial.Ridge():
            parts["continuation"] = part
    return gp.trial.TrialMethod(**parts)


class Winding(nn.Module):
    """A curve with turns: many trials are rejected."""

    def forward(self, z: Tensor) -> Tensor:
        return torch.cat([z + torch.sin(4 * z), z[:, :1] * z[:, 1:2], torch.exp(z[:, :1])], dim=1)


def winding(part):
    G = gp.Generator(Winding(), 3, 5, dtype=F64)
    y = G(G.sample_latent(30, seed=1)).detach() + 0.3 * normal(30, 5, seed=2)
    if isinstance(part, gp.trial.Multipliers):
        return gp.Problem(G, gp.SquaredDistance(y), on_signal=0.5 * gp.L1().around(y + 0.1))
    return gp.Problem(G, gp.SquaredDistance(y))


@functools.cache
def found_by(part):
    return gp.solve(winding(part), composed(part), stop=gp.MaxSteps(60), seed=3).z


@pytest.mark.parametrize(("part", "name"), FIELDS, ids=[f"{type(part).__name__}.{name}" for part, name in FIELDS])
def test_every_field_has_an_effect(part, name):
    other = replace(part, **{name: OTHER[part][name]})
    assert not torch.allclose(found_by(part), found_by(other), rtol=1e-9, atol=0)


def test_no_field_is_forgotten():
    for part, others in OTHER.items():
        known = set(others) | (LIMITED if not isinstance(part, gp.trial.Damping) else {"share"})
        assert {field.name for field in fields(part)} <= known, part


# -- the parts make known methods ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [gp.QuasiNewton(), gp.LBFGS(), gp.LevenbergMarquardt()], ids=repr)
def test_a_named_method_is_its_composition(named):
    problem = measured(curved(), noise=0.1)
    by_name = gp.solve(problem, named, stop=gp.MaxSteps(30), seed=1)
    composed = gp.solve(problem, named.solver(problem), stop=gp.MaxSteps(30), seed=1)
    assert torch.equal(by_name.z, composed.z)


@dataclass(frozen=True)
class Steepest(gp.trial.Direction[Tensor]):
    """The negative gradient over the curvature that the last step measured: all that a new direction has to say."""

    def start(self, problem, base, common, trial, curvature):
        return curvature

    def updated(self, problem, s, base, judged):
        step, change = _batch.flat(s.z) - s.base.z, _batch.flat(judged.vjp.gradient) - s.base.gradient
        along, square = _batch.dot(step, change), _batch.square(step)
        usable = (along > 0) & (square > 0)
        model = torch.where(usable, along / torch.where(usable, square, 1.0), s.model)
        return gp.trial.Update(model, base.gradient, judged.accepted, judged.vjp.ratio, usable)

    def descent(self, problem, model, base, own, scale):
        gradient = base.gradient + own.gradient(base.z)
        direction = -gradient / (model + own.curvature(model))[:, None]
        return gp.trial.DescentDirection(model, direction, _batch.dot(gradient, direction))


@pytest.mark.parametrize("case", ["noisy", "signal linf", "ridge"])
def test_a_direction_of_ones_own_finds_certified_optima(case):
    certified = CERTIFIED[case]()
    method = gp.trial.TrialMethod(Steepest(), gp.trial.Armijo())
    result = gp.solve(certified.problem, method, stop=gp.MaxSteps(3000), patience=500)
    torch.testing.assert_close(result.objective, torch.tensor(certified.optimum), rtol=1e-3, atol=1e-6)
