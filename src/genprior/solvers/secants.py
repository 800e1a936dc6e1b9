"""The quadratic model of quasi-Newton steps: a first Hessian, known by its modes, and what steps have taught since."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from genprior import _batch

_DOUBT = 5
"""Pairs after which the first Hessian takes half of the scale that they measured, on a logarithmic scale."""
_LEAST_SCALE = 0.25
_CLEAR = 10
"""Least cosine between a step and its bend, in units of rounding."""


@dataclass(frozen=True)
class SecantModel:
    """``B(c)``, per item: BFGS updates of ``t first + c I`` by the pairs ``(s, y + c s)``, for any c >= 0.

    A part ``c/2 |z|^2`` of the function is thus modelled exactly, also when c changes from one iteration to the next: what was
    learnt about the rest stays as it is. All tensors but the basis are in the coordinates of the first Hessian's eigenvectors,
    where it is diagonal.

    The scale t of the first Hessian is 1 before the first pair and then follows what the pairs measured: it is the product of
    their ``<s, y> / <s, first s>`` to the power ``1/(n + 5)`` for n pairs, within 0.25 and 1. An average over a generator's
    law exceeds the curvature at most places, and along most directions that steps take.

    References
    ----------
    Byrd, Nocedal and Schnabel, Representations of quasi-Newton matrices and their use in limited memory methods, 1994.
    """

    first: Tensor
    """Eigenvalues of the first Hessian, ``(B, s)``."""
    basis: Tensor
    """Its eigenvectors in columns, ``(B, s, s)``; or ``(B, 0, 0)``: those that the items share, given with each call."""
    steps: Tensor
    """``(B, memory, s)``, oldest first; empty places are zero and come before all others."""
    bends: Tensor
    """Change of the gradient over each step. A pair is stored per unit of the step's length."""
    count: Tensor
    """Pairs that are stored, ``(B,)``; only the places that some item has filled are computed with."""

    @classmethod
    def fresh(cls, first: Tensor, shared: Tensor, memory: int, *, own_bases: bool) -> SecantModel:
        """No pair yet; ``own_bases`` makes room for an eigenbasis per item."""
        items, size = first.shape
        basis = shared.expand(items, size, size) if own_bases else shared.new_zeros(items, 0, 0)
        none = first.new_zeros(items, memory, size)
        return cls(first, basis, none, none, first.new_zeros(items))

    # -- learning ----------------------------------------------------------------------------------------------------

    def learned(self, where: Tensor, step: Tensor, bend: Tensor, shared: Tensor) -> tuple[SecantModel, Tensor]:
        """Add a pair, for the items in ``where``, and tell for which it was; the oldest makes room for it.

        A pair whose ``<step, bend>``, as stored, is not finite or not above rounding would spoil the model: it is left out.
        """
        length = _batch.norm(step).clamp_min(torch.finfo(step.dtype).tiny)[:, None]
        s, y = (self._inwards(v / length, shared) for v in (step, bend))
        along = _batch.dot(s, y)
        least = _CLEAR * torch.finfo(along.dtype).eps * _batch.norm(s) * _batch.norm(y)
        taught = where & torch.isfinite(along) & (along > least)
        steps, bends = (torch.cat([old[:, 1:], new[:, None]], dim=1) for old, new in ((self.steps, s), (self.bends, y)))
        if not bool(taught.all()):
            pick = taught[:, None, None]
            steps, bends = torch.where(pick, steps, self.steps), torch.where(pick, bends, self.bends)
        count = (self.count + taught).clamp_max(steps.shape[1])
        return replace(self, steps=steps, bends=bends, count=count), taught

    def scaled(self, factor: Tensor) -> SecantModel:
        """The model of ``factor`` times the function, per item."""
        return replace(self, first=self.first * factor[:, None], bends=self.bends * factor[:, None, None])

    def begun_anew(self, where: Tensor, first: Tensor, shared: Tensor) -> SecantModel:
        """Back to a first Hessian in the shared basis and no pairs, for the items in ``where``."""
        pick = where[:, None, None]
        return SecantModel(
            torch.where(where[:, None], first, self.first),
            torch.where(pick, shared, self.basis) if self.basis.shape[1] else self.basis,
            torch.where(pick, 0.0, self.steps),
            torch.where(pick, 0.0, self.bends),
            torch.where(where, 0.0, self.count),
        )

    def replaced(self, index: Tensor, matrices: Tensor, floor: float) -> SecantModel:
        """Other first Hessians, without pairs, for the items in ``index``.

        One that is not finite, or so small that it has underflowed, leaves its item alone. Eigenvalues are raised by ``floor``
        times the largest one. Needs bases per item.
        """
        precision = torch.finfo(matrices.dtype)
        clear = matrices.diagonal(dim1=1, dim2=2).amax(dim=1) > precision.tiny / precision.eps
        whole = clear & torch.isfinite(matrices).flatten(1).all(dim=1)
        index, matrices = index[whole], matrices[whole]
        values, vectors = torch.linalg.eigh(matrices.cpu().double())  # small, and not every device has float64
        values = (values.clamp_min(0) + floor * values[:, -1:]).clamp_min(torch.finfo(matrices.dtype).tiny)
        none = self.steps.new_zeros(len(index), *self.steps.shape[1:])
        return SecantModel(
            self.first.index_copy(0, index, values.to(self.first)),
            self.basis.index_copy(0, index, vectors.to(self.basis)),
            self.steps.index_copy(0, index, none),
            self.bends.index_copy(0, index, none),
            self.count.index_fill(0, index, 0.0),
        )

    # -- use ---------------------------------------------------------------------------------------------------------

    def newton(self, gradient: Tensor, c: Tensor, shared: Tensor) -> Tensor:
        """``-B(c)^-1 gradient``."""
        steps, bends = self._pairs()
        g = self._inwards(gradient, shared)[:, :, None]
        scale = (1 / (self._scaled_first(steps, bends) + c[:, None]))[:, None]
        y = torch.addcmul(bends, c[:, None, None], steps)
        scaled_y = scale * y
        products = steps @ y.mT
        curvature = _filled(products.diagonal(dim1=1, dim2=2))
        upper = products.triu(1) + torch.diag_embed(curvature)
        shares = torch.linalg.solve_triangular(upper, steps @ g, upper=True)
        rest = curvature[:, :, None] * shares + y @ (scaled_y.mT @ shares) - scaled_y @ g
        back = torch.linalg.solve_triangular(upper.mT, rest, upper=False)
        away = scale.mT * g + steps.mT @ back - scaled_y.mT @ shares
        return -self._outwards(away[:, :, 0], shared)

    def plain(self, gradient: Tensor, c: Tensor, shared: Tensor) -> Tensor:
        """``-(t first + c I)^-1 gradient``: a descent direction whatever the pairs are."""
        first = self._scaled_first(*self._pairs())
        return -self._outwards(self._inwards(gradient, shared) / (first + c[:, None]), shared)

    def hessian(self, c: Tensor, shared: Tensor) -> Callable[[Tensor], Tensor]:
        """The map ``v -> B(c) v``."""
        steps, bends = self._pairs()
        scale = (self._scaled_first(steps, bends) + c[:, None])[:, None]
        y = torch.addcmul(bends, c[:, None, None], steps)
        scaled_s = scale * steps
        products = steps @ y.mT
        curvature = _filled(products.diagonal(dim1=1, dim2=2))[:, :, None]
        lower = products.tril(-1)
        inner = scaled_s @ steps.mT + lower @ (lower.mT / curvature)
        diagonal = inner.diagonal(dim1=1, dim2=2)
        inner = inner + torch.diag_embed(_filled(diagonal) - diagonal)
        factor, failed = torch.linalg.cholesky_ex(inner)
        taught = (failed == 0)[:, None, None]  # where rounding spoils that, the first Hessian serves
        factor = torch.where(taught, factor, torch.eye(inner.shape[1], device=inner.device, dtype=inner.dtype))

        def times(v: Tensor) -> Tensor:
            u = self._inwards(v, shared)[:, :, None]
            along_s, along_y = scaled_s @ u, y @ u
            right = along_s + lower @ (along_y / curvature)
            half = torch.linalg.solve_triangular(factor, right, upper=False)
            a = torch.linalg.solve_triangular(factor.mT, half, upper=True)
            b = (lower.mT @ a - along_y) / curvature
            change = scaled_s.mT @ a + y.mT @ b
            return self._outwards((scale.mT * u - torch.where(taught, change, 0.0))[:, :, 0], shared)

        return times

    def _pairs(self) -> tuple[Tensor, Tensor]:
        """Steps and bends, without the places that are empty for all items."""
        most = max(1, int(self.count.max()))
        return self.steps[:, -most:], self.bends[:, -most:]

    def _scaled_first(self, steps: Tensor, bends: Tensor) -> Tensor:
        """``t first``."""
        measured, predicted = torch.linalg.vecdot(steps, bends), steps.square() @ self.first[:, :, None]
        held = predicted[:, :, 0] > 0
        factor = torch.where(held, measured / torch.where(held, predicted[:, :, 0], 1.0), 1.0)
        total = factor.clamp_min(torch.finfo(factor.dtype).tiny).log().sum(dim=1)
        scale = (total / (held.sum(dim=1) + _DOUBT)).exp().clamp(_LEAST_SCALE, 1.0)
        return scale[:, None] * self.first

    def _inwards(self, v: Tensor, shared: Tensor) -> Tensor:
        """Into the coordinates of the basis."""
        return (v[:, None] @ self.basis)[:, 0] if self.basis.shape[1] else v @ shared

    def _outwards(self, v: Tensor, shared: Tensor) -> Tensor:
        return (v[:, None] @ self.basis.mT)[:, 0] if self.basis.shape[1] else v @ shared.mT


def _filled(diagonal: Tensor) -> Tensor:
    """One in the empty places."""
    return torch.where(diagonal == 0, 1.0, diagonal)
