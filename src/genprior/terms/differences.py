"""Differences along the axes of space or time, and what belongs to them."""

from __future__ import annotations

import torch
from torch import Tensor

from genprior._axes import axes_of
from genprior._batch import above_zero, spread


def differences(x: Tensor, dims: int) -> Tensor:
    """``Dx``, shape ``(B, dims, *shape)``: forward differences along each axis, 0 at the far border."""
    slope = x.new_empty(x.shape[0], dims, *x.shape[1:])
    for k, axis in enumerate(axes_of(dims)):
        along, n = slope[:, k], x.shape[axis]
        torch.sub(x.narrow(axis, 1, n - 1), x.narrow(axis, 0, n - 1), out=along.narrow(axis, 0, n - 1))
        along.narrow(axis, n - 1, 1).zero_()
    return slope


def minus_adjoint(v: Tensor, q: Tensor) -> Tensor:
    """``v - D'q`` for a field q that is 0 at the far border."""
    x = v
    for along in q.unbind(1):
        x = torch.add(x, along) if x is v else x.add_(along)
    for axis, along in zip(axes_of(q.shape[1]), q.unbind(1), strict=True):
        n = x.shape[axis]
        x.narrow(axis, 1, n - 1).sub_(along.narrow(axis, 0, n - 1))
    return x


def lengths(q: Tensor) -> Tensor:
    """Length of the vector at each pixel, shape ``(B, 1, *shape)``."""
    if q.shape[1] == 1:
        return q.abs()
    squares = q[:, :1].square()
    for k in range(1, q.shape[1]):
        squares = torch.addcmul(squares, q[:, k : k + 1], q[:, k : k + 1])
    return squares.sqrt_()


def clip_lengths(q: Tensor, t: Tensor) -> Tensor:
    """Shorten, in place, the vector at each pixel to at most t."""
    radius = spread(t, q)
    return q.mul_((radius / above_zero(lengths(q))).clamp_(max=1))
