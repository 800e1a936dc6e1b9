"""Accelerated proximal gradient, item by item."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from genprior import _batch


def accelerated(
    gradient: Callable[[Tensor], Tensor],
    prox: Callable[[Tensor, Tensor], Tensor],
    v: Tensor,
    t: Tensor,
    steps: int,
    close: float,
) -> Tensor:
    """Descend ``E(v) + D(v)`` from ``v`` by steps t, one per item, given the gradient of E and ``prox_{tD}``.

    The momentum restarts for an item whenever it points uphill. An item is finished when a step changes it by less than
    ``close`` times its norm.

    References
    ----------
    Beck and Teboulle 2009; O'Donoghue and Candes 2015, Adaptive restart for accelerated gradient schemes.
    """
    wide = _batch.spread(t, v)
    point = ahead = v
    momentum, active = torch.ones_like(t), torch.ones_like(t, dtype=torch.bool)
    for _ in range(steps):
        candidate = prox(ahead - wide * gradient(ahead), t)
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
