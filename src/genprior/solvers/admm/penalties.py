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
"""First penalty of Algorithm 2, relative to the curvature of L: with a small one w fits the data closely, and z follows."""
_BALANCE_EVERY = 10
"""Iterations between two changes of a balanced penalty, so that the residuals have settled in between."""
_MOST_CHANGE = 1e3
"""Largest factor, up or down, between a balanced penalty and the first one: beyond, the problem is badly scaled."""
_FLAT = 1e8
"""Length of a prox step, relative to the natural one, at which the minimiser is that of R alone."""


def natural_penalty(problem: Problem, x: Tensor, share: float = 1.0) -> Tensor:
    """A penalty in the problem's own units.

    The curvature of L, times ``share``, or ``2 R(x) / D^2`` if that is larger, with D the distance from x to the
    minimiser of R: the curvature of a parabola that falls by R(x) over that distance. For an R with a constraint, its finite
    part counts. 1 where R is an indicator and there is no L: any penalty will do.
    """
    curvature = share * problem.loss.curvature(x)[1]
    term = problem.on_signal.finite
    if term.as_quadratic() is not None:
        return torch.where(curvature > 0, curvature, 1.0)
    value = term(x)
    step = _FLAT * _batch.ratio(value, _batch.square(term.subgradient(x)))
    far = term.prox(x, torch.nan_to_num(step, nan=1.0).clamp(1e-30, 1e30))
    parabola = 2 * _batch.ratio(value, _batch.square(far - x))
    usable = (value > 0) & parabola.isfinite()
    steeper = torch.where(usable, torch.maximum(curvature, parabola), curvature)
    return torch.where(steeper > 0, steeper, 1.0)


class Residuals(NamedTuple):
    """What an adaptive penalty may depend on, per item."""

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
    def description(self) -> str:
        """In words, for the plan: what the penalty is."""
        return f"set by {type(self).__name__}"

    @property
    def _first_in_words(self) -> str:
        return "in the problem's own units" if self.rho is None else f"{self.rho:g}"

    @property
    def _share(self) -> float:
        """Of the curvature of L."""
        return 1.0

    @abstractmethod
    def __call__(self, k: Tensor, first: Tensor, last: Tensor, residuals: Residuals) -> Tensor:
        """The penalty of iteration ``k = 1, 2, ...``, after ``last`` in the one before."""


@dataclass(frozen=True)
class Constant(Penalty):
    """The same penalty ``rho`` at every iteration; without ``rho``, one in the problem's own units."""

    rho: float | None = None

    def __post_init__(self) -> None:
        _check_rho(self.rho)

    @property
    def description(self) -> str:
        """In words."""
        return f"constant, {self._first_in_words}"

    def __call__(self, k: Tensor, first: Tensor, last: Tensor, residuals: Residuals) -> Tensor:
        """``rho``."""
        return first


@dataclass(frozen=True)
class Doubling(Penalty):
    """Algorithm 2's scales: ``rho_k = 2^k rho`` for ``n_k = 2^k n`` iterations, ``k = 1 .. scales``, then the last one.

    Iteration ``t`` (from 1) lies in scale ``k`` when ``2 n (2^(k-1) - 1) < t <= 2 n (2^k - 1)``. Without ``rho`` it starts
    from 2% of the curvature of L: the smaller the penalty, the closer an exact w step comes to the data, and z follows.
    """

    rho: float | None = None
    n: int = 10
    scales: int = 5

    def __post_init__(self) -> None:
        _check_rho(self.rho)
        _validate.whole("n", self.n)
        _validate.whole("scales", self.scales)

    @property
    def description(self) -> str:
        """In words."""
        return (
            f"{self._first_in_words} at first and doubles at the start of each of {self.scales} scales, which have "
            f"{2 * self.n} iterations and then twice as many each"
        )

    @property
    def _share(self) -> float:
        """Before the doublings."""
        return _DOUBLING_SHARE

    def __call__(self, k: Tensor, first: Tensor, last: Tensor, residuals: Residuals) -> Tensor:
        """``2^scale rho`` for the scale that iteration ``k`` lies in."""
        ends, factors = _scales(self, k.dtype, k.device)
        return first * factors.index_select(0, torch.bucketize(k, ends))


@dataclass(frozen=True)
class Balanced(Penalty):
    """Residual balancing: rho doubles where ``|w - G(z)|`` exceeds ``ratio`` times the last move of G(z); or halves.

    Decided every tenth iteration, per item; rho stays within a factor of 1000 of the first one.

    References
    ----------
    He, Yang and Wang 2000; Boyd et al. 2011, section 3.4.1.
    """

    rho: float | None = None
    ratio: float = 10.0

    def __post_init__(self) -> None:
        _check_rho(self.rho)
        _validate.number("ratio", self.ratio, above=1)

    @property
    def description(self) -> str:
        """In words."""
        return f"{self._first_in_words} at first and then balances the primal and the dual residual"

    def __call__(self, k: Tensor, first: Tensor, last: Tensor, residuals: Residuals) -> Tensor:
        """The balanced penalty."""
        due = (k % _BALANCE_EVERY == 0) & (residuals.moved > 0)
        grown = torch.where(due & (residuals.primal > self.ratio * residuals.moved), 2 * last, last)
        changed = torch.where(due & (residuals.moved > self.ratio * residuals.primal), 0.5 * last, grown)
        return torch.minimum(torch.maximum(changed, first / _MOST_CHANGE), first * _MOST_CHANGE)


def _check_rho(rho: float | None) -> None:
    if rho is not None:
        _validate.number("rho", rho, above=0)


@lru_cache(maxsize=64)
def _scales(doubling: Doubling, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The last iteration of every scale but the last one, and the factor on the penalty in every scale."""
    ends = [2.0 * doubling.n * (2**k - 1) for k in range(1, doubling.scales)]
    values = [2.0**k for k in range(1, doubling.scales + 1)]
    return torch.tensor(ends, dtype=dtype, device=device), torch.tensor(values, dtype=dtype, device=device)
