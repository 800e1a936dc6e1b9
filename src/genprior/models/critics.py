"""Critics: stacks of strided convolutions down to 4 x 4, for images of 28 x 28 or 64 x 64."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from genprior import _validate


class Critic(nn.Sequential):
    """One number per image; no normalisation, which the gradient penalty (one per item) does not allow."""

    def __init__(self, signal_shape: Sequence[int] = (1, 28, 28), width: int = 64) -> None:
        super().__init__(*halving(signal_shape, width, outputs=1))

    def forward(self, x: Tensor) -> Tensor:
        """Images ``(B, channels, side, side)`` to ``(B,)``."""
        value: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return value.squeeze(1)


def halving(signal_shape: Sequence[int], width: int, outputs: int) -> list[nn.Module]:
    """Halve the side and double the channels until the side is at most 4, then one fully connected layer."""
    channels, side, across = _validate.shape("signal_shape", signal_shape)
    _validate.whole("width", width)
    if side != across:
        raise ValueError(f"signal_shape must be square images (channels, side, side), got {tuple(signal_shape)}")
    layers: list[nn.Module] = []
    inside, outside = channels, width
    while side > 4:
        layers += [nn.Conv2d(inside, outside, 5, stride=2, padding=2), nn.LeakyReLU(0.2)]
        inside, outside, side = outside, 2 * outside, math.ceil(side / 2)
    return [*layers, nn.Flatten(), nn.Linear(inside * side * side, outputs)]
