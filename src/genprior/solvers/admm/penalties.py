"""Penalties: the weight ``rho`` of ``rho/2 |w - G(z)|^2`` over the iterations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior.problem import Problem

_DOUBLING_SHARE = 0.02
_LOOK_EVERY = 10
_FARTHEST = 1e3
_FLAT = 1e8
"""A step of the prox so long, relative to the natural one, that only R counts."""


def natural_penalty(problem: Problem, x: Tensor, share: float = 1.0) -> Tensor:
    """A penalty in the problem's own units.

    The curvature of L, times ``share``, or ``2 R(x) / D^2`` if that is larger, with D the distance from x to where R is
    least: the curvature of a parabola that falls by R(x) over that distance. Of an R with a constraint the finite part
    counts. 1 where R is a set and L is absent: any will do.
    """
    bowl = share * problem.loss.curvature(x)[1]
    term = problem.on_signal.finite
    if term.as_quadratic() is not None:
        return torch.where(bowl > 0, bowl, 1.0)
    value = term(x)
    step = _FLAT * _batch.ratio(value, _batch.square(term.subgradient(x)))
    far = term.prox(x, torch.nan_to_num(step, nan=1.0).clamp(1e-30, 1e30))
    parabola = 2 * _batch.ratio(value, _batch.square(far - x))
    usable = (value > 0) & parabola.isfinite()
    steeper = torch.where(usable, torch.maximum(bowl, parabola), bowl)
    return torch.where(steeper > 0, steeper, 1.0)


class Residuals(NamedTuple):
    """What an adaptive penalty looks at, per item."""

    primal: Tensor
    """``|w - G(z)|``."""
    moved: Tensor
    """``|G(z+) - G(z)|`` in the last iteration; times rho, the dual residual."""


class Penalty(ABC):
    """A rule for ``rho``, per item."""

    rho: float | None
    """Before any change; None: in the problem's own units."""

    def first(self, problem: Problem, x: Tensor) -> Tensor:
        """Rho before any change: as given, or the curvature of L, or that of a parabola like R."""
        if self.rho is not None:
            return x.new_full((x.shape[0],), self.rho)
        return natural_penalty(problem, x, self._share)

    @property
    def _share(self) -> float:
        """Of the curvature of L."""
        return 1.0

    @abstractmethod
    def __call__(self, k: Tensor, first: Tensor, last: Tensor, seen: Residuals) -> Tensor:
        """The penalty of iteration ``k = 1, 2, ...``, after ``last`` in the one before."""


@dataclass(frozen=True)
class Constant(Penalty):
    """The same penalty ``rho`` at every iteration; without ``rho``, one in the problem's own units."""

    rho: float | None = None

    def __post_init__(self) -> None:
        _check_rho(self.rho)

    def __call__(self, k: Tensor, first: Tensor, last: Tensor, seen: Residuals) -> Tensor:
        """``rho``."""
        return first


@dataclass(frozen=True)
class Doubling(Penalty):
    """Algorithm 2's scales: ``rho_k = 2^k rho`` for ``n_k = 2^k n`` iterations, ``k = 1 .. scales``, then the last one.

    Iteration ``t`` (from 1) lies in scale ``k`` when ``2 n (2^(k-1) - 1) < t <= 2 n (2^k - 1)``. Without ``rho`` it starts
    from 2% of the curvature of L: the smaller the penalty, the farther an exact w step goes towards the data, and z with it.
    """

    rho: float | None = None
    n: int = 10
    scales: int = 5

    def __post_init__(self) -> None:
        _check_rho(self.rho)
        _validate.whole("n", self.n)
        _validate.whole("scales", self.scales)

    @property
    def _share(self) -> float:
        """Before the doublings."""
        return _DOUBLING_SHARE

    def __call__(self, k: Tensor, first: Tensor, last: Tensor, seen: Residuals) -> Tensor:
        """``2^scale rho`` for the scale that iteration ``k`` lies in."""
        ends, factors = _scales(self, k.dtype, k.device)
        return first * factors.index_select(0, torch.bucketize(k, ends))


@dataclass(frozen=True)
class Balanced(Penalty):
    """Residual balancing: rho doubles where the gap ``|w - G(z)|`` is ten times the last move of G(z), and halves in reverse.

    Looked at every tenth iteration, per item; rho stays within a factor of 1000 of the first one.

    References
    ----------
    He, Yang and Wang 2000; Boyd et al. 2011, section 3.4.1.
    """

    rho: float | None = None
    ratio: float = 10.0

    def __post_init__(self) -> None:
        _check_rho(self.rho)
        _validate.number("ratio", self.ratio, above=1)

    def __call__(self, k: Tensor, first: Tensor, last: Tensor, seen: Residuals) -> Tensor:
        """The balanced penalty."""
        looks = (k % _LOOK_EVERY == 0) & (seen.moved > 0)
        grown = torch.where(looks & (seen.primal > self.ratio * seen.moved), 2 * last, last)
        changed = torch.where(looks & (seen.moved > self.ratio * seen.primal), 0.5 * last, grown)
        return torch.minimum(torch.maximum(changed, first / _FARTHEST), first * _FARTHEST)


def _check_rho(rho: float | None) -> None:
    if rho is not None:
        _validate.number("rho", rho, above=0)


@lru_cache(maxsize=64)
def _scales(doubling: Doubling, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The last iteration of every scale but the last one, and the factor on the penalty in every scale."""
    ends = [2.0 * doubling.n * (2**k - 1) for k in range(1, doubling.scales)]
    values = [2.0**k for k in range(1, doubling.scales + 1)]
    return torch.tensor(ends, dtype=dtype, device=device), torch.tensor(values, dtype=dtype, device=device)
