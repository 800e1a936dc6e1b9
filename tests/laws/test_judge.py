"""No false CONVERGED: random problems, every solver, judged by ``tests/laws/judge``, which uses no gradient or prox of ours.

``make test`` takes a sample. ``GENPRIOR_JUDGE=1600`` takes the problems 0 to 1599, each with one of the 16 solvers in turn;
``GENPRIOR_JUDGE="1600 every"`` each with all of them. A line of a failure starts with ``number:solver``; alone:
``python -m tests.laws.judge "120:ADMM Balanced"``.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import nn

import genprior as gp
from tests.laws.judge.descent import descend
from tests.laws.judge.functions import NOTHING, Function, Logistic, Squares
from tests.laws.judge.oracle import Item, exact_copy, stationarity
from tests.laws.judge.problems import SOLVERS, STEPS, case
from tests.laws.judge.verdicts import Tally, run

SAMPLE = {
    "Auto": (64, 128, 192),
    "QuasiNewton": (17, 49, 97),
    "QuasiNewton refreshed": (2, 50, 82),
    "LevenbergMarquardt": (35, 67, 163),
    "LBFGS": (20, 100, 148),
    "ADMM Spectral": (0, 69, 133),
    "ADMM GaussNewton": (8, 70, 134),
    "ADMM GaussNewton cg": (1, 8, 14),
    "ADMM Balanced": (72, 88, 104),
    "ADMM Adaptive": (0, 89, 105, 121),
    "ExactADMM": (0, 8, 10),
    "LinearizedADMM": (43, 107, 155),
    "Adam": (28, 44, 60, 140),
    "GradientDescent": (29, 61, 77, 93, 109, 189),
    "GradientDescent momentum": (30, 62, 78, 158),
    "ProjectedGradient": (15, 79, 143),
}
"""Quick ones with verdicts, of every family, loss, term, operator, dtype and unit; some that were false once."""
COUNT, _, EVERY = os.environ.get("GENPRIOR_JUDGE", "0").partition(" ")
every_solver = pytest.mark.parametrize("solver", SOLVERS)


def numbers_of(solver: str) -> Sequence[int]:
    if int(COUNT) == 0:
        return SAMPLE[solver]
    return range(int(COUNT)) if EVERY else range(list(SOLVERS).index(solver), int(COUNT), len(SOLVERS))


@every_solver
def test_no_verdict_is_false(solver):
    tally = Tally()
    for number in numbers_of(solver):
        run(number, solver, tally)
    assert tally.counts["judged"] > 0
    assert not tally.faults, "\n".join([f"{dict(tally.counts)}", *tally.faults])


def test_the_sample_holds_every_family_loss_term_dtype_and_unit():
    words = [case(number).words.split() for number in sorted(set().union(*SAMPLE.values()))]
    seen = {word for line in words for word in line}
    wanted = "float32 float64 mlp conv exp kinked saturating squares distance risk none around warm near far drawn"
    wanted += " l1 l2 linf squared box ball l1ball tv"
    wanted += " gaussian dense mask weights ill hadamard identity blur downsample fourier"
    assert set(wanted.split()) <= seen
    units = {float(unit) for line in words for unit in line[2].split("/")}
    assert min(units) == 1e-12
    assert max(units) == 1e12


# -- units ---------------------------------------------------------------------------------------------------------

NEWTON = ("Auto", "QuasiNewton", "QuasiNewton refreshed", "LevenbergMarquardt", "LBFGS")
SMALL, LARGE = 2.0**-40, 2.0**40
"""About 1e-12 and 1e12. Powers of two: nothing is rounded otherwise, and what changes, changes by a constant in the code."""


def network(dtype: torch.dtype, signal: float, latent: float) -> nn.Module:
    random = np.random.default_rng(1)
    module = nn.Sequential(nn.Linear(3, 12), nn.ELU(), nn.Linear(12, 8)).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.tensor(random.normal(size=tuple(parameter.shape)) / parameter.shape[-1] ** 0.5))
        module[0].weight.div_(latent)
        module[2].weight.mul_(signal)
        module[2].bias.mul_(signal)
    return module.to(dtype)


@functools.cache
def solved(solver: str, dtype: torch.dtype, signal: float = 1.0, operator: float = 1.0, latent: float = 1.0):
    """A small problem in units: how its items ended, and their ``|A G(z) - y| / |y|``."""
    random, module = np.random.default_rng(2), network(dtype, signal, latent)
    truth, matrix = random.normal(size=(3, 3)), operator * random.normal(size=(6, 8)) / 6**0.5
    matrix = torch.tensor(matrix).to(dtype)
    exact = exact_copy(module)
    y = exact(torch.tensor(latent * truth)) @ matrix.double().T
    y = (y * torch.tensor(1 + 0.02 * random.normal(size=(3, 6)))).to(dtype)
    made = gp.Generator(module, 3, 8, latent=gp.Normal(latent))
    problem = gp.Problem(made, gp.LeastSquares(gp.operators.Dense(matrix, (8,)), y))
    stop = gp.MaxSteps(min(STEPS.get(solver, 50), 50))
    result = gp.solve(problem, SOLVERS[solver](), stop=stop, tolerance=1e-4 if solver in NEWTON else 0.03, seed=3)
    residual = exact(result.z.double()) @ matrix.double().T - y.double()
    return result.status, (residual.norm(dim=1) / y.double().norm(dim=1)).numpy()


@every_solver
@pytest.mark.parametrize("axis", ["signal", "operator", "latent"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_units_change_nothing(solver, axis, dtype):
    status, error = solved(solver, dtype)
    for unit in (SMALL, LARGE):
        found = solved(solver, dtype, **{axis: unit})
        assert found[0] == status, unit
        np.testing.assert_allclose(found[1], error, rtol=0.25, atol=2e-3, err_msg=f"{unit}")


@every_solver
@pytest.mark.parametrize("unit", [1e-24, 1e24])
def test_where_float32_cannot_hold_the_squares_the_answer_is_right_or_refused(solver, unit):
    _, plain = solved(solver, torch.float32)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            status, error = solved(solver, torch.float32, signal=unit)
    except ValueError:
        return
    claimed = np.array([verdict is gp.Status.CONVERGED for verdict in status])
    assert (error[claimed] <= 1.1 * plain[claimed] + 2e-3).all(), (status, error)


# -- the judge itself ----------------------------------------------------------------------------------------------

MATRIX = np.random.default_rng(5).normal(size=(12, 4))
SHAPE = (1, 3, 4)
Y = np.random.default_rng(6).normal(size=12)
CENTRE = np.random.default_rng(7).normal(size=12)
ON_SIGNAL = [
    NOTHING,
    Function("l1", 0.8, CENTRE),
    Function("l2", 2.0, CENTRE),
    Function("linf", 3.0, CENTRE),
    Function("squared", 0.7, CENTRE),
    Function("tv", 0.6, shape=SHAPE),
    Function("box", low=-0.4, high=0.5),
    Function("ball", high=1.0),
    Function("l1ball", high=1.5),
]
ON_LATENT = [
    Function("l1", 0.8),
    Function("l2", 1.0, 0.1),
    Function("linf", 2.0),
    Function("squared", 2.0, 0.3),
    Function("box", low=-0.1, high=0.2),
    Function("ball", high=0.2),
    Function("l1ball", high=0.2),
]
PAIRS = [(r, NOTHING) for r in ON_SIGNAL] + [(NOTHING, h) for h in ON_LATENT] + [(ON_SIGNAL[1], ON_LATENT[3])]


def affine_item(loss, on_signal, on_latent) -> Item:
    module = nn.Linear(4, 12, bias=False, dtype=torch.float64)
    module.weight.data = torch.tensor(MATRIX)
    return Item(module, exact_copy(module), (4,), loss, on_signal, on_latent)


@pytest.mark.parametrize(("on_signal", "on_latent"), PAIRS, ids=lambda f: f.kind)
def test_the_judge_lets_a_minimiser_pass_and_nothing_else(on_signal, on_latent):
    """The problem is convex: descent from elsewhere finds the minimiser; from a point a little away from it, it goes on."""
    item = affine_item(Squares(np.eye(12), Y), on_signal, on_latent)
    value, z = descend(item, np.full(4, 1e-3), radius=10.0, steps=60)
    assert stationarity(item, z, item.signal(z), 1e-5).holds
    for seed in range(4):
        away = z + 0.03 * np.random.default_rng(seed).normal(size=4)
        inside = max(on_signal.violation(item.signal(away)), on_latent.violation(away)) == 0
        if inside and item.value(away) > value * (1 + 1e-3):
            assert not stationarity(item, away, item.signal(away), 1e-5).holds


def test_the_judges_derivatives_are_differences():
    module = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 12)).double()
    z, random = np.array([0.3, -0.5, 0.8]), np.random.default_rng(3)
    for loss in (Squares(random.normal(size=(6, 12)), Y[:6]), Logistic(random.normal(size=(9, 12)))):
        item = Item(module, exact_copy(module), (3,), loss, Function("squared", 0.7, CENTRE), Function("squared", 0.2))
        slope = item.jacobian(z).T @ item.gradient(item.signal(z)) + item.on_latent.gradient(z)
        d = 1e-5 * random.normal(size=3)
        assert (item.value(z + d) - item.value(z - d)) / 2 == pytest.approx(slope @ d, rel=1e-6)


def test_the_judge_finds_a_false_verdict():
    """A result that was true, with its latents moved a little."""
    made = case(1)
    answer = gp.solve(made.problem, tolerance=1e-5)
    for moved, holds in ((0.0, True), (0.03, False)):
        z = (answer.z[0] + moved).numpy()
        assert stationarity(made.items[0], z, made.items[0].signal(z), 1e-5).holds == holds
