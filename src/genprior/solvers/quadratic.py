"""The part of the function that depends on z directly, and minimisers of quadratic models that include it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from genprior import _batch
from genprior.problem import Problem
from genprior.terms import Quadratic, Term, Zero


@dataclass(frozen=True)
class LatentTerm:
    """``H(z) + c/2 |z - centre|^2`` at flat latents ``(B, s)``: the part of the function that is not modelled but known."""

    term: Term
    """H."""
    shape: torch.Size
    """Of the latents, ``(B, *latent_shape)``."""
    ridge: Tensor | None = None
    """c, per item; None: no ridge."""
    centre: float = 0.0
    """Of the latent distribution."""

    @classmethod
    def of(cls, problem: Problem, shape: torch.Size, ridge: Tensor | None) -> LatentTerm:
        """The problem's H with a ridge towards the centre of its latent distribution."""
        return cls(problem.on_latent, shape, ridge, problem.generator.latent.centre)

    @property
    def is_quadratic(self) -> bool:
        """Whether gradient and curvature determine it."""
        return self.term.as_quadratic() is not None

    def added(self, energy: Tensor, z: Tensor) -> Tensor:
        """``energy`` plus this function at z."""
        if self.ridge is not None:
            energy = energy + 0.5 * self.ridge * _batch.square(z - self.centre)
        return energy if isinstance(self.term, Zero) else energy + self.term(z.reshape(self.shape))

    def change(self, z: Tensor, d: Tensor) -> Tensor:
        """``H(z + d) - H(z)``."""
        if isinstance(self.term, Zero):
            return z.new_zeros(len(z))
        there, here = (self.term(point.reshape(self.shape)) for point in (z + d, z))
        return there - here

    def gradient(self, z: Tensor) -> Tensor:
        """Of the ridge, and of H where that is quadratic."""
        own = _batch.flat(Quadratic.of(self.term).gradient(z.reshape(self.shape)))
        return own if self.ridge is None else self.ridge[:, None] * (z - self.centre) + own

    def curvature(self, like: Tensor) -> Tensor:
        """Second derivative of the ridge, and of H where that is quadratic, per item."""
        column = Quadratic.of(self.term).curvature(like)
        return column if self.ridge is None else self.ridge + column


def solve_spd(matrix: Tensor, right: Tensor) -> Tensor:
    """``matrix^-1 right`` per item for a positive definite matrix; its diagonal where rounding makes it indefinite."""
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
    steps: int = 100,
    close: float = 1e-5,
) -> Tensor:
    """Minimise ``<g, d> + 1/2 <d, B d> + H(z + d)`` over d, from ``direction``, by accelerated proximal gradient.

    A rough answer is enough, because a search follows: ``steps`` iterations, or changes below ``close`` times the
    step. The momentum restarts for an item whenever it points uphill. Each iteration costs one product with B (a
    matrix per item, or a function) and one prox of H.
    """
    apply = hessian if callable(hessian) else partial(_product, hessian)
    bound = 1.3 * _largest_eigenvalue(apply, gradient, min(steps, 10))
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
        extrapolated = candidate + torch.where(uphill, 0.0, (old - 1) / momentum)[:, None] * change
        keep = active[:, None]
        point, ahead = torch.where(keep, candidate, point), torch.where(keep, extrapolated, ahead)
        active = active & (_batch.norm(change) > close * _batch.norm(point - z))
        if not bool(active.any()):
            break
    return point - z


def _product(matrix: Tensor, v: Tensor) -> Tensor:
    return torch.bmm(matrix, v[:, :, None])[:, :, 0]


def _largest_eigenvalue(apply: Callable[[Tensor], Tensor], start: Tensor, steps: int) -> Tensor:
    """Of a positive definite map, per item, by power iteration from ``start`` with a constant added to excite all modes."""
    vector = start + 0.1 * _batch.norm(start)[:, None] / start.shape[1] ** 0.5
    for _ in range(steps):
        vector = apply(vector / _batch.above_zero(_batch.norm(vector))[:, None])
    return _batch.above_zero(_batch.norm(vector))
