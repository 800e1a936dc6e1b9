"""Krylov methods for symmetric operators that can only be applied: the largest eigenvalue, and linear systems.

Each item of a batch is iterated and stopped on its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from genprior import _clock
from genprior._batch import binary_unit, dot, norm, ratio, spread

STEPS = 60
SAFETY = 1.01
_ESTIMATE = 0.15
"""The share of what is left of a limited run that an estimate may take."""
_SOLUTION = 0.25
"""The share of what is left of a limited run that one solution may take."""


class Estimate(NamedTuple):
    """The largest eigenvalue per item, and whether all steps were made for it: else time was short."""

    value: Tensor
    whole: bool


def largest_eigenvalue(apply: Callable[[Tensor], Tensor], start: Tensor) -> Estimate:
    """Estimate the largest eigenvalue of a positive semidefinite ``M`` from above, per item, shape ``(B,)``.

    Lanczos without reorthogonalisation (three signals of memory): ``beta_k q_{k+1} = M q_k - alpha_k q_k -
    beta_{k-1} q_{k-1}``. The largest eigenvalue ``theta`` of the tridiagonal matrix, with last component ``s`` of its
    eigenvector, lies within ``beta |s|`` of an eigenvalue of ``M``. The estimate is ``1.01 (theta + beta |s|)``.
    In a run whose time is limited, fewer steps are made where they take long; the estimate is then rougher, and may be too
    small. Plain power iteration needs far more steps and may settle on the second eigenvalue without any sign of it.
    """
    q, before, beta = _unit(start, norm(start)), torch.zeros_like(start), torch.zeros_like(norm(start))
    alphas, betas = [], []
    over = _clock.allowance(_ESTIMATE)
    for _ in range(STEPS):
        image = apply(q)
        alpha = dot(q, image)
        rest = image - spread(alpha, q) * q - spread(beta, q) * before
        beta = _unless_exhausted(norm(rest), norm(image))
        alphas.append(alpha)
        betas.append(beta)
        q, before = _unit(rest, beta), q
        if over():
            break
    alpha, beta = (torch.stack(column, dim=1).cpu().double() for column in (alphas, betas))
    inner = beta[:, :-1]
    values, vectors = torch.linalg.eigh(alpha.diag_embed() + inner.diag_embed(1) + inner.diag_embed(-1))
    upper: Tensor = SAFETY * (values[:, -1] + beta[:, -1] * vectors[:, -1, -1].abs())
    return Estimate(upper.clamp(min=0).to(start.device, start.dtype.to_real()), len(alphas) == STEPS)


def _unless_exhausted(beta: Tensor, scale: Tensor) -> Tensor:
    """Zero where the remainder is rounding error: the item's Krylov space is exhausted."""
    return torch.where(beta > 10 * torch.finfo(beta.dtype).eps * scale, beta, 0)


def _unit(x: Tensor, size: Tensor) -> Tensor:
    """Scale each item by its ``size``; an item of size zero becomes zero and adds only zeros from then on."""
    inverse = torch.where(size > 0, 1 / size, 0)
    return spread(inverse, x) * x


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
    unit = spread(binary_unit(norm(rhs)), rhs)  # squares of a right-hand side in other units may vanish or overflow
    rhs, start = rhs / unit, None if start is None else start / unit
    size = norm(rhs)
    x, r = _first(apply, rhs, start, size)
    p, rr = r, dot(r, r)
    iterations = torch.zeros(len(rhs), dtype=torch.int64, device=rhs.device)
    active = rr.sqrt() > tolerance * size  # False for NaN
    over = _clock.allowance(_SOLUTION)
    for _ in range(max_iterations):
        if not bool(active.any()) or over():
            break
        image = apply(p)
        curvature = dot(p, image)
        active = active & (curvature > 0) & torch.isfinite(curvature)
        a = spread(torch.where(active, rr / curvature, 0), x)
        go = spread(active, x)
        x = torch.where(go, x + a * p, x)
        r = torch.where(go, r - a * image, r)
        rr, old = dot(r, r), rr
        p = torch.where(go, r + spread(torch.where(active, rr / old, 0), x) * p, p)
        iterations = iterations + active
        active = active & (rr.sqrt() > tolerance * size)
    solution = torch.where(spread(torch.isfinite(size), x), unit * x, torch.nan)
    return CGResult(solution, iterations, ratio(rr.sqrt(), size))


def _first(apply: Callable[[Tensor], Tensor], rhs: Tensor, start: Tensor | None, size: Tensor) -> tuple[Tensor, Tensor]:
    """First iterate and residual: the start where it can help, else zero."""
    if start is None:
        return torch.zeros_like(rhs), rhs
    useful = spread(torch.isfinite(norm(start)) & (size > 0), rhs)
    x = torch.where(useful, start, 0)
    return x, torch.where(useful, rhs - apply(x), rhs)
