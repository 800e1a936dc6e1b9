"""A loss from outside that brings its own exact w step, and wrong ones that the law must catch."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import genprior as gp
from genprior import losses
from genprior.testing import LossLaws
from tests.testing.outside.loss import Precision

pytest.importorskip("genprior.losses.exact_step")


@dataclass(frozen=True)
class PrecisionStep(losses.ExactStep):
    """``w = (c y + rho v) / (c + rho)``, then R: its prox with a step ``1 / (c + rho)`` for each entry."""

    y: Tensor
    c: Tensor
    term: gp.Term

    name = "one prox with a step per entry"

    def __call__(self, v, rho, start):
        stiffness = self.c + gp.per_item.spread(rho, v)
        middle = (self.c * self.y + gp.per_item.spread(rho, v) * v) / stiffness
        return self.term.prox(middle, 1 / stiffness)


class ExactPrecision(Precision):
    def exact_step(self, term):
        return PrecisionStep(self.y, self.c, term) if term.separable else None

    def rows(self, index):
        return type(self)(self.y[index], self.c[index])


class RhoTwice(ExactPrecision):
    def exact_step(self, term):
        step = super().exact_step(term)
        return lambda v, rho, start: step(v, 2 * rho, start)


class TermForgotten(ExactPrecision):
    def exact_step(self, term):
        return PrecisionStep(self.y, self.c, gp.Zero())


class FirstRho(ExactPrecision):
    def exact_step(self, term):
        step = super().exact_step(term)
        return lambda v, rho, start: step(v, rho[:1].expand(len(v)), start)


def made(kind):
    random = torch.Generator().manual_seed(0)
    y = torch.randn(3, 2, 3, generator=random, dtype=torch.float64)
    return kind(y, torch.rand(3, 2, 3, generator=random, dtype=torch.float64) + 0.1)


class TestExactPrecision(LossLaws):
    shape = (2, 3)

    def instance(self):
        return made(ExactPrecision)


@pytest.mark.parametrize(
    ("kind", "message"), [(RhoTwice, "R = 0"), (TermForgotten, "R quadratic"), (FirstRho, "R = 0")]
)
def test_wrong_steps_are_caught(kind, message):
    class Wrong(LossLaws):
        shape = (2, 3)

        def instance(self):
            return made(kind)

    report = Wrong().report("exact_step")
    assert not report.ok and message in report.failures[0].measured and "values" in report.failures[0].measured


def test_admm_takes_the_step():
    module = torch.nn.Linear(3, 6).double()
    G = gp.Generator(torch.nn.Sequential(module, torch.nn.Unflatten(1, (2, 3))), 3, (2, 3))
    problem = gp.Problem(G, loss=made(ExactPrecision), on_signal=0.1 * gp.L1())
    plain = gp.Problem(G, loss=made(Precision), on_signal=0.1 * gp.L1())
    with_step, without = (
        gp.solve(p, gp.ExactADMM(rho=1.0, dual=gp.duals.Constant()), stop=gp.MaxSteps(800), seed=1)
        for p in (problem, plain)
    )
    assert "one prox with a step per entry" in with_step.plan
    torch.testing.assert_close(with_step.objective, without.objective, rtol=1e-3, atol=1e-4)
