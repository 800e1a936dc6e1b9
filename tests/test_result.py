"""What a result says to people."""

from dataclasses import replace

import pytest
import torch

import genprior as gp
from genprior import Status
from tests.checks.parts import tiny_problem


@pytest.fixture(scope="module")
def result():
    return gp.solve(tiny_problem(3), gp.ExactADMM(), stop=gp.MaxSteps(5))


def ended(result, *status, **fields):
    return replace(result, status=status, **fields)


@pytest.mark.parametrize("status", list(Status), ids=lambda status: status.name)
def test_every_status_has_advice(status):
    assert len(status.advice) > 10
    assert status.advice.endswith(".")


def test_advice_names_options_that_exist():
    assert hasattr(gp, "Auto") and "gp.Auto()" in Status.STALLED.advice
    assert "checkpoint=" in Status.INTERRUPTED.advice


def test_good_statuses_are_those_of_a_minimum_a_target_or_the_noise():
    assert {status for status in Status if status.good} == {
        Status.CONVERGED,
        Status.SETTLED,
        Status.TARGET,
        Status.FITS_NOISE,
    }


def test_status_codes_are_different_and_running_is_zero():
    assert Status.RUNNING == 0
    assert len({int(status) for status in Status}) == len(Status)


def test_summary_names_the_items_that_need_attention_first(result):
    fits = torch.full((3,), 0.1, dtype=torch.float64)
    text = ended(result, Status.CONVERGED, Status.STALLED, Status.CONVERGED, residual=fits).summary()
    first, second, third, fourth = text.splitlines()
    assert first == "3 items: 2 CONVERGED, 1 STALLED"
    assert second.startswith("item 1, stalled: ")
    assert f"median objective {result.objective.median().item():.3g}" in third
    assert f"{result.forwards} forward and {result.backwards} backward passes" in third
    assert fourth == result.plan


def test_converged_means_all(result):
    assert ended(result, *[Status.CONVERGED] * 3).converged
    assert not ended(result, Status.CONVERGED, Status.CONVERGED, Status.TARGET).converged


def test_advice_per_item(result):
    made = ended(result, Status.CONVERGED, Status.MAX_STEPS, Status.DIVERGED, rollbacks=torch.tensor([0, 0, 6]))
    assert made.advice[0].startswith(Status.CONVERGED.advice)
    assert made.advice[1].startswith(Status.MAX_STEPS.advice)
    assert made.advice[2].startswith(Status.DIVERGED.advice + " The steps of this item were shortened 6 times.")
    assert made.attention[0] == 2, "the gravest first"


def test_frozen_dual(result):
    apart = torch.tensor([0.05, 1e-5, 0.05], dtype=torch.float64)
    made = ended(result, Status.STALLED, Status.STALLED, Status.MAX_STEPS, primal_residual=apart)
    assert "w and G(z) still differ by 5.0%" in made.advice[0]
    assert "dual frozen" in made.advice[0]
    assert "dual=gp.duals.Constant()" in made.advice[0]
    assert "frozen" not in made.advice[1]
    assert "frozen" not in made.advice[2]


def test_frozen_dual_in_a_solve():
    """A dual step that is far too small cannot make w and G(z) meet: the run stalls, and says why."""
    problem = tiny_problem(2, noise=0.5)
    solver = gp.LinearizedADMM(rho=0.3, sigma=1e-9)
    result = gp.solve(problem, solver, stop=gp.MaxSteps(3000), patience=60)
    stalled = [text for text, status in zip(result.advice, result.status, strict=True) if status is Status.STALLED]
    assert stalled
    assert all("dual frozen" in text for text in stalled)


def test_tensors_belong_together():
    problem = tiny_problem(3)
    result = gp.solve(problem, stop=gp.MaxSteps(20), restarts=2, cull_after=5)
    assert torch.allclose(problem.generator(result.z).detach(), result.signal)
    assert torch.allclose(problem.objective(result.z), result.objective)
    assert result.w.shape == result.signal.shape == (3, 8)
    assert not any(getattr(result, name).requires_grad for name in ("z", "signal", "w", "objective"))
    assert len(result.status) == len(result.steps) == len(result.restart) == len(result.history) == 3
