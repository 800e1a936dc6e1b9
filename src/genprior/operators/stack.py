"""Several types of measurement of the same signal at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor

from genprior._batch import PerItem
from genprior.operators.base import Operator, RowForm
from genprior.operators.compound import Compound, adjoint_of, joint_complex, joint_shape, total
from genprior.operators.gram import GramForm


class Stack(Compound):
    """``Stack(A, B, ...)``: several types of measurement of the same signal at once, ``(A x, B x, ...)``.

    Measurements are one tensor ``(B, m_total)``: those of each operator flattened, one after the other. `join` makes it
    of the single measurements, `split` takes it apart. Where one operator has complex measurements all are stored as
    complex numbers; those of the others are real, and `split` gives them as such.

    ``|Stack(A, B) x - y|^2 = |A x - y_1|^2 + |B x - y_2|^2``: divide each operator and its measurements by the standard
    deviation of its noise to weigh them as they deserve, ``Stack(A / 0.1, B / 0.5)`` with ``join([a / 0.1, b / 0.5])``.

    The resolvent is a closed form where ``A^T A + B^T B + ...`` has one: all are masks, multiples of the identity, or
    all are diagonal in the Fourier transform, or matrices, or all but one are multiples of the identity; elsewhere by
    CG. Exactly there `gram_bounds` are exact. Elsewhere the smallest eigenvalue is bounded from below by the sum of
    those of the operators; the largest is estimated as for compositions, but never above the sum of those of the operators.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> A = gp.operators.Stack(gp.operators.Downsample(4, (1, 8, 8)), gp.operators.Gaussian(10, (1, 8, 8)))
    >>> y = A(torch.ones(2, 1, 8, 8))
    >>> y.shape, [part.shape for part in A.split(y)]
    (torch.Size([2, 14]), [torch.Size([2, 1, 2, 2]), torch.Size([2, 10])])
    """

    _apart: bool | None
    """Whether no two operators measure the same signal value; None until asked."""

    def __init__(self, *operators: Operator) -> None:
        _check_operators(operators)
        super().__init__(operators)
        self.signal_shape = joint_shape(operators, "signal_shape", "stacked with")
        self.complex_measurements = joint_complex(operators)
        shapes = [part.measurement_shape for part in operators]
        self._counts = [0 if shape is None else math.prod(shape) for shape in shapes]
        self.measurement_shape = None if None in shapes else (sum(self._counts),)
        self._refill(operators)

    # -- the layout of measurements -------------------------------------------------------------------------------

    def split(self, y: Tensor) -> tuple[Tensor, ...]:
        """The measurements of each operator, ``(B, *measurement_shape)``, from ``(B, m_total)``."""
        return tuple(
            block.real if block.is_complex() and part.complex_measurements is False else block
            for block, part in zip(self._blocks(self._check_measurements("y", y)), self.parts, strict=True)
        )

    def join(self, measurements: Sequence[Tensor]) -> Tensor:
        """``(B, m_total)`` from the measurements of each operator, in their order; the inverse of `split`."""
        if isinstance(measurements, Tensor) or len(measurements) != len(self.parts):
            given = "one tensor" if isinstance(measurements, Tensor) else f"{len(measurements)}"
            raise ValueError(
                f"measurements must be a list of {len(self.parts)} tensors, one for each operator of {self!r}, got {given}"
            )
        for k, (part, y) in enumerate(zip(self.parts, measurements, strict=True)):
            part._check_measurements(f"measurements[{k}]", y)
        if len({len(y) for y in measurements}) > 1:
            raise ValueError(f"measurements have {[len(y) for y in measurements]} items, expected as many of each type")
        return self._joined(measurements)

    def _joined(self, measurements: Sequence[Tensor]) -> Tensor:
        flat = [y.reshape(len(y), -1) for y in measurements]
        if self.complex_measurements:
            flat = [y.to(y.dtype.to_complex()) for y in flat]
        return torch.cat(flat, dim=1)

    def _blocks(self, y: Tensor) -> list[Tensor]:
        self._sizes("the layout of stacked measurements")
        blocks = y.split_with_sizes(self._counts, dim=1)
        return [
            block.reshape(len(y), *(p.measurement_shape or ())) for block, p in zip(blocks, self.parts, strict=True)
        ]

    # -- the operator ---------------------------------------------------------------------------------------------

    def _of(self, parts: Sequence[Operator]) -> Self:
        return type(self)(*parts)

    def _forward(self, x: Tensor) -> Tensor:
        return self._joined([part._forward(x) for part in self.parts])

    def _adjoint(self, y: Tensor) -> Tensor:
        return total([adjoint_of(part, block) for part, block in zip(self.parts, self._blocks(y), strict=True)])

    def measured(self, y: Tensor) -> Tensor:
        """As each operator says of its own; numbers of operators with real measurements are made real."""
        if self.measurement_shape is None:
            return y
        pairs = zip(self.parts, self.split(y), strict=True)
        return self._joined([part.measured(block) for part, block in pairs]).to(y.dtype)

    @property
    def has_matrix(self) -> bool:
        """Whether every operator does."""
        return all(part.has_matrix for part in self.parts)

    def dense(self) -> Tensor:
        """The matrices of the operators, one below the other."""
        if not self.has_matrix:
            return super().dense()
        matrices = [part.dense() for part in self.parts]
        if self.batch is not None:
            matrices = [matrix.expand(self.batch, *matrix.shape[-2:]) for matrix in matrices]
        return torch.cat(matrices, dim=-2)

    # -- closed forms ---------------------------------------------------------------------------------------------

    def gram_form(self) -> GramForm | None:
        """The sum of those of the operators, where it has one."""
        return self._gram

    def row_form(self) -> RowForm | None:
        """That of the matrix, for matrices; or those of operators that measure different parts of the signal."""
        dense = self._as_dense()
        if dense is not None:
            return dense.row_form()
        if self._apart is None:
            self._apart = self._gram is not None and _are_apart([part.gram_form() for part in self.parts])
        forms = [part.row_form() for part in self.parts] if self._apart else []
        return self._row_form([form for form in forms if form is not None]) if forms and None not in forms else None

    @property
    def closed_form(self) -> bool:
        """Whether the squares of the operators combine, see above."""
        return self._gram is not None or self.has_matrix or (self._single is not None and self._single[0].closed_form)

    @property
    def resolvent_method(self) -> str:
        """How `resolvent` is computed, in words."""
        if self._gram is not None:
            return self._gram.method
        if self._single is not None:
            return self._single[0].resolvent_method
        dense = self._as_dense()
        return super().resolvent_method if dense is None else dense.resolvent_method

    def _resolvent(self, v: Tensor, rho: PerItem, start: Tensor | None) -> Tensor:
        if self._gram is not None:
            return self._gram.resolvent(v, rho)
        if self._single is not None:
            part, shift = self._single
            return part._resolvent(v, rho + shift, start)
        dense = self._as_dense()
        return super()._resolvent(v, rho, start) if dense is None else dense._resolvent(v, rho, start)

    def _gram_bounds(self) -> tuple[Tensor, Tensor]:
        if self._gram is not None:
            return self._gram.bounds(self.batch)
        if self._single is not None:
            part, shift = self._single
            shift = shift.reshape(-1) if isinstance(shift, Tensor) else shift
            low, high = self._bounds_of(part)
            return low + shift, high + shift
        dense = self._as_dense()
        if dense is not None:
            return dense.gram_bounds()
        estimate = self._largest_eigenvalue()
        bounds = [self._bounds_of(part) for part in self.parts]
        low, high = total([smallest for smallest, _ in bounds]), total([largest for _, largest in bounds])
        return low.to(estimate).expand_as(estimate), torch.minimum(estimate, high.to(estimate))

    def _refill(self, parts: Sequence[Operator]) -> None:
        super()._refill(parts)
        forms = [part.gram_form() for part in parts]
        self._gram = _added(forms)
        self._single = _all_but_one(parts, forms)
        self._apart = None

    def _row_form(self, forms: list[RowForm]) -> RowForm:
        """The rows of all operators, which are orthogonal to each other."""
        grams = [torch.as_tensor(form.gram, dtype=self.dtype, device=self.device) for form in forms]
        wide = [_as_rows(gram, part) for gram, part in zip(grams, self.parts, strict=True)]
        items = max(len(gram) for gram in wide)
        back = [form.unrotate for form in forms if form.unrotate is not None]
        return RowForm(
            forward=lambda x: self._joined([form.forward(x) for form in forms]),
            adjoint=lambda y: total(self._each([form.adjoint for form in forms], y)),
            gram=torch.cat([gram.expand(items, -1) for gram in wide], dim=1),
            rotate=lambda y: self._joined(self._each([form.rotate for form in forms], y)),
            unrotate=(lambda y: self._joined(self._each(back, y))) if len(back) == len(forms) else None,
        )

    def _each(self, functions: Sequence[Callable[[Tensor], Tensor]], y: Tensor) -> list[Tensor]:
        """One function for each block of the measurements."""
        return [function(block) for function, block in zip(functions, self._blocks(y), strict=True)]

    def __repr__(self) -> str:
        return f"Stack({', '.join(map(repr, self.parts))})"


def _check_operators(operators: Sequence[Operator]) -> None:
    if not operators:
        raise ValueError("Stack needs at least one operator, got none: write Stack(A, B)")
    for k, operator in enumerate(operators):
        if not isinstance(operator, Operator):
            raise TypeError(
                f"operator {k} of Stack must be a genprior.operators.Operator, got {type(operator).__name__}: "
                "write Stack(A, B), wrap a matrix in operators.Dense, functions in operators.Linear"
            )


def _added(forms: Sequence[GramForm | None]) -> GramForm | None:
    """The sum of the Gram forms, where it has one."""
    result: GramForm | None = GramForm()
    for form in forms:
        result = None if result is None or form is None else result.plus(form)
    return result


def _all_but_one(parts: Sequence[Operator], forms: Sequence[GramForm | None]) -> tuple[Operator, PerItem] | None:
    """The one operator whose square is no multiple of the identity, and the sum of those that are; None for more."""
    shift: PerItem = 0.0
    others = []
    for part, form in zip(parts, forms, strict=True):
        if form is not None and form.values is None:
            shift = shift + form.shift
        else:
            others.append(part)
    return (others[0], shift) if len(others) == 1 else None


def _are_apart(forms: Sequence[GramForm | None]) -> bool:
    """Whether no signal value enters two squares that are diagonal in the signal's own basis."""
    count: PerItem = 0
    for form in forms:
        if form is None or form.dims:
            return False
        diagonal = form.shift + (0.0 if form.values is None else form.values)
        count = count + (torch.as_tensor(diagonal) > 0).int()
    return bool((torch.as_tensor(count) <= 1).all())


def _as_rows(gram: Tensor, part: Operator) -> Tensor:
    """The diagonal of ``A A^T`` as ``(1, m)``, or ``(B, m)`` where items differ."""
    shape = part.measurement_shape or ()
    items = len(gram) if gram.ndim > len(shape) else 1
    return gram.expand(items, *shape).reshape(items, -1)
