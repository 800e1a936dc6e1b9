"""What classical methods make of the same measurements, to see whether the generator helps at all."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from genprior import _clock
from genprior._axes import is_ambiguous, spatial_dims
from genprior.baselines import lasso, total_variation
from genprior.jobs.posed import relative_residual
from genprior.operators import DCT, Operator, Wavelet

METHODS = {"lasso": "lasso in cosines", "haar": "lasso in Haar wavelets", "tv": "total variation"}
"""Names in records, and in words."""
TIME_SHARE = 0.25
"""Share of a limited time that is left to these methods."""


@dataclass(frozen=True, eq=False)
class Compared:
    """The answers of one method to some items."""

    signal: Tensor
    residual: Tensor
    """``|A x - y| / |y|`` per item."""
    weight: Tensor
    """Of the term, per item."""


def compare(operator: Operator, y: Tensor, noise: float | None, seconds: float | None) -> dict[str, Compared]:
    """Every method with its default weight; iterations end after so many seconds. Wavelets need sides of even length."""
    shape, real = operator.signal_shape or (), y.real
    dims = 1 if len(shape) == 2 and is_ambiguous(shape) else None  # channels in time
    bases: dict[str, Operator] = {"lasso": DCT(shape, dims=dims, device=real.device, dtype=real.dtype)}
    if all(side % 2 == 0 for side in shape[-spatial_dims("the signal", shape, dims) :]):
        bases["haar"] = Wavelet(shape, "haar", dims=dims, device=real.device, dtype=real.dtype)
    end = math.inf if seconds is None else time.perf_counter() + seconds
    with _clock.limiting(lambda: max(0.0, end - time.perf_counter())):
        found = {name: lasso(operator, y, basis, noise=noise) for name, basis in bases.items()}
        found["tv"] = total_variation(operator, y, dims=dims, noise=noise)
    return {
        name: Compared(one.signal, relative_residual(operator, one.signal, y), one.weight)
        for name, one in found.items()
    }


def nearer(item: dict[str, Any]) -> str | None:
    """The method that is nearest to the truth in an item's record, where it beats the generator; else None."""
    own, others = item.get("error"), item.get("baselines", {})
    known = {name: float(one["error"]) for name, one in others.items() if one.get("error") is not None}
    if own is None or not known:
        return None
    best = min(known, key=lambda name: known[name])
    return best if known[best] < own else None
