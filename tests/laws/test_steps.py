"""z steps, w steps, duals and penalties: each formula against an independent one, each option with an effect."""

import copy
import dataclasses
import inspect
import math
import re

import numpy as np
import pytest
import torch
from torch import nn

import genprior as gp
from genprior import _tree
from genprior.solvers.admm.duals import Progress
from genprior.solvers.admm.exact import Split
from genprior.solvers.admm.penalties import Residuals
from genprior.solvers.z_steps import Move
from genprior.terms import L1, L2, Ball, Box, LInf, SquaredL2, Zero

from .certified import CERTIFIED, starts
from .operators.instances import F64, random

B, S = 3, 4
ONE = torch.ones(B, dtype=F64)
UNEVEN = torch.tensor([1.0, 0.25, 0.5], dtype=F64)


def slope(z, step):
    """A gradient that depends on z and on the iteration, the same for everyone."""
    return z * torch.linspace(0.5, 3, S, dtype=F64) + math.sin(step) + random(S, seed=60)


def run(rule, steps=8, term=None, shrink=ONE, lipschitz=ONE, rows=slice(None)):
    """Iterates of a z step."""
    z = random(B, S, seed=61)[rows]
    memory, path = rule.start(None, z), []
    part = term or Zero()
    for step in range(steps):
        move = Move(z, slope(z, step), part, lipschitz[rows], ONE[rows], shrink[rows], 2.0)
        z, memory = rule(move, memory)
        path.append(z)
    return torch.stack(path)


def run_torch(make, steps=8):
    z = nn.Parameter(random(B, S, seed=61))
    optimiser, path = make([z]), []
    for step in range(steps):
        z.grad = slope(z.detach(), step)
        optimiser.step()
        path.append(z.detach().clone())
    return torch.stack(path)


SAME_AS_TORCH = [
    (gp.z_steps.Gradient(0.07), lambda p: torch.optim.SGD(p, lr=0.07)),
    (gp.z_steps.Momentum(0.07, 0.8), lambda p: torch.optim.SGD(p, lr=0.07, momentum=0.8)),
    (gp.z_steps.Momentum(0.07, 0.0), lambda p: torch.optim.SGD(p, lr=0.07)),
    (gp.z_steps.Adam(0.03, epsilon=1e-8), lambda p: torch.optim.Adam(p, lr=0.03)),
    (gp.z_steps.Adam(0.03, 0.7, 0.95, 1e-2), lambda p: torch.optim.Adam(p, lr=0.03, betas=(0.7, 0.95), eps=1e-2)),
    (gp.z_steps.Adam(0.03, 0.0, 0.9, 1e-8), lambda p: torch.optim.Adam(p, lr=0.03, betas=(0.0, 0.9))),
    (gp.z_steps.Adam(epsilon=1e-8), lambda p: torch.optim.Adam(p, lr=0.1 * 2.0)),  # 10% of the spread, which is 2 here
]


@pytest.mark.parametrize(("rule", "reference"), SAME_AS_TORCH, ids=[str(row[0]) for row in SAME_AS_TORCH])
def test_equals_torch_optim_without_a_term(rule, reference):
    torch.testing.assert_close(run(rule), run_torch(reference), rtol=1e-12, atol=1e-12)


RULES = [row[0] for row in SAME_AS_TORCH] + [
    gp.z_steps.Gradient(),
    gp.z_steps.Momentum(),
    gp.z_steps.Momentum(None, 0.5),
]
every_rule = pytest.mark.parametrize("rule", RULES, ids=str)
TERMS = [Zero(), Box(-0.3, 0.6), Ball(0.8), 0.5 * L1(), 0.5 * L2(), SquaredL2()]


@every_rule
@pytest.mark.parametrize("term", TERMS, ids=repr)
def test_items_are_independent(rule, term):
    lipschitz = torch.tensor([1.0, 5.0, 20.0], dtype=F64)
    together = run(rule, term=term, shrink=UNEVEN, lipschitz=lipschitz)
    for i in range(B):
        alone = run(rule, term=term, shrink=UNEVEN, lipschitz=lipschitz, rows=slice(i, i + 1))
        torch.testing.assert_close(together[:, i : i + 1], alone, rtol=1e-13, atol=1e-13)


@every_rule
def test_a_step_is_pure(rule):
    z = random(B, S)
    memory = rule.start(None, z)
    kept = _tree.pack(copy.deepcopy(memory), "")
    move = Move(z, slope(z, 0), Box(-1, 1), ONE, ONE, ONE, 1.0)
    copies = z.clone(), move.gradient.clone()
    first, second = rule(move, memory), rule(move, memory)
    assert torch.equal(first[0], second[0])
    assert torch.equal(z, copies[0])
    assert torch.equal(move.gradient, copies[1])
    after, new = _tree.pack(memory, ""), _tree.pack(first[1], "")
    assert all(torch.equal(after[name], kept[name]) for name in kept)
    assert type(first[1]) is type(memory) and new.keys() == kept.keys()


@every_rule
@pytest.mark.parametrize("term", [Box(-0.1, 0.2), Ball(0.4)], ids=repr)
def test_constraints_hold_at_every_step(rule, term):
    for z in run(rule, term=term):
        assert term(z).tolist() == [0.0] * B


def soft(v, t):
    return np.sign(v) * np.maximum(np.abs(v) - t, 0)


def test_the_prox_has_the_step_of_the_gradient():
    z, g = random(B, S), random(B, S, seed=1)
    lipschitz = torch.tensor([2.0, 4.0, 8.0], dtype=F64)
    move = Move(z, g, 0.7 * L1(), lipschitz, ONE, UNEVEN, 1.0)
    for rule, step in ((gp.z_steps.Gradient(0.2), 0.2 * UNEVEN), (gp.z_steps.Gradient(), UNEVEN / lipschitz)):
        beta = step.numpy()[:, None]
        expected = soft(z.numpy() - beta * g.numpy(), 0.7 * beta)
        np.testing.assert_allclose(rule(move, None)[0], expected, rtol=1e-13, atol=1e-14)


def test_momentum_restarts_from_the_move_that_the_prox_allowed():
    rule = gp.z_steps.Momentum(0.2, 0.5)
    z, g, v = random(B, S), random(B, S, seed=1), random(B, S, seed=2)
    new, memory = rule(Move(z, g, 0.7 * L1(), ONE, ONE, UNEVEN, 1.0), v)
    beta = 0.2 * UNEVEN.numpy()[:, None]
    expected = soft(z.numpy() + 0.5 * v.numpy() - beta * g.numpy(), 0.7 * beta)
    np.testing.assert_allclose(new, expected, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(memory, expected - z.numpy(), rtol=1e-13, atol=1e-14)


def test_adaptive_momentum_is_shorter_by_one_minus_m():
    z, g = random(B, S), random(B, S, seed=1)
    lipschitz = torch.tensor([2.0, 4.0, 8.0], dtype=F64)
    new, _ = gp.z_steps.Momentum(momentum=0.75)(Move(z, g, Zero(), lipschitz, ONE, UNEVEN, 1.0), 0 * z)
    np.testing.assert_allclose(new, z - 0.25 * (UNEVEN / lipschitz)[:, None] * g, rtol=1e-13)


def test_adam_takes_the_prox_in_its_own_metric():
    """First step: both moments equal g and g^2 after correction, so the metric is ``length / (|g| + eps)``."""
    rule = gp.z_steps.Adam(0.1, epsilon=0.01)
    z, g = random(B, S), random(B, S, seed=1)
    new, _ = rule(Move(z, g, 0.7 * L1(), ONE, ONE, UNEVEN, 1.0), rule.start(None, z))
    metric = 0.1 * UNEVEN.numpy()[:, None] / (np.abs(g.numpy()) + 0.01)
    expected = soft(z.numpy() - metric * g.numpy(), 0.7 * metric)
    np.testing.assert_allclose(new, expected, rtol=1e-9, atol=1e-12)


def test_adam_has_one_step_per_item_for_terms_that_are_not_separable():
    """The prox of a norm is known for one step per item, so the gradient must be taken with the same one."""
    rule = gp.z_steps.Adam(0.1, epsilon=0.01)
    z, g = random(B, S), random(B, S, seed=1)
    new, _ = rule(Move(z, g, 0.7 * L2(), ONE, ONE, UNEVEN, 1.0), rule.start(None, z))
    step = 0.1 * UNEVEN.numpy()[:, None] / (np.sqrt((g.numpy() ** 2).mean(axis=1, keepdims=True)) + 0.01)
    ahead = z.numpy() - step * g.numpy()
    expected = np.maximum(1 - 0.7 * step / np.linalg.norm(ahead, axis=1, keepdims=True), 0) * ahead
    np.testing.assert_allclose(new, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rule", [gp.z_steps.Gradient(0.1), gp.z_steps.Momentum(0.1), gp.z_steps.Adam(0.1)], ids=str)
def test_shrink_scales_given_steps(rule):
    z, g = random(B, S), random(B, S, seed=1)
    full = rule(Move(z, g, Zero(), ONE, ONE, ONE, 1.0), rule.start(None, z))[0] - z
    short = rule(Move(z, g, Zero(), ONE, ONE, UNEVEN, 1.0), rule.start(None, z))[0] - z
    torch.testing.assert_close(short, UNEVEN[:, None] * full, rtol=1e-12, atol=1e-14)


def test_only_given_gradient_steps_follow_the_penalty():
    rules = [gp.z_steps.Gradient(), gp.z_steps.Momentum(), gp.z_steps.Adam(0.1), gp.z_steps.Gradient(0.1)]
    assert [rule.follows_penalty for rule in [*rules, gp.z_steps.Momentum(0.1)]] == [False, False, False, True, True]


@pytest.mark.parametrize("rule", [gp.z_steps.Gradient(0.1), gp.z_steps.Momentum(0.1, momentum=0.0)], ids=repr)
def test_steps_of_ones_own_shrink_as_the_penalty_grows(rule):
    """``z+ = z + beta rho_0/rho DG^T (lam + rho (w - G(z)))`` through all scales of Algorithm 2."""
    problem, rho = CERTIFIED["noisy"]().problem, 0.5
    solver = gp.ExactADMM(rho=rho, n=1, scales=4, z_step=rule)
    with torch.no_grad():
        state = solver.start(problem, starts())
        for _ in range(20):
            s, state = state, solver.step(problem, state)
            force = s.lam + state.rho[:, None] * (s.w - s.x)
            ahead = s.z + 0.1 * rho / state.rho[:, None] * force @ problem.generator.module.matrix
            torch.testing.assert_close(state.z, ahead)
    assert (state.rho == 2**4 * rho).all()


# -- duals ----------------------------------------------------------------------------------------------------------


def columns(value):
    return torch.full((B,), float(value), dtype=F64)


def sigma_of(dual, gap, k, rho, first, extent=1.0):
    """The dual step of a rule that remembers nothing."""
    at = Progress(gap, torch.full_like(gap, extent), k, rho, torch.full_like(gap, float(first)))
    return dual(at, dual.start(gap))[0]


def rho_of(penalty, k):
    zero, first = torch.zeros_like(k), torch.full_like(k, penalty.rho)
    return penalty(k, first, first, Residuals(zero, zero))


@pytest.mark.parametrize("sigma", [0.3, 5.0])
def test_paper_dual_is_the_formula(sigma):
    gaps = [1e-9, 0.4, 30.0]
    for k in range(1, 51):
        ours = sigma_of(gp.duals.Paper(sigma), torch.tensor(gaps, dtype=F64), columns(k), columns(7), 3.0, extent=5.0)
        expected = [min(sigma, sigma / (gap * k * math.log(k + 1) ** 2)) for gap in gaps]
        np.testing.assert_allclose(ours, expected, rtol=1e-13)


def test_paper_dual_at_zero_gap_is_the_first_step():
    assert sigma_of(gp.duals.Paper(0.3), columns(0), columns(4), columns(1), 1.0).tolist() == [0.3] * B


@pytest.mark.parametrize("gap", [0.1, 1.0, 100.0])
def test_the_dual_moves_of_the_paper_are_summable(gap):
    k = torch.arange(1, 200_001, dtype=F64)
    gaps = torch.full_like(k, gap)
    moves = sigma_of(gp.duals.Paper(0.7), gaps, k, torch.ones_like(k), 1.0) * gaps
    assert float(moves.sum()) <= 3.388 * 0.7
    if gap == 100.0:  # then the bound is nearly reached: the rest of the series is about 1/log(200000)
        assert float(moves.sum()) > (3.387 - 1 / math.log(200_000)) * 0.7


def test_default_duals():
    rho, first = torch.tensor([2.0, 4.0, 8.0], dtype=F64), 3.0
    np.testing.assert_allclose(sigma_of(gp.duals.Paper(), columns(0), columns(1), rho, first), [0.03] * B)
    np.testing.assert_allclose(sigma_of(gp.duals.Constant(), columns(9), columns(5), rho, first), [0.2, 0.4, 0.8])


def test_the_papers_default_does_not_depend_on_units():
    gap, k = torch.tensor([0.1, 3.0, 40.0], dtype=F64), columns(6)
    plain = sigma_of(gp.duals.Paper(), gap, k, columns(1), 2.0, extent=7.0)
    assert torch.equal(plain, sigma_of(gp.duals.Paper(), 1024 * gap, k, columns(1), 2.0, extent=7.0 * 1024))


def shares(gaps):
    """The share of rho that the adaptive dual takes along a sequence of gaps."""
    dual, one = gp.duals.Adaptive(0.2), torch.ones(1, dtype=F64)
    memory, found = dual.start(one), []
    for k, gap in enumerate(gaps, 1):
        sigma, memory = dual(Progress(gap * one, one, k * one, 3 * one, one), memory)
        found.append(float(sigma) / 3)
    return found


def test_the_adaptive_dual_follows_the_gap():
    assert shares([0.9**k for k in range(40)]) == pytest.approx([0.2] * 40)  # falls: left alone
    standing = shares([1.0] * 200)
    assert standing[1] == pytest.approx(0.21) and standing[-1] == 1.0
    swinging = shares([1.0, 5.0] * 20)
    assert swinging[-1] < 0.05
    assert min(shares([float(2**k) for k in range(60)])) == pytest.approx(1e-3)


def test_constant_dual():
    for k in (1, 50):
        assert sigma_of(gp.duals.Constant(0.4), columns(9), columns(k), columns(2), 1.0).tolist() == [0.4] * B


@pytest.mark.parametrize("dual", [gp.duals.Paper(0.0), gp.duals.Constant(0.0)], ids=str)
def test_sigma_zero_freezes_the_dual(dual):
    assert sigma_of(dual, columns(2), columns(3), columns(1), 1.0).tolist() == [0.0] * B


# -- penalties ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scales", [1, 2, 4])
@pytest.mark.parametrize("rho", [1.0, 0.3])
def test_doubling_table(scales, rho):
    expected = [2**k * rho for k in range(1, scales + 1) for _ in range(2**k * 3)] + [2**scales * rho] * 20
    k = torch.arange(1, len(expected) + 1, dtype=F64)
    np.testing.assert_allclose(rho_of(gp.penalties.Doubling(rho, n=3, scales=scales), k), expected, rtol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_penalties_keep_the_dtype(dtype):
    k = torch.arange(1, 9, dtype=dtype)
    for penalty in (gp.penalties.Constant(0.3), gp.penalties.Doubling(0.3, 2, 2)):
        assert rho_of(penalty, k).dtype == dtype
        assert rho_of(penalty, k).shape == k.shape


def test_constant_penalty():
    assert rho_of(gp.penalties.Constant(0.5), torch.arange(1, 5, dtype=F64)).tolist() == [0.5] * 4


def test_balanced_penalty():
    balanced, first = gp.penalties.Balanced(2.0, ratio=5.0), columns(2)
    seen = Residuals(torch.tensor([60.0, 1.0, 1.0], dtype=F64), torch.tensor([10.0, 6.0, 1.0], dtype=F64))
    assert balanced(columns(10), first, first, seen).tolist() == [4.0, 1.0, 2.0]
    assert balanced(columns(11), first, first, seen).tolist() == [2.0, 2.0, 2.0], "looks every tenth iteration"
    high, low = columns(2000), columns(0.002)
    assert balanced(columns(20), first, high, seen)[0] == 2000
    assert balanced(columns(20), first, low, seen)[1] == pytest.approx(0.002)


@pytest.mark.parametrize("unit", [1.0, 1000.0])
def test_natural_penalties(unit):
    """Of a norm: 2 R(x)/D^2, with D the distance to where it is least; else the curvature of L; 1 without either."""
    G = gp.Generator(Double(), S, S)
    x, y = unit * random(B, S), unit * random(B, S, seed=1)
    norm = gp.Problem(G, on_signal=LInf().around(y))
    expected = 2 * (x - y).abs().amax(dim=1) / (x - y).square().sum(dim=1)
    torch.testing.assert_close(gp.penalties.Constant().first(norm, x), expected, rtol=1e-6, atol=0)
    smooth = gp.Problem(G, gp.SquaredDistance(y, 0.7), on_signal=Box(-1, 1))
    assert gp.penalties.Constant().first(smooth, x).tolist() == pytest.approx([1.4] * B)
    assert gp.penalties.Doubling().first(smooth, x).tolist() == pytest.approx([0.028] * B)
    assert gp.penalties.Balanced().first(gp.Problem(G, on_signal=Box(-1, 1)), x).tolist() == [1.0] * B
    assert gp.penalties.Balanced(3.0).first(smooth, x).tolist() == [3.0] * B


# -- the linearized w step ------------------------------------------------------------------------------------------


def linearized(rule, term, scale=ONE):
    y = random(B, S, seed=70)
    problem = gp.Problem(gp.Generator(Double(), S, S), gp.SquaredDistance(y, 0.7), on_signal=term)
    w, lam, x = (random(B, S, seed=seed) for seed in (71, 72, 73))
    rho = torch.tensor([0.3, 1.0, 4.0], dtype=F64)
    residual = problem.loss.evaluate(x)[1]
    new, _, _ = rule(problem, Split(w, lam, x, residual, rho, ONE, scale, 1.0), rule.start(problem, x, residual))
    norm = rule.residual(problem, w, lam, rho, rho)
    return new.numpy(), norm.numpy(), [t.numpy() for t in (y, w, lam, x, rho)]


class Double(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("factor", torch.tensor(1.0, dtype=F64))

    def forward(self, z):
        return self.factor * z


@pytest.mark.parametrize("alpha", [None, 0.05])
@pytest.mark.parametrize("weight", [0.0, 0.6])
@pytest.mark.parametrize("scale", [ONE, UNEVEN], ids=["full", "uneven"])
def test_linearized_w_step(alpha, weight, scale):
    new, norm, (y, w, lam, x, rho) = linearized(gp.w_steps.Linearized(alpha), weight * L1(), scale)
    longest = 1 / (1.4 + rho[:, None])
    # A step given by the user belongs to the first penalty, here 1, and is shortened in proportion as it grows.
    step = scale.numpy()[:, None] * (longest if alpha is None else alpha / rho[:, None])
    slope = 1.4 * (w - y) + lam
    np.testing.assert_allclose(new, soft(w - step * (slope + rho[:, None] * (w - x)), weight * step), rtol=1e-12)
    residual = np.linalg.norm(w - soft(w - longest * slope, weight * longest), axis=1) / longest[:, 0]
    np.testing.assert_allclose(norm, residual, rtol=1e-12)


# -- every option has an effect -------------------------------------------------------------------------------------

OTHER = {
    gp.z_steps.Gradient: {"step_size": 0.013},
    gp.z_steps.Momentum: {"step_size": 0.013, "momentum": 0.4},
    gp.z_steps.Adam: {"step_size": 0.013, "beta1": 0.4, "beta2": 0.8, "epsilon": 0.1},
    gp.z_steps.Spectral: {},
    gp.z_steps.GaussNewton: {"inner": 2, "refresh": 3, "dense": False, "damping": gp.trial.Damping(first=0.5)},
    gp.w_steps.Linearized: {"alpha": 0.03},
    gp.w_steps.Exact: {"tolerance": 0.3, "max_iterations": 1},
    gp.duals.Paper: {"sigma": 0.9},
    gp.duals.Constant: {"sigma": 0.9, "share": 0.7},
    gp.duals.Adaptive: {"share": 0.9},
    gp.penalties.Constant: {"rho": 0.4},
    gp.penalties.Doubling: {"rho": 0.4, "n": 1, "scales": 1},
    gp.penalties.Balanced: {"rho": 0.4, "ratio": 1.5},
}
SLOTS = {"z_steps": "z_step", "w_steps": "w_step", "duals": "dual", "penalties": "penalty"}
OPTIONS = [(kind, name, value) for kind, changes in OTHER.items() for name, value in changes.items()]


def trajectory(**choices):
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 6)).double()
    G = gp.Generator(module, 3, 6)
    loss = gp.LeastSquares(gp.operators.Gaussian(4, 6, dtype=F64), random(2, 4))
    problem = gp.Problem(G, loss, on_signal=0.1 * L1() if "w_step" in choices else None)  # inner solver or none
    solver = gp.ADMM(**choices)
    state = solver.start(problem, G.sample_latent(2))
    for _ in range(25):
        state = solver.step(problem, state)
    return torch.cat([state.z, state.w, state.lam], dim=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "value"), OPTIONS, ids=[f"{k.__module__}.{k.__name__}.{n}" for k, n, _ in OPTIONS]
)
def test_every_option_has_an_effect(kind, name, value):
    slot = next(slot for module, slot in SLOTS.items() if module in kind.__module__)
    default, changed = kind(), kind(**{name: value})
    assert getattr(default, name) != value
    assert not torch.allclose(trajectory(**{slot: default}), trajectory(**{slot: changed}), rtol=1e-9, atol=0)


@pytest.mark.parametrize("kind", OTHER, ids=lambda k: f"{k.__module__}.{k.__name__}")
def test_the_table_of_options_is_complete(kind):
    other = {"matrix_free"}  # the constants of another form, below
    assert {field.name for field in dataclasses.fields(kind)} - other == set(OTHER[kind])


@pytest.mark.parametrize("constants", [{"steps": 1}, {"tolerance": 0.9}, {"longer": 9.0}, {"shorter": 0.1}], ids=str)
def test_constants_of_the_form_without_a_matrix_have_an_effect(constants):
    rules = (gp.z_steps.MatrixFree(), gp.z_steps.MatrixFree(**constants))
    one, other = (trajectory(z_step=gp.z_steps.GaussNewton(dense=False, matrix_free=rule)) for rule in rules)
    assert not torch.allclose(one, other, rtol=1e-9, atol=0)


def test_the_table_of_rules_is_complete():
    bases = [gp.solvers.z_steps.ZStep, gp.solvers.w_steps.WStep, gp.solvers.duals.Dual, gp.solvers.penalties.Penalty]
    known = {kind for base in bases for kind in concrete(base) if kind.__module__.startswith("genprior")}
    assert known == set(OTHER)


def concrete(base):
    found = [kind for part in base.__subclasses__() for kind in (part, *concrete(part))]
    return [kind for kind in found if not inspect.isabstract(kind)]


# -- bad values -----------------------------------------------------------------------------------------------------

NAN, INF = math.nan, math.inf
BAD = [
    *((kind, "step_size", value) for kind in list(OTHER)[:3] for value in (0, -0.1, NAN, INF, "a", True)),
    *((gp.z_steps.Momentum, "momentum", value) for value in (1, 1.5, -0.1, NAN, None)),
    *((gp.z_steps.Adam, name, value) for name in ("beta1", "beta2") for value in (1, -0.1, NAN, "a")),
    *((gp.z_steps.Adam, "epsilon", value) for value in (-1e-9, INF)),
    *((gp.w_steps.Linearized, "alpha", value) for value in (0, -1, NAN)),
    *((gp.w_steps.Exact, "tolerance", value) for value in (0, -1, NAN)),
    *((gp.w_steps.Exact, "max_iterations", value) for value in (0, -1, 2.5, True)),
    *((kind, "sigma", value) for kind in (gp.duals.Paper, gp.duals.Constant) for value in (-0.1, NAN, INF, "a")),
    *((kind, "rho", v) for kind in (gp.penalties.Constant, gp.penalties.Doubling) for v in (0, -1, NAN, INF, "a")),
    *((gp.penalties.Doubling, name, value) for name in ("n", "scales") for value in (0, -1, 1.5)),
]


@pytest.mark.parametrize(("kind", "name", "value"), BAD, ids=[f"{k.__name__}.{n}={v}" for k, n, v in BAD])
def test_bad_values(kind, name, value):
    with pytest.raises((ValueError, TypeError), match=rf"^{name} must .*got {re.escape(repr(value))}"):
        kind(**{name: value})


@pytest.mark.parametrize("slot", SLOTS.values())
def test_parts_of_the_wrong_kind(slot):
    with pytest.raises(TypeError, match=f"{slot} must be a "):
        gp.ADMM(**{slot: 0.1})
