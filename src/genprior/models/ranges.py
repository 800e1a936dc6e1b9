"""The values of a third-party network: those of images are mapped to [0, 1], others are unchanged."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from genprior import _validate
from genprior.models.adapt import FromRange
from genprior.models.shapes import run_on

Bounds = tuple[float, float]
Range = Bounds | Literal["keep"]
"""Bounds of a module's values, which are then mapped to [0, 1]; ``"keep"``: leave the values unchanged."""

_SAMPLES = 32
_FINAL = {"Tanh": (-1.0, 1.0), "Sigmoid": (0.0, 1.0)}
_UNIT = (0.0, 1.0)
_FILLED, _OUTSIDE = 0.1, 0.25
"""The share of a given range that samples should fill, and by which they may exceed it."""


class _Seen(NamedTuple):
    """The lowest and the highest value of some samples."""

    low: float
    high: float
    samples: int


def makes_images(shape: tuple[int, ...]) -> bool:
    """Whether signals of a shape are images: one channel or three, height, width."""
    return len(shape) == 3 and shape[0] in {1, 3}


def with_range(
    module: nn.Module,
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    wanted: Range | None,
    known: tuple[Bounds | None] | None,
    seconds: float | None = None,
) -> tuple[nn.Module, Bounds | None, str]:
    """The module with its final values, their bounds if known, and a note.

    ``shapes`` are those of the latent and of the signal. The user's choice comes first, then ``known``, the declared range;
    otherwise samples decide, fewer of them if they would take longer than ``seconds``.
    """
    if wanted == "keep":
        return module, None, "values unchanged, as requested"
    if wanted is not None:
        given = _checked(wanted)
        return _mapped(module, given, f"as given{_doubt(module, shapes[0], given, seconds)}")
    bounds, why = (known[0], "as declared") if known is not None else find_range(module, shapes[0], seconds)
    if bounds is None:
        return module, None, f"values unchanged: {why}"
    if makes_images(shapes[1]) or bounds == _UNIT:
        return _mapped(module, bounds, why)
    found = why if known is None else f"in [{bounds[0]:g}, {bounds[1]:g}], {why}"
    note = f"values unchanged ({found}): signals of shape {shapes[1]} are not images"
    return module, bounds if known is not None else None, note


def find_range(
    module: nn.Module, latent_shape: tuple[int, ...], seconds: float | None = None
) -> tuple[Bounds | None, str]:
    """``(low, high)`` of the values, by the last layer or by samples, and how it was found; None: no usual range."""
    seen = _reach(module, latent_shape, seconds)
    if seen is None:
        return None, "no finite samples could be drawn"
    low, high, _ = seen
    for bounds in (_UNIT, (-1.0, 1.0)):
        if bounds[0] - 1e-5 <= low and high <= bounds[1] + 1e-5 and _last_layer(module, bounds) == bounds:
            return bounds, _described(seen)
    return None, f"{_described(seen)}, which is neither [0, 1] nor [-1, 1]"


def _doubt(module: nn.Module, latent_shape: tuple[int, ...], bounds: Bounds, seconds: float | None) -> str:
    """A doubt about the range, if samples fill little of it or exceed it."""
    seen, width = _reach(module, latent_shape, seconds), bounds[1] - bounds[0]
    if seen is None:
        return ""
    filled = (seen.high - seen.low) / width
    outside = max(bounds[0] - seen.low, seen.high - bounds[1]) / width
    if filled >= _FILLED and outside <= _OUTSIDE:
        return ""
    return f", but {_described(seen)}: is `signal_range` right?"


def _reach(module: nn.Module, latent_shape: tuple[int, ...], seconds: float | None) -> _Seen | None:
    """The values of some samples; None if there are none."""
    signals = run_on(module, latent_shape, _SAMPLES, seconds)
    if not isinstance(signals, Tensor) or not bool(torch.isfinite(signals).all()):
        return None
    return _Seen(float(signals.min()), float(signals.max()), len(signals))


def _last_layer(module: nn.Module, otherwise: Bounds) -> Bounds:
    """The range of the last layer, if it has one."""
    last = [part for part in module.modules() if not list(part.children())][-1]
    return _FINAL.get(getattr(last, "original_name", type(last).__name__), otherwise)


def _described(seen: _Seen) -> str:
    return f"{seen.samples} samples lie in [{seen.low:.3g}, {seen.high:.3g}]"


def _mapped(module: nn.Module, bounds: Bounds, why: str) -> tuple[nn.Module, Bounds, str]:
    note = f"values in [{bounds[0]:g}, {bounds[1]:g}]"
    if bounds == _UNIT:
        return module, _UNIT, f"{note}: {why}"
    return FromRange(module, *bounds).eval(), _UNIT, f"{note}, mapped to [0, 1]: {why}"


def _checked(bounds: Bounds) -> Bounds:
    if isinstance(bounds, str) or len(bounds) != 2:
        raise ValueError(f"signal_range must be (low, high) or 'keep', got {bounds!r}")
    low, high = (_validate.number("signal_range", bound) for bound in bounds)
    if not low < high:
        raise ValueError(f"signal_range must be (low, high) with low below high, got {bounds}")
    return low, high
