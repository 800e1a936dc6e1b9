"""Complex signals: two channels joined to complex numbers, and operators on real signals carried over to complex ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor

from genprior import _validate
from genprior.operators.base import Operator, RowForm
from genprior.operators.compound import Compound, adjoint_of
from genprior.operators.gram import GramForm


class Complex(Operator):
    """Joins channels to complex numbers, ``(2 c, ...)`` to ``(c, ...)``: the first half are real parts, the second imaginary.

    For generators of complex signals as pairs of real channels; what follows it in a composition acts on complex numbers.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> A = gp.operators.Complex((2, 1, 2))
    >>> A(torch.tensor([[[[1.0, 2.0]], [[3.0, 4.0]]]]))
    tensor([[[[1.+3.j, 2.+4.j]]]])
    """

    complex_measurements = True

    def __init__(self, signal_shape: Sequence[int]) -> None:
        shape = _validate.shape("signal_shape", signal_shape)
        if shape[0] % 2:
            raise ValueError(
                f"signal_shape is {shape}, expected an even number of channels first, half of them real parts: (2, H, W) for "
                "one complex image"
            )
        self.signal_shape, self.measurement_shape = shape, (shape[0] // 2, *shape[1:])

    def gram_form(self) -> GramForm:
        """The identity."""
        return GramForm(1.0)

    def transposed_gram_form(self) -> GramForm:
        """The identity."""
        return GramForm(1.0)

    def row_form(self) -> RowForm:
        """Itself, with ``gram = 1``."""
        return RowForm(self._forward, self._adjoint, 1.0, _same, _same)

    def _forward(self, x: Tensor) -> Tensor:
        return torch.complex(*x.chunk(2, dim=1))

    def _adjoint(self, y: Tensor) -> Tensor:
        y = y if y.is_complex() else y + 0j
        return torch.cat([y.real, y.imag], dim=1)


class OnComplex(Compound):
    """An operator on real signals carried over to complex ones, ``A (a + i b) = A a + i A b``; made by compositions.

    With the real inner product of complex numbers, its adjoint is ``A^T y + i A^T (-i y)``.
    """

    complex_signals = True
    complex_measurements = True

    def __init__(self, operator: Operator) -> None:
        super().__init__((operator,))
        self.signal_shape, self.measurement_shape = operator.signal_shape, operator.measurement_shape

    @property
    def operator(self) -> Operator:
        """That on real signals."""
        return self.parts[0]

    @property
    def closed_form(self) -> bool:
        """Where ``A^T A`` is diagonal, or A is real and has a closed form."""
        return self._real and self.operator.closed_form

    @property
    def resolvent_method(self) -> str:
        """How `resolvent` is computed, in words."""
        return self.operator.resolvent_method if self.closed_form else super().resolvent_method

    def gram_form(self) -> GramForm | None:
        """That of a real operator, where it is diagonal in the signal's own basis."""
        return self._diagonal(self.operator.gram_form())

    def transposed_gram_form(self) -> GramForm | None:
        """That of a real operator, where it is diagonal in the signal's own basis."""
        return self._diagonal(self.operator.transposed_gram_form())

    def row_form(self) -> RowForm | None:
        """That of a real operator, on both parts."""
        form = self.operator.row_form() if self._real else None
        if form is None:
            return None
        unrotate = None if form.unrotate is None else _on_both(form.unrotate)
        return RowForm(_on_both(form.forward), _on_both(form.adjoint), form.gram, _on_both(form.rotate), unrotate)

    def measured(self, y: Tensor) -> Tensor:
        """As the operator says, of both parts."""
        return _on_both(self.operator.measured)(y) if self._real else self.operator.measured(y)

    @property
    def _real(self) -> bool:
        return self.operator.complex_measurements is False

    def _diagonal(self, form: GramForm | None) -> GramForm | None:
        return None if form is None or form.dims or not self._real else form

    def _of(self, parts: Sequence[Operator]) -> Self:
        return type(self)(*parts)

    def _forward(self, x: Tensor) -> Tensor:
        return self.operator._forward(x.real) + 1j * self.operator._forward(x.imag)

    def _adjoint(self, y: Tensor) -> Tensor:
        y = y if y.is_complex() else y + 0j
        return torch.complex(adjoint_of(self.operator, y), adjoint_of(self.operator, -1j * y))

    def _resolvent(self, v: Tensor, rho: float | Tensor, start: Tensor | None) -> Tensor:
        if not self.closed_form:
            return super()._resolvent(v, rho, start)
        return _on_both(lambda part: self.operator._resolvent(part, rho, None))(v)

    def _gram_bounds(self) -> tuple[Tensor, Tensor]:
        return self._bounds_of(self.operator) if self._real else super()._gram_bounds()

    def __repr__(self) -> str:
        return repr(self.operator)


def _on_both(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A real map on the real and the imaginary part."""
    return lambda x: torch.complex(function(x.real), function(x.imag))


def _same(y: Tensor) -> Tensor:
    return y
