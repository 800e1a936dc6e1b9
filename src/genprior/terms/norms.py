"""Norms: finite everywhere, with closed-form or sort-based proxes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from genprior._batch import PerItem, flat, norm, ratio, spread, square
from genprior.terms.base import Term
from genprior.terms.parameters import step_per_entry, step_per_item
from genprior.terms.projections import shrink_level


@dataclass(frozen=True)
class L1(Term):
    """``|x|_1``, the sum of absolute values; its prox is soft thresholding, ``sign(v) max(|v| - t, 0)``."""

    separable = True

    def __call__(self, x: Tensor) -> Tensor:
        """``sum_i |x_i|``."""
        return flat(x).abs().sum(dim=1)

    def prox(self, v: Tensor, t: PerItem) -> Tensor:
        """``v - clip(v, -t, t)``."""
        step = step_per_entry(t, v)
        return v - v.clamp(min=-step, max=step)  # type: ignore[arg-type]  # two numbers or two tensors

    def subgradient(self, x: Tensor) -> Tensor:
        """``sign(x)``, 0 at 0."""
        return x.sign()


@dataclass(frozen=True)
class L2(Term):
    """``|x|``, the Euclidean norm of each item (not squared); its prox is ``max(1 - t / |v|, 0) v``."""

    def __call__(self, x: Tensor) -> Tensor:
        """``sqrt(sum_i x_i^2)``."""
        return norm(x)

    def prox(self, v: Tensor, t: PerItem) -> Tensor:
        """``max(1 - t / |v|, 0) v``."""
        return spread((1 - ratio(step_per_item(t, v), norm(v))).clamp(min=0), v) * v

    def subgradient(self, x: Tensor) -> Tensor:
        """``x / |x|``, 0 at 0."""
        size = norm(x)
        return x / spread(torch.where(size == 0, 1.0, size), x)


@dataclass(frozen=True)
class SquaredL2(Term):
    """``1/2 |x|^2``; its prox is ``v / (1 + t)``."""

    separable = True

    def __call__(self, x: Tensor) -> Tensor:
        """``1/2 sum_i x_i^2``."""
        return square(x) / 2

    def prox(self, v: Tensor, t: PerItem) -> Tensor:
        """``v / (1 + t)``."""
        return v / (1 + step_per_entry(t, v))

    def subgradient(self, x: Tensor) -> Tensor:
        """``x``."""
        return x.clone()

    def as_quadratic(self) -> tuple[PerItem, PerItem]:
        """``1/2 |x - 0|^2``."""
        return 1.0, 0.0


@dataclass(frozen=True)
class LInf(Term):
    """``|x|_inf``, the largest absolute value of each item.

    By Moreau's identity ``prox(v, t) = v - P(v)`` with P the projection onto the l1 ball of radius t, which cuts the
    entries at one level: ``clip(v, -theta, theta)``.

    Example:
        >>> LInf().prox(torch.tensor([[3.0, 1.0, 0.5]]), 1.0)
        tensor([[2.0000, 1.0000, 0.5000]])
    """

    def __call__(self, x: Tensor) -> Tensor:
        """``max_i |x_i|``."""
        return flat(x).abs().amax(dim=1)

    def prox(self, v: Tensor, t: PerItem) -> Tensor:
        """``clip(v, -theta, theta)`` with ``sum_i max(|v_i| - theta, 0) = t``, or 0 when ``|v|_1 <= t``."""
        rows = flat(v)
        enough = 2 * rows.abs().sum(dim=1)  # from |v|_1 on the answer is 0; an infinite step would give no number
        level = spread(shrink_level(rows, torch.minimum(step_per_item(t, v), enough)).clamp(min=0), v)
        return torch.minimum(torch.maximum(v, -level), level)

    def start_score(self, x: Tensor) -> Tensor:
        """``|x|``: of random signals, some entry of each is always about as wrong as can be."""
        return norm(x)

    def subgradient(self, x: Tensor) -> Tensor:
        """Mean of the signed unit vectors of the largest entries: the smallest subgradient; 0 at 0."""
        size = flat(x).abs()
        largest = (size == size.amax(dim=1, keepdim=True)).to(x.dtype)
        share = largest / largest.sum(dim=1, keepdim=True)
        return share.reshape(x.shape) * x.sign()
