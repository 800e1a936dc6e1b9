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
from genprior.terms.base import ROUNDINGS, Term, indicator
from genprior.terms.parameters import describe, keep, one_per_item, step_per_entry, step_per_item
from genprior.terms.projections import project_l1_ball, project_simplex

SLACK = 100.0
"""Roundings by which a projection that sorts and sums may miss its set; and one for each of the square root of its entries."""


class Indicator(Term):
    """0 on a closed convex set, infinite elsewhere. A new set gives ``project`` and ``magnitude``."""

    is_indicator = True

    @abstractmethod
    def project(self, v: Tensor) -> Tensor:
        """Nearest point of the set to each item."""

    def magnitude(self, x: Tensor) -> Tensor:
        """Size of the numbers that decide whether an item is feasible, shape ``(B,)``; scales the slack."""
        return norm(x)

    def __call__(self, x: Tensor) -> Tensor:
        """0 in the set (up to rounding, see `feasible`), infinite elsewhere."""
        return indicator(self.feasible(x), x)

    def feasible(self, x: Tensor, rounding_scale: PerItem = 0.0) -> Tensor:
        """``|x - P(x)| <= (SLACK + sqrt(n)) eps magnitude``, and a little more where x is a rounded difference."""
        eps, entries = torch.finfo(x.dtype).eps, x[:1].numel()
        slack = (SLACK + math.sqrt(entries)) * eps * self.magnitude(x)
        if isinstance(rounding_scale, Tensor):
            slack = slack + ROUNDINGS * eps * norm(rounding_scale.expand_as(x))
        return self.violation(x) <= slack

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

    def start_score(self, x: Tensor) -> Tensor:
        """``|x - P(x)|``, which is finite."""
        return self.violation(x)


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
        keep(self, "low", self.low)
        keep(self, "high", self.high)

    def is_per_item(self, name: str, value: Tensor) -> bool:
        """Bounds serve all items."""
        return False

    def project(self, v: Tensor) -> Tensor:
        """``min(max(v, low), high)``."""
        return v.clamp(min=_beside(self.low, v)).clamp(max=_beside(self.high, v))

    def magnitude(self, x: Tensor) -> Tensor:
        """Largest finite bound."""
        return self._sizes(x).amax().expand(x.shape[0])

    def feasible(self, x: Tensor, rounding_scale: PerItem = 0.0) -> Tensor:
        """Entry by entry: past its bound by no more than rounding at the size of its bounds."""
        slack = ROUNDINGS * torch.finfo(x.dtype).eps * (self._sizes(x) + rounding_scale)
        inside = (x >= _beside(self.low, x) - slack) & (x <= _beside(self.high, x) + slack)
        return flat(inside).all(dim=1)

    def _sizes(self, x: Tensor) -> Tensor:
        """The larger finite bound of every entry, in a shape that broadcasts."""
        bounds = (torch.as_tensor(_beside(bound, x), dtype=x.dtype, device=x.device) for bound in (self.low, self.high))
        return torch.maximum(*(torch.where(bound.isfinite(), bound.abs(), 0.0) for bound in bounds))

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
    """``|x| <= radius``, the Euclidean ball; the radius is a number or one per item. ``P(v) = r / max(|v|, r) v``.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> gp.Ball(1.0).project(torch.tensor([[3.0, 4.0]]))
    tensor([[0.6000, 0.8000]])
    """

    radius: PerItem

    def __post_init__(self) -> None:
        keep(self, "radius", _validate.per_item("radius", self.radius, above=0.0))

    def project(self, v: Tensor) -> Tensor:
        """``r / max(|v|, r) v``."""
        radius = self.magnitude(v)
        return spread(radius / torch.maximum(norm(v), radius), v) * v

    def magnitude(self, x: Tensor) -> Tensor:
        """Radius."""
        return one_per_item("radius", self.radius, x)


@dataclass(frozen=True, eq=False)
class L1Ball(Indicator):
    """``|x|_1 <= radius``; the radius is a number or one per item. Projection by sorting (Duchi et al. 2008)."""

    radius: PerItem

    def __post_init__(self) -> None:
        keep(self, "radius", _validate.per_item("radius", self.radius, above=0.0))

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
        keep(self, "total", _validate.per_item("total", self.total, above=0.0))

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
