"""The quadratic model of the smooth part in z, and its minimiser with H."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from genprior import _batch
from genprior.terms import Term

_INNER = 100
_CLOSE = 1e-5
_POWER_STEPS = 10


def solve_spd(matrix: Tensor, right: Tensor) -> Tensor:
    """``matrix^-1 right`` per item for a positive definite matrix; where rounding spoils that, its diagonal serves."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    solution = torch.cholesky_solve(right[:, :, None], factor)[:, :, 0]
    diagonal = right / _batch.above_zero(matrix.diagonal(dim1=1, dim2=2))
    return torch.where((failed == 0)[:, None], solution, diagonal)


def proximal_direction(
    hessian: Tensor | Callable[[Tensor], Tensor],
    gradient: Tensor,
    z: Tensor,
    direction: Tensor,
    term: Term,
    shape: torch.Size,
    *,
    steps: int = _INNER,
) -> Tensor:
    """Minimise ``<g, d> + 1/2 <d, B d> + H(z + d)`` over d, from ``direction``, by accelerated proximal gradient.

    A rough answer is enough, for a line search or a judgement follows: ``steps`` iterations, or changes below 1e-5 of
    the step. The momentum restarts for an item whenever it points uphill. Each iteration costs one product with B (a
    matrix per item, or a function) and one prox of H.
    """
    apply = hessian if callable(hessian) else partial(_product, hessian)
    bound = 1.3 * _largest_eigenvalue(apply, gradient, min(steps, _POWER_STEPS))
    if isinstance(hessian, Tensor):
        bound = torch.minimum(bound, hessian.abs().sum(dim=2).amax(dim=1))  # no eigenvalue is larger
    bound = _batch.above_zero(torch.nan_to_num(bound, nan=1e30)).clamp_max(torch.finfo(bound.dtype).max)

    def prox(v: Tensor) -> Tensor:
        return _batch.flat(term.prox(v.reshape(shape), 1 / bound))

    point = ahead = prox(z + direction)
    momentum = torch.ones_like(bound)
    active = torch.ones_like(bound, dtype=torch.bool)
    for _ in range(steps):
        slope = gradient + apply(ahead - z)
        candidate = prox(ahead - slope / bound[:, None])
        change = candidate - point
        uphill = _batch.dot(ahead - candidate, change) > 0
        old = torch.where(uphill, 1.0, momentum)
        momentum = (1 + (1 + 4 * old * old).sqrt()) / 2
        leap = candidate + torch.where(uphill, 0.0, (old - 1) / momentum)[:, None] * change
        keep = active[:, None]
        point, ahead = torch.where(keep, candidate, point), torch.where(keep, leap, ahead)
        active = active & (_batch.norm(change) > _CLOSE * _batch.norm(point - z))
        if not bool(active.any()):
            break
    return point - z


def _product(matrix: Tensor, v: Tensor) -> Tensor:
    return torch.bmm(matrix, v[:, :, None])[:, :, 0]


def _largest_eigenvalue(apply: Callable[[Tensor], Tensor], start: Tensor, steps: int) -> Tensor:
    """Of a positive definite map, per item, by power iteration from ``start`` with a little of everything added."""
    vector = start + 0.1 * _batch.norm(start)[:, None] / start.shape[1] ** 0.5
    for _ in range(steps):
        vector = apply(vector / _batch.above_zero(_batch.norm(vector))[:, None])
    return _batch.above_zero(_batch.norm(vector))
