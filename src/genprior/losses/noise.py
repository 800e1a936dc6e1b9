"""The noise level of measurements: one number, one per item, or one per measurement."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from genprior import _validate


class Misfit(NamedTuple):
    """How far predictions are from the measurements, beside what noise alone makes of the truth. One number per item each."""

    value: Tensor
    """A sum of squares in units of the noise: ``|(A w - y) / sigma|^2`` where that is Gaussian."""
    expected: Tensor
    """Its expectation at the true signal: how many numbers were measured."""

    @property
    def ratio(self) -> Tensor:
        """Value over expectation: about 1 for an answer that fits the noise."""
        return self.value / self.expected


def noise_level(noise: float | Tensor, y: Tensor) -> float | Tensor:
    """A number, or a tensor that broadcasts against ``y`` and has as many axes; its first has length 1, or one entry per item.

    Tensors may have the shape of the measurements of one item, the shape of y, or ``(B, 1, ..., 1)``, one per item.
    """
    if not isinstance(noise, Tensor):
        return _validate.number("noise", noise, above=0)
    _validate.tensor("noise", noise)
    if noise.ndim == 0:
        return _validate.number("noise", float(noise), above=0)
    item, per_item = tuple(y.shape[1:]), (len(y), *(1,) * (y.ndim - 1))
    if tuple(noise.shape) not in {item, tuple(y.shape), per_item}:
        expected = (
            f"a number, {item} (one per measurement), {tuple(y.shape)} (the shape of y) or {per_item} (one per item)"
        )
        raise ValueError(f"noise has shape {tuple(noise.shape)}, expected {expected}: a standard deviation for each")
    if bool((noise <= 0).any()):
        least = float(noise.min())
        raise ValueError(
            f"noise must hold numbers above 0, got {least:g}: what is known exactly has a small sigma, what was not measured "
            "is left out by the operator (operators.Mask)"
        )
    _validate.same_place("noise", noise, y.device, None, "y")
    kept = noise.detach().to(dtype=y.real.dtype if y.is_complex() else y.dtype, copy=True)
    return kept if kept.ndim == y.ndim else kept[None]


def selected(noise: float | Tensor, index: Tensor) -> float | Tensor:
    """The noise level of the items in ``index``."""
    return noise[index] if isinstance(noise, Tensor) and len(noise) > 1 else noise


def ones_of(values: Tensor) -> Tensor:
    """How many entries of each item differ from zero, in the dtype of real numbers."""
    dtype = values.real.dtype if values.is_complex() else values.dtype
    return torch.count_nonzero(values.reshape(len(values), -1), dim=1).to(dtype)
