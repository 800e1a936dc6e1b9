"""Laws of a term: value per item, convexity, prox optimality, independence of items, subgradient."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior.checks.report import Finding, Report, small
from genprior.terms import Term

_ITEMS = 4
_FAR, _FAR_SLOW = 64, 8
"""Number of points of the domain to compare with; fewer if each takes an iteration."""
_ROUNDINGS = 16
"""Rounding error allowed for a sum of many values, in units of the machine precision."""


def check_term(
    term: Term,
    shape: int | Sequence[int],
    *,
    seed: int = 0,
    scale: float = 1.0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float64,
) -> Report:
    """Check that a term keeps the laws that the solvers rely on, on random points.

    The prox is checked by its defining inequality at many points, near and far: ``p = prox_{tf}(v)`` if and only if
    ``t f(u) + 1/2|u - v|^2 >= t f(p) + 1/2|p - v|^2 + 1/2|u - p|^2`` for all u; and by the gradient of the Moreau envelope
    ``min_x t f(x) + 1/2|x - v|^2``, which is ``v - p``. Both for steps about 1 and for steps
    at which the prox moves half of its full distance, because either extreme hides mistakes. An iterative prox is checked
    to the term's ``tolerance``.

    Parameters
    ----------
    term
        the term to check.
    shape
        shape of one item.
    seed
        seed of the random points.
    scale
        typical size of a coordinate.
    device, dtype
        where to check.
    """
    if not isinstance(term, Term):
        is_class = isinstance(term, type)
        fix = f"write gp.{term.__name__}(...), with brackets" if is_class else "wrap it first"
        raise TypeError(f"term must be a genprior Term, got {'a class' if is_class else type(term).__name__}: {fix}")
    probe = _Probe(term, _validate.shape("shape", shape), seed, scale, torch.device(device), dtype)
    try:
        findings = probe.findings()
    except Exception as problem:
        findings = (Finding("runs", False, str(problem), "see the message"),)
    return Report(repr(term), findings)


class _Probe:
    """Random points and steps, and the errors found on them."""

    def __init__(
        self, term: Term, shape: tuple[int, ...], seed: int, scale: float, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.term, self.shape, self.scale = term, shape, scale
        self.random = torch.Generator().manual_seed(seed)
        self.device, self.dtype = device, dtype
        self.items = term.batch or _ITEMS
        self.domain: list[Tensor] = []
        eps = torch.finfo(dtype).eps
        self.eps, self.limit = eps, 100 * eps**0.75
        self.width = max(eps, term.tolerance) ** (
            1 / 3
        )  # of differences, so that neither rounding nor kinks count much

    def findings(self) -> tuple[Finding, ...]:
        """All laws."""
        v = self._points()
        t = torch.linspace(0.1, 1.0, self.items, dtype=self.dtype, device=self.device)
        p = self.term.prox(v, t)
        value = self.term(p)
        runs = value.shape == (self.items,) and p.shape == v.shape
        shapes = Finding(
            "one value per item", runs, f"value {tuple(value.shape)}, prox {tuple(p.shape)}", "return (B,)"
        )
        if not runs:
            return (shapes,)
        self.domain = [self._feasible() for _ in range(_FAR if self.term.tolerance == 0 else _FAR_SLOW)]
        steps = (t, self._telling(v, t) * t)
        return (
            shapes,
            Finding(
                "prox is feasible",
                bool(torch.isfinite(value).all()),
                f"values {_span(value)}",
                "prox leaves the domain",
            ),
            small(
                "prox inequality",
                max(self._prox_error(v, step) for step in steps),
                max(self.limit, 2 * self.term.tolerance),
                "prox is not the minimiser",
            ),
            small(
                "gradient of the envelope is v - prox(v)",
                max(self._envelope_error(v, step) for step in steps),
                3 * self.width,
                "prox and value do not match: is t, or a factor, missing?",
            ),
            small("convex", self._convexity_error(), self.limit, "the value is not convex"),
            small(
                "items do not influence each other", self._independence_error(v, t, p), self.limit, "compute per item"
            ),
            small("subgradient inequality", self._subgradient_error(p, v), self.limit, "subgradient is wrong"),
        )

    def _points(self) -> Tensor:
        normal = torch.randn((self.items, *self.shape), generator=self.random, dtype=torch.float64, device="cpu")
        return (self.scale * normal).to(self.device, self.dtype)

    def _sparse(self, x: Tensor) -> Tensor:
        """With half of the coordinates zero, where non-convex sparsity terms show."""
        kept = torch.rand(x.shape, generator=self.random, dtype=torch.float64, device="cpu") < 0.5
        return x * kept.to(x)

    def _feasible(self) -> Tensor:
        return self.term.prox(self._points(), self.scale)

    def _telling(self, v: Tensor, t: Tensor) -> float:
        """A factor for steps at which the prox moves half of its full distance: either extreme hides mistakes."""
        factors = [10.0**k for k in range(-4, 5)]
        moved = [float(_batch.norm(v - self.term.prox(v, factor * t)).sum()) for factor in factors]
        farthest = max(moved)
        return min(zip(factors, moved, strict=True), key=lambda pair: abs(pair[1] - 0.5 * farthest))[0]

    def _rivals(self, p: Tensor, v: Tensor) -> list[Tensor]:
        """Points of the domain, near and far; some are found without the prox, which may be wrong."""
        near = [self.term.prox(p + 10.0**-k * self._points(), 10.0**-k) for k in (1, 2, 3)]
        mixed = [torch.lerp(p, self.domain[k], 0.5**k) for k in (1, 4, 7)]
        free = [p + 10.0**-k * self._points() for k in (0, 1, 2, 3)]
        rays = [(1 + sign * 10.0**-k) * p for k in (1, 3) for sign in (1, -1)]
        towards = [torch.lerp(p, v, share) for share in (-0.1, -0.001, 0.001, 0.1, 1.0)]
        sparse = [self._sparse(p), self._sparse(v), p + self._sparse(v - p), p + 0.01 * self._sparse(v - p)]
        return [*near, *mixed, *free, *rays, *towards, *sparse]

    def _prox_error(self, v: Tensor, t: Tensor) -> float:
        p = self.term.prox(v, t)
        mine = t * self.term(p) + 0.5 * _batch.square(p - v)
        worst = 0.0
        for u in (*self._rivals(p, v), *self.domain):
            theirs = t * self.term(u) + 0.5 * _batch.square(u - v)
            lack = mine + 0.5 * _batch.square(u - p) - theirs
            worst = _worse(worst, lack / (mine.abs() + _batch.square(u - p) + _batch.square(v)))
        return worst

    def _envelope_error(self, v: Tensor, t: Tensor) -> float:
        """Differences of ``e(v) = min_x t f(x) + 1/2|x - v|^2`` against its gradient, less what rounding may do."""

        def envelope(u: Tensor) -> Tensor:
            nearest = self.term.prox(u, t)
            return t * self.term(nearest) + 0.5 * _batch.square(nearest - u)

        gradient, h = v - self.term.prox(v, t), self.width
        unit = _ROUNDINGS * self.eps + self.term.tolerance
        rounding = unit * (envelope(v).abs() + _batch.square(v)) / h
        worst = 0.0
        for _ in range(3):
            d = self._points()
            secant = (envelope(v + h * d) - envelope(v - h * d)) / (2 * h)
            error = ((secant - _batch.dot(gradient, d)).abs() - rounding).clamp_min(0)
            size = _batch.norm(gradient) * _batch.norm(d) / math.sqrt(v[0].numel())
            worst = _worse(worst, _batch.ratio(error, size))
        return worst

    def _convexity_error(self) -> float:
        """``f((a + b)/2) <= (f(a) + f(b))/2``, relative, for points of the domain and for free ones, full and sparse."""
        pairs = list(itertools.pairwise(self.domain[:9]))
        for size in (0.1, 1.0, 10.0):
            a, b = size * self._points(), size * self._points()
            pairs += [(a, b), (self._sparse(a), self._sparse(b)), (a, 0 * a), (a, 1.5 * a)]
        worst = 0.0
        for a, b in pairs:
            ends, middle = (self.term(a), self.term(b)), self.term(0.5 * (a + b))
            chord = 0.5 * (ends[0] + ends[1])
            lack = torch.where(chord == torch.inf, 0.0, middle - chord)
            sums = torch.where(chord == torch.inf, 1.0, ends[0].abs() + ends[1].abs() + middle.abs())
            worst = _worse(worst, torch.where(lack > 0, _batch.ratio(lack, sums), lack.clamp_max(0)))
        return worst

    def _independence_error(self, v: Tensor, t: Tensor, p: Tensor) -> float:
        index = torch.arange(self.items, device=self.device)
        alone = torch.cat([self.term.rows(i[None]).prox(v[i][None], t[i][None]) for i in index])
        worst = float(_batch.ratio(_batch.norm(alone - p), _batch.norm(v)).max())
        for x in (v, p):
            together = self.term(x)
            single = torch.cat([self.term.rows(i[None])(x[i][None]) for i in index])
            same = torch.where(single == together, 0.0, (single - together).abs())  # infinite ones are equal too
            worst = _worse(worst, _batch.ratio(same, together.abs()))
        return worst

    def _subgradient_error(self, p: Tensor, v: Tensor) -> float:
        worst = 0.0
        for x in (p, v):
            value, g = self.term(x), self.term.subgradient(x)
            inside = value.isfinite()
            for u in self._rivals(x, v if x is p else p):
                other, along = self.term(u), _batch.dot(g, u - x)
                lack = torch.where(inside & other.isfinite(), (value + along - other).clamp_min(0), 0.0)
                sums = value.abs() + other.abs() + _batch.norm(g) * (_batch.norm(u - x) + _batch.norm(x))
                worst = _worse(worst, _batch.ratio(lack, torch.where(inside & other.isfinite(), sums, 1.0)))
        return worst


def _worse(worst: float, errors: Tensor) -> float:
    """The larger one; NaN is worse than everything (``max`` would ignore it)."""
    return max(worst, float(errors.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf).max()))


def _span(value: Tensor) -> str:
    return f"{float(value.min()):.3g} to {float(value.max()):.3g}"
