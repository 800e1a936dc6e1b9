"""What people bring: modules of every make, operators without shapes, NumPy numbers, tensors they go on changing."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import genprior as gp
from tests.checks.parts import tiny_problem

LATENT, SIGNAL, ITEMS = 4, 8, 3


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(LATENT, 6), nn.ELU(), nn.Linear(6, SIGNAL))


def generator(module: nn.Module | None = None, **options) -> gp.Generator:
    return gp.Generator(module or network(), LATENT, SIGNAL, **options)


def measured(G: gp.Generator, m: int = 6) -> tuple[gp.operators.Gaussian, Tensor]:
    A = gp.operators.Gaussian(m, G.signal_shape)
    return A, A(G(G.sample_latent(ITEMS, seed=1))).detach()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    "make",
    [
        torch.jit.script,
        lambda m: torch.jit.trace(m, torch.zeros(2, LATENT)),
        lambda m: torch.jit.freeze(torch.jit.script(m.eval())),
        lambda m: torch.export.export(
            m, (torch.zeros(2, LATENT),), dynamic_shapes=({0: torch.export.Dim.AUTO},)
        ).module(),
        torch.fx.symbolic_trace,
    ],
    ids=["script", "trace", "freeze", "export", "fx"],
)
def test_modules_of_every_make(make):
    plain = generator()
    other = generator(make(network()))
    A, y = measured(plain)
    options = {"stop": gp.MaxSteps(30), "seed": 2}
    expected = gp.solve(gp.Problem(plain, gp.LeastSquares(A, y)), **options)
    result = gp.solve(gp.Problem(other, gp.LeastSquares(A, y)), **options)
    torch.testing.assert_close(result.signal, expected.signal, rtol=1e-4, atol=1e-5)


def test_linear_operator_without_shapes_in_every_solver():
    G = generator()
    A, y = measured(G)
    bare = gp.operators.Linear(lambda x: x @ A.matrix.T, lambda y: y @ A.matrix)
    problem = gp.Problem(G, gp.LeastSquares(bare, y))
    for solver in (gp.ExactADMM(), gp.LinearizedADMM(), gp.LBFGS(), gp.ProjectedGradient()):
        expected = gp.solve(gp.Problem(G, gp.LeastSquares(A, y)), solver, stop=gp.MaxSteps(25))
        result = gp.solve(problem, solver, stop=gp.MaxSteps(25))
        assert (result.objective < 2 * expected.objective + 1e-3).all()
    with pytest.raises(ValueError, match="measurements have 5 values, but the operator gives 6"):
        gp.Problem(G, gp.LeastSquares(bare, y[:, :5]))
    with pytest.raises(ValueError, match="adjoint gives shape"):
        gp.Problem(G, gp.LeastSquares(gp.operators.Linear(lambda x: x @ A.matrix.T, lambda y: y), y))


def test_data_that_the_caller_goes_on_changing():
    G = generator()
    A, y = measured(G)
    mine = y.clone()
    problems = {
        "least squares": gp.Problem(G, gp.LeastSquares(A, mine)),
        "around": gp.Problem(G, on_signal=gp.L1().around(signals := G(G.sample_latent(ITEMS)).detach())),
        "distance": gp.Problem(G, gp.SquaredDistance(signals)),
    }
    before = {name: gp.solve(problem, stop=gp.MaxSteps(5)).objective for name, problem in problems.items()}
    mine.zero_()
    signals.zero_()
    for name, problem in problems.items():
        torch.testing.assert_close(gp.solve(problem, stop=gp.MaxSteps(5)).objective, before[name], msg=name)


def test_nothing_of_the_callers_is_changed():
    module, G = (m := network()), generator(m)
    A, y = measured(G)
    z0 = G.sample_latent(ITEMS).requires_grad_()
    kept = [t.detach().clone() for t in (*module.parameters(), y, z0)]
    gp.solve(gp.Problem(G, gp.LeastSquares(A, y)), z0=z0, stop=gp.MaxSteps(20))
    assert all(torch.equal(a, b) for a, b in zip(kept, (*module.parameters(), y, z0), strict=True))
    assert z0.grad is None and all(p.grad is None and p.requires_grad for p in module.parameters())
    assert module.training


def test_counts_belong_to_the_run():
    """Two threads, and a callback that uses the same generator: each result has its own passes, the generator all."""
    G = generator()
    A, y = measured(G)
    results: dict[int, gp.Result] = {}

    def work(number: int) -> None:
        problem = gp.Problem(G, gp.LeastSquares(A, y))
        options = {"stop": gp.MaxSteps(60), "tolerance": 0, "z0": G.sample_latent(problem.batch, seed=number)}
        results[number] = gp.solve(problem, gp.ExactADMM(), callbacks=[lambda view: G(view.state.z)], **options)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    before = G.forwards
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(r.forwards, r.backwards) for r in results.values()] == [(61, 60)] * 2
    assert G.forwards - before >= 2 * 61


def test_a_module_without_parameters_in_double_precision():
    class Wave(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            return torch.cat([z.sin(), z.cos()], dim=1)

    G = generator(Wave(), dtype=torch.float64, device="cpu")
    assert G(G.sample_latent(2)).dtype == torch.float64


@pytest.mark.parametrize("answer", [True, np.bool_(True), torch.tensor(True)])
def test_callbacks_stop_with_any_kind_of_true(answer):
    result = gp.solve(tiny_problem(2), stop=gp.MaxSteps(9), callbacks=[lambda view: answer if view.step == 4 else None])
    assert result.steps.tolist() == [4, 4]


@pytest.mark.parametrize("answer", [1, "yes", [1], torch.ones(2), torch.tensor(False), np.bool_(False)])
def test_other_answers_do_not_stop(answer):
    result = gp.solve(tiny_problem(2), stop=gp.MaxSteps(9), callbacks=[lambda view: answer], tolerance=0)
    assert result.steps.tolist() == [9, 9]


def test_numpy_numbers_are_numbers():
    solver = gp.ExactADMM(rho=np.float32(0.5), n=np.int64(3))
    stop = gp.MaxSteps(np.int64(4)) | gp.Seconds(np.float64(9))
    result = gp.solve(tiny_problem(2), solver, stop=stop, restarts=np.int32(2), seed=np.int64(1))
    assert result.steps.tolist() == [4, 4]
    assert gp.operators.Gaussian(np.int64(5), (np.int64(4),)).measurement_shape == (5,)
    assert float((np.float32(0.5) * gp.L1())(torch.ones(1, 2))) == pytest.approx(1.0)
    assert gp.Box(np.float32(0), np.float64(1))(torch.full((1, 2), 0.5)).tolist() == [0.0]


def test_draws_do_not_follow_the_default_device():
    with torch.device("meta"):
        latents = generator(network().to_empty(device="cpu")).sample_latent(2)
        matrix = gp.operators.Gaussian(3, 4, device="cpu").matrix
    assert (latents.device.type, matrix.device.type) == ("cpu", "cpu")


def test_inference_mode_around_a_solve():
    G = generator()
    A, y = measured(G)
    expected = gp.solve(gp.Problem(G, gp.LeastSquares(A, y)), stop=gp.MaxSteps(10))
    with torch.inference_mode():
        result = gp.solve(gp.Problem(generator(), gp.LeastSquares(A, y)), stop=gp.MaxSteps(10))
    torch.testing.assert_close(result.signal, expected.signal)


def test_starts_at_which_g_is_not_finite_are_left_behind():
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, z: Tensor) -> Tensor:
            return torch.where(z[:, :1] > 0.5, torch.nan, self.inner(z))

    G = generator(Partly())
    z0 = torch.zeros(ITEMS, LATENT)
    z0[1, 0] = 1.0
    problem = gp.Problem(G, gp.SquaredDistance(torch.zeros(ITEMS, SIGNAL)))
    result = gp.solve(problem, gp.GradientDescent(1e-3), z0=z0, stop=gp.MaxSteps(200))
    assert result.status[1] is gp.Status.DIVERGED
    assert torch.isfinite(result.objective[[0, 2]]).all()
    rescued = gp.solve(problem, gp.GradientDescent(1e-3), z0=z0, stop=gp.MaxSteps(200), restarts=6)
    assert torch.isfinite(rescued.objective).all()


def test_problems_can_be_pickled_after_use():
    problem = tiny_problem(2)
    first = gp.solve(problem, stop=gp.MaxSteps(5))
    again = gp.solve(pickle.loads(pickle.dumps(problem)), stop=gp.MaxSteps(5))
    torch.testing.assert_close(again.signal, first.signal)


def test_a_status_prints_its_name():
    assert f"{gp.Status.MAX_STEPS}" == str(gp.Status.MAX_STEPS) == "MAX_STEPS"


def bad_uses():
    G = generator()
    meta = torch.zeros(ITEMS, SIGNAL, device="meta")

    class OneForAll(gp.Term):
        def __call__(self, x: Tensor) -> Tensor:
            return x.abs().sum()

        def prox(self, v: Tensor, t: gp._batch.PerItem) -> Tensor:
            return v

        def subgradient(self, x: Tensor) -> Tensor:
            return x.sign()

    return {
        "y is on the meta device": lambda: gp.SquaredDistance(meta),
        "y is sparse": lambda: gp.SquaredDistance(torch.zeros(ITEMS, SIGNAL).to_sparse()),
        "z0 is on the meta device": lambda: gp.solve(tiny_problem(2), z0=torch.zeros(2, 3, device="meta")),
        "module is on the meta device": lambda: generator(nn.Linear(LATENT, SIGNAL, device="meta")),
        "problem must be a genprior Problem": lambda: gp.solve(G),
        "callbacks must be a list of functions": lambda: gp.solve(tiny_problem(2), callbacks=print),
        "callbacks must be a list of functions of a View, got None": lambda: gp.solve(tiny_problem(2), callbacks=None),
        "dense must be True, False or None": lambda: gp.z_steps.GaussNewton(dense="1"),
        "callbacks must be a list of functions of": lambda: gp.solve(tiny_problem(2), callbacks=[3]),
        "checkpoint must be a path": lambda: gp.solve(tiny_problem(2), checkpoint=5),
        "latent_shape must be positive whole numbers": lambda: gp.Generator(network(), None, SIGNAL),
        "latent_shape must be positive whole": lambda: gp.Generator(network(), 4.0, SIGNAL),
        "seed must be below": lambda: gp.solve(tiny_problem(2), seed=2**70),
        "seed must be a whole number": lambda: G.sample_latent(2, seed="a"),
        "check latent_shape": lambda: gp.Generator(network(), 5, SIGNAL)(torch.zeros(2, 5)),
        "on_signal gives a value of shape": lambda: gp.Problem(G, on_signal=OneForAll()),
        "step t must be at least 0": lambda: gp.L1().prox(torch.ones(2, 3), torch.tensor([-1.0, 1.0])),
        "step t must be at least 0 for": lambda: gp.L2().prox(torch.ones(2, 3), torch.tensor([torch.nan, -1.0])),
        "step t must be a number or a tensor": lambda: gp.LInf().prox(torch.ones(2, 3), [1.0, 1.0]),
        "generator must be a genprior Generator": lambda: gp.checks.check_generator(network()),
        "operator must be a genprior Operator": lambda: gp.checks.check_operator(network()),
        "term must be a genprior Term": lambda: gp.checks.check_term(print, 3),
        "rho=9.0 and penalty": lambda: gp.ExactADMM(9.0, penalty=gp.penalties.Constant()),
        "scales=2 and penalty": lambda: gp.ExactADMM(scales=2, penalty=gp.penalties.Constant()),
        "rho=0.5 and penalty": lambda: gp.LinearizedADMM(0.5, penalty=gp.penalties.Constant()),
        "both set the z step": lambda: gp.ExactADMM(beta=0.1, z_step=gp.z_steps.Adam()),
        "both set the dual step": lambda: gp.LinearizedADMM(sigma=0.1, dual=gp.duals.Constant()),
        "sigma=0.1 and share=0.2 both set the dual step": lambda: gp.duals.Constant(0.1, share=0.2),
        "0 < c1 < c2 < 1": lambda: gp.LBFGS(c1=0.9, c2=0.1),
        "step_size must be a finite number above 0": lambda: gp.ProjectedGradient(step_size=-1.0),
        "z_step must be a ZStep": lambda: gp.ProjectedGradient(z_step="adam"),
    }


@pytest.mark.parametrize("message", bad_uses())
def test_bad_uses_are_named(message):
    with pytest.raises((ValueError, TypeError), match=message):
        bad_uses()[message]()
