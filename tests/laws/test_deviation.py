"""Deviations from the range: against cvxpy for linear generators, alternating minimisation for others; monotone, resumable."""

from __future__ import annotations

import itertools

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import nn

import genprior as gp
from genprior.generators.deviating import Deviating
from genprior.loop.run import share_done
from genprior.solvers.deviation_fit import HeldOut
from tests.resuming import assert_same_run

F64 = torch.float64
ITEMS, SIZE, LATENT, M = 3, 24, 4, 15
SHAPE = (1, 4, 6)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def linear_generator():
    module = nn.Linear(LATENT, SIZE).double()
    with torch.no_grad():
        module.weight.copy_(random(SIZE, LATENT, seed=1))
        module.bias.copy_(random(SIZE, seed=2))
    return gp.Generator(nn.Sequential(module, nn.Unflatten(1, SHAPE)), LATENT, SHAPE)


def curved_generator():
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(LATENT, 16), nn.ELU(), nn.Linear(16, SIZE), nn.Unflatten(1, SHAPE)).double()
    return gp.Generator(module, LATENT, SHAPE)


BASES = {
    "identity": lambda: None,
    "dct": lambda: gp.operators.DCT(SHAPE, dtype=F64),
    "haar": lambda: gp.operators.Wavelet(SHAPE, "haar", dtype=F64),
    "blur": lambda: gp.operators.Blur(0.6, SHAPE, dtype=F64),  # of the user's own, not orthonormal
}


def basis_of(name):
    if name == "wide":  # 40 coefficients for 24 values
        matrix = random(SIZE, 40, seed=9) / 4
        return gp.operators.Linear(
            lambda v: (v @ matrix.T).reshape(-1, *SHAPE), lambda x: x.flatten(1) @ matrix, 40, SHAPE, dtype=F64
        )
    return BASES[name]()


def measured(G, basis, seed=0):
    """Measurements of signals in the range, plus two entries of the basis, plus noise."""
    A = gp.operators.Gaussian(M, SHAPE, seed=5, dtype=F64)
    x = G(G.sample_latent(ITEMS, seed=7)).detach()
    v = torch.zeros(ITEMS, *(SHAPE if basis is None else basis.signal_shape), dtype=F64)
    v.flatten(1)[:, [2, 11]] = 2.0
    x = x + (v if basis is None else basis(v))
    return A, A(x) + 0.05 * random(ITEMS, M, seed=seed + 11)


def problem(G, basis, on_signal=None, weight=0.2, on_latent=0.01):
    A, y = measured(G, basis)
    return gp.Problem(
        G,
        loss=gp.LeastSquares(A, y),
        on_signal=on_signal,
        on_latent=on_latent * gp.SquaredL2(),
        deviation=torch.tensor([0.5, 1.0, 2.0], dtype=F64) * weight * gp.L1(),
        basis=basis,
    )


def matrix_of(basis):
    return np.eye(SIZE) if basis is None else basis.dense().numpy()


def by_cvxpy(P, basis, item, box=None, l1=0.0):
    """Minimum, z and coefficients; the generator is linear."""
    A, y = P.loss.operator.dense().numpy(), P.loss.y[item].numpy()
    W, b = random(SIZE, LATENT, seed=1).numpy(), random(SIZE, seed=2).numpy()
    Psi = matrix_of(basis)
    z, v = cp.Variable(LATENT), cp.Variable(Psi.shape[1])
    w = W @ z + b + Psi @ v
    weight = float([0.5, 1.0, 2.0][item] * 0.2)
    value = 0.5 * cp.sum_squares(A @ w - y) + 0.005 * cp.sum_squares(z) + weight * cp.norm1(v) + l1 * cp.norm1(w)
    solved = cp.Problem(cp.Minimize(value), [] if box is None else [w >= box[0], w <= box[1]])
    solved.solve(solver=cp.CLARABEL, tol_gap_abs=1e-13, tol_gap_rel=1e-13, tol_feas=1e-13)
    return solved.value, z.value, v.value


SOLVERS = {
    "Auto": lambda: None,
    "ADMM": gp.LinearizedADMM,
    "exact ADMM": lambda: gp.ADMM(gp.z_steps.Momentum(), dual=gp.duals.Constant(share=0.5)),
    "LBFGS": gp.LBFGS,
}


@pytest.mark.parametrize(
    ("solver", "name"),
    [
        ("Auto", "identity"),
        ("Auto", "dct"),
        ("Auto", "blur"),
        ("ADMM", "dct"),
        ("exact ADMM", "identity"),
        ("LBFGS", "blur"),
    ],
)
def test_linear_generators_against_cvxpy(solver, name):
    basis = basis_of(name)
    P = problem(linear_generator(), basis)
    r = gp.solve(P, SOLVERS[solver](), stop=gp.MaxSteps(4000), tolerance=1e-8, seed=0)
    for item in range(ITEMS):
        least, z, v = by_cvxpy(P, basis, item)
        assert float(r.objective[item]) == pytest.approx(least, abs=1e-6 * max(1.0, least))
        if name != "blur":  # where it is unique
            np.testing.assert_allclose(r.z[item], z, atol=2e-6)
            np.testing.assert_allclose(r.coefficients[item].flatten(), v, atol=2e-6)


@pytest.mark.parametrize("name", ["haar", "wide"])
def test_bases_against_cvxpy(name):
    basis = basis_of(name)
    P = problem(linear_generator(), basis)
    r = gp.solve(P, tolerance=1e-7, patience=30, seed=0)
    for item in range(ITEMS):
        assert float(r.objective[item]) == pytest.approx(by_cvxpy(P, basis, item)[0], abs=1e-4)


def test_terms_on_the_signal_concern_the_whole_signal():
    """R counts at ``w = G(z) + Psi v``; the default solver splits it, and eliminates the deviation from the envelope."""
    basis = basis_of("dct")
    P = problem(linear_generator(), basis, on_signal=0.1 * gp.L1())
    r = gp.solve(P, stop=gp.MaxSteps(100), restarts=1, seed=0)
    for item in range(ITEMS):
        assert float(r.objective[item]) == pytest.approx(by_cvxpy(P, basis, item, l1=0.1)[0], rel=5e-3)


def test_constraints_on_the_signal_concern_the_whole_signal():
    P = problem(linear_generator(), None, on_signal=gp.Box(-1.5, 1.5))
    r = gp.solve(P, stop=gp.MaxSteps(100), restarts=1, seed=0)
    assert float(r.signal.abs().max()) <= 1.5 + 1e-4
    for item in range(ITEMS):
        assert float(P.loss(r.signal)[item]) < 1.2 * by_cvxpy(P, None, item, box=(-1.5, 1.5))[0]


def test_parts_of_the_answer():
    G, basis = curved_generator(), basis_of("dct")
    r = gp.solve(problem(G, basis), seed=0)
    torch.testing.assert_close(r.in_range, G(r.z).detach())
    torch.testing.assert_close(r.deviation, basis(r.coefficients))
    torch.testing.assert_close(r.signal, r.in_range + r.deviation)
    assert r.z.shape == (ITEMS, LATENT)
    assert gp.solve(gp.Problem(G, loss=problem(G, None).loss), seed=0).deviation is None


def alternating(P, basis, z, rounds=100):
    """z by the library without a deviation, on measurements less the deviation's; v by cvxpy's own lasso."""
    A, y, G = P.loss.operator, P.loss.y, P.generator.within
    Psi, weights = matrix_of(basis), 0.2 * np.array([0.5, 1.0, 2.0])
    M_ = A.dense().numpy() @ Psi
    v = cp.Variable(Psi.shape[1])
    target, weight = cp.Parameter(M), cp.Parameter(nonneg=True)
    lasso = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(M_ @ v - target) + weight * cp.norm1(v)))
    coefficients, value = np.zeros((ITEMS, Psi.shape[1])), np.inf
    for _ in range(rounds):
        rest = y - torch.as_tensor(coefficients @ M_.T)
        inner = gp.Problem(G, loss=gp.LeastSquares(A, rest), on_latent=0.01 * gp.SquaredL2())
        z = gp.solve(inner, gp.LevenbergMarquardt(), z0=z, tolerance=1e-10, stop=gp.MaxSteps(50)).z
        for item in range(ITEMS):
            target.value, weight.value = (y - A(G(z)))[item].detach().numpy(), weights[item]
            lasso.solve(solver=cp.CLARABEL)
            coefficients[item] = v.value
        before, value = value, float(P.objective(lifted(P, z, coefficients)).sum())
        if before - value < 1e-7:
            break
    return z, coefficients, P.objective(lifted(P, z, coefficients))


def lifted(P, z, coefficients):
    entries = P.generator.blocks[1].entries(
        torch.as_tensor(coefficients).reshape(ITEMS, *P.generator.coefficient_shape)
    )
    return torch.cat([z, entries], dim=1)


def test_other_generators_against_alternating_minimisation():
    basis = basis_of("dct")
    P = problem(curved_generator(), basis)
    ours = gp.solve(P, tolerance=1e-8, seed=0)
    z, _, least = alternating(P, basis, ours.z + 0.05)
    torch.testing.assert_close(ours.objective, least, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.z, z, rtol=1e-2, atol=1e-3)
    assert ours.converged


def test_the_objective_never_rises_between_accepted_points():
    P = problem(curved_generator(), basis_of("dct"))
    method = gp.QuasiNewton(ridge=0.0).solver(P)
    state = method.start(P, P.latents(P.in_range.generator.sample_latent(ITEMS, seed=3)))
    bases = []
    for _ in range(60):
        state = method.step(P, state)
        bases.append(P.objective(state.base.z))
    for before, after in itertools.pairwise(bases):
        assert (after <= before + 1e-10).all()


def test_elimination_needs_fewer_passes_than_the_same_latent_without():
    P = problem(curved_generator(), basis_of("dct"), weight=0.05)
    eliminated, plain = (
        gp.solve(P, s, tolerance=1e-7, seed=0, stop=gp.MaxSteps(3000)) for s in (None, gp.GradientDescent())
    )
    torch.testing.assert_close(eliminated.objective, plain.objective, rtol=1e-3, atol=1e-4)
    assert eliminated.forwards < plain.forwards / 2


def test_the_default_tolerance_is_reached():
    G, A = curved_generator(), gp.operators.Gaussian(M, SHAPE, seed=5, dtype=F64)
    for noise in (None, 0.05):
        scale = 1.0 if noise is None else noise**-2
        loss = gp.LeastSquares(A, measured(G, None)[1], noise=noise)
        r = gp.solve(gp.Problem(G, loss=loss, deviation=0.1 * scale * gp.L1()), stop=gp.MaxSteps(100), restarts=1)
        assert r.converged, r.status


@pytest.mark.parametrize("on_signal", [None, gp.Box(-20.0, 20.0)])
def test_likelihoods_whose_curvature_is_local(on_signal):
    """Poisson: where counts are low, gradients change far faster than at the start. v alone gains nothing more in the end."""
    G = curved_generator()
    x = G(G.sample_latent(ITEMS, seed=7)).detach().abs()
    x.flatten(1)[:, [2, 11]] += 2.0
    y = (20 * x).round()
    positive = gp.Generator(nn.Sequential(G.module, nn.Softplus()), LATENT, SHAPE)
    loss = gp.Poisson(gp.operators.Identity(SHAPE), y, gain=20.0, background=0.5)
    P = gp.Problem(positive, loss=loss, deviation=25 * gp.L1(), on_signal=on_signal)
    r = gp.solve(P, stop=gp.MaxSteps(60), restarts=1)
    for item in range(ITEMS):
        base, counts = r.in_range[item].flatten().numpy(), y[item].flatten().numpy()
        v = cp.Variable(SIZE)
        u = 20 * (base + v) + 0.5
        value = cp.sum(u - counts) - cp.sum(cp.multiply(counts, cp.log(u) - np.log(np.maximum(counts, 1e-9))))
        least = cp.Problem(cp.Minimize(value + 25 * cp.norm1(v))).solve(solver=cp.CLARABEL)
        assert float(r.objective[item]) < least + 1e-2 * abs(least)


def test_an_item_alone_is_that_item_in_a_batch():
    P = problem(curved_generator(), basis_of("haar"))
    z0 = P.in_range.generator.sample_latent(ITEMS, seed=3)
    together = gp.solve(P, z0=z0)
    for item in range(ITEMS):
        alone = gp.solve(P.rows(torch.tensor([item])), z0=z0[[item]])
        torch.testing.assert_close(alone.signal, together.signal[[item]], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("at", [3, 40])
def test_a_resumed_run_ends_with_the_same_bits(tmp_path, at):
    """Stopped in either stage."""

    def build():
        A, y = measured(curved_generator(), None)
        return gp.Problem(curved_generator(), loss=gp.LeastSquares(A, y), deviation="auto")

    calls = []

    def stop(view):
        calls.append(view.step)
        return len(calls) == at

    options = {"stop": gp.MaxSteps(25), "tolerance": 0.0, "restarts": 1}
    file = gp.Checkpoint(tmp_path / "run", steps=2)
    gp.solve(build(), checkpoint=file, callbacks=[stop], **options)
    resumed = gp.solve(build(), checkpoint=gp.Checkpoint(tmp_path / "run", steps=2), **options)
    assert_same_run(resumed, gp.solve(build(), **options))


def test_limits_hold_for_both_stages_together():
    P = problem(curved_generator(), None)
    r = gp.solve(P, stop=gp.MaxPasses(40), tolerance=0.0)
    assert r.forwards + r.backwards <= 42
    assert float(r.coefficients.abs().max()) > 0, "the second stage had its share"


def test_a_limit_on_passes_is_one_for_each_batch():
    P = problem(curved_generator(), None)
    r = gp.solve(P, stop=gp.MaxPasses(60), tolerance=0.0, restarts=1, batch_size=1)
    assert 55 <= r.batch_passes <= 64
    assert (r.steps > 25).all(), "of both stages"
    assert (r.coefficients.flatten(1).abs().amax(dim=1) > 0).all()


def test_callbacks_see_the_stage_and_progress_never_falls():
    seen, done, rule = [], [], gp.MaxSteps(8)

    def watch(view):
        seen.append((view.stage, view.step))
        done.append(share_done(rule, view, ITEMS))

    gp.solve(problem(curved_generator(), None), stop=rule, restarts=1, tolerance=0.0, callbacks=[watch])
    assert seen == sorted(seen)
    assert {stage for stage, _ in seen} == {0, 1}
    assert done == sorted(done)
    assert done[0] == 0
    assert done[-1] == 1


# -- the weight that is chosen ---------------------------------------------------------------------------------------------


def weights(noise, deviating=2.0, items=8):
    G = linear_generator()
    A = gp.operators.Gaussian(20, SHAPE, seed=5, dtype=F64)
    x = G(G.sample_latent(items, seed=7)).detach()
    x.flatten(1)[:, [2, 11]] += deviating
    y = A(x) + noise * random(items, 20, seed=12)
    P = gp.Problem(G, loss=gp.LeastSquares(A, y), deviation="auto")
    return gp.solve(P, seed=0), x, P


def test_the_weight_grows_with_the_noise_and_is_small_for_exact_data():
    found = [weights(noise)[0].deviation_weight.median() for noise in (0.0, 0.1, 0.5)]
    assert found[0] < 0.1 * found[1] < found[2]


def test_exact_data_are_recovered_by_the_weight_that_is_chosen():
    r, x, P = weights(0.0)
    alone = gp.solve(P.in_range, seed=0)
    error, before = ((s.signal - x).flatten(1).norm(dim=1) for s in (r, alone))
    assert float(error.median()) < 0.2 * float(before.median())


def test_without_a_deviation_noise_is_not_fitted():
    r, x, P = weights(0.3, deviating=0.0)
    alone = gp.solve(P.in_range, seed=0)
    assert float((r.signal - x).norm()) < 1.15 * float((alone.signal - x).norm())


def chosen(y, noise, x):
    P = gp.Problem(linear_generator(), loss=gp.LeastSquares(GAUSSIAN, y, noise=noise), deviation="auto")
    return HeldOut().chosen(P, x)


GAUSSIAN = gp.operators.Gaussian(20, SHAPE, seed=5, dtype=F64)


def data():
    """Measurements and the signals of the generator from which their signals deviate."""
    G = linear_generator()
    x = G(G.sample_latent(ITEMS, seed=7)).detach()
    sparse = torch.zeros_like(x)
    sparse.flatten(1)[:, [2, 11]] = 2.0
    return GAUSSIAN(x + sparse) + 0.05 * random(ITEMS, 20, seed=12), x


@pytest.mark.parametrize("noise", [0.05, 20.0, torch.full((20,), 0.05, dtype=F64)])
def test_the_weight_counts_in_units_of_the_noise_as_the_loss_does(noise):
    y, x = data()
    level = float(torch.as_tensor(noise).mean())
    torch.testing.assert_close(chosen(y, noise, x), chosen(y, None, x) / level**2)


def test_measurements_that_are_all_noise_do_not_choose_the_weight():
    y, x = data()
    level = torch.tensor([0.05, 50.0], dtype=F64).repeat(10)
    one, other = (chosen(torch.where(level > 1, level * random(ITEMS, 20, seed=seed), y), level, x) for seed in (1, 2))
    torch.testing.assert_close(one, other, rtol=0.05, atol=0)


def test_weights_are_those_of_each_item_alone():
    r, _, P = weights(0.1)
    alone = HeldOut().chosen(P.rows(torch.tensor([5])), gp.solve(P.in_range, seed=0).signal[[5]])
    torch.testing.assert_close(alone, r.deviation_weight[[5]])


# -- bad input -------------------------------------------------------------------------------------------------------------


def posed(**parts):
    G = curved_generator()
    A, y = measured(G, None)
    return gp.Problem(G, **({"loss": gp.LeastSquares(A, y)} | parts))


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: posed(deviation=0.1), TypeError, "deviation must be a genprior Term such as 0.1"),
        (lambda: posed(deviation="l1"), TypeError, "or 'auto', got 'l1'"),
        (lambda: posed(deviation=0 * gp.L1()), ValueError, "weight 0"),
        (lambda: posed(basis=gp.operators.DCT(SHAPE, dtype=F64)), TypeError, "a basis without a deviation"),
        (lambda: posed(deviation=gp.L1(), basis="dct"), TypeError, "basis must be an operator"),
        (
            lambda: posed(deviation=gp.L1(), basis=gp.operators.DCT((1, 8, 8), dtype=F64)),
            ValueError,
            r"basis gives signals of shape \(1, 8, 8\), but the generator gives \(1, 4, 6\)",
        ),
        (lambda: posed(deviation=gp.L1(), basis=gp.operators.DCT(SHAPE)), TypeError, "basis works in torch.float32"),
        (
            lambda: posed(deviation=gp.L1(), basis=gp.operators.SubsampledFourier(5, SHAPE, dtype=F64)),
            ValueError,
            "complex",
        ),
        (lambda: posed(deviation=torch.ones(2, dtype=F64) * gp.L1()), ValueError, "different numbers of items"),
        (
            lambda: posed(loss=gp.SquaredDistance(torch.zeros(2, *SHAPE, dtype=F64)), deviation="auto"),
            ValueError,
            "held-out measurements .* the loss is SquaredDistance",
        ),
        (lambda: gp.solve(posed(deviation=gp.L1()), gp.LevenbergMarquardt()), ValueError, "deviation"),
    ],
)
def test_bad_input(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_the_unit_of_the_deviation_makes_both_move_the_signal_alike():
    G = linear_generator()
    lifted_generator = Deviating(G, basis_of("blur"))
    slopes = random(SIZE, LATENT, seed=1).norm(dim=0)
    assert 0.3 * slopes.min() < lifted_generator.unit * lifted_generator.basis_norm < 3 * slopes.max()
