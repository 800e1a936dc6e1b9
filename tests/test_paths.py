"""What the loop keeps of each item, on iterates that are prescribed step by step: progress, explosions, culling, verdicts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import genprior as gp
from genprior import Status

F64 = torch.float64
Path = Callable[[Tensor, Tensor], Tensor]
"""The first latent number from the number of a lane (the second latent number) and that of the step."""


@dataclass(frozen=True)
class Follow(gp.z_steps.FirstOrder):
    """A z step that goes where it is told, whatever the gradient."""

    path: Path

    def start(self, problem: gp.Problem, z: Tensor) -> dict[str, Any]:
        return {"count": z.new_zeros(len(z))}

    def __call__(self, move: Any, memory: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        count, lane = memory["count"] + 1, move.z[:, 1]
        return torch.stack([self.path(lane, count), lane], dim=1), {"count": count}


@dataclass(frozen=True)
class Prescribed(gp.GradientDescent):
    """Gradient descent, but for where it goes."""

    path: Path = lambda lane, step: 0 * step

    @property
    def z_step(self) -> Follow:
        return Follow(self.path)


class Plateau(nn.Module):
    """The signal is the first latent number; above 100 it is one million, and no gradient is left."""

    def forward(self, z: Tensor) -> Tensor:
        return torch.where(z[:, :1] > 100, 1e6, z[:, :1])


class Shelf(nn.Module):
    """``(z, 0)`` below zero, ``(z, 1)`` above: seen from the origin, a stationary point that is not the best one."""

    def forward(self, z: Tensor) -> Tensor:
        return torch.cat([z[:, :1], (z[:, :1] >= 0).to(z)], dim=1)


def follow(path: Path, y: float = 0.0, *, items: int = 1, restarts: int = 1, **options: Any) -> gp.Result:
    """Minimise ``|G(z) - y|^2``. Lanes are numbered over items and restarts; each starts at step 0 of its path.

    For y = 0 on the plain slope, the relative residual is one half everywhere: only the objective tells of progress.
    """
    module, term = options.pop("module", Plateau()), options.pop("on_signal", None)
    generator = gp.Generator(module, 2, 2 if isinstance(module, Shelf) else 1, dtype=F64)
    lanes = torch.arange(items * restarts, dtype=F64)
    z0 = torch.stack([path(lanes, torch.zeros_like(lanes)), lanes], dim=1).reshape(items, restarts, 2)
    target = torch.full((items, *generator.signal_shape), y, dtype=F64)
    problem = gp.Problem(generator, gp.SquaredDistance(target), on_signal=term or gp.Zero())
    options = {"stop": gp.MaxSteps(100), "check_every": 1, "cull_after": 10_000} | options
    return gp.solve(problem, Prescribed(path=path), z0=z0, **options)


# -- progress --------------------------------------------------------------------------------------------------------


def test_an_objective_that_falls_is_progress():
    result = follow(lambda lane, step: 4 * 0.995**step, patience=10)
    assert result.status == (Status.MAX_STEPS,)
    assert follow(lambda lane, step: 4 + 0 * step, patience=10).status == (Status.STALLED,)


def test_residuals_that_fall_are_progress_although_the_best_objective_stands():
    """It leaves the lowest point at once, for a stationary one that lies higher."""
    path = lambda lane, step: torch.where(step == 0, -0.5, 0.8**step)  # noqa: E731
    result = follow(path, module=Shelf(), patience=10, tolerance=1e-3)
    assert result.status == (Status.MAX_STEPS,), (
        "not stalled: it went on; not converged: what is returned is another point"
    )
    assert result.objective.item() == 0.25


def test_the_first_feasible_iterate_renews_patience():
    """Its objective is above the scores of those before, and so are those of many that follow: they fall all the same."""
    path = lambda lane, step: torch.where(step < 3, 0.5, 3 - 0.02 * (step - 3))  # noqa: E731
    result = follow(path, on_signal=gp.Box(1.0, 3.0), patience=15, stop=gp.MaxSteps(55))
    assert result.status == (Status.MAX_STEPS,)
    assert result.objective.item() < 4


# -- explosions ------------------------------------------------------------------------------------------------------


def test_a_start_at_the_optimum_may_be_left():
    """Its objective is no unit of what may follow: a percent of the objective of nothing is no explosion."""
    result = follow(lambda lane, step: 5 + torch.where(step == 0, 1e-6, 0.5), y=5.0, patience=10, tolerance=0.0)
    assert not result.rollbacks.any()
    assert result.objective.item() < 1e-11 and result.status == (Status.SETTLED,)


def test_a_plateau_far_above_is_neither_convergence_nor_the_end_of_patience():
    """Nothing moves there and no gradient is left: each time the item is set back, with new patience."""
    path = lambda lane, step: torch.where(step < 12, 1.0, 200.0)  # noqa: E731
    for patience, tolerance in ((11, 0.0), (13, 0.0), (50, 1e-3)):
        result = follow(path, patience=patience + 1, tolerance=tolerance, stop=gp.MaxSteps(200))
        assert result.status == (Status.DIVERGED,), patience
        assert result.objective.item() == 1 and result.rollbacks.item() > 0


class Ends(gp.StopRule):
    """Stops the even lanes between two checks."""

    def verdict(self, view: gp.View) -> Tensor:
        return torch.where((view.rows % 2 == 0) & (view.step >= 7), int(Status.TARGET), 0)


def test_a_plateau_far_above_is_no_convergence_between_checks_either():
    path = lambda lane, step: torch.where((step < 4) | (lane == 1), 1.0, 200.0)  # noqa: E731
    result = follow(path, items=2, stop=Ends() | gp.MaxSteps(9), check_every=50)
    assert result.status == (Status.TARGET, Status.MAX_STEPS)
    assert result.steps.tolist() == [7, 9]


# -- restarts --------------------------------------------------------------------------------------------------------


def test_restarts_that_have_ended_count_when_the_worse_half_is_given_up():
    steps: list[int] = []
    path = lambda lane, step: torch.where((lane == 0) & (step >= 3), 5.0, 1.0)  # noqa: E731
    watch = [lambda view: steps.append(view.step)]
    result = follow(path, y=5.0, restarts=2, cull_after=10, patience=1000, callbacks=watch)
    assert result.status == (Status.CONVERGED,) and result.steps.item() < 10
    assert max(steps) <= 10, "the other restart was kept although a better one was known"


def test_a_target_that_one_restart_meets_ends_them_all():
    steps: list[int] = []
    path = lambda lane, step: torch.where((lane == 1) & (step >= 3), 4.9, 1.0)  # noqa: E731
    watch = [lambda view: steps.append(view.step)]
    result = follow(path, y=5.0, restarts=2, patience=1000, stop=gp.Target(0.1) | gp.MaxSteps(20), callbacks=watch)
    assert result.status == (Status.TARGET,) and result.restart.item() == 1
    assert max(steps) <= 3


def test_the_last_restart_is_never_given_up():
    path = lambda lane, step: lane + 4 - 0.01 * step  # noqa: E731
    result = follow(path, restarts=3, cull_after=2, stop=gp.MaxSteps(40))
    assert result.status == (Status.MAX_STEPS,) and result.restart.item() == 0
    assert result.steps.item() == 40


def test_a_feasible_restart_wins_before_any_other():
    path = lambda lane, step: torch.where(lane == 0, 0.5, 2.0)  # noqa: E731
    result = follow(path, restarts=2, on_signal=gp.Box(1.0, 3.0), stop=gp.MaxSteps(5))
    assert result.restart.item() == 1 and result.objective.item() == 4


def test_the_history_is_that_of_the_restart_that_won():
    path = lambda lane, step: torch.where(lane == 1, 2.0, 3.0) - 0.01 * step  # noqa: E731
    result = follow(path, restarts=3, stop=gp.MaxSteps(5))
    assert result.restart.item() == 1
    torch.testing.assert_close(result.history.item(0)["objective"], (2 - 0.01 * torch.arange(6, dtype=F64)) ** 2)


# -- what is told at the end -----------------------------------------------------------------------------------------


def test_residuals_belong_to_the_last_step_however_a_run_ends():
    path = lambda lane, step: 4 - 0.1 * step  # noqa: E731
    by_steps = follow(path, y=5.0, stop=gp.MaxSteps(7), check_every=10)
    by_callback = follow(path, y=5.0, check_every=10, callbacks=[lambda view: view.step == 7])
    by_rule = follow(path, y=5.0, check_every=10, stop=Ends() | gp.MaxSteps(9))
    assert by_callback.status == (Status.INTERRUPTED,) and by_rule.status == (Status.TARGET,)
    for other in (by_callback, by_rule):
        assert torch.equal(other.stationarity, by_steps.stationarity)
        assert torch.equal(other.history.item(0)["stationarity"][-1:], by_steps.stationarity)


def test_an_item_that_has_converged_is_told_so_although_a_rule_ends_it_between_two_checks():
    path = lambda lane, step: torch.where(step < 3, 1.0, 5.0)  # noqa: E731
    result = follow(path, y=5.0, check_every=50, stop=Ends() | gp.MaxSteps(9))
    assert result.status == (Status.CONVERGED,) and result.steps.item() == 7


def test_a_rule_that_ends_an_item_goes_before_patience():
    path = lambda lane, step: 4 + 0 * step  # noqa: E731
    stalled = follow(path, patience=7)
    assert stalled.status == (Status.STALLED,)
    assert follow(path, patience=7, stop=gp.MaxSteps(stalled.steps.item())).status == (Status.MAX_STEPS,)


def test_the_history_holds_residuals_of_checked_steps_only():
    path = lambda lane, step: 4 - 0.1 * step  # noqa: E731
    found = follow(path, y=5.0, check_every=3, stop=gp.MaxSteps(8)).history.item(0)["stationarity"]
    assert found.isnan().tolist() == [False, True, True, False, True, True, False, True, False]


# -- what is proved about the point that is returned -----------------------------------------------------------------


def test_a_stationary_point_that_no_term_allows_is_no_answer():
    """The loss is least at a point outside of the set: neither converged nor settled, however long it stays."""
    result = follow(lambda lane, step: 0.5 + 0 * step, y=0.5, on_signal=gp.Box(1.0, 3.0), patience=10)
    assert result.status == (Status.STALLED,)
    assert result.objective.item() == torch.inf


def test_a_feasible_answer_is_not_given_up_for_a_later_one_that_is_not():
    """Where an item comes to rest, its last iterate is looked at beside its best one: it lies a little outside."""
    path = lambda lane, step: torch.where(step < 3, 2.0, 0.99)  # noqa: E731
    result = follow(path, on_signal=gp.Box(1.0, 3.0), patience=10)
    assert result.objective.item() == 4 and result.signal.item() == 2


def test_what_has_stalled_is_proved_if_it_can_be():
    """The steps go to and fro, so the residuals of a step never fall; what is returned is stationary all the same."""
    path = lambda lane, step: torch.where(step == 7, 5.0, torch.where(step % 2 == 0, 4.0, 6.0))  # noqa: E731
    result = follow(path, y=5.0, patience=20, check_every=10)
    assert result.status == (Status.CONVERGED,)
    assert result.objective.item() == 0 and result.stationarity.item() == 0


def test_an_item_still_improves_if_its_objective_fell_a_moment_ago():
    falls = follow(lambda lane, step: 4 * 0.98**step, stop=gp.MaxSteps(60))
    assert falls.improving.tolist() == [True]
    rests = follow(lambda lane, step: 4 * 0.98 ** step.clamp(max=20), stop=gp.MaxSteps(60))
    assert rests.improving.tolist() == [False]
    creeps = follow(lambda lane, step: 4 - 1e-4 * step, stop=gp.MaxSteps(60))
    assert creeps.improving.tolist() == [False], "less than a percent in all"
    entered = lambda lane, step: torch.where(step < 40, 0.5, 3 - 0.01 * (step - 40))  # noqa: E731
    result = follow(entered, on_signal=gp.Box(1.0, 3.0), stop=gp.MaxSteps(60))
    assert result.improving.tolist() == [True], "from the first feasible one on, not from the scores before"
