"""Callbacks, the module behind G, gradients: what users see is what is."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import genprior as gp
from tests.checks.parts import tiny_problem


@pytest.mark.parametrize("solver", [gp.Auto(), gp.Adam(), gp.ExactADMM()], ids=lambda s: type(s).__name__)
def test_callbacks_see_every_step_of_every_item_and_the_best_so_far(solver):
    problem = tiny_problem(4)
    last: dict[int, tuple[int, torch.Tensor, torch.Tensor]] = {}

    def see(view):
        assert torch.equal(problem.generator(view.best_latent).detach(), view.best_signal) or torch.allclose(
            problem.generator(view.best_latent).detach(), view.best_signal
        )
        for row, item in enumerate(view.items.tolist()):
            last[item] = (view.step, view.best_objective[row].clone(), view.best_signal[row].clone())

    result = gp.solve(problem, solver, stop=gp.MaxSteps(120), callbacks=[see], restarts=1)
    for item in range(4):
        step, objective, signal = last[item]
        assert step == int(result.steps[item]), "also the step that ended the item"
        assert float(objective) == pytest.approx(float(result.objective[item]), rel=1e-6, abs=1e-12)
        torch.testing.assert_close(signal, result.signal[item], rtol=1e-3, atol=1e-5)


class Held(nn.Module):
    """Numbers in a parameter, a buffer, a plain tensor and a plain number."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(3, 6)
        self.register_buffer("scale", torch.ones(1))
        self.plain = torch.ones(1)
        self.number = 1.0

    def forward(self, z):
        return self.net(z) * self.scale * self.plain * self.number


CHANGES = {
    "parameter": lambda m: m.net.weight.mul_(3),
    "parameter's data": lambda m: m.net.weight.data.mul_(3),
    "other data": lambda m: setattr(m.net.weight, "data", 3 * m.net.weight.data),
    "buffer": lambda m: m.scale.mul_(3),
    "plain tensor": lambda m: m.plain.mul_(3),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_generator_and_preconditioner_follow_the_module(change):
    module = Held()
    G = gp.Generator(module, 3, 6)
    before = G.preconditioner().matrix.clone()
    with torch.no_grad():
        change(module)
    z = G.sample_latent(2, seed=3)
    torch.testing.assert_close(G(z), module(z).detach(), rtol=0, atol=0)
    assert not torch.equal(G.preconditioner().matrix, before)
    torch.testing.assert_close(
        G.preconditioner().matrix, gp.Generator(module, 3, 6).preconditioner().matrix, rtol=0, atol=0
    )


def test_a_bundled_preconditioner_does_not_outlive_its_weights():
    module = Held()
    given = 2 * torch.eye(3)
    G = gp.Generator(module, 3, 6, preconditioner=given)
    assert torch.equal(G.preconditioner().matrix, given)
    module.scale.mul_(2)
    assert not torch.equal(G.preconditioner().matrix, given)


@pytest.mark.parametrize(
    "loss",
    [gp.SquaredDistance, lambda y: gp.LeastSquares(gp.operators.Identity((6,)), y)],
    ids=["distance", "least squares"],
)
def test_data_with_gradients_are_warned_about(loss):
    y = torch.zeros(2, 6, requires_grad=True)
    with pytest.warns(UserWarning, match=r"y requires gradients.*detached.*y\.detach\(\)"):
        made = loss(y)
    assert not made.y.requires_grad


def test_the_first_solve_of_a_process_keeps_its_time():
    """What torch loads at its first derivatives is not the run's to pay."""
    script = """if True:
        import genprior as gp
        from tests.checks.parts import tiny_problem

        r = gp.solve(tiny_problem(4), stop=gp.Seconds(2.0), tolerance=0, patience=10**9, batch_size=1)
        assert min(r.steps.tolist()) > 0, r.steps
        assert r.seconds < 3.0, r.seconds
        """
    paths = os.pathsep.join([str(Path(gp.__file__).parents[1]), str(Path(__file__).parents[1])])
    subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, "PYTHONPATH": paths})


def test_a_second_run_has_a_preconditioner_of_the_new_weights(monkeypatch):
    """Within a run it stays; the next run asks anew what the module is."""
    module, seen = Held(), []
    G = gp.Generator(module, 3, 6)
    problem = gp.Problem(G, gp.SquaredDistance(torch.ones(1, 6)))
    look = lambda view: seen.append(view.state.model.first[0].clone())  # noqa: E731 - eigenvalues of the first Hessian
    for scale in (1.0, 1e3):
        module.scale.mul_(scale)
        gp.solve(problem, gp.QuasiNewton(), stop=gp.MaxSteps(0), callbacks=[look])
    torch.testing.assert_close(seen[1], 1e6 * seen[0], rtol=1e-3, atol=0)


PLANS = {
    "quadratic": [gp.Auto(), gp.ExactADMM(), gp.LBFGS(), gp.LevenbergMarquardt(), gp.Adam(), gp.GradientDescent()],
    "l1": [gp.Auto(), gp.LinearizedADMM(rho=2.0, sigma=0.1), gp.ProjectedGradient(), gp.QuasiNewton(), gp.Adam(0.1)],
}


@pytest.mark.parametrize(
    ("problem", "solver"), [(name, solver) for name, solvers in PLANS.items() for solver in solvers], ids=repr
)
def test_plans_are_sentences_without_constructor_calls(problem, solver):
    G = gp.Generator(nn.Linear(3, 8), 3, 8)
    y = G(G.sample_latent(2)).detach()
    problems = {"quadratic": gp.Problem(G, gp.SquaredDistance(y)), "l1": gp.Problem(G, on_signal=gp.L1().around(y))}
    plan = solver.plan(problems[problem])
    assert plan.endswith(".") and not re.search(r"None|\w=|\w\(\)", plan), plan


@pytest.mark.parametrize(
    "z_step", [gp.z_steps.Spectral(), gp.z_steps.GaussNewton(), gp.z_steps.Gradient(0.5)], ids=repr
)
@pytest.mark.parametrize("dual", [gp.duals.Constant(), gp.duals.Constant(0.5), gp.duals.Adaptive()], ids=repr)
@pytest.mark.parametrize("penalty", [gp.penalties.Balanced(), gp.penalties.Constant(2.0)], ids=repr)
def test_plans_of_admm_describe_its_rules(z_step, dual, penalty):
    G = gp.Generator(nn.Linear(3, 8), 3, 8)
    solver = gp.ADMM(z_step=z_step, dual=dual, penalty=penalty)
    plan = solver.plan(gp.Problem(G, gp.SquaredDistance(torch.zeros(2, 8))))
    assert all(rule.description in plan for rule in (z_step, dual, penalty))
    assert not re.search(r"None|\w=|\w\(\)", plan), plan
