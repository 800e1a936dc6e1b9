"""Quadratic models: by BFGS updates, and of the part of the function that depends on z directly; minimisers of the two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from genprior import _batch
from genprior.generators.deviating import Deviating
from genprior.problem import Problem
from genprior.terms import Quadratic, Term, Zero

_CLEAR = 10
"""Least cosine between a step and the gradient's change over it, in units of rounding: below, its sign is random."""


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
    ridged: int | None = None
    """How many entries, the first ones, have a ridge; None: all of them."""

    @classmethod
    def of(cls, problem: Problem, shape: torch.Size, ridge: Tensor | None) -> LatentTerm:
        """The problem's H with a ridge towards the centre of its latent distribution."""
        generator = problem.generator
        ridged = generator.size if isinstance(generator, Deviating) else None
        return cls(problem.on_latent, shape, ridge, generator.latent.centre, ridged)

    @property
    def is_quadratic(self) -> bool:
        """Whether gradient and curvature determine it."""
        return self.term.as_quadratic() is not None

    def added(self, energy: Tensor, z: Tensor) -> Tensor:
        """``energy`` plus this function at z."""
        if self.ridge is not None:
            energy = energy + 0.5 * self.ridge * _batch.square(z[:, : self.ridged] - self.centre)
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


@dataclass(frozen=True)
class SecantModel:
    """``B(c)``, per item: BFGS updates of ``diag(first) + c I`` by the pairs ``(s, y + c s)``, for any c >= 0.

    A part ``c/2 |z|^2`` of the function is thus modelled exactly, also when c changes from one iteration to the next: the
    pairs stay as they are. All vectors are in the coordinates of the first Hessian's eigenvectors; the caller maps to
    them, and gives the eigenvalues, scaled, with each call.

    References
    ----------
    Byrd, Nocedal and Schnabel, Representations of quasi-Newton matrices and their use in limited memory methods, 1994.
    """

    first: Tensor
    """Eigenvalues of the first Hessian, before any scale: ``(B, s)``, or ``(B, 1)`` where all are equal."""
    steps: Tensor
    """``(B, memory, s)``, oldest first; empty places are zero and come before all others."""
    changes: Tensor
    """Change of the gradient over each step. A pair is stored per unit of the step's length."""
    count: Tensor
    """Pairs that are stored, ``(B,)``; only the places that some item has filled are computed with."""
    basis: Tensor | None
    """Eigenvectors of the first Hessian in columns, ``(B, s, s)``, where items have one each; None: all share one."""
    curvature: Tensor
    """Scale of the first Hessian: that of the function of the signal."""
    accepted: Tensor
    """Accepted steps."""

    @classmethod
    def fresh(cls, first: Tensor, memory: int, size: int, basis: Tensor | None, curvature: Tensor) -> SecantModel:
        """No pair yet, for latents of dimension ``size``."""
        none, zero = first.new_zeros(len(first), memory, size), first.new_zeros(len(first))
        return cls(first, none, none, zero, basis, curvature, zero)

    # -- updates -----------------------------------------------------------------------------------------------------

    def updated(self, where: Tensor, step: Tensor, change: Tensor) -> tuple[SecantModel, Tensor]:
        """Add a pair for the items in ``where``, in place of the oldest, and return for which it was added.

        A pair whose ``<step, change>``, as stored, is not finite or not above rounding would spoil the model: it is left out.
        """
        along = _batch.dot(step, change)
        least = _CLEAR * torch.finfo(along.dtype).eps * _batch.norm(step) * _batch.norm(change)
        taken = where & torch.isfinite(along) & (along > least)
        steps, changes = (
            torch.cat([old[:, 1:], new[:, None]], dim=1) for old, new in ((self.steps, step), (self.changes, change))
        )
        if not bool(taken.all()):
            pick = taken[:, None, None]
            steps, changes = torch.where(pick, steps, self.steps), torch.where(pick, changes, self.changes)
        count = (self.count + taken).clamp_max(steps.shape[1])
        return replace(self, steps=steps, changes=changes, count=count), taken

    def scaled(self, factor: Tensor) -> SecantModel:
        """The model of ``factor`` times the function, per item."""
        first, changes = self.first * factor[:, None], self.changes * factor[:, None, None]
        return replace(self, first=first, changes=changes, curvature=self.curvature * factor)

    def restarted(self, where: Tensor, first: Tensor) -> SecantModel:
        """Another first Hessian and no pairs, for the items in ``where``."""
        pick = where[:, None, None]
        return replace(
            self,
            first=torch.where(where[:, None], first, self.first),
            steps=torch.where(pick, 0.0, self.steps),
            changes=torch.where(pick, 0.0, self.changes),
            count=torch.where(where, 0.0, self.count),
        )

    def replaced(self, index: Tensor, first: Tensor, basis: Tensor) -> SecantModel:
        """Another first Hessian and no pairs, for the items in ``index``, which have eigenvectors of their own."""
        assert self.basis is not None, "one basis per item where first Hessians are replaced"
        none = self.steps.new_zeros(len(index), *self.steps.shape[1:])
        return replace(
            self,
            first=self.first.index_copy(0, index, first),
            steps=self.steps.index_copy(0, index, none),
            changes=self.changes.index_copy(0, index, none),
            count=self.count.index_fill(0, index, 0.0),
            basis=self.basis.index_copy(0, index, basis),
        )

    # -- use ---------------------------------------------------------------------------------------------------------

    def pairs(self) -> tuple[Tensor, Tensor]:
        """Steps and changes, without the places that are empty for all items."""
        most = max(1, int(self.count.max()))
        return self.steps[:, -most:], self.changes[:, -most:]

    def newton(self, gradient: Tensor, c: Tensor, first: Tensor) -> Tensor:
        """``-B(c)^-1 gradient``, with the eigenvalues ``first``."""
        steps, changes = self.pairs()
        g = gradient[:, :, None]
        scale = (1 / (first + c[:, None]))[:, None]
        y = torch.addcmul(changes, c[:, None, None], steps)
        scaled_y = scale * y
        products = steps @ y.mT
        curvature = _filled(products.diagonal(dim1=1, dim2=2))
        upper = products.triu(1) + torch.diag_embed(curvature)
        shares = torch.linalg.solve_triangular(upper, steps @ g, upper=True)
        rest = curvature[:, :, None] * shares + y @ (scaled_y.mT @ shares) - scaled_y @ g
        back = torch.linalg.solve_triangular(upper.mT, rest, upper=False)
        away: Tensor = scale.mT * g + steps.mT @ back - scaled_y.mT @ shares
        return -away[:, :, 0]

    def hessian(self, c: Tensor, first: Tensor) -> Callable[[Tensor], Tensor]:
        """The map ``v -> B(c) v``, with the eigenvalues ``first``."""
        steps, changes = self.pairs()
        scale = (first + c[:, None])[:, None]
        y = torch.addcmul(changes, c[:, None, None], steps)
        scaled_s = scale * steps
        products = steps @ y.mT
        curvature = _filled(products.diagonal(dim1=1, dim2=2))[:, :, None]
        lower = products.tril(-1)
        inner = scaled_s @ steps.mT + lower @ (lower.mT / curvature)
        diagonal = inner.diagonal(dim1=1, dim2=2)
        inner = inner + torch.diag_embed(_filled(diagonal) - diagonal)
        factor, failed = torch.linalg.cholesky_ex(inner)
        usable = (failed == 0)[:, None, None]  # where rounding makes it indefinite, the first Hessian is used
        factor = torch.where(usable, factor, torch.eye(inner.shape[1], device=inner.device, dtype=inner.dtype))

        def times(v: Tensor) -> Tensor:
            u = v[:, :, None]
            along_s, along_y = scaled_s @ u, y @ u
            right = along_s + lower @ (along_y / curvature)
            half = torch.linalg.solve_triangular(factor, right, upper=False)
            a = torch.linalg.solve_triangular(factor.mT, half, upper=True)
            b = (lower.mT @ a - along_y) / curvature
            change = scaled_s.mT @ a + y.mT @ b
            return (scale.mT * u - torch.where(usable, change, 0.0))[:, :, 0]

        return times


def _filled(diagonal: Tensor) -> Tensor:
    """One in the empty places."""
    return torch.where(diagonal == 0, 1.0, diagonal)


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
