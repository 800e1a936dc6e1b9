"""Theorem 1 on instances whose solution is known: the bounds hold at every iteration of Algorithm 1."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import genprior as gp
from genprior.theory import Setting, corrected, sharpened
from genprior.theory.theorem import DUAL_SUM
from tests.theory.networks import Mild

CURVATURE = 4 / (3 * math.sqrt(3))
SLOW = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much]}


@dataclass(frozen=True)
class Instance:
    """A problem with its solution, and the true constants."""

    problem: gp.Problem
    w: Tensor
    z: Tensor
    z0: Tensor
    numbers: dict[str, float]


def tensor(values) -> Tensor:
    return torch.tensor(np.asarray(values), dtype=torch.float64)


def with_values(random, rows: int, values) -> np.ndarray:
    left, _ = np.linalg.qr(random.normal(size=(rows, len(values))))
    right, _ = np.linalg.qr(random.normal(size=(len(values), len(values))))
    return left * values @ right


def instance(seed: int, *, eps: float, noise: float, away: float, wide: bool, ridge: tuple[float, float]) -> Instance:
    """G(z) = B z + eps tanh(C z), L = 1/2 |A w - y|^2, R = ridge[0]/2 |w|^2, H = ridge[1]/2 |z|^2.

    ``wide``: A has fewer rows than columns, so that L is strongly convex only between points of the range.
    """
    random = np.random.default_rng(seed)
    s, d = int(random.integers(1, 4)), int(random.integers(4, 9))
    values = np.sort(random.uniform(0.5, 2.0, size=s))
    B, C = with_values(random, d, values), with_values(random, d, np.ones(s))
    rows = d - 1 if wide else d
    A = (
        random.normal(size=(rows, d)) / math.sqrt(rows)
        if wide
        else with_values(random, d, random.uniform(0.8, 1.4, size=d))
    )
    truth = random.normal(size=s)
    y = A @ (B @ truth + eps * np.tanh(C @ truth)) + noise * random.normal(size=rows)
    z = solution(A, B, C, eps, y, ridge, truth)
    generator = gp.Generator(Mild(tensor(B), tensor(C), eps), s, d, dtype=torch.float64)
    loss = gp.LeastSquares(gp.operators.Dense(tensor(A)), tensor(y)[None])
    terms = (c * gp.SquaredL2() if c else None for c in ridge)
    problem = gp.Problem(generator, loss, *terms)
    w = B @ z + eps * np.tanh(C @ z)
    basis = np.linalg.qr(B)[0] if wide else np.eye(d)
    spectrum = np.linalg.eigvalsh(basis.T @ A.T @ A @ basis)
    start = tensor(z + away * random.normal(size=s))[None]
    at, least = float(problem.objective(start)), float(problem.objective(tensor(z)[None]))
    numbers = {
        "iota": values[0] - eps,
        "kappa": values[-1] + eps,
        "nu_G": eps * CURVATURE * np.linalg.norm(C, axis=1).max(),
        "mu_L": spectrum[0],
        "nu_L": np.linalg.eigvalsh(A.T @ A)[-1],
        "dual": np.linalg.norm(A.T @ (A @ w - y) + ridge[0] * w),
        "start": max(at - least, 0.0),
    }
    return Instance(problem, tensor(w)[None], tensor(z)[None], start, {name: float(v) for name, v in numbers.items()})


def solution(A, B, C, eps, y, ridge, z):
    """Newton's method on the objective in z, with its true Hessian."""
    for _ in range(60):
        t = np.tanh(C @ z)
        w, J = B @ z + eps * t, B + eps * (1 - t**2)[:, None] * C
        slope = A.T @ (A @ w - y) + ridge[0] * w
        gradient = J.T @ slope + ridge[1] * z
        bend = C.T @ ((-2 * eps * t * (1 - t**2) * slope)[:, None] * C)
        hessian = J.T @ (A.T @ A + ridge[0] * np.eye(len(w))) @ J + ridge[1] * np.eye(len(z)) + bend
        z = z - np.linalg.solve(hessian, gradient)
        if np.linalg.norm(gradient) < 1e-13:
            break
    assert np.linalg.norm(gradient) < 1e-10
    return z


def run(case: Instance, guarantee, steps: int) -> dict[str, Tensor]:
    """The three lengths along Algorithm 1 with the guarantee's steps."""
    s = guarantee.setting
    solver = gp.LinearizedADMM(s.rho, alpha=guarantee.alpha, beta=guarantee.beta, sigma=s.sigma)
    seen: dict[str, list[Tensor]] = {"signal": [], "latent": [], "gap": []}
    with torch.no_grad():
        state = solver.start(case.problem, case.z0)
        for _ in range(steps + 1):
            lengths = (state.w - case.w, state.z - case.z, state.w - state.x)
            for name, length in zip(seen, lengths, strict=True):
                seen[name].append(length.norm())
            state = solver.step(case.problem, state)
    return {name: torch.stack(values) for name, values in seen.items()}


def holds(case: Instance, guarantee, steps: int = 30) -> dict[str, Tensor]:
    seen, bounds = run(case, guarantee, steps), guarantee.bounds(steps)
    for name, values in seen.items():
        broken = (values > bounds[name] * (1 + 1e-9) + 1e-12).nonzero().flatten().tolist()
        assert not broken, f"{name} at iterations {broken[:5]} of the {guarantee.statement} theorem"
    assert seen["gap"].max() <= guarantee.gap_max * (1 + 1e-9)
    return {name: (seen[name] / bounds[name].clamp_min(1e-12)).max() for name in seen}


LINEAR = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10**6),
        "noise": st.sampled_from([0.0, 0.1, 1.0]),
        "away": st.sampled_from([0.3, 3.0]),
        "wide": st.booleans(),
        "ridge": st.sampled_from([(0.0, 0.0), (0.5, 0.0), (0.0, 0.3)]),
    }
)


@settings(max_examples=100, **SLOW)
@given(LINEAR, st.sampled_from([0.05, 0.45, 1.0, 10.0]), st.sampled_from([0.0, 0.01, 1.0]))
def test_linear_generators(options, share, dual_step):
    """Any penalty, any dual step, fewer measurements than numbers: always applicable, never broken."""
    case = instance(eps=0.0, **options)
    rho = share * case.numbers["mu_L"]
    assume(case.numbers["mu_L"] > 1e-4)
    setting = Setting(**case.numbers, rho=rho, sigma=dual_step * rho, restricted=options["wide"])
    guarantee = sharpened(setting)
    assert guarantee.applies
    holds(case, guarantee)
    if not options["wide"] and share < 0.5:
        plain = corrected(setting)
        assert plain.applies
        holds(case, plain, steps=10)


@settings(max_examples=100, **SLOW)
@given(
    st.integers(0, 10**6),
    st.sampled_from([1e-3, 0.01, 0.03]),
    st.sampled_from([0.0, 0.05]),
    st.sampled_from([0.1, 0.4, 1.0]),
    st.sampled_from([(0.0, 0.0), (0.3, 0.0), (0.0, 0.3)]),
)
def test_mildly_nonlinear_generators(seed, eps, noise, share, ridge):
    case = instance(seed, eps=eps, noise=noise, away=0.2, wide=False, ridge=ridge)
    rho = share * case.numbers["mu_L"]
    setting = Setting(**case.numbers, rho=rho, sigma=1e-3 * rho)
    guarantee = sharpened(setting)
    assume(guarantee.applies)
    holds(case, guarantee)
    plain = corrected(setting)
    if plain.applies:
        holds(case, plain, steps=10)


def test_the_corrected_theorem_with_a_nonlinear_generator():
    """Its conditions are stricter: only very mild curvature passes."""
    applied = 0
    for seed in range(8):
        case = instance(seed, eps=1e-3, noise=0.01, away=0.05, wide=False, ridge=(0.0, 0.0))
        rho = 0.1 * case.numbers["mu_L"]
        guarantee = corrected(Setting(**case.numbers, rho=rho, sigma=1e-4 * rho))
        if guarantee.applies:
            applied += 1
            holds(case, guarantee)
    assert applied >= 4


def test_long_runs_reach_the_plateau_and_the_bounds_are_not_idle():
    """The bounds still hold after many iterations, and the tightest one is within a factor of three of the truth."""
    tightest = 0.0
    for seed in range(4):
        case = instance(seed, eps=0.01, noise=0.1, away=0.5, wide=False, ridge=(0.0, 0.0))
        rho = 0.4 * case.numbers["mu_L"]
        guarantee = sharpened(Setting(**case.numbers, rho=rho, sigma=1e-3 * rho))
        assert guarantee.applies
        ratios = holds(case, guarantee, steps=400)
        tightest = max(tightest, *(float(ratio) for ratio in ratios.values()))
        final = guarantee.bounds(20_000)
        for name, level in guarantee.plateaus.items():
            assert final[name][-1] == pytest.approx(level, rel=0.05)
    assert tightest > 1 / 3


def printed_error_bound(s: Setting, steps: int) -> tuple[Tensor, float, float, bool]:
    """The paper's bound on |w - w*|^2/alpha + |z - z*|^2/beta as it stands, its steps, and whether its conditions hold."""
    alpha, longest = 1 / (s.nu_L + s.rho), s.longest_dual
    force = s.nu_G * (longest + s.rho) / 2
    beta = 1 / (s.nu_G * longest + 2 * s.rho * s.kappa**2 + 2 * alpha * (s.rho * s.kappa) ** 2)
    in_w, in_z = s.mu_L - 2 * s.rho, s.rho * s.iota**2 / 2 - s.nu_G * s.dual
    least = min(alpha * in_w / 16, beta * in_z / 8)
    fits = math.sqrt(max(2 * alpha * s.sigma, beta * (force + 4 * s.sigma * s.kappa**2))) <= least <= 0.5
    floor = 3 * (longest**2 + s.dual**2) / s.rho
    t = torch.arange(steps + 1, dtype=torch.float64)
    return 2 * (1 - least / 2) ** t * s.start + 2 * floor / least, alpha, beta, fits


def test_the_printed_bound_fails_where_the_corrected_one_holds():
    """Linear G, no noise: all of the paper's conditions hold, and its bound is broken from the first iterate on."""
    case = instance(3, eps=0.0, noise=0.0, away=1.0, wide=False, ridge=(0.0, 0.0))
    rho = 0.2 * case.numbers["mu_L"]
    setting = Setting(**case.numbers, rho=rho, sigma=1e-7 * rho)
    bound, alpha, beta, fits = printed_error_bound(setting, 40)
    assert fits, "the paper's own conditions hold"
    plain = corrected(setting)
    assert plain.applies and plain.alpha == alpha and plain.beta == beta, "with the same steps"
    seen = run(case, plain, 40)
    error = seen["signal"] ** 2 / alpha + seen["latent"] ** 2 / beta
    assert error[0] > 1.5 * bound[0]
    holds(case, plain, steps=40)


def test_the_sum_of_dual_moves():
    k = torch.arange(1, 10**6, dtype=torch.float64)
    partial = float((1 / (k * torch.log1p(k) ** 2)).sum())
    tail = 1 / math.log(10**6 - 1)  # the integral of 1 / (x log^2 x)
    assert partial + tail < DUAL_SUM < partial + tail + 1e-3


@pytest.mark.parametrize("statement", [sharpened, corrected])
def test_steps_that_are_too_long_are_refused(statement):
    numbers = {"iota": 1.0, "kappa": 2.0, "nu_G": 0.0, "mu_L": 1.0, "nu_L": 2.0, "dual": 0.0, "start": 1.0}
    setting = Setting(**numbers, rho=0.2, sigma=0.01)
    own = statement(setting)
    assert own.applies
    for name in ("alpha", "beta"):
        longer = statement(Setting(**numbers, rho=0.2, sigma=0.01, **{name: 1.01 * getattr(own, name)}))
        assert [c.name.partition(" ")[0] for c in longer.failures] == [name] and longer.failures[0].margin < 0
        shorter = statement(Setting(**numbers, rho=0.2, sigma=0.01, **{name: 0.5 * getattr(own, name)}))
        assert shorter.applies and shorter.eta > 0


def test_conditions_that_fail_are_named():
    numbers = {"iota": 1.0, "kappa": 2.0, "mu_L": 1.0, "nu_L": 2.0, "dual": 1.0, "start": 1.0, "sigma": 0.01}
    curved = sharpened(Setting(nu_G=10.0, rho=0.2, **numbers))
    assert [c.name for c in curved.failures] == ["nu_G |lam*| < h' iota^2", "nu_G (lam_max + rho A_max) < h iota^2"]
    with pytest.raises(ValueError, match="there is no bound: the sharpened theorem does not apply"):
        curved.bounds(3)
    large = corrected(Setting(nu_G=0.0, rho=0.6, **numbers))
    assert "2 rho < mu_L" in [c.name for c in large.failures]
    assert sharpened(Setting(nu_G=0.0, rho=0.6, **numbers)).applies
    flat = sharpened(Setting(nu_G=0.0, rho=0.6, **numbers | {"mu_L": 0.0}))
    assert "mu_L > 0" in [c.name for c in flat.failures]
    assert not sharpened(Setting(nu_G=math.inf, rho=0.6, **numbers)).applies
    with pytest.raises(ValueError, match="rho must be"):
        Setting(nu_G=0.0, rho=0.0, **numbers)


def test_a_contraction_that_rounds_to_nothing_is_none():
    numbers = {"kappa": 2.0, "nu_G": 0.0, "mu_L": 1.0, "nu_L": 2.0, "dual": 0.0, "start": 1.0, "rho": 0.2, "sigma": 0.0}
    for statement in (sharpened, corrected):
        assert statement(Setting(iota=1e-3, **numbers)).applies
        flat = statement(Setting(iota=1e-9, **numbers))
        assert [c.name for c in flat.failures] == ["1 - eta does not round to 1"]


NUMBERS = {"iota": 0.5, "kappa": 2.0, "nu_G": 1e-4, "mu_L": 1.5, "nu_L": 4.0, "rho": 0.25, "sigma": 0.1, "dual": 0.3}


def test_the_corrected_numbers_by_hand():
    """mu_rho = 1, mu'_rho = 0.03122, alpha = 1/4.25, and so on."""
    found = corrected(Setting(**NUMBERS, start=2.0))
    lam_max = 3.3878 * 0.1
    force = 1e-4 * (lam_max + 0.25 * found.gap_max)
    beta = 1 / (force + 2 * 0.25 * 4 + 2 / 4.25 * 0.25**2 * 4)
    m = min(1 / 4.25, beta * (0.25 * 0.25 / 2 - 1e-4 * 0.3))
    floor = 3 * (lam_max**2 + 0.09) / 0.25
    assert found.alpha == pytest.approx(1 / 4.25) and found.beta == pytest.approx(beta)
    assert found.eta == pytest.approx(m / 16) and found.first == pytest.approx(2 + floor)
    assert found.plateaus["signal"] == pytest.approx(math.sqrt(2 / 4.25 / m * 2 * floor))
    assert found.plateaus["latent"] == pytest.approx(math.sqrt(2 * beta / m * 2 * floor))
    apart = 2 * floor - floor + 1e-4 * 0.3 / 2 * (2 * beta / m * 2 * floor) + 2 * (lam_max**2 + 0.09) / 0.25
    assert found.plateaus["gap"] == pytest.approx(math.sqrt(4 / 0.25 * apart))
    wide_in_w = corrected(Setting(**NUMBERS | {"mu_L": 0.6, "iota": 2.0}, start=2.0))
    assert wide_in_w.eta == pytest.approx(0.1 / 4.25 / 16), "where w is the slower one: alpha (mu_L - 2 rho) / 16"


@pytest.mark.parametrize("restricted", [False, True])
def test_the_sharpened_numbers_by_hand(restricted):
    found = sharpened(Setting(**NUMBERS, start=2.0, restricted=restricted))

    def strength(rho):
        if restricted:
            return 1 / (1 / 1.5 + (1 + math.sqrt(4 / 1.5)) ** 2 / rho), 1.5 * rho / (4 + rho)
        return 1.5, 1.5 * rho / (1.5 + rho)

    (m, h), (m_half, h_half) = strength(0.25), strength(0.125)
    lam_max = 3.3878 * 0.1
    q = 1e-4 * 0.3 / (h_half * 0.25)
    level = (lam_max + 0.3) ** 2 / 0.25
    gap = found.gap_max
    assert (1 - q) * 0.25 / 4 * gap**2 == pytest.approx(2 + level + lam_max * gap), "the root of the quadratic equation"
    force = 1e-4 * (lam_max + 0.25 * gap)
    beta = 1 / (force + 0.25 * 4 + 0.25**2 * 4 / 4.25)
    assert found.alpha == pytest.approx(1 / 4.25) and found.beta == pytest.approx(beta)
    assert found.eta == pytest.approx((1 - force / (h * 0.25)) / (2 * 4.25 / m + 1 / (beta * h * 0.25)))
    assert found.plateaus["signal"] == pytest.approx(math.sqrt(2 * level / ((1 - q) * m_half)))
    assert found.plateaus["latent"] == pytest.approx(math.sqrt(2 * level / ((1 - q) * h_half * 0.25)))
    assert found.plateaus["gap"] == pytest.approx(math.sqrt(4 * level / ((1 - q) * 0.25)))
    energy = found.energies(2)
    s1 = 0.1 * gap / math.log(2) ** 2
    s2 = 0.1 * gap / (2 * math.log(3) ** 2)
    eta = found.eta
    assert energy[2] == pytest.approx((1 - eta) ** 2 * 2 + level + (1 - eta) * s1 + s2)


def test_strengths_by_brute_force():
    """``D_L + rho/2 |r|^2`` against ``m/2 |w - w*|^2`` and ``h/2 |G(z) - w*|^2`` over many random points."""
    random = np.random.default_rng(0)
    for _ in range(20):
        A, basis = random.normal(size=(4, 6)), np.linalg.qr(random.normal(size=(6, 2)))[0]
        mu = np.linalg.eigvalsh(basis.T @ A.T @ A @ basis)[0]
        nu, rho = np.linalg.eigvalsh(A.T @ A)[-1], random.uniform(0.1, 3)
        setting = Setting(**NUMBERS | {"mu_L": float(mu), "nu_L": float(nu)}, start=1.0, restricted=True)
        m, h = setting.strength(float(rho))
        offset, gap = basis @ random.normal(size=(2, 5000)), random.normal(size=(6, 5000)) * random.uniform(0, 2, 5000)
        energy = ((A @ (offset + gap)) ** 2).sum(axis=0) / 2 + rho / 2 * (gap**2).sum(axis=0)
        assert (energy >= m / 2 * ((offset + gap) ** 2).sum(axis=0) * (1 - 1e-12)).all()
        assert (energy >= h / 2 * (offset**2).sum(axis=0) * (1 - 1e-12)).all()
