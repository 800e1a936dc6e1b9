"""Arithmetic per item: everything here treats the first axis as the batch and never mixes its rows.

A *per-item number* is a Python number (the same for all), a tensor of shape ``()``, or a tensor of shape ``(B,)``.
"""

from __future__ import annotations

import math
from typing import overload

import torch
from torch import Tensor

PerItem = float | Tensor

_SAFE = {torch.float32: (1e-15, 1e15), torch.float64: (1e-140, 1e140)}
"""Norms in this range were summed from squares that neither vanished nor overflowed."""


def flat(x: Tensor) -> Tensor:
    """View ``(B, ...)`` as ``(B, n)``; complex tensors as twice as many real numbers."""
    if x.is_complex():
        x = torch.view_as_real(x)
    return x if x.ndim == 2 else x.reshape(x.shape[0], -1)


def pieces(values: Tensor, size: int) -> list[Tensor]:
    """The batch in parts of at most ``size`` items."""
    return [values[start : start + size] for start in range(0, len(values), size)]


def norm(x: Tensor) -> Tensor:
    """Euclidean norm of each item, shape ``(B,)``, wherever it can be represented, even if its square cannot."""
    x = flat(x)
    length: Tensor = torch.linalg.vector_norm(x, dim=1)
    if x.numel() == 0 or _is_safe(length):
        return length
    largest: Tensor = torch.linalg.vector_norm(x.detach(), ord=math.inf, dim=1)
    unit = torch.where((largest > 0) & (largest < math.inf), largest, 1.0)
    scaled: Tensor = torch.linalg.vector_norm(x / unit[:, None], dim=1)
    return unit * scaled


def _is_safe(length: Tensor) -> bool:
    """Whether no square vanished or overflowed on the way. Elsewhere than on the CPU the test costs more than it saves."""
    if not length.is_cpu:
        return False
    low, high = _SAFE.get(length.dtype, (0.0, math.inf))
    least, most = torch.aminmax(length.detach())
    return low < float(least) and float(most) < high


def distances(x: Tensor, y: Tensor) -> Tensor:
    """Euclidean distance of each of ``x`` from each of ``y``, shape ``(len(x), len(y))``.

    By products of matrices, which lose half of the digits where a distance is small beside the norms.
    """
    found: Tensor = torch.cdist(flat(x), flat(y), compute_mode="use_mm_for_euclid_dist")
    return found


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


def binary_unit(size: Tensor) -> Tensor:
    """The power of two next to each size, 1 for zero and what is not finite: dividing by it changes no digit."""
    usable = (size > 0) & (size < math.inf)
    _, exponent = torch.frexp(torch.where(usable, size, 1.0))
    return torch.ldexp(torch.ones_like(size), exponent)


def above_zero(values: Tensor) -> Tensor:
    """``values``, raised to the smallest normal number of their dtype: what may be divided by, whatever the units."""
    return values.clamp_min(torch.finfo(values.dtype).tiny)


def ratio(a: Tensor, b: Tensor) -> Tensor:
    """``a / b`` with ``0 / 0 = 0``: for relative residuals of quantities that are never negative."""
    return torch.where(a == 0, 0.0, a / b)
