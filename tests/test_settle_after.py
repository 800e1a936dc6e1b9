"""Items near a minimum whose objectives have stopped falling: they end early where that is asked for, others do not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import genprior as gp
from genprior.loop.restarts import Restarts
from genprior.status import Status

PATIENT = {"restarts": 1, "progress": False}


def problem(*, outside: float) -> gp.Problem:
    """Data whose distance from the generator's range is a share of their length."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 40), nn.ELU(), nn.Linear(40, 60), nn.ELU(), nn.Linear(60, 60), nn.Tanh())
    generator = gp.Generator(net.double(), 8, 60)
    operator = gp.operators.Gaussian(40, (60,), seed=1, dtype=torch.float64)
    truth = generator(generator.sample_latent(12, seed=2)).detach()
    away = torch.randn(truth.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    away *= outside * truth.norm(dim=1, keepdim=True) / away.norm(dim=1, keepdim=True)
    return gp.Problem(generator, loss=gp.LeastSquares(operator, operator(truth + away)))


def test_outside_of_the_range_it_saves_steps_and_changes_no_answer():
    given = problem(outside=0.3)
    waiting = gp.solve(given, gp.GradientDescent(), tolerance=1e-10, stop=gp.MaxSteps(2000), **PATIENT)
    early = gp.solve(given, gp.GradientDescent(), tolerance=1e-10, stop=gp.MaxSteps(2000), settle_after=20, **PATIENT)
    assert all(status.good for status in early.status)
    assert Status.SETTLED in early.status
    assert early.steps.sum() < 0.8 * waiting.steps.sum()
    assert bool((early.objective < 1.02 * waiting.objective).all())
    assert bool((early.stationarity <= 1e-2).all())


def test_an_objective_that_falls_is_not_at_rest():
    given = problem(outside=0.0)
    waiting = gp.solve(given, **PATIENT)
    early = gp.solve(given, settle_after=20, **PATIENT)
    assert torch.equal(early.steps, waiting.steps)
    assert torch.equal(early.signal, waiting.signal)


def test_far_from_a_minimum_nothing_settles():
    given = problem(outside=0.3)
    crawl = gp.solve(given, gp.GradientDescent(1e-12), stop=gp.MaxSteps(90), settle_after=20, **PATIENT)
    assert set(crawl.status) == {Status.MAX_STEPS}


def test_a_run_resumes_with_what_it_knew(tmp_path):
    given, options = problem(outside=0.3), {"settle_after": 20, "tolerance": 1e-10, **PATIENT}
    whole = gp.solve(given, gp.LBFGS(), **options)
    at = int(whole.steps.max()) - 15
    stored = {"checkpoint": tmp_path / "run", **options}
    gp.solve(given, gp.LBFGS(), callbacks=[lambda view: view.step == at], **stored)
    resumed = gp.solve(given, gp.LBFGS(), **stored)
    assert torch.equal(resumed.steps, whole.steps) and resumed.status == whole.status
    assert torch.equal(resumed.z, whole.z)


def test_bad_values():
    with pytest.raises(ValueError, match="settle_after must be at least 0, got -1"):
        gp.solve(problem(outside=0.3), settle_after=-1)


def test_every_item_that_would_be_called_lost_gets_more_starts():
    """Lost is 2.5 times the median; badly ended what is worse than 2.5 times the lower quartile, which is no more."""
    given = problem(outside=0.3)
    ended = gp.solve(given, **PATIENT)
    residual = torch.full((12,), 0.2, dtype=torch.float64)
    residual[3], residual[4] = 0.51, 0.49

    class Ended:
        status = torch.full((12,), int(Status.SETTLED))
        unfit = torch.zeros(12, dtype=torch.bool)
        objective = ended.objective

    assert Restarts().bad(Ended, residual).nonzero()[:, 0].tolist() == [3]
