"""Laws of a term: value per item, convexity, prox optimality, independence of items, subgradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior.checks.report import Finding, Report, small
from genprior.terms import Term

_ITEMS = 4
_RIVALS = 64


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

    The prox is judged by its defining inequality against many rivals, near and far: ``p = prox_{tf}(v)`` if and only if
    ``t f(u) + 1/2|u - v|^2 >= t f(p) + 1/2|p - v|^2 + 1/2|u - p|^2`` for all u.

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
        raise TypeError(f"term must be a genprior Term, got {type(term).__name__}: wrap it first")
    probe = _Probe(term, _validate.shape("shape", shape), seed, scale, torch.device(device), dtype)
    try:
        findings = probe.findings()
    except Exception as problem:
        findings = (Finding("runs", False, str(problem), "see the message"),)
    return Report(repr(term), findings)


class _Probe:
    """Random points and steps, and the errors they show."""

    def __init__(
        self, term: Term, shape: tuple[int, ...], seed: int, scale: float, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.term, self.shape, self.scale = term, shape, scale
        self.random = torch.Generator().manual_seed(seed)
        self.device, self.dtype = device, dtype
        self.items = term.batch or _ITEMS
        self.limit = 100 * torch.finfo(dtype).eps ** 0.75

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
        return (
            shapes,
            Finding(
                "prox is feasible",
                bool(torch.isfinite(value).all()),
                f"values {_span(value)}",
                "prox leaves the domain",
            ),
            small("prox inequality", self._prox_error(v, t, p, value), self.limit, "prox is not the minimiser"),
            small("convex", self._convexity_error(v), self.limit, "the value is not convex"),
            small("items do not influence each other", self._independence_error(v, t, p), self.limit, "work per row"),
            small("subgradient inequality", self._subgradient_error(p, value), self.limit, "subgradient is wrong"),
        )

    def _points(self) -> Tensor:
        normal = torch.randn((self.items, *self.shape), generator=self.random, dtype=torch.float64, device="cpu")
        return (self.scale * normal).to(self.device, self.dtype)

    def _feasible(self) -> Tensor:
        return self.term.prox(self._points(), self.scale)

    def _rivals(self, p: Tensor) -> list[Tensor]:
        """Points of the domain near and far, and points that the prox has no say in: it may be what is wrong."""
        near = [self.term.prox(p + 10.0**-k * self._points(), 10.0**-k) for k in (1, 2, 3)]
        mixed = [torch.lerp(p, self._feasible(), 0.5**k) for k in (1, 4, 8)]
        free = [p + 10.0**-k * self._points() for k in (0, 1, 2, 3)]
        return [*near, *mixed, *free, *(self._feasible() for _ in range(_RIVALS))]

    def _prox_error(self, v: Tensor, t: Tensor, p: Tensor, value: Tensor) -> float:
        mine = t * value + 0.5 * _batch.square(p - v)
        worst = 0.0
        for u in self._rivals(p):
            theirs = t * self.term(u) + 0.5 * _batch.square(u - v)
            lack = mine + 0.5 * _batch.square(u - p) - theirs
            worst = _worse(worst, lack / (mine.abs() + _batch.square(u - p) + _batch.square(v)))
        return worst

    def _convexity_error(self, v: Tensor) -> float:
        worst = 0.0
        for _ in range(8):
            a, b = self._feasible(), self._feasible()
            chord = 0.5 * (self.term(a) + self.term(b))
            lack = self.term(0.5 * (a + b)) - chord
            worst = _worse(worst, lack / (chord.abs() + 1))
        return worst

    def _independence_error(self, v: Tensor, t: Tensor, p: Tensor) -> float:
        index = torch.arange(self.items, device=self.device)
        alone = torch.cat([self.term.rows(i[None]).prox(v[i][None], t[i][None]) for i in index])
        return float(_batch.ratio(_batch.norm(alone - p), _batch.norm(v)).max())

    def _subgradient_error(self, p: Tensor, value: Tensor) -> float:
        g = self.term.subgradient(p)
        worst = 0.0
        for u in self._rivals(p)[:16]:
            lack = value + _batch.dot(g, u - p) - self.term(u)
            size = value.abs() + _batch.norm(g) * _batch.norm(u - p) + 1e-12 * self.scale
            worst = _worse(worst, _batch.ratio(lack.clamp_min(0), size))
        return worst


def _worse(worst: float, errors: Tensor) -> float:
    """The larger one; NaN is worse than everything (``max`` would pass over it)."""
    return max(worst, float(errors.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf).max()))


def _span(value: Tensor) -> str:
    return f"{float(value.min()):.3g} to {float(value.max()):.3g}"
