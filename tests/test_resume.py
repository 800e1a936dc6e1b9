"""An interrupted run that is called again ends with the same bits as one that was never interrupted: every solver.

Each solver meets each type of problem; dtypes, ways of stopping and steps take turns. The default solver meets them all.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import cycle, product

import pytest
import torch

import genprior as gp
from tests.laws.solvers import SOLVERS as LAWFUL
from tests.laws.solvers import SQUARES_ONLY
from tests.resuming import ENVIRONMENT, TERMS, Crash, assert_same_run, many_latents, problem_with, stop_at

STEPS, EVERY, LATE = 18, 5, 13
VARIANTS = {
    "QuasiNewton with little memory": gp.QuasiNewton(memory=4, dual_every=3),
    "LBFGS with little memory": gp.LBFGS(memory=3, max_trials=3),
    "LevenbergMarquardt with old Jacobians": gp.LevenbergMarquardt(refresh=4),
    "ADMM conjugate gradients": gp.ADMM(gp.z_steps.GaussNewton(inner=1, dense=False)),
    "ADMM spectral": gp.ADMM(gp.z_steps.Spectral(), dual=gp.duals.Adaptive(), penalty=gp.penalties.Balanced()),
    "ADMM in scales": gp.ExactADMM(rho=1.0, n=3),
    "ProjectedGradient Adam": gp.ProjectedGradient(inner=4),
}
"""Solvers with options that matter here; their relatives in the table meet more problems."""
SOLVERS = {"Auto": gp.Auto()} | {name: make() for name, make in LAWFUL.items()} | VARIANTS  # the default first
ENDS = {"callback": True, "ctrl-c": KeyboardInterrupt(), "crash": Crash()}
TURNS = list(product((torch.float64, torch.float32), ENDS, (8, LATE)))


def applies(solver: str, terms: str) -> bool:
    if solver in VARIANTS and terms not in ("smooth", "ridge on z"):
        return False
    return solver not in SQUARES_ONLY or "signal" not in terms


PAIRS = [(solver, terms) for solver, terms in product(SOLVERS, TERMS) if applies(solver, terms)]


def run(path, problem, solver, callbacks=(), **options):
    options |= {"stop": gp.MaxSteps(STEPS), "tolerance": 0.0, "callbacks": callbacks}
    checkpoint = None if path is None else gp.Checkpoint(path, steps=EVERY)
    return gp.solve(problem, SOLVERS[solver], checkpoint=checkpoint, **options)


def assert_resumed_equals_whole(path, first_step, build, solver, **options):
    """Everything is built anew, as in a new process; compared with a run in one piece."""
    steps = []
    resumed = run(path, build(), solver, [lambda view: steps.append(view.step)], **options)
    assert steps[0] == first_step, "it did not go on where it was stored"
    assert_same_run(resumed, run(None, build(), solver, **options))


def stopped_then_resumed(path, build, solver, end, at):
    if end == "crash":
        with pytest.raises(Crash):
            run(path, build(), solver, [stop_at(at, ENDS[end])])
    else:
        assert gp.Status.INTERRUPTED in run(path, build(), solver, [stop_at(at, ENDS[end])]).status
    assert_resumed_equals_whole(path, at // EVERY * EVERY if end == "crash" else at, build, solver)


@pytest.mark.parametrize(
    ("solver", "terms", "turn"), [(*pair, turn) for pair, turn in zip(PAIRS, cycle(TURNS), strict=False)], ids=str
)
def test_every_solver_on_every_type_of_problem(tmp_path, solver, terms, turn):
    dtype, end, at = turn
    stopped_then_resumed(tmp_path / "run", lambda: problem_with(terms, dtype), solver, end, at)


@pytest.mark.parametrize(
    ("terms", "turn"), list(zip(cycle(["l1 on the signal", "smooth"]), TURNS[1:-1], strict=False)), ids=str
)
def test_the_default_solver_stopped_in_every_way(tmp_path, terms, turn):
    dtype, end, at = turn
    stopped_then_resumed(tmp_path / "run", lambda: problem_with(terms, dtype), "Auto", end, at)


@pytest.mark.parametrize("solver", ["Auto", "ExactADMM"])
def test_a_w_step_without_a_closed_form(tmp_path, solver):
    build = lambda: problem_with("l1 on the signal", torch.float64, mixing=True)  # noqa: E731
    stopped_then_resumed(tmp_path / "run", build, solver, "ctrl-c", LATE)


@pytest.mark.parametrize("latent", [65, 1025])
@pytest.mark.parametrize("terms", ["smooth", "box on the signal"])
def test_the_default_solver_with_many_latents(tmp_path, terms, latent):
    stopped_then_resumed(tmp_path / "run", lambda: many_latents(terms, latent), "Auto", "crash", LATE)


# -- kill -9 -------------------------------------------------------------------------------------------------------

SEVERAL = {"restarts": 2, "cull_after": 6, "batch_size": 2}
"""Two batches; killed in the second one, between two rounds of culling."""


def three_items():
    return problem_with("smooth", torch.float64, items=3)


def die_in_all(folder, names):
    """Each run is left in the middle for the next one, and the last one kills the process."""
    if not names:
        os.kill(os.getpid(), signal.SIGKILL)
    seen = []

    def callback(view):
        seen.append(view.step)
        if seen.count(LATE) == 2:
            die_in_all(folder, names[1:])

    run(f"{folder}/{names[0]}", three_items(), names[0], [callback], **SEVERAL)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The checkpoints that a killed process left, one for each solver."""
    folder = tmp_path_factory.mktemp("killed")
    script = f"from tests.test_resume import *; die_in_all({str(folder)!r}, list(SOLVERS))"
    done = subprocess.run([sys.executable, "-c", script], env=ENVIRONMENT, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    return folder


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_killed_process_with_restarts_and_batches(killed, solver):
    assert_resumed_equals_whole(killed / solver, LATE // EVERY * EVERY, three_items, solver, **SEVERAL)
