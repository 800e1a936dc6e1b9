"""What every item has to be, and what is wrong with one that is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from genprior.files.pictures import Wanted

if TYPE_CHECKING:
    from genprior.operators import Operator

Shape = tuple[int, ...]
_FAR_OUT = 8.0
"""Values beyond this are not those of pictures in [0, 1], whatever the noise."""
_ROUNDING = 0.01
"""So much of the width of bounds may values lie outside."""


@dataclass(frozen=True)
class Expected:
    """What every item has to be."""

    shape: Shape
    """Of one item: the generator's signals, or the operator's measurements."""
    measured: bool = False
    """Measurements, which are never scaled; else pictures in [0, 1]."""
    unit_range: bool = True
    """Whether values far outside of [0, 1] are a mistake."""
    complex_too: bool = False
    resize: bool = False
    """Whether pictures of another size may be cut and scaled."""
    whole: Shape | None = None
    """Shape of undamaged signals, where measurements are expected."""
    bounds: tuple[float, float] | None = None
    """Values outside of these are refused."""
    operator: Operator | None = None
    """By which the items were measured, where they were."""

    @property
    def signal(self) -> Shape:
        """Shape of undamaged signals."""
        return self.shape if self.whole is None else self.whole

    @property
    def picture(self) -> Wanted | None:
        """As a picture file, where it can be one."""
        if len(self.shape) != 3 or self.shape[0] not in {1, 3}:
            return None
        whole = self.whole[1:] if self.whole is not None and len(self.whole) == 3 else None
        return Wanted(*self.shape, resize=self.resize, whole=whole)

    def known(self, values: Tensor) -> Tensor:
        """Items with zeros where nothing was measured: what stands there, such as NaN, does not count."""
        if self.operator is None:
            return values
        return self.operator.measured(values.to(device=self.operator.device)).cpu()

    def fault(self, value: Tensor) -> str:
        """What is wrong with the values of one item; empty if nothing is."""
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
        """How much larger than signals measurements may be."""
        return 1.0 if self.operator is None else max(1.0, float(self.operator.norm()))
