"""Theorem 1 in numbers: step sizes, rate and plateau of Algorithm 1 from the constants of L and G.

Two statements, both derived in docs/theory.md:

- `corrected`: the paper's own route with its slips repaired. It needs ``rho < mu_L / 2``.
- `sharpened`: keeps the strong convexity and the squared primal residual that the paper's proof drops. It needs no bound on
  rho, allows longer steps, and holds with constants of L restricted to the range of G (compressive sensing with m < d).

`certificate` states which of the constants are proved and which are sampled.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from genprior import _validate

DUAL_SUM = 3.3878
"""Not less than ``sum_{k>=1} 1 / (k log^2(k + 1))``, the longest path of the dual variable, over sigma."""


@dataclass(frozen=True)
class Setting:
    """The quantities in the theorem."""

    iota: float
    kappa: float
    nu_G: float
    mu_L: float
    """Strong convexity of L, everywhere or (``restricted``) between points of the range of G."""
    nu_L: float
    """Smoothness of L, everywhere."""
    rho: float
    sigma: float
    dual: float
    """At least ``|lam*|``."""
    start: float
    """At least ``Delta_0 = F(G(z0), z0) - F*``, for the start ``w0 = G(z0)``, ``lam0 = 0``."""
    restricted: bool = False
    """Needs a quadratic L."""
    alpha: float | None = None
    beta: float | None = None
    largest: float = sys.float_info.max
    """Of the dtype that the solver works in."""
    infinite: str = ""
    """The condition that fails if ``start`` is infinite, if known."""

    def __post_init__(self) -> None:
        for name in ("iota", "mu_L", "nu_L", "sigma"):
            _validate.number(name, getattr(self, name), least=0)
        for name in ("kappa", "rho"):
            _validate.number(name, getattr(self, name), above=0)
        for name in ("nu_G", "dual", "start"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be zero or more (infinite where not known), got {getattr(self, name)}")

    @property
    def longest_dual(self) -> float:
        """``lam_max``, at least ``|lam_t|`` for every t."""
        return DUAL_SUM * self.sigma

    @property
    def spread(self) -> float:
        """At least ``|lam_t - lam*|``."""
        return self.longest_dual + self.dual

    def strength(self, rho: float) -> tuple[float, float]:
        """``(m, h)`` with ``D_L(w, w*) + rho/2 |w - G(z)|^2 >= m/2 |w - w*|^2`` and ``>= h/2 |G(z) - G(z*)|^2``."""
        mu, nu = self.mu_L, self.nu_L
        if mu <= 0:
            return 0.0, 0.0
        if self.restricted:
            return 1 / (1 / mu + (1 + math.sqrt(nu / mu)) ** 2 / rho), mu * rho / (nu + rho)
        return mu, mu * rho / (mu + rho)


@dataclass(frozen=True)
class Condition:
    """``value < limit`` (or ``<=``), by how much."""

    name: str
    value: float
    limit: float
    holds: bool
    advice: str = ""

    @property
    def margin(self) -> float:
        """``1 - value / limit``: 1 is comfortable, 0 the limit, below 0 broken."""
        if self.limit == 0 or not (math.isfinite(self.value) and math.isfinite(self.limit)):
            return 1.0 if self.holds else -math.inf
        return 1 - self.value / self.limit

    @classmethod
    def below(cls, name: str, value: float, limit: float, advice: str = "", *, strict: bool = True) -> Condition:
        """The condition that ``value`` lies below ``limit``; NaN never does."""
        return cls(name, value, limit, value < limit if strict else value <= limit * (1 + 1e-12), advice)


@dataclass(frozen=True)
class Guarantee:
    """One statement for one setting; its values are meaningful only if ``applies``."""

    statement: str
    setting: Setting
    conditions: tuple[Condition, ...]
    alpha: float
    beta: float
    eta: float
    """The bound on squared lengths contracts by ``1 - eta`` in each iteration, down to a plateau."""
    gap_max: float
    """No ``|w_t - G(z_t)|`` is larger."""
    signal: tuple[float, float]
    """``|w_t - w*|^2 <= first * E_t + second``..."""
    latent: tuple[float, float]
    gap: tuple[float, float]
    offset: float
    """``E_t <= (1 - eta)^t E_0 + offset + sum_k (1 - eta)^(t-k) s_k`` beyond the part that dies out."""
    first: float
    """``E_0`` at most."""

    @property
    def applies(self) -> bool:
        """Whether every condition holds."""
        return all(condition.holds for condition in self.conditions)

    @property
    def failures(self) -> tuple[Condition, ...]:
        """The conditions that do not hold."""
        return tuple(condition for condition in self.conditions if not condition.holds)

    @property
    def plateaus(self) -> dict[str, float]:
        """Limits of the bounds on ``|w - w*|``, ``|z - z*|`` and ``|w - G(z)|`` as t grows."""
        return {name: math.sqrt(max(0.0, a * self.offset + b)) for name, (a, b) in self._scales().items()}

    def bounds(self, steps: int) -> dict[str, Tensor]:
        """Bounds on the three lengths after 0, 1, ..., ``steps`` iterations, as float64."""
        if not self.applies:
            broken = "; ".join(condition.name for condition in self.failures)
            raise ValueError(f"there is no bound: the {self.statement} theorem does not apply ({broken})")
        energy = self.energies(steps)
        return {name: (a * energy + b).clamp_min(0).sqrt() for name, (a, b) in self._scales().items()}

    def energies(self, steps: int) -> Tensor:
        """The bound on ``E_t``, which the three lengths follow, for t = 0 .. ``steps``."""
        _validate.whole("steps", steps, 0)
        k = torch.arange(1, steps + 1, dtype=torch.float64, device="cpu")
        moves = self.setting.sigma * self.gap_max * (1 / (k * torch.log1p(k) ** 2)).clamp(max=self.gap_max)
        value, rest, energy = self.first - self.offset, 0.0, [self.first]
        for move in moves.tolist():
            value, rest = (1 - self.eta) * value, (1 - self.eta) * rest + move
            energy.append(value + rest + self.offset)
        return torch.tensor(energy, dtype=torch.float64, device="cpu")

    def _scales(self) -> dict[str, tuple[float, float]]:
        return {"signal": self.signal, "latent": self.latent, "gap": self.gap}


def sharpened(setting: Setting) -> Guarantee:
    """The theorem as docs/theory.md proves it."""
    s = setting
    m, h = s.strength(s.rho)
    m_half, h_half = s.strength(s.rho / 2)
    q = _over(s.nu_G * s.dual, h_half * s.iota * s.iota)
    gap_max = _largest_gap(s, q)
    curvature = s.nu_G * (s.longest_dual + s.rho * gap_max) if s.nu_G else 0.0
    p = _over(curvature, h * s.iota * s.iota)
    alpha = 1 / (s.nu_L + s.rho) if s.alpha is None else s.alpha
    longest = _over(1, curvature + s.rho * s.kappa * s.kappa + alpha * s.rho * s.rho * s.kappa * s.kappa)
    beta = longest if s.beta is None else s.beta
    eta = (1 - p) / (_over(2, alpha * m) + _over(1, beta * h * s.iota * s.iota)) if p < 1 else 0.0
    kept = max(1 - q, 0.0)
    conditions = (
        *_basics(s),
        Condition.below("alpha <= 1 / (nu_L + rho)", alpha, 1 / (s.nu_L + s.rho), "a shorter alpha", strict=False),
        Condition.below("beta <= 1 / (xi + alpha tau^2)", beta, longest, "a shorter beta", strict=False),
        *_fit(s, curvature, alpha, beta),
        Condition.below(
            "nu_G |lam*| < h' iota^2", s.nu_G * s.dual, h_half * s.iota * s.iota, "less noise, a smoother G"
        ),
        Condition.below(
            "nu_G (lam_max + rho A_max) < h iota^2", curvature, h * s.iota * s.iota, "a nearer start, a smaller sigma"
        ),
    )
    return Guarantee(
        statement="sharpened",
        setting=s,
        conditions=(*conditions, *_noticeable(conditions, eta)),
        alpha=alpha,
        beta=beta,
        eta=eta,
        gap_max=gap_max,
        signal=(_over(2, kept * m_half), 0.0),
        latent=(_over(2, kept * h_half * s.iota * s.iota), 0.0),
        gap=(_over(4, kept * s.rho), 0.0),
        offset=s.spread * s.spread / s.rho,
        first=s.start + s.spread * s.spread / s.rho,
    )


def corrected(setting: Setting) -> Guarantee:
    """The paper's route, repaired; restricted constants are not enough for it."""
    s = setting
    _, h_half = s.strength(s.rho / 2)
    gap_max = _largest_gap(s, _over(s.nu_G * s.dual, h_half * s.iota * s.iota))
    curvature = s.nu_G * (s.longest_dual + s.rho * gap_max) if s.nu_G else 0.0  # omega'
    alpha = 1 / (s.nu_L + s.rho) if s.alpha is None else s.alpha
    longest = _over(1, curvature + 2 * s.rho * s.kappa * s.kappa + 2 * alpha * s.rho * s.rho * s.kappa * s.kappa)
    beta = longest if s.beta is None else s.beta
    in_w, in_z = s.mu_L - 2 * s.rho, s.rho * s.iota * s.iota / 2 - s.nu_G * s.dual
    m = max(min(alpha * in_w, beta * in_z), 0.0)
    squares = (s.longest_dual * s.longest_dual + s.dual * s.dual) / s.rho
    conditions = (
        *_basics(s),
        Condition("strong convexity of L not only on the range", float(s.restricted), 0.0, not s.restricted),
        Condition.below("alpha <= 1 / (nu_L + rho)", alpha, 1 / (s.nu_L + s.rho), "a shorter alpha", strict=False),
        Condition.below("beta <= 1 / (xi + 2 alpha tau^2)", beta, longest, "a shorter beta", strict=False),
        *_fit(s, curvature, alpha, beta),
        Condition.below("2 rho < mu_L", 2 * s.rho, s.mu_L, "a smaller rho"),
        Condition.below(
            "nu_G |lam*| < rho iota^2 / 2", s.nu_G * s.dual, s.rho * s.iota * s.iota / 2, "a larger rho, less noise"
        ),
        Condition.below(
            "beta omega' <= m / 4", beta * curvature, m / 4, "a nearer start, a smaller sigma", strict=False
        ),
        Condition.below(
            "nu_G |lam*| < h' iota^2", s.nu_G * s.dual, h_half * s.iota * s.iota, "less noise, a smoother G"
        ),
    )
    curved = 0.5 * s.nu_G * s.dual * beta * _over(2, m) if s.nu_G and s.dual else 0.0
    return Guarantee(
        statement="corrected",
        setting=s,
        conditions=(*conditions, *_noticeable(conditions, m / 16)),
        alpha=alpha,
        beta=beta,
        eta=m / 16,
        gap_max=gap_max,
        signal=(_over(2 * alpha, m), 0.0),
        latent=(_over(2 * beta, m), 0.0),
        gap=(4 / s.rho * (1 + curved), -4 / s.rho * squares),  # Delta_t <= E_t - 3 squares, plus 2 squares
        offset=6 * squares,
        first=s.start + 3 * squares,
    )


def _noticeable(conditions: tuple[Condition, ...], eta: float) -> tuple[Condition, ...]:
    """If all else holds: the contraction must be visible in float64."""
    if not all(condition.holds for condition in conditions):
        return ()
    return (Condition("1 - eta does not round to 1", 1 - eta, 1.0, 1 - eta < 1, "better conditioned L and G"),)


def _fit(s: Setting, curvature: float, alpha: float, beta: float) -> tuple[Condition, ...]:
    """Steps that are infinite, zero or subnormal are not those of the theorem; ``4 / max`` is the least normal number."""
    if not math.isfinite(curvature):  # then beta is zero, and other conditions report why
        return ()
    holds = all(4 / s.largest < step < s.largest for step in (alpha, beta))
    return (Condition("the steps fit the dtype", beta, s.largest, holds, "rescale G or its latents"),)


def _basics(s: Setting) -> tuple[Condition, ...]:
    return (
        Condition("mu_L > 0", s.mu_L, math.inf, s.mu_L > 0, "more measurements, or constants restricted to the range"),
        Condition(
            "iota > 0", s.iota, math.inf, s.iota > 0, "a generator that is injective on the ball, or a smaller ball"
        ),
        Condition("nu_G is finite", s.nu_G, math.inf, math.isfinite(s.nu_G), "activations with a Lipschitz slope"),
        *(
            _infinite(s.infinite or "the objective at the start is finite", "another start")
            if math.isinf(s.start)
            else ()
        ),
        *(_infinite("|lam*| has a bound", "give dual=") if math.isinf(s.dual) else ()),
    )


def _infinite(name: str, advice: str) -> tuple[Condition, ...]:
    return (Condition(name, math.inf, math.inf, False, advice),)


def _largest_gap(s: Setting, q: float) -> float:
    """``A_max``: no ``|w_t - G(z_t)|`` exceeds the larger root of ``(1-q) rho/4 a^2 = Delta_0 + Lambda^2/rho + c sigma a``."""
    if not q < 1:
        return math.inf
    lead, way, rest = (1 - q) * s.rho / 4, DUAL_SUM * s.sigma, s.start + s.spread * s.spread / s.rho
    return (way + math.sqrt(way * way + 4 * lead * rest)) / (2 * lead)


def _over(a: float, b: float) -> float:
    """``a / b``, infinite where b is zero, and zero where a is."""
    if a == 0:
        return 0.0
    return a / b if b > 0 else math.inf
