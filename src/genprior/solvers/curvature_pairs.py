"""The memory of L-BFGS, one for each item."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from genprior import _batch


@dataclass(frozen=True)
class CurvaturePairs:
    """Steps ``s``, gradient changes ``y`` and ``1/<s, y>`` (0 in an empty place), newest first, per item."""

    s: Tensor
    y: Tensor
    inverse: Tensor

    @classmethod
    def none(cls, like: Tensor, memory: int) -> CurvaturePairs:
        """No pair yet."""
        zeros = like.new_zeros(like.shape[0], memory, like.shape[1])
        return cls(zeros, zeros, zeros[:, :, 0])

    @property
    def empty(self) -> Tensor:
        """Where there is no pair, per item."""
        return self.inverse[:, 0] == 0

    def scale(self, first: Tensor | float) -> Tensor:
        """``<s, y>/<y, y>`` of the newest pair, the first guess of the inverse Hessian; ``first`` where there is none."""
        s, y = self.s[:, 0], self.y[:, 0]
        along, across = _batch.norm(s), _batch.norm(y)  # in units of their own: squares of gradients may underflow
        cosine = _batch.dot(s / _batch.above_zero(along)[:, None], y / _batch.above_zero(across)[:, None])
        return torch.where(self.empty, first, cosine * _batch.ratio(along, across))

    def extended(self, where: Tensor, s: Tensor, y: Tensor, size: Tensor) -> CurvaturePairs:
        """Add the pair for the items in ``where``, if its curvature is positive; ``size`` is that of the point itself."""
        curvature = _batch.dot(s, y)
        long = _batch.norm(s) > torch.finfo(s.dtype).eps ** 0.75 * size  # shorter ones are rounding
        where = where & long & (curvature > 1e-10 * _batch.norm(s) * _batch.norm(y))
        pick = where[:, None, None]
        return CurvaturePairs(
            torch.where(pick, torch.cat([s[:, None], self.s[:, :-1]], dim=1), self.s),
            torch.where(pick, torch.cat([y[:, None], self.y[:, :-1]], dim=1), self.y),
            torch.where(pick[:, :, 0], torch.cat([1 / curvature[:, None], self.inverse[:, :-1]], dim=1), self.inverse),
        )

    def cleared(self, where: Tensor) -> CurvaturePairs:
        """Forget everything for the items in ``where``."""
        return CurvaturePairs(self.s, self.y, torch.where(where[:, None], 0.0, self.inverse))

    def direction(self, gradient: Tensor, first: Tensor | float = 1.0) -> Tensor:
        """The two-loop recursion: minus the inverse Hessian times the gradient; minus ``first`` times it if that ascends.

        Nocedal and Wright, Numerical Optimization, algorithm 7.4.
        """
        q, shares = gradient, []
        for i in range(self.s.shape[1]):
            share = self.inverse[:, i] * _batch.dot(self.s[:, i], q)
            q = q - share[:, None] * self.y[:, i]
            shares.append(share)
        q = self.scale(first)[:, None] * q
        for i in reversed(range(self.s.shape[1])):
            back = self.inverse[:, i] * _batch.dot(self.y[:, i], q)
            q = q + (shares[i] - back)[:, None] * self.s[:, i]
        plain = _batch.spread(first, gradient) * gradient
        return torch.where((_batch.dot(q, gradient) > 0)[:, None], -q, -plain)
