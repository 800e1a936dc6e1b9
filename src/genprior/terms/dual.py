"""The prox of a sum of terms that have proxes of their own, by accelerated projected gradient on the dual.

The problem is, for each item,

    minimise  g(x) + sum_j h_j(K_j x) + 1/2 |x - v|^2,

with the proxes of g and of every ``h_j`` known and ``K_j`` the identity, the differences of total variation, or an
operator. Its dual has one variable ``q_j`` for each j; ``x(q) = prox_g(v - sum_j K_j^T q_j)`` gives ``K_j x(q)`` as its
gradient. One iteration:

    q_j+ = prox_{s_j h_j*}(y_j + s_j K_j x(y)),      s_j = 1 / (m |K_j|^2),      y = q+ + inertia (q+ - q)

(Beck and Teboulle, IEEE Trans. Image Processing 18, 2009; momentum restarted where it points uphill, O'Donoghue and
Candes 2015). If the relative interiors of the domains meet, the dual has a solution and the dual objective converges like
``1/k^2`` to its optimum, hence ``x(q)`` to the answer. The duality gap of ``x = x(q)`` and q is a sum of Fenchel gaps,

    gap = sum_j  h_j(K_j x) + h_j*(q_j) - <K_j x, q_j>,          1/2 |x - x*|^2 <= gap,

because the primal is 1-strongly convex. Each item stops by itself when ``gap <= tolerance * 1/2 |x - v|^2``, which guarantees

    |x - x*| <= sqrt(tolerance) |x - v|,

or when the gap is as small as its own rounding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from genprior._batch import PerItem, dot, flat, norm, spread, square
from genprior.operators import Operator
from genprior.terms.base import Term
from genprior.terms.differences import clip_lengths, differences, lengths, minus_adjoint

CHECK_EVERY = 10
"""Iterations between two looks at the gap: a look costs one prox of g."""
EARLY = (1, 3)
"""Further looks, for sums whose answer is found at once."""
ROUNDINGS = 4.0
"""Units of rounding by which each part of the gap may be off."""


class Dual(NamedTuple):
    """The variable of one part."""

    q: Tensor
    p: Tensor
    """The point at which q is a subgradient of h, where that is how ``h*(q)`` is known."""


class Part(ABC):
    """``h(K x)`` with the step t in it."""

    norm_squared: float = 1.0
    """``|K|^2``."""

    @abstractmethod
    def start(self, v: Tensor) -> Dual:
        """``q = 0``."""

    @abstractmethod
    def subtracted(self, v: Tensor, q: Tensor) -> Tensor:
        """``v - K^T q``."""

    @abstractmethod
    def step(self, y: Tensor, x: Tensor, s: float) -> Dual:
        """``prox_{s h*}(y + s K x)``."""

    @abstractmethod
    def gap(self, x: Tensor, at: Dual) -> tuple[Tensor, Tensor]:
        """``h(K x) + h*(q) - <K x, q>`` per item, and the size of the numbers whose difference that is."""

    @abstractmethod
    def rows(self, index: Tensor) -> Part:
        """The part of the selected items."""


@dataclass(frozen=True)
class Plain(Part):
    """``t f(x)``: ``K = I``, and ``prox_{s h*}(a) = a - s prox_{(t/s) f}(a / s)`` by Moreau's identity.

    With p that prox, ``q = a - s p`` is a subgradient of ``t f`` at p, so that ``h*(q) = <p, q> - t f(p)``.
    """

    term: Term
    t: Tensor

    def start(self, v: Tensor) -> Dual:
        """Not at a known point: the gap is looked at after the first step."""
        return Dual(torch.zeros_like(v), v)

    def subtracted(self, v: Tensor, q: Tensor) -> Tensor:
        """``v - q``."""
        return v - q

    def step(self, y: Tensor, x: Tensor, s: float) -> Dual:
        """One prox of f."""
        a = y + s * x
        p = self.term.prox(a / s, self.t / s)
        return Dual(a - s * p, p)

    def gap(self, x: Tensor, at: Dual) -> tuple[Tensor, Tensor]:
        """``t f(x) - t f(p) - <q, x - p>``; an indicator counts as 0 at its own projection p, whatever t is."""
        there, here = self._value(x), self._value(at.p)
        size = there.abs() + here.abs() + norm(at.q) * (norm(x) + norm(at.p))
        return there - here - dot(at.q, x - at.p), torch.where(size.isfinite(), size, 0.0)

    def rows(self, index: Tensor) -> Plain:
        """Of the selected items."""
        return Plain(self.term.rows(index), self.t[index])

    def _value(self, x: Tensor) -> Tensor:
        value = self.term(x)
        return torch.where(value.isinf(), value, self.t * value)


@dataclass(frozen=True)
class Variation(Part):
    """``t TV(x - centre)`` with differences along the last ``dims`` axes: q is a field of vectors of length at most t."""

    dims: int
    t: Tensor
    centre: PerItem = 0.0

    @property
    def norm_squared(self) -> float:  # type: ignore[override]
        """At most 4 for the differences along one axis."""
        return 4.0 * self.dims

    def start(self, v: Tensor) -> Dual:
        """Zero."""
        q = v.new_zeros(v.shape[0], self.dims, *v.shape[1:])
        return Dual(q, q)

    def subtracted(self, v: Tensor, q: Tensor) -> Tensor:
        """``v - D^T q``."""
        return minus_adjoint(v, q)

    def step(self, y: Tensor, x: Tensor, s: float) -> Dual:
        """``P(y + s D (x - centre))``, with every vector shortened to length t."""
        q = clip_lengths(torch.add(y, differences(x - self.centre, self.dims), alpha=s), self.t)
        return Dual(q, q)

    def gap(self, x: Tensor, at: Dual) -> tuple[Tensor, Tensor]:
        """``t |D x| - <D x, q>``."""
        slope = differences(x - self.centre, self.dims)
        value = self.t * flat(lengths(slope)).sum(dim=1)
        return value - dot(slope, at.q), value + self.t * flat(x).abs().sum(dim=1)

    def rows(self, index: Tensor) -> Variation:
        """Of the selected items."""
        own = isinstance(self.centre, Tensor) and len(self.centre) > 1
        return Variation(self.dims, self.t[index], self.centre[index] if own else self.centre)  # type: ignore[index]


@dataclass(frozen=True)
class Mapped(Plain):
    """``t f(A x)`` with a linear operator A, as ``h(K x)`` with ``K = A / |A|`` of each item and ``h(u) = t f(|A| u)``."""

    operator: Operator

    def start(self, v: Tensor) -> Dual:
        """Not at a known point."""
        q = torch.zeros_like(self.operator(v))
        return Dual(q, q)

    def subtracted(self, v: Tensor, q: Tensor) -> Tensor:
        """``v - K^T q``."""
        return v - self.operator.adjoint(q / self._norm(q))

    def step(self, y: Tensor, x: Tensor, s: float) -> Dual:
        """One prox of f: ``prox_{h/s}(a/s) = prox_{t |A|^2/s f}(|A| a/s) / |A|``; p is kept as a measurement."""
        size = self._norm(y)
        a = y + s * self.operator(x) / size
        p = self.term.prox(size * a / s, self.t * size.reshape(-1).square() / s)
        return Dual(a - s * p / size, p)

    def gap(self, x: Tensor, at: Dual) -> tuple[Tensor, Tensor]:
        """As without A, at ``A x``."""
        return super().gap(self.operator(x), Dual(at.q / self._norm(at.q), at.p))

    def rows(self, index: Tensor) -> Mapped:
        """Of the selected items."""
        return Mapped(self.term.rows(index), self.t[index], self.operator.rows(index))

    def _norm(self, like: Tensor) -> Tensor:
        """``|A|``, shaped to multiply measurements; 1 where it is 0."""
        size = self.operator.norm().to(like).reshape(-1, *(1,) * (like.ndim - 1))
        return torch.where(size > 0, size, 1.0)


class _Iterate(NamedTuple):
    duals: tuple[Dual, ...]
    ahead: tuple[Tensor, ...]
    """y, where the next step is taken from."""
    momentum: Tensor

    def rows(self, keep: Tensor) -> _Iterate:
        return _Iterate(
            tuple(Dual(d.q[keep], d.p[keep]) for d in self.duals),
            tuple(y[keep] for y in self.ahead),
            self.momentum[keep],
        )


@torch.no_grad()
def solve(g: Term, t: Tensor, parts: Sequence[Part], v: Tensor, tolerance: float, max_iterations: int) -> Tensor:
    """``argmin_x t g(x) + sum_j h_j(K_j x) + 1/2 |x - v|^2`` per item; each one leaves as soon as it is finished."""
    answer = torch.empty_like(v)
    active = torch.arange(v.shape[0], device=v.device)
    duals = tuple(part.start(v) for part in parts)
    at = _Iterate(duals, tuple(dual.q for dual in duals), v.new_ones(v.shape[0]))
    for k in range(1, max_iterations + 1):
        at = _iterate(g, t, parts, v, at)
        if k % CHECK_EVERY and k not in EARLY and k != max_iterations:
            continue
        x = _primal(g, t, parts, v, [dual.q for dual in at.duals])
        finished = _finished(parts, v, x, at.duals, tolerance) | (k == max_iterations)
        if bool(finished.any()):
            answer[active[finished]] = x[finished]
            keep = torch.nonzero(~finished)[:, 0]
            if len(keep) == 0:
                break
            active, v, t, at, g = active[keep], v[keep], t[keep], at.rows(keep), g.rows(keep)
            parts = [part.rows(keep) for part in parts]
    return answer


def _iterate(g: Term, t: Tensor, parts: Sequence[Part], v: Tensor, at: _Iterate) -> _Iterate:
    x = _primal(g, t, parts, v, at.ahead)
    new = tuple(part.step(y, x, 1 / (len(parts) * part.norm_squared)) for part, y in zip(parts, at.ahead, strict=True))
    moves = [after.q - before.q for after, before in zip(new, at.duals, strict=True)]
    # The inner product that belongs to steps of their own: each part counts with |K|^2.
    uphill = sum(
        part.norm_squared * dot(y - after.q, move)
        for part, y, after, move in zip(parts, at.ahead, new, moves, strict=True)
    )
    momentum = torch.where(torch.as_tensor(uphill) > 0, 1.0, at.momentum)
    following = (1 + torch.sqrt(1 + 4 * momentum.square())) / 2
    inertia = (momentum - 1) / following
    ahead = tuple(after.q + spread(inertia, move) * move for after, move in zip(new, moves, strict=True))
    return _Iterate(new, ahead, following)


def _primal(g: Term, t: Tensor, parts: Sequence[Part], v: Tensor, q: Sequence[Tensor]) -> Tensor:
    """``x(q)``."""
    for part, variable in zip(parts, q, strict=True):
        v = part.subtracted(v, variable)
    return g.prox(v, t)


def _finished(parts: Sequence[Part], v: Tensor, x: Tensor, duals: Sequence[Dual], tolerance: float) -> Tensor:
    gaps, sizes = zip(*(part.gap(x, dual) for part, dual in zip(parts, duals, strict=True)), strict=True)
    rounding = ROUNDINGS * torch.finfo(v.dtype).eps * torch.stack(sizes).sum(dim=0)
    gap = torch.stack(gaps).sum(dim=0)
    return ~(gap > tolerance * square(x - v) / 2 + rounding)  # NaN is finished too
