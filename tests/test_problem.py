"""The problem: what fits together, its objective and score, its gradients."""

import math
import re

import numpy as np
import pytest
import torch
from torch import nn

import genprior as gp
from genprior import operators as ops
from genprior.losses import NoLoss
from genprior.terms import L1, L2, Ball, Box, LInf, Simplex, SquaredL2, TotalVariation

F64 = torch.float64
S, D, B = 3, (2, 4), 3


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def generator(dtype=F64):
    torch.manual_seed(0)
    return gp.Generator(nn.Sequential(nn.Linear(S, 5), nn.Tanh(), nn.Linear(5, 8), nn.Unflatten(1, D)).to(dtype), S, D)


G = generator()
Y = random(B, *D, seed=1)
A = ops.Gaussian(5, D, dtype=F64)
LOSSES = {
    "distance": gp.SquaredDistance(Y, 0.6),
    "least squares": gp.LeastSquares(A, random(B, 5, seed=2)),
    "risk": gp.EmpiricalRisk(lambda w, s: (w.flatten(1) @ s.T).exp(), 0.3 * random(4, 8, seed=3)),
    "none": NoLoss(),
}
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())


def latents(seed=5):
    return random(B, S, seed=seed)


MISFITS = [
    ({"generator": nn.Linear(S, 8)}, TypeError, "Generator, got Linear: wrap it: gp.Generator(module, latent_shape"),
    ({"loss": L1()}, TypeError, "loss must be a genprior Loss, got L1: give it as on_signal="),
    ({"loss": lambda w: w}, TypeError, "loss must be a genprior Loss, got function"),
    ({"on_signal": gp.SquaredDistance(Y)}, TypeError, "on_signal must be a genprior Term, got SquaredDistance"),
    ({"on_latent": 0.1}, TypeError, "on_latent must be a genprior Term, got float"),
    ({"loss": gp.SquaredDistance(Y[:, :1])}, ValueError, "y has shape (3, 1, 4), expected (B, 2, 4)"),
    ({"loss": gp.SquaredDistance(Y.float())}, TypeError, "y has dtype torch.float32, but the generator works in"),
    ({"loss": gp.LeastSquares(ops.Gaussian(5, D), torch.zeros(B, 5))}, TypeError, "operator works in torch.float32"),
    ({"loss": gp.LeastSquares(ops.Gaussian(5, 8, dtype=F64), torch.zeros(B, 5, dtype=F64))}, ValueError,
     "operator takes signals of shape (8,), but the generator gives (2, 4)"),
    ({"loss": gp.EmpiricalRisk(lambda w, s: w.flatten(1).sum(1), Y)}, ValueError, "loss gave (2,) for 2 signals"),
    ({"on_signal": L1().around(Y[:, 0])}, ValueError, "on_signal: y of around(y) has shape (3, 4), expected (B, 2, 4)"),
    ({"on_signal": L1().around(Y.float())}, TypeError, "centre of on_signal has dtype torch.float32"),
    ({"on_signal": Box(torch.zeros(3, dtype=F64), 1.0)}, ValueError,
     "low of on_signal has shape (3,), which does not broadcast to the signal (2, 4)"),
    ({"on_latent": TotalVariation(dims=2)}, ValueError, "(3,)"),
    ({"on_latent": L1().around(Y)}, ValueError, "on_latent: y of around(y) has shape (3, 2, 4), expected (B, 3)"),
    ({"loss": gp.SquaredDistance(Y), "on_signal": L1().around(Y[:2])}, ValueError,
     "different numbers of items: {'loss': 3, 'on_signal': 2}"),
    ({"loss": gp.SquaredDistance(Y), "on_latent": Ball(torch.ones(4, dtype=F64))}, ValueError,
     "different numbers of items: {'loss': 3, 'on_latent': 4}"),
]  # fmt: skip


@pytest.mark.parametrize(("parts", "kind", "message"), MISFITS, ids=[row[2][:50] for row in MISFITS])
def test_misfits(parts, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        gp.Problem(**({"generator": G} | parts))


def test_another_device():
    part = gp.Generator(nn.Linear(S, 8, dtype=F64), S, 8)
    part.device = torch.device("meta")
    with pytest.raises(ValueError, match="y is on cpu, but the generator is on meta"):
        gp.Problem(part, loss=gp.SquaredDistance(Y.flatten(1)))


@pytest.mark.parametrize(
    ("parts", "batch"),
    [
        ({"loss": NoLoss()}, None),
        ({"loss": LOSSES["risk"]}, None),
        ({"on_signal": L1()}, None),
        ({"loss": LOSSES["distance"]}, B),
        ({"on_signal": L1().around(Y)}, B),
        ({"on_latent": Ball(torch.ones(2, dtype=F64))}, 2),
        ({"loss": LOSSES["distance"], "on_signal": L1().around(Y), "on_latent": L1()}, B),
    ],
)
def test_batch(parts, batch):
    assert gp.Problem(G, **parts).batch == batch


@every_loss
@pytest.mark.parametrize("on_signal", [None, 0.4 * L1(), LInf().around(Y)], ids=repr)
@pytest.mark.parametrize("on_latent", [None, 0.3 * SquaredL2()], ids=repr)
def test_objective_is_the_sum(loss, on_signal, on_latent):
    problem = gp.Problem(G, loss, on_signal, on_latent)
    z = latents()
    x = G(z).detach()
    expected = np.zeros(B)
    for part, at in ((loss, x), (on_signal, x), (on_latent, z)):
        expected = expected + (0 if part is None else part(at).numpy())
    before = G.forwards
    ours = problem.objective(z)
    assert G.forwards == before + 1
    assert not ours.requires_grad
    np.testing.assert_allclose(ours, expected, rtol=1e-13)
    point = problem.evaluate(x, z)
    np.testing.assert_allclose(point.objective, expected, rtol=1e-13)
    assert torch.equal(point.score, point.objective)


INDICATORS = [Box(-0.01, 0.01), Ball(0.05), Simplex(), Box(-0.01, 0.01).around(Y)]


def weight_of(problem):
    """Twice ``|grad L|`` at the point of the set nearest to zero, 1 where L is flat."""
    nearest = problem.on_signal.prox(torch.zeros(B, *D, dtype=F64), 1.0)
    size = problem.loss.gradient(nearest, problem.loss.evaluate(nearest)[1]).flatten(1).norm(dim=1)
    return torch.where(size > 0, 2 * size, 1.0)


@every_loss
@pytest.mark.parametrize("term", INDICATORS, ids=repr)
def test_infeasible_is_infinite_in_the_objective_and_finite_in_the_score(loss, term):
    problem = gp.Problem(G, loss, on_signal=term)
    z = latents()
    x = G(z).detach()
    point = problem.evaluate(x, z)
    assert point.objective.tolist() == [math.inf] * B
    value = problem.loss(x)
    torch.testing.assert_close(point.score, value + weight_of(problem) * term.violation(x), rtol=1e-12, atol=1e-14)
    assert bool((point.score > value).all())
    inside = term.prox(x, 1.0)
    feasible = problem.evaluate(inside, z)
    torch.testing.assert_close(feasible.objective, problem.loss(inside), rtol=1e-12, atol=1e-14)


def test_without_a_loss_the_score_still_prefers_what_is_nearer():
    """A pure feasibility problem: otherwise the first iterate would stay the best one for ever."""
    problem = gp.Problem(G, on_signal=Ball(0.1))
    x = G(latents()).detach()
    assert bool((problem.evaluate(0.5 * x, latents()).score < problem.evaluate(x, latents()).score).all())
    gradient = problem.signal_gradient(x, problem.loss.evaluate(x)[1])
    torch.testing.assert_close(gradient, x / x.flatten(1).norm(dim=1).reshape(-1, 1, 1))


def test_infeasible_latents_are_infinite():
    problem = gp.Problem(G, LOSSES["distance"], on_latent=Ball(1e-3))
    assert problem.objective(latents()).tolist() == [math.inf] * B
    assert bool(torch.isfinite(problem.objective(torch.zeros(B, S, dtype=F64))).all())


SMOOTH = [
    None,
    0.4 * SquaredL2(),
    SquaredL2().around(Y),
    0.3 * L1(),
    L2().around(Y),
    0.2 * LInf(),
    0.3 * TotalVariation(),
]


@every_loss
@pytest.mark.parametrize("term", SMOOTH, ids=repr)
def test_signal_gradient_against_differences(loss, term):
    """At random points all these terms are differentiable."""
    problem = gp.Problem(G, loss, on_signal=term)
    x, z, h = random(B, *D, seed=7), latents(), 1e-6
    ours = problem.signal_gradient(x, problem.evaluate(x, z).residual)
    assert ours.shape == x.shape
    for j in range(8):
        e = h * torch.eye(8, dtype=F64)[j].reshape(D)
        slope = (problem.evaluate(x + e, z).objective - problem.evaluate(x - e, z).objective) / (2 * h)
        torch.testing.assert_close(ours.flatten(1)[:, j], slope, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("term", INDICATORS[:3], ids=repr)
def test_signal_gradient_of_an_indicator_points_away_from_the_set(term):
    problem = gp.Problem(G, LOSSES["distance"], on_signal=term)
    x = random(B, *D, seed=7)
    residual = problem.evaluate(x, latents()).residual
    loss = problem.loss.gradient(x, residual)
    outward = x - term.prox(x, 1.0)
    length, weight = outward.flatten(1).norm(dim=1).reshape(-1, 1, 1), weight_of(problem).reshape(-1, 1, 1)
    torch.testing.assert_close(problem.signal_gradient(x, residual), loss + weight * outward / length)


def test_signal_gradient_inside_the_set_is_that_of_the_loss():
    problem = gp.Problem(G, LOSSES["distance"], on_signal=Box(-9, 9))
    x = random(B, *D, seed=7)
    residual = problem.evaluate(x, latents()).residual
    assert torch.equal(problem.signal_gradient(x, residual), problem.loss.gradient(x, residual))


@every_loss
@pytest.mark.parametrize("rho", [0.7, torch.tensor([0.3, 1.0, 4.0], dtype=F64)], ids=["one", "per item"])
def test_lagrangian(loss, rho):
    problem = gp.Problem(G, loss, on_signal=L1())
    w, x, lam = (random(B, *D, seed=seed) for seed in (8, 9, 10))
    rhos = np.broadcast_to(rho.numpy() if isinstance(rho, torch.Tensor) else rho, B)
    ours = problem.lagrangian(w, x, lam, rho)
    for i in range(B):
        gap = (w[i] - x[i]).numpy()
        smooth = 0.0 if loss is None else float(loss(w)[i])
        expected = smooth + (gap * lam[i].numpy()).sum() + rhos[i] / 2 * (gap**2).sum()
        assert float(ours[i]) == pytest.approx(expected, rel=1e-12)


def test_gradient_of_the_lagrangian_in_z():
    """``-DG(z)^T (lam + rho (w - G(z)))``, the gradient that ADMM takes, against differences of the Lagrangian."""
    problem = gp.Problem(G, LOSSES["distance"])
    z, w, lam, h = latents(), random(B, *D, seed=8), random(B, *D, seed=10), 1e-6
    at = G.evaluate(z)
    ours = -at.vjp(lam + 0.7 * (w - at.x))
    for j in range(S):
        e = h * torch.eye(S, dtype=F64)[j]
        with torch.no_grad():
            high, low = (problem.lagrangian(w, G(z + s * e), lam, 0.7) for s in (1, -1))
        torch.testing.assert_close(ours[:, j], (high - low) / (2 * h), rtol=1e-6, atol=1e-7)


@every_loss
def test_rows(loss):
    problem = gp.Problem(G, loss, on_signal=0.3 * L1().around(Y), on_latent=torch.tensor([0.1, 1, 5], dtype=F64) * L1())
    index, z = torch.tensor([2, 0, 2, 1]), latents()
    part = problem.rows(index)
    assert part.batch == 4
    torch.testing.assert_close(part.objective(z[index]), problem.objective(z)[index], rtol=1e-12, atol=1e-13)
    assert part.generator is G
    assert problem.batch == B


def test_rows_of_a_problem_for_any_batch():
    assert gp.Problem(G, LOSSES["risk"]).rows(torch.tensor([0])).batch is None


def test_repr():
    text = repr(gp.Problem(G, LOSSES["distance"], on_signal=L1()))
    assert text.startswith("Problem(Generator(Sequential")
    assert text.endswith("loss=SquaredDistance(y (3, 2, 4), weight=0.6), on_signal=L1(), on_latent=Zero(), batch=3)")


# -- sums of a constraint and a finite term -----------------------------------------------------------------------------

MIXED = [
    Box(-0.01, 0.01) + 0.1 * L1(),
    0.3 * TotalVariation() + Box(-0.01, 0.01),
    L2() + Ball(0.05),
    (Box(-0.01, 0.01) + 0.1 * L1()).around(Y),
    2 * (LInf() + Box(-0.01, 0.01)),
    0.5 * SquaredL2() + Box(-0.01, 0.01),
]


@every_loss
@pytest.mark.parametrize("term", MIXED, ids=repr)
def test_a_constraint_with_a_finite_term(loss, term):
    """Infinite outside of the set, and ranked there by the finite part and a penalty on the distance."""
    problem = gp.Problem(G, loss, on_signal=term)
    z = latents()
    x = G(z).detach()
    point, finite = problem.evaluate(x, z), problem.loss(x) + term.finite(x)
    assert point.objective.tolist() == [math.inf] * B
    excess = point.score - finite
    weight = excess / term.violation(x)
    assert bool((excess > 0).all())
    further = problem.evaluate(1.5 * x, z).score - problem.loss(1.5 * x) - term.finite(1.5 * x)
    torch.testing.assert_close(further / term.violation(1.5 * x), weight, rtol=1e-7, atol=1e-9)
    assert torch.equal(point.score, problem.signal_value(x, point.loss))
    inside = term.prox(x, 1.0)
    feasible = problem.evaluate(inside, z)
    torch.testing.assert_close(feasible.objective, problem.loss(inside) + term.finite(inside), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(feasible.score, feasible.objective, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("term", MIXED, ids=repr)
def test_signal_gradient_of_a_mixed_sum_against_differences(term):
    """The score is smooth at random points outside of the set; the term on the latent is none."""
    problem = gp.Problem(G, LOSSES["distance"], on_signal=term)
    x, z, h = random(B, *D, seed=7), latents(), 1e-6
    ours = problem.signal_gradient(x, problem.evaluate(x, z).residual)
    for j in range(8):
        e = h * torch.eye(8, dtype=F64)[j].reshape(D)
        slope = (problem.evaluate(x + e, z).score - problem.evaluate(x - e, z).score) / (2 * h)
        torch.testing.assert_close(ours.flatten(1)[:, j], slope, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("term", MIXED[:3], ids=repr)
def test_the_penalty_of_a_mixed_sum_is_exact(term):
    """The minimiser of the score in the signal is that of the objective: the nearest feasible point of the prox."""
    problem = gp.Problem(G, gp.SquaredDistance(Y, 0.5), on_signal=term)
    best = term.prox(Y, 1.0)
    least = problem.evaluate(best, latents()).score
    for seed in range(20):
        for size in (1e-3, 0.1, 1.0):
            other = best + size * random(B, *D, seed=seed)
            assert bool((problem.evaluate(other, latents()).score >= least - 1e-7).all())


@pytest.mark.parametrize(
    "solver",
    [gp.Auto(), gp.ExactADMM(), gp.LinearizedADMM(), gp.LBFGS(), gp.ProjectedGradient()],
    ids=lambda s: type(s).__name__,
)
@pytest.mark.parametrize(
    "term",
    [
        Box(-1, 1) + 0.02 * L1(),
        0.02 * TotalVariation(dims=1) + Box(-1, 1),
        0.02 * L2() + Box(-1, 1),
        0.02 * LInf() + Box(-1, 1),
    ],
    ids=repr,
)
def test_sums_in_every_solver(term, solver):
    truth = 0.5 * G(latents()).detach()
    problem = gp.Problem(G, gp.SquaredDistance(truth, 0.5), on_signal=term, on_latent=0.01 * L1() + Box(-2, 2))
    result = gp.solve(problem, solver, stop=gp.MaxSteps(80), restarts=1, seed=3)
    start = problem.objective(G.sample_latent(B, seed=3).to(F64).clamp(-2, 2))
    torch.testing.assert_close(problem.objective(result.z), result.objective, rtol=1e-12, atol=0)
    assert bool(result.objective.isfinite().all())
    assert bool((result.z.abs() <= 2).all())
    assert float(result.objective.sum()) < float(start.sum())
