"""Data on another scale than the generator's signals, such as images in 0 to 255."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from torch import Tensor

from genprior.losses import LeastSquares, Loss, SquaredDistance
from genprior.operators import Identity, Mask
from genprior.terms import Sum, Term
from genprior.terms.base import Around, Wrapped

_FAR_OUT = 8.0
"""Distance from the range, in its widths, that noise does not explain."""


def warn_out_of_range(signal_range: tuple[float, float] | None, loss: Loss, on_signal: Term) -> None:
    """Warn where y stands for a signal but lies far outside of the range that the generator declares."""
    if signal_range is None:
        return
    low, high = signal_range
    far = _FAR_OUT * (high - low)
    for y, scale in _signals(loss, on_signal):
        smallest, largest = float(y.min()), float(y.max())
        if largest > scale * (high + far) or smallest < scale * (low - far):
            hint = ": divide by 255?" if largest > 64 * high else ""
            warnings.warn(
                f"y has values from {smallest:.3g} to {largest:.3g}, but the generator makes [{low:g}, {high:g}]{hint}",
                stacklevel=3,
            )


def _signals(loss: Loss, on_signal: Term) -> Iterator[tuple[Tensor, float]]:
    """What is compared with signals value by value, and how much larger than signals it may be."""
    if isinstance(loss, SquaredDistance):
        yield loss.y, 1.0
    elif isinstance(loss, LeastSquares) and isinstance(loss.operator, Identity | Mask):
        yield loss.y, max(1.0, float(loss.operator.norm().max()))
    yield from ((centre, 1.0) for centre in _centres(on_signal))


def _centres(term: Term) -> Iterator[Tensor]:
    """The signals around which a term, or a part of a sum, is centred."""
    if isinstance(term, Around) and isinstance(term.centre, Tensor):
        yield term.centre
    for part in (term.term,) if isinstance(term, Wrapped) else term.parts if isinstance(term, Sum) else ():
        yield from _centres(part)
