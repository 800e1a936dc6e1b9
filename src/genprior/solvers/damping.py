"""The linear model of Levenberg-Marquardt methods: a Jacobian kept over several steps, its Gram matrix, the damping."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from genprior import _batch
from genprior.solvers.latent_model import proximal_direction, solve_spd
from genprior.terms import Term

_FIRST_DAMPING = 1e-3
_POOR = 0.1
_MOST_POOR = 3
_MOST_GROWTH = 64.0
_MOST_DAMPING = 1e8
"""In units of the largest squared column."""


@dataclass(frozen=True)
class Model:
    """``e(z + d) ~ e + M d`` per item, and how far it is trusted."""

    jacobian: Tensor
    """``M``, ``(B, m, s)``."""
    gram: Tensor
    """``M^T M``."""
    damping: Tensor
    growth: Tensor
    """Factor by which the next rejection raises the damping."""
    age: Tensor
    """Steps since M was computed; infinite where it never was."""
    poor: Tensor
    """Steps in a row that gained less than a tenth of what was predicted."""

    @classmethod
    def unknown(cls, residual: Tensor, size: int) -> Model:
        """Nothing is known yet."""
        count = residual.shape[0]
        zero = residual.new_zeros(count)
        return cls(
            residual.new_zeros(count, residual.shape[1], size),
            residual.new_zeros(count, size, size),
            zero,
            zero + 2,
            zero + torch.inf,
            zero,
        )

    def due(self, refresh: int) -> Tensor:
        """Where a new Jacobian is needed: too old, or poor three times in a row although it is not new."""
        return (self.age >= refresh) | ((self.poor >= _MOST_POOR) & (self.age > 0))

    def refreshed(self, index: Tensor, jacobian: Tensor) -> Model:
        """With the exact Jacobian for the items at ``index``; the damping is kept, or a first one is set."""
        gram = jacobian.mT @ jacobian
        largest = _batch.above_zero(gram.diagonal(dim1=1, dim2=2).amax(dim=1))
        old = self.damping[index]
        damping = torch.where(old > 0, old, _FIRST_DAMPING * largest)
        zero = torch.zeros_like(old)
        return Model(
            self.jacobian.index_copy(0, index, jacobian),
            self.gram.index_copy(0, index, gram),
            self.damping.index_copy(0, index, damping),
            self.growth,
            self.age.index_copy(0, index, zero),
            self.poor.index_copy(0, index, zero),
        )

    def aligned(self, index: Tensor, e: Tensor, gradient: Tensor) -> Model:
        """With ``M^T e`` equal to ``gradient`` for the items at ``index``, where whole Jacobians are too dear.

        The least change that does it has rank one: ``M += e (g - M^T e)^T / |e|^2``, Broyden's update of the adjoint
        (Schlenkrich, Griewank and Walther 2010). From nothing it leads to a gradient step; the ordinary updates add the rest.
        """
        old = self.jacobian[index]
        missing = gradient - torch.bmm(e[:, None, :], old)[:, 0]
        size = _batch.above_zero(_batch.norm(e))[:, None]
        jacobian = torch.baddbmm(old, (e / size)[:, :, None], (missing / size)[:, None, :])
        return self.refreshed(index, torch.where(torch.isfinite(jacobian), jacobian, old))

    def jvp(self, d: Tensor) -> Tensor:
        """``M d``."""
        return torch.bmm(self.jacobian, d[:, :, None])[:, :, 0]

    def vjp(self, e: Tensor) -> Tensor:
        """``M^T e``."""
        return torch.bmm(e[:, None, :], self.jacobian)[:, 0]

    def direction(self, gradient: Tensor, z: Tensor, term: Term, shape: torch.Size) -> Tensor:
        """Minimise ``<g, d> + 1/2 <d, (M^T M + damping) d> + H(z + d)``."""
        weight, centre = term.as_quadratic() or (0.0, 0.0)
        own = _batch.spread(weight, z) * (z - (_batch.flat(centre) if isinstance(centre, Tensor) else centre))
        add = self.damping + _batch.column(weight, self.damping)
        matrix = self.gram + torch.diag_embed(add[:, None].expand_as(z))
        plain = -solve_spd(matrix, gradient + own)
        if term.as_quadratic() is not None:
            return plain
        return proximal_direction(matrix, gradient, z, plain, term, shape)

    def judged(self, gain: Tensor, accepted: Tensor, visible: Tensor) -> Model:
        """The damping after a step that gained ``gain`` times what was predicted (Nielsen's rule).

        Where what was predicted is not ``visible`` beside rounding, nothing is learned about it.
        """
        calmer = self.damping * (1 - (2 * gain.clamp(-1, 2) - 1) ** 3).clamp(1 / 3, 2)
        most = _MOST_DAMPING * self.gram.diagonal(dim1=1, dim2=2).amax(dim=1)
        stiffer = torch.minimum(self.damping * self.growth, torch.maximum(most, self.damping))
        succeeded, failed = accepted & visible, ~accepted & visible
        return Model(
            self.jacobian,
            self.gram,
            torch.where(succeeded, calmer, torch.where(failed, stiffer, self.damping)),
            torch.where(succeeded, 2.0, torch.where(failed, 2 * self.growth, self.growth)).clamp_max(_MOST_GROWTH),
            self.age + 1,
            torch.where(visible & ~(accepted & (gain > _POOR)), self.poor + 1, 0.0),
        )

    def updated(self, d: Tensor, change: Tensor, size: Tensor) -> Model:
        """Broyden's rank-one update: afterwards ``M d`` equals the change that was measured along d.

        ``size`` is that of the vectors whose difference the change is: nothing is learned from changes that are hardly larger
        than its rounding.
        """
        length = _batch.above_zero(_batch.norm(d))[:, None]
        u, d = (change - self.jvp(d)) / length, d / length
        visible = _batch.norm(change) > torch.finfo(d.dtype).eps ** 0.5 * size
        usable = (visible & torch.isfinite(u).all(dim=1) & torch.isfinite(d).all(dim=1))[:, None]
        u, d = torch.where(usable, u, 0.0), torch.where(usable, d, 0.0)
        cross = self.vjp(u)[:, :, None] * d[:, None, :]
        square = _batch.square(u)[:, None, None] * d[:, :, None] * d[:, None, :]
        return Model(
            torch.baddbmm(self.jacobian, u[:, :, None], d[:, None, :]),
            self.gram + cross + cross.mT + square,
            self.damping,
            self.growth,
            self.age,
            self.poor,
        )
