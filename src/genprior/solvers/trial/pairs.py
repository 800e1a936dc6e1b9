"""The secant model of a Hessian: a first one, given by its eigenvalues, and BFGS updates by later steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from genprior import _batch

_CLEAR = 10
"""Least cosine between a step and the gradient's change over it, in units of rounding: below, its sign is random."""


@dataclass(frozen=True)
class SecantModel:
    """``B(c)``, per item: BFGS updates of ``diag(first) + c I`` by the pairs ``(s, y + c s)``, for any c >= 0.

    A part ``c/2 |z|^2`` of the function is thus modelled exactly, also when c changes from one iteration to the next: the
    pairs stay as they are. All vectors are in coordinates in which the first Hessian is diagonal; the caller chooses them,
    and gives the diagonal, scaled, with each call.

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

    @classmethod
    def fresh(cls, first: Tensor, memory: int, size: int) -> SecantModel:
        """No pair yet, for latents of dimension ``size``."""
        none = first.new_zeros(len(first), memory, size)
        return cls(first, none, none, first.new_zeros(len(first)))

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
        return replace(self, first=self.first * factor[:, None], changes=self.changes * factor[:, None, None])

    def restarted(self, where: Tensor, first: Tensor) -> SecantModel:
        """Another first Hessian and no pairs, for the items in ``where``."""
        pick = where[:, None, None]
        return SecantModel(
            torch.where(where[:, None], first, self.first),
            torch.where(pick, 0.0, self.steps),
            torch.where(pick, 0.0, self.changes),
            torch.where(where, 0.0, self.count),
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
