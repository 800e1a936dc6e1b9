"""Constraint sets as terms: 0 inside, infinite outside; the prox is the nearest point of the set, whatever the step."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

from genprior import _validate
from genprior._batch import PerItem, flat, norm, spread
from genprior.terms.base import Term, membership
from genprior.terms.parameters import describe, one_per_item, step_per_entry, step_per_item
from genprior.terms.projections import project_l1_ball, project_simplex


class Indicator(Term):
    """0 on a closed convex set, infinite elsewhere. A new set gives ``project`` and ``magnitude``."""

    is_indicator = True

    @abstractmethod
    def project(self, v: Tensor) -> Tensor:
        """Nearest point of the set to each item."""

    def __call__(self, x: Tensor) -> Tensor:
        """0 in the set (up to rounding, see ``genprior.terms.base.SLACK``), infinite elsewhere."""
        return membership(self.violation(x), self.magnitude(x), x[0].numel())

    def prox(self, v: Tensor, t: PerItem) -> Tensor:
        """Projection, for every step."""
        (step_per_entry if self.separable else step_per_item)(t, v)
        return self.project(v)

    def subgradient(self, x: Tensor) -> Tensor:
        """0, which lies in the normal cone of every point of the set."""
        return torch.zeros_like(x)

    def violation(self, x: Tensor) -> Tensor:
        """``|x - P(x)|``."""
        return norm(x - self.project(x))


@dataclass(frozen=True, eq=False, repr=False)
class Box(Indicator):
    """``low <= x <= high`` in each entry.

    The bounds are numbers, perhaps infinite, or tensors that broadcast to the signal's shape and serve all items;
    for a box per item write ``Box(-r, r).around(y)``.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> gp.Box(0, 1).project(torch.tensor([[-1.0, 0.5, 3.0]]))
    tensor([[0.0000, 0.5000, 1.0000]])
    """

    low: PerItem
    high: PerItem

    separable = True

    def __post_init__(self) -> None:
        low, high = _bound("low", self.low), _bound("high", self.high)
        try:
            ordered = bool(((low <= high) & (low < math.inf) & (high > -math.inf)).all())
        except RuntimeError as error:
            raise ValueError(f"low has shape {tuple(low.shape)}, high {tuple(high.shape)}: they must fit") from error
        if not ordered:
            raise ValueError(f"low must not be above high and the box not empty, got {self!r}: are they exchanged?")

    def is_per_item(self, name: str, value: Tensor) -> bool:
        """Bounds serve all items."""
        return False

    def project(self, v: Tensor) -> Tensor:
        """``min(max(v, low), high)``."""
        return v.clamp(min=_beside(self.low, v)).clamp(max=_beside(self.high, v))

    def magnitude(self, x: Tensor) -> Tensor:
        """Largest finite bound."""
        largest = torch.maximum(_largest_finite(self.low, x), _largest_finite(self.high, x))
        return largest.expand(x.shape[0])

    def check(self, name: str, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
        """Check also that the bounds broadcast to the signal."""
        super().check(name, shape, device, dtype)
        for part, bound in (("low", self.low), ("high", self.high)):
            if isinstance(bound, Tensor) and not _broadcasts(bound, shape):
                raise ValueError(
                    f"{part} of {name} has shape {tuple(bound.shape)}, which does not broadcast to the signal {shape}: "
                    f"for one box per item use Box(-r, r).around(y)"
                )

    def __repr__(self) -> str:
        return f"Box(low={describe(self.low)}, high={describe(self.high)})"


@dataclass(frozen=True, eq=False)
class Ball(Indicator):
    """``|x| <= radius``, the Euclidean ball; the radius is a number or one per item. ``P(v) = min(1, r / |v|) v``.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> gp.Ball(1.0).project(torch.tensor([[3.0, 4.0]]))
    tensor([[0.6000, 0.8000]])
    """

    radius: PerItem

    def __post_init__(self) -> None:
        _validate.per_item("radius", self.radius, above=0.0)

    def project(self, v: Tensor) -> Tensor:
        """``min(1, r / |v|) v``."""
        return spread((self.magnitude(v) / norm(v)).clamp(max=1), v) * v

    def magnitude(self, x: Tensor) -> Tensor:
        """Radius."""
        return one_per_item("radius", self.radius, x)


@dataclass(frozen=True, eq=False)
class L1Ball(Indicator):
    """``|x|_1 <= radius``; the radius is a number or one per item. Projection by sorting (Duchi et al. 2008)."""

    radius: PerItem

    def __post_init__(self) -> None:
        _validate.per_item("radius", self.radius, above=0.0)

    def project(self, v: Tensor) -> Tensor:
        """Soft thresholding at the level that brings the l1 norm to the radius."""
        return project_l1_ball(flat(v), self.magnitude(v)).reshape(v.shape)

    def magnitude(self, x: Tensor) -> Tensor:
        """Radius."""
        return one_per_item("radius", self.radius, x)


@dataclass(frozen=True, eq=False)
class Simplex(Indicator):
    """``x >= 0`` and ``sum x = total``; the total is a number or one per item. Projection by sorting."""

    total: PerItem = 1.0

    def __post_init__(self) -> None:
        _validate.per_item("total", self.total, above=0.0)

    def project(self, v: Tensor) -> Tensor:
        """``max(v - theta, 0)`` at the level that brings the sum to the total."""
        return project_simplex(flat(v), self.magnitude(v)).reshape(v.shape)

    def magnitude(self, x: Tensor) -> Tensor:
        """Total."""
        return one_per_item("total", self.total, x)


def _bound(name: str, value: PerItem) -> Tensor:
    """Check one bound of a box and give it as a tensor."""
    if isinstance(value, bool) or not isinstance(value, Real | Tensor):
        raise TypeError(f"{name} must be a number or a tensor, got {value!r} ({type(value).__name__})")
    bound = value if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64)
    if not bound.is_floating_point():
        raise TypeError(f"{name} must hold floating-point numbers, got {bound.dtype}: use {name}.float()")
    if bool(bound.isnan().any()):
        raise ValueError(f"{name} holds NaN, expected numbers: use -inf or inf for no bound")
    return bound


def _beside(bound: PerItem, x: Tensor) -> PerItem:
    """Give a bound in the dtype of ``x``; refuse one that has a batch axis."""
    if not isinstance(bound, Tensor):
        return bound
    if not _broadcasts(bound, tuple(x.shape[1:])):
        raise ValueError(
            f"a bound of shape {tuple(bound.shape)} does not broadcast to the items' shape {tuple(x.shape[1:])}: "
            f"bounds have no batch axis; for one box per item use Box(-r, r).around(y)"
        )
    return bound.to(x)


def _broadcasts(bound: Tensor, shape: tuple[int, ...]) -> bool:
    pairs = zip(reversed(bound.shape), reversed(shape), strict=False)
    return bound.ndim <= len(shape) and all(n in (1, m) for n, m in pairs)


def _largest_finite(bound: PerItem, x: Tensor) -> Tensor:
    if not isinstance(bound, Tensor):
        return x.new_full((), abs(bound) if math.isfinite(bound) else 0.0)
    return torch.where(bound.isfinite(), bound.abs(), 0.0).amax().to(x)
