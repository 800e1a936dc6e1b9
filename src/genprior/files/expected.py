"""The requirements on every item, and a message for an item that does not meet them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from genprior.files.images import ImageSpec

if TYPE_CHECKING:
    from genprior.operators import Operator

Shape = tuple[int, ...]
_FAR_OUT = 8.0
"""Larger values cannot belong to images in [0, 1], even noisy ones."""
_ROUNDING = 0.01
"""Tolerance on the bounds, as a share of their width."""


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
    operator: Operator | None = None
    """The operator of the measurements, if any."""

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

    def known(self, values: Tensor) -> Tensor:
        """Items with zeros in unmeasured entries, whose values (such as NaN) are ignored."""
        if self.operator is None:
            return values
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
        return 1.0 if self.operator is None else max(1.0, float(self.operator.norm()))
