"""Parts written outside the package, with public names alone, pass the public conformance tests and solve problems."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import genprior as gp
from genprior.testing import LossLaws, OperatorLaws, SolverLaws, TermLaws
from tests.testing.outside.loss import Precision
from tests.testing.outside.operator import RunningSum
from tests.testing.outside.solver import HeavyBall
from tests.testing.outside.term import ElasticNet

FOLDER = Path(__file__).parent / "outside"


class TestHeavyBall(SolverLaws):
    def instance(self):
        return HeavyBall()


class TestElasticNet(TermLaws):
    shape = (2, 3)

    def instances(self):
        return {"both": ElasticNet, "l1 alone": lambda: ElasticNet(0.5, 0.0), "maps": lambda: ElasticNet(0.1, 3.0)}


class TestRunningSum(OperatorLaws):
    def instance(self):
        return RunningSum(7)


class TestPrecision(LossLaws):
    shape = (2, 3)

    def instance(self):
        random = torch.Generator().manual_seed(0)
        y = torch.randn(3, 2, 3, generator=random, dtype=torch.float64)
        return Precision(y, torch.rand(3, 2, 3, generator=random, dtype=torch.float64) + 0.1)


def test_they_work_together():
    """All four in one problem, against Auto."""
    module = torch.nn.Sequential(torch.nn.Linear(3, 12), torch.nn.Tanh(), torch.nn.Linear(12, 8)).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).mul(9).sin().reshape(parameter.shape) * 0.7)
    G = gp.Generator(module, 3, 8)
    truth = G(G.sample_latent(4, seed=1)).detach()
    A = RunningSum(8)
    problem = gp.Problem(G, loss=gp.LeastSquares(A, A(truth)), on_latent=ElasticNet(0.01, 0.01))
    ours = gp.solve(problem, HeavyBall(), stop=gp.MaxSteps(3000), seed=3)
    auto = gp.solve(problem, stop=gp.MaxSteps(1000), seed=3)
    assert (ours.objective < 1.5 * auto.objective + 0.05).all()
    weighted = gp.Problem(G, loss=Precision(truth, torch.ones_like(truth)), on_signal=ElasticNet(0.01, 0.0))
    split = gp.solve(weighted, gp.ExactADMM(), stop=gp.MaxSteps(500), seed=3)
    assert (split.objective < 0.2).all()


@pytest.mark.parametrize(("part", "most"), [("solver", 40), ("term", 25), ("operator", 15), ("loss", 30)])
def test_they_are_short_and_use_public_names(part, most):
    text = (FOLDER / f"{part}.py").read_text(encoding="utf-8")
    assert len([line for line in text.splitlines() if line.strip()]) <= most
    for node in ast.walk(ast.parse(text)):
        names = {node.attr} if isinstance(node, ast.Attribute) else set()
        names |= set((node.module or "").split(".")) if isinstance(node, ast.ImportFrom) else set()
        assert not {name for name in names if name.startswith("_")}, "private names"
