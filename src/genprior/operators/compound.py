"""What operators made of other operators have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from genprior.operators.base import Operator
from genprior.operators.dense import Dense


class Compound(Operator):
    """An operator made of others, its ``parts``: they are selected, moved and bound together.

    Where conjugate gradients are needed, they use the settings of those parts that need them too: the smallest
    ``tolerance``, the largest ``max_iterations``.
    """

    _twin: Operator | None = None
    """One matrix in place of the parts, once it has been asked for."""

    def __init__(self, parts: Sequence[Operator]) -> None:
        check_agreement(parts)
        self.parts = tuple(parts)
        self.batch = next((part.batch for part in parts if part.batch is not None), None)
        self.device = next((part.device for part in parts if part.device is not None), None)
        self.dtype = next((part.dtype for part in parts if part.dtype is not None), None)
        iterative = [part for part in parts if not part.closed_form]
        if iterative:
            self.tolerance = min(part.tolerance for part in iterative)
            self.max_iterations = max(part.max_iterations for part in iterative)

    def rows(self, index: Tensor) -> Operator:
        """Give the operator of the parts for the items in ``index``; itself when all items share them."""
        picked = super().rows(index)
        if isinstance(picked, Compound) and picked is not self:
            picked._refill([part.rows(index) for part in self.parts])
            picked._twin = None if self._twin is None else self._twin.rows(index)
        return picked

    def to(self, device: torch.device | str | torch.dtype | None = None, dtype: torch.dtype | None = None) -> Operator:
        """Give the operator of the parts on another device or in another dtype; itself when nothing changes."""
        moved = super().to(device, dtype)
        if isinstance(moved, Compound) and moved is not self:
            moved._refill([part.to(device, dtype) for part in self.parts])
            moved._twin = None if self._twin is None else self._twin.to(device, dtype)
        return moved

    def bound(self, signal_shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Operator:
        """The operator of the parts with their shapes found out; itself when they were known."""
        bound = [part.bound(signal_shape, device, dtype) for part in self.parts]
        unchanged = all(new is old for new, old in zip(bound, self.parts, strict=True))
        return self if unchanged else self._of(bound)

    @abstractmethod
    def _of(self, parts: Sequence[Operator]) -> Self:
        """The same expression of other parts."""

    def _refill(self, parts: Sequence[Operator]) -> None:
        """Put other parts into a fresh copy, and derive from them what follows."""
        self.parts = tuple(parts)

    def _bounds_of(self, part: Operator) -> tuple[Tensor, Tensor]:
        """The part's `gram_bounds`, from which those of the whole follow; what is rough there is rough here."""
        bounds = part.gram_bounds()
        self._hurried = self._hurried or part._hurried
        return bounds

    def _as_dense(self) -> Operator | None:
        """One matrix in place of the parts, where all of them hold matrices."""
        if self._twin is None and self.has_matrix:
            self._twin = Dense(self.dense(), self.signal_shape)
        return self._twin


def check_agreement(parts: Sequence[Operator]) -> None:
    """Refuse parts that differ in device, dtype or number of items."""
    for what in ("batch", "device", "dtype"):
        known = [part for part in parts if getattr(part, what) is not None]
        for part in known[1:]:
            first, second = getattr(known[0], what), getattr(part, what)
            if first != second and what == "batch":
                raise ValueError(
                    f"{known[0]!r} and {part!r} are made for different numbers of items, {first} and {second}: they must agree"
                )
            if first != second:
                raise ValueError(f"{known[0]!r} has {what} {first}, but {part!r} has {second}: use .to({what}=...)")


def joint_shape(parts: Sequence[Operator], what: str, sign: str) -> tuple[int, ...] | None:
    """The signal or measurement shape that all parts have in common; None while no part knows it."""
    known = [part for part in parts if getattr(part, what) is not None]
    for part in known[1:]:
        first, second = getattr(known[0], what), getattr(part, what)
        if first != second:
            name = what.replace("_", " ")
            raise ValueError(
                f"{known[0]!r} {sign} {part!r}: the {name}s differ, {first} and {second}, but must agree"
                + (": operators.Stack takes several types of measurement" if what == "measurement_shape" else "")
            )
    shape: tuple[int, ...] | None = getattr(known[0], what) if known else None
    return shape


def joint_complex(parts: Sequence[Operator]) -> bool | None:
    """Whether measurements of all parts together are complex; None when not known."""
    found = [part.complex_measurements for part in parts]
    return True if any(found) else None if None in found else False


def total(tensors: Sequence[Tensor]) -> Tensor:
    """Their sum, from left to right."""
    result, *others = tensors
    for other in others:
        result = result + other
    return result


def adjoint_of(part: Operator, y: Tensor) -> Tensor:
    """``part^T y``, where a part with real measurements sees the real numbers of ``y``."""
    return part._adjoint(y.real if y.is_complex() and part.complex_measurements is False else y)


def bracketed(part: Operator) -> str:
    """The part as it stands in a product."""
    return f"({part!r})" if part.is_expression else f"{part!r}"
