"""Measurements with weights: ``diag(c) A``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor

from genprior import _validate
from genprior._batch import PerItem
from genprior.operators.base import Operator, RowForm
from genprior.operators.compound import Compound, bracketed
from genprior.operators.diagonal import Identity, Mask


class Weighted(Compound):
    """``diag(weights) A`` with a weight above 0 for each measurement, such as one over its noise.

    Where the rows of A are orthogonal as they are, so are the weighted ones; a matrix is multiplied out. Others have their
    resolvent by CG.

    Parameters
    ----------
    weights
        of the shape of the measurements of one item, or ``(B, *measurement_shape)`` with those of each item.
    operator
        A.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> A = gp.operators.Weighted(torch.tensor([1.0, 2.0]), gp.operators.Downsample(2, (4,)))
    >>> A(torch.ones(1, 4))
    tensor([[1., 2.]])
    """

    is_expression = True

    def __init__(self, weights: Tensor, operator: Operator) -> None:
        super().__init__((operator,))
        self.signal_shape, self.measurement_shape = operator.signal_shape, operator.measurement_shape
        self.complex_measurements = operator.complex_measurements
        self._weights = _leading(weights, operator)
        self._per_item = len(self._weights) > 1  # of the whole: a selected item keeps its methods
        if self._per_item:
            self.batch = len(self._weights)
        self.device, self.dtype = self._weights.device, self._weights.dtype

    @property
    def operator(self) -> Operator:
        """What is weighted."""
        return self.parts[0]

    @property
    def has_matrix(self) -> bool:
        """As for A, but for one matrix per item made of a single one."""
        return self.operator.has_matrix and not self._per_item

    @property
    def closed_form(self) -> bool:
        """For matrices, and rows that are orthogonal as they are."""
        return self.row_form() is not None or self.has_matrix

    @property
    def resolvent_method(self) -> str:
        """How `resolvent` is computed, in words."""
        if self.has_matrix:
            return self._matrix().resolvent_method
        return "orthogonal rows" if self.row_form() is not None else super().resolvent_method

    def dense(self) -> Tensor:
        """The matrix of A, its rows multiplied."""
        matrix = self.operator.dense()
        rows = self._weights.reshape(len(self._weights), -1, 1)
        return matrix * (rows[0] if matrix.ndim == 2 and len(rows) == 1 else rows)

    def row_form(self) -> RowForm | None:
        """That of A with ``gram`` times the squares, or that of the matrix."""
        if self.has_matrix:
            return self._matrix().row_form()
        form = self.operator.row_form()
        if form is None or not form.is_plain:
            return None
        return RowForm(self._forward, self._adjoint, form.gram * self._weights.square(), form.rotate, form.unrotate)

    def measured(self, y: Tensor) -> Tensor:
        """As A says."""
        return self.operator.measured(y)

    def _of(self, parts: Sequence[Operator]) -> Self:
        return type(self)(self._weights, *parts)

    def _map_tensors(self, change: Callable[[Tensor], Tensor]) -> None:
        self._weights = change(self._weights)

    def _forward(self, x: Tensor) -> Tensor:
        return self._weights * self.operator._forward(x)

    def _adjoint(self, y: Tensor) -> Tensor:
        return self.operator._adjoint(self._weights * y)

    def _resolvent(self, v: Tensor, rho: PerItem, start: Tensor | None) -> Tensor:
        if self.has_matrix:
            return self._matrix()._resolvent(v, rho, start)
        form = self.row_form()
        if form is None:
            return super()._resolvent(v, rho, start)
        axes = len(self.measurement_shape or ())
        inner = rho.reshape(-1, *(1,) * axes) if isinstance(rho, Tensor) else rho
        return (v - form.adjoint(form.forward(v) / (form.gram + inner))) / rho

    def _gram_bounds(self) -> tuple[Tensor, Tensor]:
        if self.has_matrix:
            return self._matrix().gram_bounds()
        form = self.row_form()
        if form is None:
            return super()._gram_bounds()
        m, d = self._sizes("gram_bounds()")
        gram = torch.as_tensor(form.gram).expand(self.batch or 1, *(self.measurement_shape or ()))
        values = gram.reshape(self.batch or 1, -1)
        low, high = (values.amin(1) if m == d else torch.zeros_like(values[:, 0])), values.amax(1)
        return (low, high) if self.batch else (low[0], high[0])

    def _matrix(self) -> Operator:
        twin = self._as_dense()
        assert twin is not None, "asked for where the parts hold a matrix"
        return twin

    def __repr__(self) -> str:
        return f"Weighted(tensor{tuple(self._weights.shape)}, {bracketed(self.operator)})"


def weighted(weights: PerItem, operator: Operator) -> Operator:
    """``diag(weights) A`` in the simplest form: a multiple of A, a mask, or :class:`Weighted`.

    ``weights`` is a number, or a tensor that broadcasts against measurements: its first axis has length 1, or the batch's.
    """
    if not isinstance(weights, Tensor):
        return operator * weights
    if len(weights) == weights.numel() and operator.measurement_shape is not None:
        return operator * (weights.reshape(-1) if len(weights) > 1 else float(weights))
    if type(operator) in {Identity, Mask}:
        given = operator._weights if isinstance(operator, Mask) else torch.ones_like(weights)
        both = given * weights
        per_item = operator.batch is not None or len(weights) > 1
        return Mask(both if per_item else both[0], per_item=per_item)
    return Weighted(weights, operator)


def _leading(weights: Tensor, operator: Operator) -> Tensor:
    """A copy with the batch axis first, which has length 1 where all items share the weights."""
    if not bool((_validate.tensor("weights", weights) > 0).all()):
        raise ValueError(f"weights must be above 0, got {float(weights.min()):g}: a Mask leaves measurements out")
    shape = tuple(operator.measurement_shape or weights.shape)
    if tuple(weights.shape) == shape:
        weights = weights[None]
    elif tuple(weights.shape[1:]) != shape:
        raise ValueError(
            f"weights have shape {tuple(weights.shape)}, expected {shape} or (B, {', '.join(map(str, shape))})"
        )
    if operator.batch not in (None, len(weights)) and len(weights) > 1:
        raise ValueError(f"weights are for {len(weights)} items, but {operator!r} is made for {operator.batch}")
    if operator.device not in (None, weights.device):
        raise ValueError(f"weights are on {weights.device}, but {operator!r} is on {operator.device}: move one of them")
    return weights.detach().to(dtype=operator.dtype or weights.dtype, copy=True)
