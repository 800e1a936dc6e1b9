"""Arithmetic per item: everything here treats the first axis as the batch and never mixes its rows.

A *per-item number* is a Python number (the same for all), a tensor of shape ``()``, or a tensor of shape ``(B,)``.
"""

from __future__ import annotations

from typing import overload

import torch
from torch import Tensor

PerItem = float | Tensor

_TINY = 1e-30


def flat(x: Tensor) -> Tensor:
    """View ``(B, ...)`` as ``(B, n)``; complex tensors as twice as many real numbers."""
    if x.is_complex():
        x = torch.view_as_real(x)
    return x if x.ndim == 2 else x.reshape(x.shape[0], -1)


def pieces(values: Tensor, size: int) -> list[Tensor]:
    """The batch in parts of at most ``size`` items."""
    return [values[start : start + size] for start in range(0, len(values), size)]


def norm(x: Tensor) -> Tensor:
    """Euclidean norm of each item, shape ``(B,)``."""
    length: Tensor = torch.linalg.vector_norm(flat(x), dim=1)
    return length


def square(x: Tensor) -> Tensor:
    """Squared Euclidean norm of each item, shape ``(B,)``."""
    return dot(x, x)


def dot(x: Tensor, y: Tensor) -> Tensor:
    """Real inner product of each item with its partner, shape ``(B,)``."""
    product: Tensor = torch.linalg.vecdot(flat(x), flat(y))
    return product


@overload
def spread(value: Tensor, like: Tensor) -> Tensor: ...
@overload
def spread(value: PerItem, like: Tensor) -> PerItem: ...
def spread(value: PerItem, like: Tensor) -> PerItem:
    """Shape a per-item number so that it multiplies ``like`` item by item; other tensors pass unchanged."""
    if isinstance(value, Tensor) and value.ndim == 1 and like.ndim > 1:
        return value.reshape(-1, *(1,) * (like.ndim - 1))
    return value


def column(value: PerItem, like: Tensor) -> Tensor:
    """Give a per-item number as a tensor of shape ``(B,)`` with the dtype and device of ``like``."""
    dtype = like.real.dtype if like.is_complex() else like.dtype
    return torch.as_tensor(value, dtype=dtype, device=like.device).expand(like.shape[0])


def ratio(a: Tensor, b: Tensor) -> Tensor:
    """``a / b`` with ``0 / 0 = 0``: for relative residuals of quantities that are never negative."""
    return a / b.clamp_min(_TINY)
