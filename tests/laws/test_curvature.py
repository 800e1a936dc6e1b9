"""Second-order parts against independent ones: models, directions, envelopes, whole methods; units, recovery, plans."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import genprior as gp
from genprior.solvers import envelope
from genprior.solvers.damping import Damping, JacobianModel
from genprior.solvers.envelope import residual_jacobian
from genprior.solvers.quadratic import proximal_direction, solve_spd
from tests.laws.certified import CERTIFIED, affine_generator

F64 = torch.float64
B, S, M = 3, 4, 9


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.tensor(np.random.default_rng(seed).normal(size=shape))


def positive(seed: int = 0) -> Tensor:
    root = normal(B, S, S, seed=seed)
    return root @ root.mT + 0.5 * torch.eye(S, dtype=F64)


RULE = Damping()


def fresh_model(jacobian: Tensor) -> JacobianModel:
    return RULE.refreshed(JacobianModel.unknown(normal(B, M), S), torch.arange(B), jacobian)


def test_broyden_update_meets_the_secant_and_keeps_the_gram():
    model, d, change = fresh_model(normal(B, M, S, seed=1)), normal(B, S, seed=2), normal(B, M, seed=3)
    new = model.updated(d, change, torch.ones(B, dtype=F64))
    torch.testing.assert_close(new.jvp(d), change)
    torch.testing.assert_close(new.gram, new.jacobian.mT @ new.jacobian)
    aside = d - d * 0 + normal(B, S, seed=5)
    aside = aside - (aside * d).sum(1, keepdim=True) / (d * d).sum(1, keepdim=True) * d
    torch.testing.assert_close(new.jvp(aside), model.jvp(aside), msg="other directions must stay as they were")


def test_invisible_changes_teach_nothing():
    model, d = fresh_model(normal(B, M, S, seed=1)), normal(B, S, seed=2)
    new = model.updated(1e-12 * d, 1e-12 * normal(B, M, seed=3), torch.ones(B, dtype=F64))
    assert torch.equal(new.jacobian, model.jacobian)


def test_damping_follows_the_gain():
    model = fresh_model(normal(B, M, S, seed=1))
    yes, no = torch.tensor([True] * B), torch.tensor([False] * B)
    one, none = torch.ones(B, dtype=F64), torch.zeros(B, dtype=F64)
    good = RULE.judged(model, torch.tensor([1.0, 0.5, 0.05], dtype=F64), one, yes, yes)
    ratio = good.damping / model.damping
    assert ratio[0] < 1 and ratio[1] == 1 and ratio[2] > 1, "all, half and little of what was predicted"
    assert good.poor.tolist() == [0, 0, 1]
    bad = RULE.judged(model, none, one, no, yes)
    worse = RULE.judged(bad, none, one, no, yes)
    assert (bad.damping > model.damping).all()
    assert (worse.damping / bad.damping > bad.damping / model.damping).all(), "faster and faster"
    hidden = RULE.judged(model, none, one, no, no)
    assert torch.equal(hidden.damping, model.damping) and hidden.poor.tolist() == [0] * B


def test_a_jacobian_is_renewed_when_it_is_old_or_poor():
    model, one, none = fresh_model(normal(B, M, S, seed=1)), torch.ones(B, dtype=F64), torch.zeros(B, dtype=F64)
    yes, no = torch.tensor([True] * B), torch.tensor([False] * B)
    poor = old = model
    for _ in range(RULE.most_poor):
        assert not RULE.due(poor).any()
        poor = RULE.judged(poor, none, one, no, yes)
    assert RULE.due(poor).all()
    for _ in range(RULE.refresh):
        assert not RULE.due(old).any()
        old = RULE.judged(old, one, one, yes, yes)
    assert RULE.due(old).all()


TERMS = {
    "l1": (0.8 * gp.L1(), lambda z: 0.8 * cp.norm1(z), []),
    "ball": (gp.Ball(0.7), lambda z: 0.0, [lambda z: cp.norm(z) <= 0.7]),
    "box": (gp.Box(-0.2, 0.3), lambda z: 0.0, [lambda z: z >= -0.2, lambda z: z <= 0.3]),
    "l2": (1.5 * gp.L2(), lambda z: 1.5 * cp.norm(z), []),
}


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("form", ["matrix", "function"])
def test_proximal_direction_minimises_the_model(name, form):
    term, value, constraints = TERMS[name]
    matrix, g, z = positive(1), normal(B, S, seed=2), 0.2 * normal(B, S, seed=3)
    hessian = matrix if form == "matrix" else lambda v: (matrix @ v[:, :, None])[:, :, 0]
    start = -solve_spd(matrix, g)
    d = proximal_direction(hessian, g, z, start, term, z.shape, steps=2000)
    for item in range(B):
        x = cp.Variable(S)
        model = g[item].numpy() @ x + 0.5 * cp.quad_form(x, cp.psd_wrap(matrix[item].numpy()))
        point = z[item].numpy() + x
        cp.Problem(cp.Minimize(model + value(point)), [c(point) for c in constraints]).solve(solver=cp.CLARABEL)
        np.testing.assert_allclose(d[item].numpy(), x.value, atol=2e-4)


def test_solve_spd_and_where_it_is_none():
    matrix, right = positive(1), normal(B, S, seed=2)
    torch.testing.assert_close((matrix @ solve_spd(matrix, right)[:, :, None])[:, :, 0], right)
    broken = matrix.clone()
    broken[1] = -torch.eye(S, dtype=F64)
    assert torch.isfinite(solve_spd(broken, right)).all()


@pytest.mark.parametrize(
    "term", [gp.LInf(), gp.L1(), 0.3 * gp.TotalVariation(tolerance=1e-10), gp.Box(-0.5, 0.5)], ids=repr
)
@pytest.mark.parametrize("loss", [None, "distance"])
def test_the_gradient_of_the_envelope_by_differences(term, loss):
    G = gp.Generator(nn.Identity(), (4, 4), (4, 4), dtype=F64)
    y = normal(B, 4, 4, seed=1)
    problem = gp.Problem(G, gp.SquaredDistance(y, 0.4) if loss else None, on_signal=term.around(y))
    x, lam, rho = normal(B, 4, 4, seed=2), 0.1 * normal(B, 4, 4, seed=3), torch.tensor([0.5, 1.0, 3.0], dtype=F64)

    def energy(at: Tensor) -> gp.trial.Trial:
        return envelope.evaluate(problem, at, problem.evaluate(at, at), lam, rho, None)[0]

    direction, h = normal(B, 4, 4, seed=4), 1e-5
    slope = (energy(x + h * direction).energy - energy(x - h * direction).energy) / (2 * h)
    found = (energy(x).f * direction).flatten(1).sum(1)
    torch.testing.assert_close(found, slope, rtol=1e-4, atol=1e-5)


def curved(latent: int = 6, signal: int = 40, seed: int = 0, unit: float = 1.0, wide: float = 1.0) -> gp.Generator:
    """``unit G(z / wide)`` with a law ``wide`` times wider."""

    class Scaled(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, z: Tensor) -> Tensor:
            return unit * self.inner(z / wide)

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        inner = nn.Sequential(nn.Linear(latent, 20), nn.ELU(), nn.Linear(20, signal), nn.Tanh()).double()
    return gp.Generator(Scaled(inner), latent, signal, latent=gp.Normal(wide))


def measured(G: gp.Generator, noise: float = 0.0, unit: float = 1.0) -> gp.Problem:
    A = gp.operators.Gaussian(25, G.signal_shape, dtype=F64)
    y = A(G(G.sample_latent(4, seed=5))).detach() + noise * unit * normal(4, 25, seed=6)
    return gp.Problem(G, gp.LeastSquares(A, y))


@pytest.mark.parametrize("weight", [None, 0.3])
def test_residual_jacobian_by_differences(weight):
    G = curved()
    problem = measured(G) if weight is None else gp.Problem(G, gp.SquaredDistance(normal(4, 40), weight))
    z, d, h = G.sample_latent(4, seed=1), normal(4, 6, seed=2), 1e-6

    def value(at: Tensor) -> Tensor:
        return problem.evaluate(G(at).detach(), at).objective

    M = residual_jacobian(problem, z, G(z).detach())
    slope = (value(z + h * d) - value(z - h * d)) / (2 * h)
    e = problem.evaluate(G(z).detach(), z).residual * (1.0 if weight is None else (2 * weight) ** 0.5)
    torch.testing.assert_close(((M @ d[:, :, None])[:, :, 0] * e).sum(1), slope, rtol=1e-6, atol=1e-8)


def test_per_item_operators_have_a_residual_jacobian():
    G = curved()
    masks = (normal(4, 40, seed=3) > 0).double()
    problem = gp.Problem(G, gp.LeastSquares(gp.operators.Mask(masks, per_item=True), masks * normal(4, 40)))
    z = G.sample_latent(4, seed=1)
    torch.testing.assert_close(residual_jacobian(problem, z, G(z).detach()), masks[:, :, None] * G.jacobian(z))


@pytest.mark.parametrize(
    "solver", [gp.Auto(), gp.QuasiNewton(), gp.LevenbergMarquardt(), gp.LevenbergMarquardt(refresh=1)], ids=repr
)
def test_zero_residual_problems_are_solved_to_rounding(solver):
    problem = measured(curved())
    result = gp.solve(problem, solver, stop=gp.MaxSteps(300), restarts=4, seed=1)
    assert result.converged
    assert (result.objective < 1e-10).all()


def test_levenberg_marquardt_says_what_it_cannot_do():
    problem = gp.Problem(curved(), on_signal=gp.LInf().around(normal(2, 40)))
    with pytest.raises(
        ValueError, match=r"LevenbergMarquardt needs a loss that is a sum of squares.*got NoLoss and LInf"
    ):
        gp.solve(problem, gp.LevenbergMarquardt())


def test_gauss_newton_with_and_without_a_matrix_agree():
    G = curved()
    problem = measured(G, noise=0.1)
    found = []
    for dense in (True, False):
        z_step = gp.z_steps.GaussNewton(inner=1, refresh=1, dense=dense)
        solver = gp.ADMM(z_step, dual=gp.duals.Constant(0.3), penalty=gp.penalties.Constant(1.0))
        found.append(gp.solve(problem, solver, stop=gp.MaxSteps(150), seed=2, tolerance=0))
    torch.testing.assert_close(found[0].objective, found[1].objective, rtol=1e-4, atol=1e-8)
    torch.testing.assert_close(found[0].signal, found[1].signal, rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize("term", [gp.Zero(), gp.Ball(1.0), 0.1 * gp.L1(), 0.2 * gp.SquaredL2()], ids=repr)
def test_a_matrix_free_step_respects_the_term(term):
    G = curved()
    problem = gp.Problem(G, gp.SquaredDistance(normal(3, 40)), on_latent=term)
    solver = gp.ADMM(gp.z_steps.GaussNewton(dense=False), dual=gp.duals.Constant(0.3))
    result = gp.solve(problem, solver, stop=gp.MaxSteps(25), seed=3)
    reference = gp.solve(problem, gp.QuasiNewton(), stop=gp.MaxSteps(300), seed=3)
    assert torch.isfinite(result.objective).all()
    assert (result.objective < 1.2 * reference.objective).all(), "up to another local minimum"


PROBLEMS = {
    "least squares": lambda unit, wide: measured(curved(unit=unit, wide=wide), noise=0.05, unit=unit),
    "l_inf": lambda unit, wide: gp.Problem(
        curved(unit=unit, wide=wide), on_signal=gp.LInf().around(unit * normal(4, 40, seed=7))
    ),
}
SCALE_FREE = {
    "Auto": gp.Auto,
    "ExactADMM": gp.ExactADMM,
    "LinearizedADMM": gp.LinearizedADMM,
    "adaptive": lambda: gp.ADMM(gp.z_steps.Spectral(), dual=gp.duals.Adaptive(), penalty=gp.penalties.Balanced()),
}


@pytest.mark.parametrize("solver", SCALE_FREE)
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize(("unit", "wide"), [(1024.0, 1.0), (1.0, 8.0)], ids=["signal", "latent"])
def test_units_change_neither_the_iterations_nor_the_answer(solver, name, unit, wide):
    """Powers of two, so that rounding is the same too; l_inf scales with the unit, least squares with its square."""
    z0 = curved().sample_latent(4, seed=9)
    options = {"stop": gp.MaxSteps(60), "tolerance": 1e-4}
    plain = gp.solve(PROBLEMS[name](1.0, 1.0), SCALE_FREE[solver](), z0=z0, **options)
    other = gp.solve(PROBLEMS[name](unit, wide), SCALE_FREE[solver](), z0=wide * z0, **options)
    assert plain.steps.tolist() == other.steps.tolist()
    assert plain.status == other.status
    torch.testing.assert_close(other.signal / unit, plain.signal, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(other.z / wide, plain.z, rtol=1e-4, atol=1e-5)


class Wall(nn.Module):
    """Grows like exp beyond |z| = 2: long steps overflow."""

    def forward(self, z: Tensor) -> Tensor:
        return torch.cat([z, torch.exp(40 * (z.abs() - 2))], dim=1)


def test_auto_recovers_where_plain_admm_explodes():
    G = gp.Generator(Wall(), 3, 6, dtype=F64)
    y = G(torch.full((2, 3), 0.5, dtype=F64))
    problem = gp.Problem(G, gp.SquaredDistance(y))
    z0 = torch.full((2, 3), 3.0, dtype=F64)
    explosive = gp.ExactADMM(rho=1e6, beta=10.0)
    with torch.no_grad():
        state = explosive.start(problem, z0)
        for _ in range(8):
            state = explosive.step(problem, state)
    assert not torch.isfinite(state.objective).all(), "without the loop's roll-back it explodes"
    for solver in (gp.Auto(), explosive):
        result = gp.solve(problem, solver, z0=z0, stop=gp.MaxSteps(3000), patience=100)
        assert torch.isfinite(result.objective).all()
        assert (result.objective <= problem.objective(z0)).all()
    result = gp.solve(problem, z0=z0, stop=gp.MaxSteps(3000), patience=100)
    assert set(result.status) <= {gp.Status.CONVERGED, gp.Status.STALLED}
    assert (result.objective < 1e-6).all()


def test_the_ridge_changes_the_path_and_not_the_answer():
    certified = CERTIFIED["noisy"]()
    for ridge in (0.0, 0.05, 2.0, 12.0):
        result = gp.solve(certified.problem, gp.QuasiNewton(ridge=ridge), stop=gp.MaxSteps(400), tolerance=1e-9)
        torch.testing.assert_close(result.objective, torch.tensor(certified.optimum), rtol=1e-8, atol=0)


OTHER = {"ridge": 1.0, "dual_every": 3, "growth": 2.0, "rho": 9.0, "memory": 2, "refresh": 2}


@pytest.mark.parametrize("name", OTHER)
def test_every_option_of_quasi_newton_has_an_effect(name):
    problem = gp.Problem(curved(), on_signal=gp.LInf().around(normal(2, 40)))
    plain, other = (
        gp.solve(problem, gp.QuasiNewton(**options), stop=gp.MaxSteps(30), seed=1)
        for options in ({}, {name: OTHER[name]})
    )
    assert not torch.allclose(plain.z, other.z, rtol=1e-9, atol=0)


def test_auto_explains_itself():
    smooth, rough = measured(curved()), gp.Problem(curved(), on_signal=gp.LInf().around(normal(2, 40)))
    assert "smooth: no splitting" in gp.solve(smooth, stop=gp.MaxSteps(1)).plan
    assert "every 10 steps" in gp.solve(smooth, stop=gp.MaxSteps(1)).plan
    plan = gp.solve(rough, stop=gp.MaxSteps(1)).plan
    assert "augmented Lagrangian" in plan and "prox of" in plan
    middle = gp.Generator(nn.Linear(100, 120).double(), 100, 120)
    assert "no Jacobians" in gp.solve(gp.Problem(middle, gp.SquaredDistance(normal(1, 120))), stop=gp.MaxSteps(1)).plan


def test_auto_with_more_latents_than_a_matrix_can_hold():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        G = gp.Generator(nn.Linear(1200, 1300), 1200, 1300)
    y = G(G.sample_latent(2, seed=1)).detach()
    smooth = gp.solve(gp.Problem(G, gp.SquaredDistance(y)), stop=gp.MaxSteps(60), z0=G.sample_latent(2, seed=3))
    assert "exceeds the limit" in smooth.plan and "multiple of the identity" in smooth.plan
    assert (smooth.objective < 1e-2).all()
    rough = gp.solve(gp.Problem(G, on_signal=gp.L1().around(y)), stop=gp.MaxSteps(20), seed=2)
    assert "ADMM" in rough.plan
    assert torch.isfinite(rough.objective).all()


def test_auto_is_the_default():
    problem = gp.Problem(affine_generator(), gp.SquaredDistance(normal(2, 12)))
    default, named = gp.solve(problem, stop=gp.MaxSteps(5)), gp.solve(problem, gp.Auto(), stop=gp.MaxSteps(5))
    assert torch.equal(default.z, named.z)
    assert default.plan == named.plan


@pytest.mark.parametrize("latent", [gp.Ball(0.5), 0.1 * gp.SquaredL2(), gp.Zero()], ids=repr)
def test_a_quadratic_r_without_l_does_not_claim_convergence_early(latent):
    G = affine_generator()
    y = normal(3, 12, seed=1)
    quadratic = gp.Problem(G, on_signal=1.4 * gp.SquaredL2().around(y), on_latent=latent)
    same = gp.Problem(G, gp.SquaredDistance(y, 0.7), on_latent=latent)
    first, second = (gp.solve(p, stop=gp.MaxSteps(300), tolerance=1e-9, seed=1) for p in (quadratic, same))
    assert first.converged
    torch.testing.assert_close(first.objective, second.objective, rtol=1e-7, atol=0)


def test_one_bad_start_does_not_stop_the_others():
    class Partly(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            return torch.where(z[:, :1] > 90, torch.nan, torch.cat([z, z.sum(1, keepdim=True)], dim=1))

    G = gp.Generator(Partly(), 2, 3, dtype=F64)
    z0 = torch.tensor([[0.3, 0.1], [99.0, 0.0]], dtype=F64)
    problem = gp.Problem(G, on_signal=gp.LInf().around(normal(2, 3)), on_latent=gp.Box(-100, 100))
    result = gp.solve(problem, z0=z0, stop=gp.MaxSteps(60))
    assert torch.isfinite(result.objective[0])
    assert result.status[1] is gp.Status.DIVERGED


def test_penalties_at_a_zero_signal():
    G = gp.Generator(nn.Identity(), 4, 4, dtype=F64)
    y = normal(2, 4, seed=1)
    rho = gp.penalties.Constant().first(gp.Problem(G, on_signal=gp.LInf().around(y)), torch.zeros(2, 4, dtype=F64))
    torch.testing.assert_close(rho, 2 * y.abs().amax(1) / y.square().sum(1), rtol=1e-6, atol=0)


def test_a_weak_loss_does_not_hide_the_norm():
    G = gp.Generator(nn.Identity(), 4, 4, dtype=F64)
    x, y = normal(2, 4), normal(2, 4, seed=1)
    weak = gp.Problem(G, gp.SquaredDistance(y, 1e-6), on_signal=gp.LInf().around(y))
    bare = gp.Problem(G, on_signal=gp.LInf().around(y))
    constant = gp.penalties.Constant()
    assert torch.equal(constant.first(weak, x), constant.first(bare, x))


def test_small_numbers_in_float32():
    """Signals of size 1e-6: squares of squares would leave the range of float32."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        inner = nn.Sequential(nn.Linear(6, 20), nn.ELU(), nn.Linear(20, 40))

    class Tiny(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, z: Tensor) -> Tensor:
            return 1e-6 * self.inner(z)

    G = gp.Generator(Tiny(), 6, 40)
    y = G(G.sample_latent(3, seed=1)).detach()
    result = gp.solve(gp.Problem(G, gp.SquaredDistance(y)), stop=gp.MaxSteps(200), seed=2)
    assert (result.objective < 1e-6 * y.square().sum(1)).all()
