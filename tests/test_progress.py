"""The progress bar, and Ctrl-C."""

import io
import re
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import genprior as gp
from genprior._progress import Bar, duration
from genprior.loop import run as progress_module
from genprior.loop.run import ProgressBar, fraction_done
from tests.checks.parts import tiny_module, tiny_problem

INTERRUPTED = gp.Status.INTERRUPTED


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_silent_when_not_a_terminal(capfd):
    gp.solve(tiny_problem(), stop=gp.MaxSteps(5))
    assert capfd.readouterr() == ("", "")


def test_silent_on_a_terminal_when_told(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    gp.solve(tiny_problem(), stop=gp.MaxSteps(5), progress=False)
    assert screen.getvalue() == ""


@pytest.mark.parametrize("progress", [True, None])
def test_drawn_on_a_terminal(monkeypatch, capfd, progress):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(progress_module, "_INTERVAL", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    gp.solve(tiny_problem(), stop=gp.MaxSteps(5), progress=progress)
    assert "solving" in screen.getvalue()
    assert "4 running, median objective" in screen.getvalue()
    assert capfd.readouterr().out == "", "standard output belongs to the program"


def test_forced_without_a_terminal(capfd):
    gp.solve(tiny_problem(), stop=gp.MaxSteps(5), progress=True)
    shown = capfd.readouterr()
    assert "solving" in shown.err
    assert shown.out == ""


def test_the_bar_does_not_change_the_run():
    quiet = gp.solve(tiny_problem(), stop=gp.MaxSteps(15))
    shown = gp.solve(tiny_problem(), stop=gp.MaxSteps(15), progress=True)
    assert torch.equal(quiet.z, shown.z)


def test_bar_is_closed_after_an_error(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")

    def fail(view):
        raise RuntimeError("mine")

    for _ in range(2):  # a bar left open makes the second one fail
        with pytest.raises(RuntimeError, match="mine"):
            gp.solve(tiny_problem(), stop=gp.MaxSteps(5), progress=True, callbacks=[fail])
    assert screen.getvalue().rstrip().endswith("\x1b[2K")


def view(step=0, seconds=0.0, items=4):
    best = torch.ones(items)
    return SimpleNamespace(
        step=step, seconds=seconds, rows=torch.arange(items), per_item=1, best_objective=best, stage=0, stages=1
    )


@pytest.mark.parametrize(
    ("stop", "fraction"),
    [
        (gp.MaxSteps(20), 0.25),
        (gp.Seconds(4.0), 0.5),
        (gp.MaxSteps(20) | gp.Seconds(4.0), 0.5),
        (gp.Seconds(40.0) | gp.MaxSteps(20) | gp.Target(0.0), 0.25),
        (gp.Target(0.0), 0.0),
        (gp.MaxPasses(20), 0.0),
        (gp.MaxSteps(20) & gp.Seconds(4.0), 0.0),
        (gp.MaxSteps(0), 5.0),
        (gp.Seconds(0), 1.0),
    ],
)
def test_fraction_done(stop, fraction):
    assert fraction_done(stop, view(step=5, seconds=2.0)) == fraction


def test_fraction_over_chunks_and_retired_items(monkeypatch):
    monkeypatch.setattr(progress_module, "_INTERVAL", 0.0)
    with ProgressBar(True, items=10) as bar:

        def shown(**now):
            bar.update(view(**now), gp.MaxSteps(20), 4)
            return bar._progress.tasks[0].completed

        assert shown(step=5) == pytest.approx(0.1)
        assert shown(step=5, items=1) == pytest.approx(0.3), "three of four items are done"
        assert shown(step=100) == pytest.approx(0.4), "never more than the chunk"
        bar.batch_done(4)
        assert shown(step=10) == pytest.approx(0.6)


def test_drawn_at_most_ten_times_a_second(monkeypatch):
    assert not ProgressBar(False, items=4).due()
    now = [100.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    with ProgressBar(True, items=4) as bar:
        assert bar.due()
        bar.update(view(step=1), gp.MaxSteps(100), 4)
        now[0] += 0.09
        assert not bar.due()
        now[0] += 0.02
        assert bar.due()


# -- without a terminal ------------------------------------------------------------------------------------------------


def test_lines_where_there_is_no_terminal(capsys):
    with Bar("recovered", every=0.0, counts=True, remaining=True) as bar:
        bar.show(0, 100, "reading")
        bar.show(50, 100, "step 3")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "recovered 0/100: reading"
    assert re.fullmatch(r"recovered 50/100: step 3, about \d+ s left", lines[1])


def test_stages_and_seldom_lines(capsys):
    with Bar("checks", 3, every=0.0) as bar, Bar("rarely", 3, every=60.0) as rare:
        for part in (bar, rare):
            part.stage("first")
            part.stage("second")
    assert capsys.readouterr().err == "checks: first\nchecks: second\n"


@pytest.mark.parametrize("options", [{"visible": False, "every": 0.0}, {}])
def test_neither_bar_nor_lines(capsys, options):
    with Bar("solving", None, **options) as bar:
        bar.stage("first")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("total", [None, 4])
def test_stages_on_a_terminal(monkeypatch, total):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    with Bar("certifying", total, every=0.0) as bar:
        bar.stage("sampling")
        assert bar.drawn and bar._progress.tasks[0].completed == 1
    assert "certifying" in screen.getvalue() and "sampling" in screen.getvalue()


def test_durations():
    assert [duration(seconds) for seconds in (3.4, 600, 7200)] == ["3 s", "10 min", "2.0 h"]


# -- Ctrl-C ----------------------------------------------------------------------------------------------------------


def ctrl_c_at(step):
    def callback(view):
        if view.step == step:
            raise KeyboardInterrupt

    return callback


def test_ctrl_c_returns_the_best_so_far():
    problem = tiny_problem()
    result = gp.solve(problem, gp.LinearizedADMM(), stop=gp.MaxSteps(100), callbacks=[ctrl_c_at(20)])
    assert result.status == (INTERRUPTED,) * 4
    assert result.steps.tolist() == [20] * 4
    same = gp.solve(problem, gp.LinearizedADMM(), stop=gp.MaxSteps(20))
    assert torch.equal(result.z, same.z)
    assert torch.equal(result.objective, same.objective)


@pytest.mark.parametrize("answer", [1, "yes", None, False])
def test_only_true_stops(answer):
    result = gp.solve(tiny_problem(), stop=gp.MaxSteps(5), callbacks=[lambda view: answer])
    assert result.steps.tolist() == [5] * 4


def test_all_callbacks_are_called_before_stopping():
    calls = []
    gp.solve(tiny_problem(), stop=gp.MaxSteps(5), callbacks=[lambda v: True, lambda v: calls.append(v.step)])
    assert calls == [0]


def test_chunks_not_started_return_their_starts():
    problem = tiny_problem(6)
    z0 = problem.generator.sample_latent(6, seed=3)
    seen = []

    def second_chunk(view):
        seen.append(view.items.tolist())
        return view.items[0] == 2 and view.step == 4

    result = gp.solve(
        problem, stop=gp.MaxSteps(9), z0=z0, batch_size=2, tolerance=0, callbacks=[lambda v: bool(second_chunk(v))]
    )
    assert result.status == (gp.Status.MAX_STEPS,) * 2 + (INTERRUPTED,) * 4
    assert result.steps.tolist() == [9, 9, 4, 4, 0, 0]
    assert torch.equal(result.z[4:], z0[4:])
    assert torch.allclose(result.objective[4:], problem.objective(z0)[4:])
    assert [4, 5] not in seen, "no callback for items that never started"


class Nervous(nn.Module):
    """Ctrl-C during one forward pass."""

    def __init__(self, at):
        super().__init__()
        self.inside, self.at, self.passes = tiny_module(), at, 0

    def forward(self, z):
        self.passes += 1
        if self.passes == self.at:
            raise KeyboardInterrupt
        return self.inside(z)


def nervous(at):
    return gp.Problem(gp.Generator(Nervous(at), (3,), (8,)), tiny_problem().loss)


@pytest.mark.parametrize("solver", [gp.ExactADMM(), gp.LBFGS(), gp.Adam()], ids=lambda solver: type(solver).__name__)
def test_ctrl_c_inside_the_generator(solver):
    z0 = tiny_problem().generator.sample_latent(4, seed=3)
    result = gp.solve(nervous(12), solver, stop=gp.MaxSteps(50), z0=z0)
    same = gp.solve(tiny_problem(), solver, stop=gp.MaxSteps(10), z0=z0)
    assert result.status == (INTERRUPTED,) * 4
    assert torch.equal(result.z, same.z)
    assert torch.equal(result.objective, same.objective)


def test_ctrl_c_inside_the_generator_in_the_second_chunk():
    z0 = tiny_problem().generator.sample_latent(4, seed=3)
    result = gp.solve(nervous(18), gp.ExactADMM(), stop=gp.MaxSteps(10), batch_size=2, tolerance=0, z0=z0)
    assert result.status == (gp.Status.MAX_STEPS,) * 2 + (INTERRUPTED,) * 2
    assert result.steps.tolist() == [10, 10, 5, 5]


def test_ctrl_c_while_the_second_chunk_starts():
    z0 = tiny_problem().generator.sample_latent(4, seed=3)
    try:
        result = gp.solve(nervous(12), gp.ExactADMM(), stop=gp.MaxSteps(10), batch_size=2, tolerance=0, z0=z0)
    except KeyboardInterrupt:
        pytest.fail("Ctrl-C came through")
    assert result.status == (gp.Status.MAX_STEPS,) * 2 + (INTERRUPTED,) * 2
