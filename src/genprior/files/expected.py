"""The requirements on every item, and a message for an item that does not meet them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from genprior.files.guard import Misfit, Unreadable
from genprior.files.images import ImageSpec

if TYPE_CHECKING:
    from genprior.operators import Operator

Shape = tuple[int, ...]
_ONE = 1 + 1j
_FAR_OUT = 8.0
"""Larger values cannot belong to images in [0, 1], even noisy ones."""
_ROUNDING = 0.01
"""Tolerance on the bounds, as a share of their width."""


@dataclass(frozen=True)
class Measured:
    """What has to be known of an operator to check its measurements: a mask in place of its matrices."""

    real: Tensor
    """Where it measures: one truth value for each entry, or one for all."""
    imaginary: Tensor
    gain: float
    """Upper bound on measurements of signals in [0, 1]."""

    @staticmethod
    def of(operator: Operator, shape: Shape, *, complex_too: bool, gain: float) -> Measured:
        """By measuring where nothing is zero."""
        probe = torch.full((1, *shape), _ONE if complex_too else 1.0, device=operator.device)
        kept = operator.measured(probe)[0].cpu()
        real, imaginary = kept.real != 0, kept.imag != 0 if kept.is_complex() else torch.zeros((), dtype=torch.bool)
        real, imaginary = (mask.all() if mask.all() else mask for mask in (real, imaginary))
        return Measured(real, imaginary, gain)

    def of_values(self, y: Tensor) -> Tensor:
        """Items with zeros where nothing is measured."""
        if y.is_complex():
            return torch.complex(torch.where(self.real, y.real, 0), torch.where(self.imaginary, y.imag, 0))
        return torch.where(self.real, y, 0)


@dataclass(frozen=True)
class Expected:
    """The requirements on every item."""

    shape: Shape
    """Of one item: the generator's signals, or the operator's measurements."""
    measured: bool = False
    """Measurements, which are never scaled; else images in [0, 1]."""
    unit_range: bool = True
    """Whether values far outside of [0, 1] are a mistake."""
    complex_too: bool = False
    resize: bool = False
    """Whether images of another size may be cut and scaled."""
    whole: Shape | None = None
    """Shape of the signals, if measurements are expected."""
    bounds: tuple[float, float] | None = None
    """Values outside of these are rejected."""
    operator: Operator | Measured | None = None
    """The operator of the measurements, if any."""

    def portable(self) -> Expected:
        """The same with a mask in place of the operator, whose matrices may be large, or on a device."""
        if self.operator is None or isinstance(self.operator, Measured):
            return self
        gain = self._gain() if self.unit_range else 1.0  # a norm may take long to estimate
        known = Measured.of(self.operator, self.shape, complex_too=self.complex_too, gain=gain)
        return replace(self, operator=known)

    @property
    def signal(self) -> Shape:
        """Shape of the signals."""
        return self.shape if self.whole is None else self.whole

    @property
    def image(self) -> ImageSpec | None:
        """The format as an image file, or None."""
        if len(self.shape) != 3 or self.shape[0] not in {1, 3}:
            return None
        whole = self.whole[1:] if self.whole is not None and len(self.whole) == 3 else None
        return ImageSpec(*self.shape, resize=self.resize, whole=whole)

    def image_for(self, name: str) -> ImageSpec:
        """The format as an image file; raises if items cannot be images."""
        if self.image is None and len(self.signal) == 1:
            raise Unreadable(
                f"{name} is an image, but the generator makes flat signals of {self.signal[0]} values: end it with "
                "nn.Unflatten(1, (channels, height, width)), or give an array"
            )
        if self.image is None:
            raise Unreadable(
                f"{name} is an image, but items of shape {self.shape} are expected: give an array, or `simulate=True` to "
                "measure the image first"
            )
        return self.image

    def check_complex(self, name: str, is_complex: bool) -> None:
        """Raise for complex numbers where real ones are expected, and the other way round."""
        if is_complex and not self.complex_too:
            raise Misfit(f"{name} holds complex numbers, expected real ones: take the real part or the modulus")
        if self.complex_too and not is_complex:
            raise Misfit(
                f"{name} holds real numbers, expected complex measurements: `simulate=True` measures images first"
            )

    def known(self, values: Tensor) -> Tensor:
        """Items with zeros in unmeasured entries, whose values (such as NaN) are ignored."""
        if self.operator is None:
            return values
        if isinstance(self.operator, Measured):
            return self.operator.of_values(values)
        return self.operator.measured(values.to(device=self.operator.device)).cpu()

    def fault(self, value: Tensor) -> str:
        """The error in the values of one item; empty if there is none."""
        bad = int((~torch.isfinite(value)).sum())
        if bad:
            return f"holds {bad} NaN or infinite values: remove or mask them first"
        if value.is_complex():
            return "" if self.complex_too else "holds complex numbers, expected real ones"
        return self._out_of_range(float(value.min()), float(value.max()))

    def _out_of_range(self, least: float, most: float) -> str:
        given, size = f"has values from {least:.3g} to {most:.3g}, expected", max(-least, most)
        if self.unit_range and size > _FAR_OUT and size > _FAR_OUT * self._gain():
            return f"{given} about [0, {self._gain():.3g}]: divide by 255?"
        if self.bounds is None:
            return ""
        slack = _ROUNDING * (self.bounds[1] - self.bounds[0])
        if self.bounds[0] - slack <= least and most <= self.bounds[1] + slack:
            return ""
        return (
            f"{given} [{self.bounds[0]:g}, {self.bounds[1]:g}], as the generator makes them: clip or scale them first"
        )

    def _gain(self) -> float:
        """Upper bound on measurements of signals in [0, 1]."""
        if isinstance(self.operator, Measured):
            return self.operator.gain
        return 1.0 if self.operator is None else max(1.0, float(self.operator.norm()))
