"""The file of a run: what it must bring back whatever happened in the run, when it is refused, what may go wrong in writing.

That every solver goes on to the same bits is in test_resume.py.
"""

import errno
import shutil
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import genprior as gp
from genprior.loop import checkpoint as checkpoint_module
from tests.checks.parts import tiny_generator, tiny_module, tiny_problem
from tests.resuming import Crash, assert_same_run, stop_at

SOLVERS = {
    "exact": gp.ExactADMM(rho=1.0, n=3, z_step=gp.z_steps.Gradient()),
    "exact, adam z": gp.ExactADMM(z_step=gp.z_steps.Adam()),
    "momentum": gp.GradientDescent(momentum=0.9),
    "adam": gp.Adam(),
    "lbfgs": gp.LBFGS(memory=3),
}
STEPS = 30


def run(path=None, *, solver="exact", stop=None, problem=None, every=7, callbacks=(), **options):
    """Everything is built anew, as in a new process."""
    problem = problem or tiny_problem()
    problem.generator.forget()
    return gp.solve(
        problem,
        SOLVERS[solver] if isinstance(solver, str) else solver,
        stop=stop or gp.MaxSteps(STEPS),
        checkpoint=None if path is None else gp.Checkpoint(path, steps=every),
        callbacks=callbacks,
        **options,
    )


def interrupted_then_resumed(path, how, *, at=17, after_calls=0, **options):
    callbacks = [stop_at(at, how, after_calls)]
    if isinstance(how, RuntimeError):
        with pytest.raises(Crash):
            run(path, callbacks=callbacks, **options)
    else:
        partial = run(path, callbacks=callbacks, **options)
        assert gp.Status.INTERRUPTED in partial.status
    steps = []
    resumed = run(path, callbacks=[lambda view: steps.append(view.step)], **options)
    assert steps[0] == ((at - 1) // 7 * 7 if isinstance(how, RuntimeError) else at), (
        "it did not go on where it was stored"
    )
    return resumed


# -- bit-equal resumption --------------------------------------------------------------------------------------------

ENDS = {"callback says stop": True, "ctrl-c": KeyboardInterrupt(), "crash": Crash()}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("solver", ["exact", "lbfgs", "momentum"])
def test_resumed_restarts_are_bit_equal(tmp_path, solver, how):
    options = {"solver": solver, "restarts": 4, "cull_after": 10}
    whole = run(**options)
    assert whole.restart.any(), "some item should be won by another restart than the first"
    for at in (15, 25):
        assert_same_run(interrupted_then_resumed(tmp_path / f"run{at}", ENDS[how], at=at, **options), whole)


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("solver", ["exact", "adam", "lbfgs"])
def test_interrupted_in_the_second_chunk(tmp_path, solver, how):
    options = {"problem": None, "solver": solver, "batch_size": 2, "restarts": 2}
    resumed = interrupted_then_resumed(tmp_path / "run", ENDS[how], after_calls=1, **options)
    assert_same_run(resumed, run(**options))


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("solver", ["exact", "lbfgs", "exact, adam z"])
def test_items_that_retire_around_the_checkpoint(tmp_path, solver, how):
    """Compaction before the checkpoint, between checkpoint and crash, and after it."""
    reached = run(solver=solver, stop=gp.MaxSteps(12), problem=tiny_problem(8)).objective.median().item()
    options = {"solver": solver, "stop": gp.MaxSteps(40) | gp.Target(reached)}
    whole = run(problem=tiny_problem(8), **options)
    retired = sorted(set(whole.steps.tolist()))
    assert len(retired) >= 3
    for at in sorted({retired[0] + 1, retired[1], retired[1] + 1}):
        path = tmp_path / f"run{at}"
        resumed = interrupted_then_resumed(path, ENDS[how], at=at, problem=tiny_problem(8), **options)
        assert_same_run(resumed, whole)


def test_terms_and_per_item_parameters_survive(tmp_path):
    def problem():
        weights = torch.tensor([0.01, 0.02, 0.03, 0.04], dtype=torch.float64)
        return tiny_problem(noise=0.1, on_signal=weights * gp.L1(), on_latent=gp.Ball(2.0))

    stop = gp.MaxSteps(STEPS) | gp.Target(0.3)
    resumed = interrupted_then_resumed(tmp_path / "run", True, problem=problem(), stop=stop)
    assert_same_run(resumed, run(problem=problem(), stop=stop))


def test_many_interruptions_in_a_row(tmp_path):
    for at in range(0, STEPS, 4):
        run(tmp_path / "run", callbacks=[stop_at(at, True)])
    assert_same_run(run(tmp_path / "run"), run())


def test_history_is_thinned_alike_after_a_crash(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["genprior.loop.run"], "_RECORDS_PER_ITEM", 6)
    for at in (16, 24, 29):
        assert_same_run(interrupted_then_resumed(tmp_path / f"run{at}", True, at=at), run())


def diverging_problem():
    torch_random = torch.Generator().manual_seed(3)
    module = nn.Linear(3, 8).double()
    for parameter in module.parameters():
        nn.init.normal_(parameter, generator=torch_random)
    generator = gp.Generator(module, (3,), (8,))
    operator = gp.operators.Gaussian(6, (8,), seed=1, dtype=torch.float64)
    with torch.no_grad():
        y = operator(generator(generator.sample_latent(3, seed=7)))
    return gp.Problem(generator, gp.LeastSquares(operator, y))


@pytest.mark.parametrize("at", [9, 11, 14])
def test_roll_backs_survive(tmp_path, at):
    options = {"solver": gp.GradientDescent(step_size=10.0), "problem": diverging_problem()}
    whole = run(**options)
    assert whole.rollbacks.any()
    assert_same_run(interrupted_then_resumed(tmp_path / "run", True, at=at, **options), whole)


def test_stored_right_after_a_roll_back(tmp_path):
    options = {"solver": gp.GradientDescent(step_size=10.0), "problem": diverging_problem()}
    whole = run(**options)
    steps = range(5, STEPS, 5)
    for at in steps:
        assert_same_run(interrupted_then_resumed(tmp_path / f"run{at}", True, at=at, **options), whole)


class Nervous(nn.Module):
    """Ctrl-C during the ``at``-th forward pass."""

    at = -1
    passes = 0

    def __init__(self):
        super().__init__()
        self.inside = tiny_module()

    def forward(self, z):
        Nervous.passes += 1
        if Nervous.passes == Nervous.at:
            raise KeyboardInterrupt
        return self.inside(z)


@pytest.fixture
def nervous(monkeypatch):
    def problem(at):
        monkeypatch.setattr(Nervous, "at", at)
        monkeypatch.setattr(Nervous, "passes", 0)
        return gp.Problem(gp.Generator(Nervous(), (3,), (8,)), tiny_problem().loss)

    return problem


@pytest.mark.parametrize("solver", [SOLVERS["exact"], gp.Auto()], ids=["exact", "Auto"])
def test_ctrl_c_inside_the_generator_resumes_to_the_same_answer(tmp_path, nervous, solver):
    """The step that was cut short is no part of the run: neither its result nor its passes."""
    partial = run(tmp_path / "run", problem=nervous(14), solver=solver)
    assert partial.status == (gp.Status.INTERRUPTED,) * 4
    assert 0 < int(partial.steps.min()) < 14
    resumed = run(tmp_path / "run", problem=nervous(-1), solver=solver)
    assert_same_run(resumed, run(problem=nervous(-1), solver=solver))


@pytest.mark.usefixtures("simulated_clock")
def test_seconds_go_on_counting(tmp_path):
    def slow():
        problem = tiny_problem(1)
        problem.generator.module.register_forward_hook(lambda *_: time.sleep(0.01))
        return problem

    partial = run(tmp_path / "run", problem=slow(), callbacks=[stop_at(20, True)])
    assert partial.seconds >= 0.2
    resumed = run(tmp_path / "run", problem=slow(), stop=gp.MaxSteps(STEPS))
    assert resumed.seconds >= partial.seconds + 0.1
    assert bool((resumed.history.item(0)["seconds"].diff() >= 0).all())


# -- finished runs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"batch_size": 3}, {"restarts": 2}])
def test_finished_run_returns_at_once(tmp_path, options):
    path = tmp_path / "run"
    first = run(path, **options)
    problem = tiny_problem()
    passes = []
    problem.generator.module.register_forward_hook(lambda *_: passes.append(1))
    before = problem.generator.forwards, problem.generator.backwards
    again = run(path, problem=problem, callbacks=[lambda view: pytest.fail("no step is left to make")], **options)
    assert passes == []
    assert (problem.generator.forwards, problem.generator.backwards) == before
    assert_same_run(again, first)
    assert again.seconds == first.seconds
    assert torch.equal(again.history.item(0)["seconds"], first.history.item(0)["seconds"])


def test_a_path_alone_is_a_checkpoint(tmp_path):
    first = gp.solve(tiny_problem(), stop=gp.MaxSteps(5), checkpoint=str(tmp_path / "run"))
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    again = gp.solve(tiny_problem(), stop=gp.MaxSteps(5), checkpoint=str(tmp_path / "run"))
    assert_same_run(again, first)


def test_a_checkpoint_does_not_change_the_run(tmp_path):
    assert_same_run(run(tmp_path / "run", every=1), run())


# -- refusals --------------------------------------------------------------------------------------------------------


def other_data():
    problem = tiny_problem()
    y = problem.loss.y.clone()
    y[2, 3] = torch.nextafter(y[2, 3], y.new_tensor(9.0))
    return gp.Problem(problem.generator, gp.LeastSquares(problem.loss.operator, y))


def other_activation():
    module = tiny_module()
    module[1] = nn.Sigmoid()
    return gp.Problem(gp.Generator(module, (3,), (8,)), tiny_problem().loss)


OTHERS = {
    "generator weights": lambda: {"problem": tiny_problem(generator_seed=1, data_seed=7)},
    "activation": lambda: {"problem": other_activation()},
    "operator": lambda: {"problem": gp.Problem(tiny_generator(), tiny_problem(operator_seed=2).loss)},
    "one bit of the data": lambda: {"problem": other_data()},
    "term": lambda: {"problem": tiny_problem(on_latent=0.1 * gp.L1())},
    "solver": lambda: {"solver": gp.LinearizedADMM()},
    "solver option": lambda: {"solver": gp.ExactADMM(rho=1.0 + 1e-12, n=3, z_step=gp.z_steps.Gradient())},
    "seed": lambda: {"seed": 1},
    "stop": lambda: {"stop": gp.MaxSteps(STEPS + 1)},
    "restarts": lambda: {"restarts": 2},
    "batch size": lambda: {"batch_size": 2},
    "tolerance": lambda: {"tolerance": 1e-5},
    "patience": lambda: {"patience": 499},
    "check_every": lambda: {"check_every": 4},
    "start": lambda: {"z0": torch.zeros(4, 3, dtype=torch.float64)},
}


@pytest.mark.parametrize("finished", [True, False], ids=["finished", "running"])
@pytest.mark.parametrize("what", OTHERS)
def test_checkpoint_of_another_run_is_refused(tmp_path, what, finished):
    path = tmp_path / "run"
    run(path, callbacks=[] if finished else [stop_at(17, True)])
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"belongs to another run.*delete the file"):
        run(path, **OTHERS[what]())
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_truncated_file(tmp_path):
    path = tmp_path / "run"
    run(path, callbacks=[stop_at(17, True)])
    whole = path.read_bytes()
    for length in (0, 5, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"run cannot be read .*delete it to start anew"):
            run(path)
        assert path.read_bytes() == whole[:length]


def test_files_that_are_not_checkpoints(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("my only copy of something else")
    with pytest.raises(ValueError, match="cannot be read"):
        run(text)
    assert text.read_text() == "my only copy of something else"
    weights = tmp_path / "weights.safetensors"
    save_file({"a": torch.ones(2)}, weights)
    before = weights.read_bytes()
    with pytest.raises(ValueError, match="is not a genprior checkpoint"):
        run(weights)
    assert weights.read_bytes() == before


def test_impossible_paths(tmp_path):
    with pytest.raises(ValueError, match="is a folder: add a file name"):
        gp.Checkpoint(tmp_path)
    with pytest.raises(ValueError, match=r"the folder .*missing does not exist"):
        gp.Checkpoint(tmp_path / "missing" / "run")
    with pytest.raises(ValueError, match="does not exist"):
        gp.solve(tiny_problem(), checkpoint=tmp_path / "missing" / "run")


@pytest.mark.parametrize(("options", "error"), [({"seconds": -1}, ValueError), ({"steps": 0}, ValueError)])
def test_bad_intervals(tmp_path, options, error):
    with pytest.raises(error, match=next(iter(options))):
        gp.Checkpoint(tmp_path / "run", **options)


def test_due(tmp_path, monkeypatch):
    by_steps = gp.Checkpoint(tmp_path / "run", steps=7)
    assert [step for step in range(30) if by_steps.due(step)] == [7, 14, 21, 28]
    by_time = gp.Checkpoint(tmp_path / "run", seconds=10)
    assert not by_time.due(5)
    now = [time.monotonic() + 10.5]
    monkeypatch.setattr(checkpoint_module.time, "monotonic", lambda: now[0])
    assert by_time.due(6)
    by_time.write("x", {}, {"a": torch.ones(1)})
    assert not by_time.due(7)
    now[0] += 10.5
    assert by_time.due(8)


# -- failures while writing ------------------------------------------------------------------------------------------


def test_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "run"
    whole = run()
    real, calls = Path.write_bytes, []

    def full(self, content):
        calls.append(self)
        if len(calls) < 3:
            return real(self, content)
        real(self, content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.warns(UserWarning, match="checkpoint could not be written .*No space left"):
        assert_same_run(run(path), whole)
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]
    monkeypatch.setattr(Path, "write_bytes", real)
    steps = []
    resumed = run(path, callbacks=[lambda view: steps.append(view.step)])
    assert steps[0] == 14
    assert_same_run(resumed, whole)


def test_a_place_that_cannot_be_written_is_refused_before_the_run(tmp_path, monkeypatch):
    def refuse(self, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "touch", refuse)
    steps = []
    with pytest.raises(ValueError, match=r"cannot be written .*Permission denied.*give another path"):
        run(tmp_path / "run", callbacks=[lambda view: steps.append(view.step)])
    assert not steps and not list(tmp_path.iterdir())


def test_a_folder_that_vanishes_costs_the_checkpoint_and_not_the_run(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()

    def vanish(view):
        if view.step == 3:
            shutil.rmtree(folder)

    with pytest.warns(UserWarning, match="checkpoint could not be written"):
        result = run(folder / "run", every=50, callbacks=[vanish])
    assert_same_run(result, run())


def test_control_c_in_the_last_write_returns_the_result(tmp_path, monkeypatch):
    def interrupted(self, content):
        raise KeyboardInterrupt

    whole = run()
    monkeypatch.setattr(Path, "write_bytes", interrupted)
    assert_same_run(run(tmp_path / "run", every=10_000), whole)
    assert not list(tmp_path.iterdir())


def test_no_temporary_files_are_left(tmp_path):
    run(tmp_path / "run", every=3, callbacks=[stop_at(17, True)])
    run(tmp_path / "run", every=3)
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


def test_a_checkpoint_of_another_version_is_refused(tmp_path):
    path = tmp_path / "run.safetensors"
    save_file({"a": torch.ones(2)}, path, metadata={"format": "genprior-checkpoint-1", "meta": "{}"})
    before = path.read_bytes()
    with pytest.raises(
        ValueError, match="was written by another version of genprior: finish the run with that one, or"
    ):
        run(path)
    assert path.read_bytes() == before
