"""The oracles have oracles: known optima against cvxpy, the search against closed forms; and pytest is not needed."""

from __future__ import annotations

import subprocess
import sys

import cvxpy as cp
import numpy as np
import pytest
import torch

from genprior.testing import OperatorLaws, TermLaws, nonsmooth_problems, smooth_problems
from genprior.testing.search import minimised

KNOWN = {**smooth_problems(), **nonsmooth_problems()}
LATENT_TERMS = {
    "ridge": lambda z: (0.25 * cp.sum_squares(z), []),
    "latent box": lambda z: (0.0, [cp.abs(z) <= 0.4]),
    "latent ball": lambda z: (0.0, [cp.norm(z) <= 0.5]),
    "latent l1": lambda z: (2.0 * cp.norm1(z), []),
}


def objective(name, problem, item, z):
    """The objective of one item, written from the definitions."""
    module = problem.generator.module
    w = module.matrix.numpy() @ z + module.offset.numpy()
    if name in {"noisy", "in range"}:
        A, y = problem.loss.operator.matrix.numpy(), problem.loss.y[item].numpy()
        return 0.5 * cp.sum_squares(A @ w - y), []
    if name in LATENT_TERMS:
        value, constraints = LATENT_TERMS[name](z)
        return 0.7 * cp.sum_squares(w - problem.loss.y[item].numpy()) + value, constraints
    if name == "signal l1":
        away = cp.norm1(w - problem.on_signal.term.centre[item].numpy())
        return 0.5 * cp.sum_squares(w - problem.loss.y[item].numpy()) + 0.3 * away, []
    return cp.norm_inf(w - problem.on_signal.centre[item].numpy()), []


@pytest.mark.parametrize("name", KNOWN)
def test_known_optima_are_those_of_cvxpy(name):
    known = KNOWN[name]()
    for item, expected in enumerate(known.optimum.tolist()):
        z = cp.Variable(4)
        value, constraints = objective(name, known.problem, item, z)
        theirs = cp.Problem(cp.Minimize(value), constraints)
        theirs.solve(solver=cp.CLARABEL)
        assert theirs.value == pytest.approx(expected, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("name", KNOWN)
def test_starts_are_far_from_the_optimum(name):
    known = KNOWN[name]()
    above = known.problem.objective(known.starts) - known.optimum
    assert (above > 0.1).all()


def test_the_search_finds_minima_of_kinked_functions():
    random = np.random.default_rng(0)
    v = torch.tensor(random.normal(size=(3, 5)))
    points = [torch.tensor(3 * random.normal(size=(3, 5))) for _ in range(8)]

    def g(u):
        return 0.6 * u.abs().sum(1) + 0.5 * (u - v).square().sum(1)

    found, right = minimised(g, points), v.sign() * (v.abs() - 0.6).clamp_min(0)
    torch.testing.assert_close(g(found), g(right), rtol=0, atol=5e-3)
    torch.testing.assert_close(found, right, rtol=0, atol=5e-2)


def test_a_class_without_a_part_says_what_is_missing():
    report = OperatorLaws().report("pure")
    assert "must give instance(self)" in report.failures[0].measured


def test_failures_can_be_selected_and_raised():
    class Nothing(TermLaws):
        def instance(self):
            raise ValueError("no weights")

    report = Nothing().report("step_zero")
    assert [finding.measured for finding in report.findings] == ["ValueError: no weights"]
    with pytest.raises(ValueError, match="step_zero"):
        report.raise_if_failed()


def test_pytest_is_not_needed():
    script = (
        "import sys; sys.modules['pytest'] = None\n"
        "import genprior as gp\n"
        "assert 'genprior.testing' not in sys.modules\n"
        "class Mine(gp.testing.OperatorLaws):\n"
        "    def instance(self): return gp.operators.Identity(4)\n"
        "Mine().report().raise_if_failed()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
