"""Operators made of operators: ``A @ B``, ``c * A``, ``A + B`` and ``A.T``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor

from genprior import _validate
from genprior._batch import PerItem, spread
from genprior.operators.base import Operator, RowForm
from genprior.operators.compound import Compound, adjoint_of, bracketed, joint_complex, joint_shape, total
from genprior.operators.gram import GramForm, multiple_of_identity


class Composition(Compound):
    """``A @ B``: first ``inner`` = B, then ``outer`` = A, with ``(A B)^T = B^T A^T``.

    After an operator with complex measurements A acts on complex numbers, by its real and imaginary parts.

    The resolvent is a closed form where ``B^T B = B B^T = I``, ``(B^T A^T A B + rho I)^-1 = B^T (A^T A + rho I)^-1 B``, and A
    has one; and where ``A^T A = I`` and B has one, which then is that of both. Elsewhere it is by CG.
    """

    is_expression = True

    def __init__(self, outer: Operator, inner: Operator) -> None:
        between = inner.measurement_shape, outer.signal_shape
        if None not in between and between[0] != between[1]:
            raise ValueError(
                f"{outer!r} takes {between[1]}, but {inner!r} before it gives {between[0]}: shapes must agree"
            )
        if inner.complex_measurements:
            outer = outer.on_complex()
        super().__init__((outer, inner))
        self.signal_shape = inner.signal_shape
        self.measurement_shape = outer.measurement_shape
        self.complex_measurements, self.complex_signals = outer.complex_measurements, inner.complex_signals

    @property
    def outer(self) -> Operator:
        """What is applied last."""
        return self.parts[0]

    @property
    def inner(self) -> Operator:
        """What is applied first."""
        return self.parts[1]

    @property
    def T(self) -> Operator:
        """``B.T @ A.T``."""
        _refuse_complex(self)
        return self.inner.T @ self.outer.T

    def on_complex(self) -> Operator:
        """Both parts on complex signals."""
        return self if self.complex_signals else Composition(self.outer, self.inner.on_complex())

    @property
    def closed_form(self) -> bool:
        """Where there is a Gram form, or where one part is an isometry and the other has a closed form."""
        same = self._same
        return self.gram_form() is not None or (same is not None and same.closed_form)

    @property
    def resolvent_method(self) -> str:
        """How `resolvent` is computed, in words."""
        same = self._same if self.gram_form() is None else None
        return super().resolvent_method if same is None else same.resolvent_method

    def gram_form(self) -> GramForm | None:
        """``c B^T B`` where ``A^T A = c I``."""
        factor = multiple_of_identity(self.outer.gram_form())
        form = None if factor is None else self.inner.gram_form()
        return None if form is None or factor is None else form.times(factor)

    def row_form(self) -> RowForm | None:
        """``A' B`` where A has the row form ``A'`` and ``B B^T = c I``."""
        factor = multiple_of_identity(self.inner.transposed_gram_form())
        form = None if factor is None else self.outer.row_form()
        if form is None or factor is None:
            return None
        inner = self.inner
        return RowForm(
            forward=lambda x: form.forward(inner._forward(x)),
            adjoint=lambda y: inner._adjoint(form.adjoint(y)),
            gram=factor * form.gram,
            rotate=form.rotate,
            unrotate=form.unrotate,
        )

    @property
    def _same(self) -> Operator | None:
        """The part with the same ``A^T A`` but for a rotation: the other one is an isometry, on the side where that counts."""
        if multiple_of_identity(self.outer.gram_form()) == 1:
            return self.inner
        forms = self.inner.gram_form(), self.inner.transposed_gram_form()
        return self.outer if all(multiple_of_identity(form) == 1 for form in forms) else None

    def _resolvent(self, v: Tensor, rho: PerItem, start: Tensor | None) -> Tensor:
        same = self._same
        if self.gram_form() is not None or same is None:
            return super()._resolvent(v, rho, start)
        if same is self.inner:
            return self.inner._resolvent(v, rho, start)
        turned = self.inner._forward(v)
        rho = spread(rho.reshape(-1), turned) if isinstance(rho, Tensor) and rho.ndim else rho
        start = None if start is None else self.inner._forward(start)
        return self.inner._adjoint(self.outer._resolvent(turned, rho, start))

    def _gram_bounds(self) -> tuple[Tensor, Tensor]:
        same = self._same
        return super()._gram_bounds() if self.gram_form() is not None or same is None else self._bounds_of(same)

    def bound(self, signal_shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Operator:
        """The composition with the shapes of its inner part found out."""
        inner = self.inner.bound(signal_shape, device, dtype)
        between = inner.measurement_shape
        outer = self.outer if between is None else self.outer.bound(between, device, dtype)
        return self if inner is self.inner and outer is self.outer else Composition(outer, inner)

    def measured(self, y: Tensor) -> Tensor:
        """As the outer operator says."""
        return self.outer.measured(y)

    def _of(self, parts: Sequence[Operator]) -> Self:
        return type(self)(*parts)

    def _forward(self, x: Tensor) -> Tensor:
        return self.outer(self.inner(x))

    def _adjoint(self, y: Tensor) -> Tensor:
        return self.inner.adjoint(self.outer.adjoint(y))

    def __repr__(self) -> str:
        return " @ ".join(repr(part) if isinstance(part, Composition) else bracketed(part) for part in self.parts)


class Scaled(Compound):
    """``c * A`` with a number ``c``, or one per item, of shape ``(B,)``.

    ``(c A)^T = c A^T``; the eigenvalues of ``A^T A``, its row form and its Gram form are multiplied by ``c^2``. With the
    resolvent of A::

        (c^2 A^T A + rho I)^-1 v = (A^T A + rho/c^2 I)^-1 v / c^2.
    """

    is_expression = True
    factor: PerItem

    def __init__(self, factor: PerItem, operator: Operator) -> None:
        super().__init__((operator,))
        self.factor = _factor(factor, operator)
        self.signal_shape, self.measurement_shape = operator.signal_shape, operator.measurement_shape
        self.complex_measurements = operator.complex_measurements
        if isinstance(self.factor, Tensor):
            self.batch, self.device, self.dtype = len(self.factor), self.factor.device, self.factor.dtype

    @property
    def operator(self) -> Operator:
        """What is multiplied."""
        return self.parts[0]

    @property
    def T(self) -> Operator:
        """``c * A.T``."""
        return scaled(self.factor, self.operator.T)

    @property
    def closed_form(self) -> bool:
        """As for A."""
        return self.operator.closed_form

    @property
    def resolvent_method(self) -> str:
        """As for A."""
        return self.operator.resolvent_method

    @property
    def has_matrix(self) -> bool:
        """As for A, but for one matrix per item made of a single one."""
        return self.operator.has_matrix and not isinstance(self.factor, Tensor)

    def dense(self) -> Tensor:
        """``c`` times the matrix of A."""
        matrix = self.operator.dense()
        return matrix * (self.factor[:, None, None] if isinstance(self.factor, Tensor) else self.factor)

    def gram_form(self) -> GramForm | None:
        """``c^2`` times that of A."""
        form = self.operator.gram_form()
        return None if form is None else form.times(self._square(len(self.signal_shape or ())))

    def row_form(self) -> RowForm | None:
        """``c A'``, where A has the row form ``A'``."""
        form = self.operator.row_form()
        if form is None:
            return None
        return RowForm(
            forward=lambda x: self._times(form.forward(x)),
            adjoint=lambda y: self._times(form.adjoint(y)),
            gram=self._square(len(self.measurement_shape or ())) * form.gram,
            rotate=form.rotate,
            unrotate=form.unrotate,
        )

    def measured(self, y: Tensor) -> Tensor:
        """As A says; where the factor is 0, nothing is measured."""
        kept = self.operator.measured(y)
        if isinstance(self.factor, Tensor):
            return torch.where(spread(self.factor, y) != 0, kept, 0)
        return kept if self.factor else torch.zeros_like(kept)

    def _of(self, parts: Sequence[Operator]) -> Self:
        return type(self)(self.factor, *parts)

    def _map_tensors(self, change: Callable[[Tensor], Tensor]) -> None:
        if isinstance(self.factor, Tensor):
            self.factor = change(self.factor)

    def _forward(self, x: Tensor) -> Tensor:
        return self._times(self.operator._forward(x))

    def _adjoint(self, y: Tensor) -> Tensor:
        return self._times(self.operator._adjoint(y))

    def _resolvent(self, v: Tensor, rho: PerItem, start: Tensor | None) -> Tensor:
        # A square too small to matter is replaced by one that matters as little: rho / square must not overflow.
        square = _larger(self._square(v.ndim - 1), rho / torch.finfo(v.dtype).max ** 0.5)
        start = None if start is None else square * start
        return self.operator._resolvent(v, rho / square, start) / square

    def _gram_bounds(self) -> tuple[Tensor, Tensor]:
        low, high = self._bounds_of(self.operator)
        square = self._square(0)
        return square * low, square * high

    def _times(self, x: Tensor) -> Tensor:
        return spread(self.factor, x) * x

    def _square(self, axes: int) -> PerItem:
        """``c^2``, shaped to multiply batches of items with so many axes."""
        square = self.factor**2
        return square.reshape(-1, *(1,) * axes) if isinstance(square, Tensor) else square

    def __repr__(self) -> str:
        if isinstance(self.factor, Tensor):
            return f"tensor({len(self.factor)}) * {bracketed(self.operator)}"
        return f"-{bracketed(self.operator)}" if self.factor == -1 else f"{self.factor:g} * {bracketed(self.operator)}"


class Sum(Compound):
    """``A + B + ...``: operators on the same signals with measurements of the same shape, whose measurements are added.

    A sum of matrices is treated as the matrix that it is; other sums have their resolvent by CG. Of the eigenvalues of
    ``A^T A`` the largest is estimated as for compositions, but never above ``(|A| + |B| + ...)^2``, and the smallest is
    the lower bound ``(s_A - |B| - ...)^2``, where ``s_A`` is the smallest singular value of the operator for which that
    is most; 0 where none exceeds the norms of the others.
    """

    is_expression = True

    def __init__(self, *operators: Operator) -> None:
        super().__init__(operators)
        self.signal_shape = joint_shape(operators, "signal_shape", "+")
        self.measurement_shape = joint_shape(operators, "measurement_shape", "+")
        self.complex_measurements = joint_complex(operators)

    @property
    def T(self) -> Operator:
        """``A.T + B.T + ...``; for matrices the transpose of the sum, which has a closed form."""
        return Transpose(self) if self.has_matrix else Sum(*(part.T for part in self.parts))

    @property
    def closed_form(self) -> bool:
        """For sums of matrices."""
        return self.has_matrix

    @property
    def resolvent_method(self) -> str:
        """How `resolvent` is computed, in words."""
        dense = self._as_dense()
        return super().resolvent_method if dense is None else dense.resolvent_method

    @property
    def has_matrix(self) -> bool:
        """Whether every operator does."""
        return all(part.has_matrix for part in self.parts)

    def dense(self) -> Tensor:
        """The sum of the matrices."""
        if not self.has_matrix:
            return super().dense()
        return total([part.dense() for part in self.parts])

    def row_form(self) -> RowForm | None:
        """That of the matrix, for sums of matrices."""
        dense = self._as_dense()
        return None if dense is None else dense.row_form()

    def measured(self, y: Tensor) -> Tensor:
        """``y`` with zeros where no operator measures."""
        ones = torch.ones_like(y)
        kept = torch.stack([part.measured(ones) != 0 for part in self.parts]).any(0)
        return torch.where(kept, y, 0)

    def _of(self, parts: Sequence[Operator]) -> Self:
        return type(self)(*parts)

    def _forward(self, x: Tensor) -> Tensor:
        images = [part._forward(x) for part in self.parts]
        if len({image.shape for image in images}) > 1:
            raise ValueError(
                f"{self!r}: its operators give {' and '.join(str(tuple(image.shape)) for image in images)}: measurements "
                "that are added must have the same shape"
            )
        return total(images)

    def _adjoint(self, y: Tensor) -> Tensor:
        return total([adjoint_of(part, y) for part in self.parts])

    def _resolvent(self, v: Tensor, rho: PerItem, start: Tensor | None) -> Tensor:
        dense = self._as_dense()
        return super()._resolvent(v, rho, start) if dense is None else dense._resolvent(v, rho, start)

    def _gram_bounds(self) -> tuple[Tensor, Tensor]:
        dense = self._as_dense()
        if dense is not None:
            return dense.gram_bounds()
        estimate = self._largest_eigenvalue()
        bounds = [self._bounds_of(part) for part in self.parts]
        norms = total([high.sqrt() for _, high in bounds])
        low = torch.zeros_like(estimate)
        for smallest, largest in bounds:
            low = torch.maximum(low, (smallest.sqrt() + largest.sqrt() - norms).to(low))
        return low**2, torch.minimum(estimate, (norms**2).to(estimate))

    def __repr__(self) -> str:
        text = repr(self.parts[0])
        for part in self.parts[1:]:
            term = repr(part)
            text += f" - {term[1:]}" if term.startswith("-") else f" + {term}"
        return text


class Transpose(Compound):
    """``A.T``: takes measurements of A, which must be real, to signals; ``A.T.T`` is A.

    The resolvent is that of ``A A^T = Q^T diag(g) Q``, where A has a row form with the rotation Q. Where it has none, but a
    closed-form resolvent (matrices with m > d), the push-through identity gives::

        (A A^T + rho I)^-1 v = (v - A (A^T A + rho I)^-1 A^T v) / rho,

    with a relative error of ``|A|^2 / rho`` roundings.

    The largest eigenvalue of ``A A^T`` is that of ``A^T A``. The smallest is exact where A has a row form, or as many
    measurements as signal values, or more; elsewhere it is given as 0, always true as a bound.
    """

    def __init__(self, operator: Operator) -> None:
        _refuse_complex(operator)
        super().__init__((operator,))
        self.signal_shape, self.measurement_shape = operator.measurement_shape, operator.signal_shape

    @property
    def operator(self) -> Operator:
        """What is transposed."""
        return self.parts[0]

    @property
    def T(self) -> Operator:
        """The operator itself."""
        return self.operator

    @property
    def closed_form(self) -> bool:
        """As for A."""
        return self.operator.closed_form

    @property
    def resolvent_method(self) -> str:
        """How `resolvent` is computed, in words."""
        if not self.closed_form or self.gram_form() is not None:
            return super().resolvent_method
        how = self.operator.resolvent_method
        return how if self._rows_of_operator() else f"push-through identity ({how})"

    def gram_form(self) -> GramForm | None:
        """``A A^T``."""
        return self.operator.transposed_gram_form()

    def transposed_gram_form(self) -> GramForm | None:
        """``A^T A``."""
        return self.operator.gram_form()

    def bound(self, signal_shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Operator:
        """The transpose with its shapes found out, where A was made without any by applying its adjoint."""
        from genprior.operators.linear import Linear  # noqa: PLC0415 - needed here only

        inner = self.operator
        if inner.signal_shape is not None:
            known = inner.bound(inner.signal_shape, device, dtype)
            return self if known is inner else Transpose(known)
        return Linear(
            inner._adjoint,
            inner._forward,
            signal_shape,
            device=device,
            dtype=dtype,
            tolerance=inner.tolerance,
            max_iterations=inner.max_iterations,
        )

    def _of(self, parts: Sequence[Operator]) -> Self:
        return type(self)(*parts)

    def _forward(self, x: Tensor) -> Tensor:
        return self.operator._adjoint(x)

    def _adjoint(self, y: Tensor) -> Tensor:
        return self.operator._forward(y)

    def _resolvent(self, v: Tensor, rho: PerItem, start: Tensor | None) -> Tensor:
        if not self.closed_form or self.gram_form() is not None:
            return super()._resolvent(v, rho, start)
        form = self._rows_of_operator()
        if form is not None and form.unrotate is not None:
            return form.unrotate(form.rotate(v) / (form.gram + rho))
        back = self.operator._adjoint(v)
        inner = spread(rho.reshape(-1), back) if isinstance(rho, Tensor) else rho
        return (v - self.operator._forward(self.operator._resolvent(back, inner, None))) / rho

    def _rows_of_operator(self) -> RowForm | None:
        """The row form of A, if it can be rotated back."""
        form = self.operator.row_form()
        return None if form is None or form.unrotate is None else form

    def _gram_bounds(self) -> tuple[Tensor, Tensor]:
        if self.gram_form() is not None:
            return super()._gram_bounds()
        m, d = self._sizes("gram_bounds()")
        low, high = self._bounds_of(self.operator)
        if m < d:
            low = self._least_of_rows(torch.zeros_like(high))
        elif m > d:
            low = torch.zeros_like(high)
        return low, high

    def _least_of_rows(self, unknown: Tensor) -> Tensor:
        form = self.operator.row_form()
        if form is None:
            return unknown
        gram = torch.as_tensor(form.gram, dtype=unknown.dtype, device=unknown.device)
        gram = gram.expand(self.batch or 1, *(self.signal_shape or ())).reshape(self.batch or 1, -1).amin(1)
        return gram if self.batch else gram[0]

    def __repr__(self) -> str:
        return f"{bracketed(self.operator)}.T"


def scaled(factor: PerItem, operator: Operator) -> Operator:
    """``factor * operator``, multiplied out: ``2 * (3 * A)`` is ``6 * A``, ``-(-A)`` is A."""
    factor = _factor(factor, operator)
    if isinstance(operator, Scaled):
        factor, operator = factor * operator.factor, operator.operator
    is_one = not isinstance(factor, Tensor) and factor == 1
    return operator if is_one else Scaled(factor, operator)


def divided(operator: Operator, divisor: PerItem) -> Operator:
    """``operator / divisor``."""
    divisor = _factor(divisor, operator, "divisor")
    if not bool(torch.as_tensor(divisor != 0).all()):
        raise ValueError(f"divisor must not be 0, got {divisor}")
    return scaled(1 / divisor, operator)


def added(first: Operator, second: Operator) -> Sum:
    """``first + second``, sums within it written out."""
    terms = [
        part for operator in (first, second) for part in (operator.parts if isinstance(operator, Sum) else (operator,))
    ]
    return Sum(*terms)


def _factor(value: PerItem, operator: Operator, name: str = "factor") -> PerItem:
    """A finite number, or a copy of one per item in the dtype of the operator."""
    if isinstance(value, Operator):
        raise TypeError(f"{name} must be a number or one per item, got {value!r}: for first B, then A write A @ B")
    if not isinstance(value, Tensor):
        return _validate.number(name, value)
    if value.ndim > 1:
        raise ValueError(
            f"{name} has shape {tuple(value.shape)}, expected a number or (B,), one per item: to apply the operator write A(x)"
        )
    _validate.per_item(name, value)
    if value.ndim == 0:
        return float(value)
    if len(value) != (operator.batch or len(value) or 1):
        raise ValueError(
            f"{name} has {len(value)} values, one per item, but {operator!r} is made for {operator.batch or 'at least one'}"
        )
    if operator.device not in (None, value.device):
        raise ValueError(
            f"{name} is on {value.device}, but {operator!r} is on {operator.device}: use {name}.to('{operator.device}')"
        )
    return value.detach().to(dtype=operator.dtype, copy=True)


def _larger(a: PerItem, b: PerItem) -> PerItem:
    if isinstance(a, Tensor):
        return torch.maximum(a, torch.as_tensor(b, dtype=a.dtype, device=a.device))
    return b.clamp_min(a) if isinstance(b, Tensor) else max(a, b)


def _refuse_complex(operator: Operator) -> None:
    if operator.complex_measurements:
        raise TypeError(
            f"{operator!r} has no .T: its signals would be the complex measurements, but operators take real signals; for "
            "A^T y use A.adjoint(y)"
        )
