"""``A^T A`` where it is diagonal, in the basis of the signal or of its Fourier transform."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from genprior._axes import axes_of
from genprior._batch import PerItem


@dataclass(frozen=True)
class GramForm:
    """``A^T A = shift I + F^-1 diag(values) F``, with ``F = I`` or a real Fourier transform.

    Such matrices add, as ``A^T A`` does where measurements are stacked, and their resolvents are closed forms.
    """

    shift: PerItem = 0.0
    """A number, or one per item, shaped to multiply signals."""
    values: Tensor | None = None
    """Numbers that broadcast against ``F x``; None where ``A^T A`` is a multiple of the identity."""
    dims: int = 0
    """``F`` is ``rfftn`` over so many of the last axes; 0: the identity."""

    def plus(self, other: GramForm) -> GramForm | None:
        """The sum; None where the two are diagonal in different bases."""
        shift = self.shift + other.shift
        if self.values is None or other.values is None:
            rest = other if self.values is None else self
            return GramForm(shift, rest.values, rest.dims)
        return GramForm(shift, self.values + other.values, self.dims) if self.dims == other.dims else None

    def times(self, factor: PerItem) -> GramForm:
        """The product with a number, or with one per item, shaped to multiply signals."""
        return GramForm(factor * self.shift, None if self.values is None else factor * self.values, self.dims)

    def resolvent(self, v: Tensor, rho: PerItem) -> Tensor:
        """``(A^T A + rho I)^-1 v``; ``rho`` is a number or already shaped to multiply ``v``."""
        if self.values is None or not self.dims:
            return v / ((0.0 if self.values is None else self.values) + (self.shift + rho))
        axes = axes_of(self.dims)
        spectrum = torch.fft.rfftn(v, dim=axes) / (self.values + (self.shift + rho))
        solution: Tensor = torch.fft.irfftn(spectrum, s=v.shape[-self.dims :], dim=axes)
        return solution

    def bounds(self, batch: int | None) -> tuple[Tensor, Tensor]:
        """Extreme eigenvalues, ``()`` or ``(B,)``."""
        shift = self.shift if isinstance(self.shift, Tensor) else torch.tensor(self.shift, dtype=torch.float64)
        values = shift if self.values is None else self.values + shift
        values = values.reshape(1 if batch is None else batch, -1)
        smallest, largest = values.amin(1), values.amax(1)
        return (smallest[0], largest[0]) if batch is None else (smallest, largest)

    @property
    def method(self) -> str:
        """How `resolvent` is computed, in words."""
        return "FFT" if self.values is not None and self.dims else "diagonal"


def multiple_of_identity(form: GramForm | None) -> float | None:
    """``c`` where the form is ``c I`` with a number c, the same for all items; else None."""
    if form is None or form.values is not None or isinstance(form.shift, Tensor):
        return None
    return form.shift
