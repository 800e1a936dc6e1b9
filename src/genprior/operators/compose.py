"""One operator after another."""

from __future__ import annotations

import torch
from torch import Tensor

from genprior.operators.base import Operator


class Composition(Operator):
    """``A B``: first ``inner`` = B, then ``outer`` = A, with ``(A B)^T = B^T A^T``. The resolvent is by CG."""

    def __init__(self, outer: Operator, inner: Operator) -> None:
        _check_parts(outer, inner)
        self.outer, self.inner = outer, inner
        self.signal_shape = inner.signal_shape
        self.measurement_shape = outer.measurement_shape
        self.complex_measurements = outer.complex_measurements
        self.batch = outer.batch if inner.batch is None else inner.batch
        self.device = inner.device or outer.device
        self.dtype = inner.dtype or outer.dtype

    def rows(self, index: Tensor) -> Operator:
        """Give the composition of both parts for the items in ``index``; itself when all items share them."""
        picked = super().rows(index)
        if isinstance(picked, Composition) and picked is not self:
            picked.outer, picked.inner = self.outer.rows(index), self.inner.rows(index)
        return picked

    def to(self, device: torch.device | str | torch.dtype | None = None, dtype: torch.dtype | None = None) -> Operator:
        """Give the composition of both parts on another device or in another dtype; itself when nothing changes."""
        moved = super().to(device, dtype)
        if isinstance(moved, Composition) and moved is not self:
            moved.outer, moved.inner = self.outer.to(device, dtype), self.inner.to(device, dtype)
        return moved

    def bound(self, signal_shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Operator:
        """The composition with the shapes of its inner part found out."""
        inner = self.inner.bound(signal_shape, device, dtype)
        between = inner.measurement_shape
        outer = self.outer if between is None else self.outer.bound(between, device, dtype)
        return self if inner is self.inner and outer is self.outer else Composition(outer, inner)

    def measured(self, y: Tensor) -> Tensor:
        """As the outer operator says."""
        return self.outer.measured(y)

    def _forward(self, x: Tensor) -> Tensor:
        return self.outer(self.inner(x))

    def _adjoint(self, y: Tensor) -> Tensor:
        return self.inner.adjoint(self.outer.adjoint(y))

    def __repr__(self) -> str:
        return f"{self.outer!r} @ {self.inner!r}"


def _check_parts(outer: Operator, inner: Operator) -> None:
    between = inner.measurement_shape, outer.signal_shape
    if None not in between and between[0] != between[1]:
        raise ValueError(f"{outer!r} takes {between[1]}, but {inner!r} before it gives {between[0]}: shapes must agree")
    if inner.complex_measurements:
        raise TypeError(f"{inner!r} gives complex numbers, but {outer!r} after it takes real signals")
    if None not in (outer.batch, inner.batch) and outer.batch != inner.batch:
        raise ValueError(f"{outer!r} and {inner!r} are made for different numbers of items")
    for what in ("device", "dtype"):
        first, second = getattr(inner, what), getattr(outer, what)
        if None not in (first, second) and first != second:
            raise ValueError(f"{outer!r} has {what} {second}, but {inner!r} has {first}: use .to({what}=...)")
