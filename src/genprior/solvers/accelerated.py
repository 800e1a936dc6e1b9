"""Accelerated proximal gradient, item by item."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from genprior import _batch

_TOO_LONG = 2.0
"""A step is taken back where the gradient has changed along it by this many times what its length allows for."""
_SHORTER = 4.0
"""Most that the Lipschitz constant is raised by at a time: next to a pole gradients say too much, beyond it nothing."""
_LONGER = 2.0
"""Most that a raised constant falls by at a time."""
_ROUNDING = 32.0
"""Rounding units of a gradient that say nothing about its change."""


def accelerated(
    gradient: Callable[[Tensor], Tensor],
    prox: Callable[[Tensor, Tensor], Tensor],
    v: Tensor,
    lipschitz: Tensor,
    steps: int,
    close: float,
) -> Tensor:
    """Descend ``E(v) + D(v)`` from ``v``, given the gradient of E, its Lipschitz constant per item, and ``prox_{tD}``.

    The constant may hold somewhere alone: where gradients change faster, it is raised for a while, and a step that was far too
    long, or ended where the gradient is not finite, is taken back. The momentum restarts for an item whenever it points
    uphill. An item is finished when a step changes it by less than ``close`` times its norm.

    References
    ----------
    Beck and Teboulle 2009; O'Donoghue and Candes 2015, Adaptive restart for accelerated gradient schemes.
    """
    point, ahead, least = v, v, lipschitz
    momentum, active = torch.ones_like(lipschitz), torch.ones_like(lipschitz, dtype=torch.bool)
    before: tuple[Tensor, Tensor, Tensor] | None = None
    for _ in range(steps):
        f = gradient(ahead)
        if before is not None:
            lipschitz, back = _adapted(lipschitz, ahead - before[1], f, before[2])
            lipschitz = torch.maximum(lipschitz, least)
            if bool(back.any()):
                wide = _batch.spread(back, v)
                point, ahead, f = (
                    torch.where(wide, old, new) for old, new in zip(before, (point, ahead, f), strict=True)
                )
                momentum, active = torch.where(back, 1.0, momentum), active | back
        before = point, ahead, f
        t = 1 / lipschitz
        candidate = prox(ahead - _batch.spread(t, v) * f, t)
        change = candidate - point
        uphill = _batch.dot(ahead - candidate, change) > 0
        old = torch.where(uphill, 1.0, momentum)
        momentum = (1 + (1 + 4 * old * old).sqrt()) / 2
        factor = torch.where(uphill, 0.0, (old - 1) / momentum)
        keep = _batch.spread(active, v)
        point = torch.where(keep, candidate, point)
        ahead = torch.where(keep, candidate + _batch.spread(factor, v) * change, ahead)
        active = active & (_batch.norm(change) > close * _batch.norm(point))
        if not bool(active.any()):
            break
    return point


def _adapted(lipschitz: Tensor, moved: Tensor, f: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """The constant after a step along which the gradient has changed from ``before`` to ``f``, and where it was too long."""
    change = _batch.norm(f - before) - _ROUNDING * torch.finfo(f.dtype).eps * _batch.norm(before)
    local = _batch.ratio(change.clamp_min(0), _batch.norm(moved))
    most = _SHORTER * lipschitz
    back = ~(local <= _TOO_LONG * lipschitz)
    return torch.where(local <= most, torch.maximum(lipschitz / _LONGER, local), most), back
