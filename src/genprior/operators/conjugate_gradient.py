"""Conjugate gradients for a batch of symmetric positive definite systems, each stopped on its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from genprior import _clock
from genprior._batch import binary_unit, dot, norm, ratio

_MOST_OF_TIME = 0.25
"""The share of what is left of a limited run that one solution may take."""


@dataclass(frozen=True)
class CGResult:
    """Solutions, with the number of iterations and the relative residual ``|b - M x| / |b|`` of each item.

    The residual is the one the recurrence carries; in floating point the true one may be a little larger.
    """

    solution: Tensor
    iterations: Tensor
    residual: Tensor


def conjugate_gradient(
    apply: Callable[[Tensor], Tensor],
    rhs: Tensor,
    start: Tensor | None = None,
    tolerance: float = 1e-6,
    max_iterations: int = 200,
) -> CGResult:
    """Solve ``M x = b`` per item for ``b = rhs`` of shape ``(B, ...)``, ``apply(x) = M x``.

    Hestenes and Stiefel (1952): ``a = |r|^2 / <p, M p>``, ``x += a p``, ``r -= a M p``, ``p = r + (|r+|^2 / |r|^2) p``.
    An item stops when ``|r| <= tolerance |b|``, when ``<p, M p>`` is not positive (breakdown, also NaN), or after
    ``max_iterations``; from then on its numbers do not change, so a batch gives what single runs would give. A zero
    right-hand side gives zero, a non-finite one gives NaN, a non-finite start counts as none. In a run whose time is
    limited, all stop when a quarter of what was left is used up.
    """
    unit = _each(binary_unit(norm(rhs)), rhs)  # squares of a right-hand side in other units may vanish or overflow
    rhs, start = rhs / unit, None if start is None else start / unit
    size = norm(rhs)
    x, r = _first(apply, rhs, start, size)
    p, rr = r, dot(r, r)
    iterations = torch.zeros(len(rhs), dtype=torch.int64, device=rhs.device)
    active = rr.sqrt() > tolerance * size  # False for NaN
    over = _clock.allowance(_MOST_OF_TIME)
    for _ in range(max_iterations):
        if not bool(active.any()) or over():
            break
        image = apply(p)
        curvature = dot(p, image)
        active = active & (curvature > 0) & torch.isfinite(curvature)
        a = _each(torch.where(active, rr / curvature, 0), x)
        go = _each(active, x)
        x = torch.where(go, x + a * p, x)
        r = torch.where(go, r - a * image, r)
        rr, old = dot(r, r), rr
        p = torch.where(go, r + _each(torch.where(active, rr / old, 0), x) * p, p)
        iterations = iterations + active
        active = active & (rr.sqrt() > tolerance * size)
    solution = torch.where(_each(torch.isfinite(size), x), unit * x, torch.nan)
    return CGResult(solution, iterations, ratio(rr.sqrt(), size))


def _first(apply: Callable[[Tensor], Tensor], rhs: Tensor, start: Tensor | None, size: Tensor) -> tuple[Tensor, Tensor]:
    """First iterate and residual: the start where it can help, else zero."""
    if start is None:
        return torch.zeros_like(rhs), rhs
    useful = _each(torch.isfinite(norm(start)) & (size > 0), rhs)
    x = torch.where(useful, start, 0)
    return x, torch.where(useful, rhs - apply(x), rhs)


def _each(value: Tensor, like: Tensor) -> Tensor:
    """Shape ``(B,)`` so that it acts item by item on ``like``."""
    return value.reshape(-1, *(1,) * (like.ndim - 1))
