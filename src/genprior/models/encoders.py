"""Encoders: from an image to its latent."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from genprior import _validate
from genprior.models.critics import halving


class Encoder(nn.Module):
    """The latent of an image, for warm starts. Returns the mean; ``gaussian`` returns mean and deviation."""

    def __init__(self, signal_shape: Sequence[int] = (1, 28, 28), latent: int = 128, width: int = 32) -> None:
        super().__init__()
        _validate.whole("latent", latent)
        self.signal_shape = _validate.shape("signal_shape", signal_shape)
        self.latent_shape: tuple[int, ...] = (latent,)
        self.trunk = nn.Sequential(*halving(signal_shape, width, outputs=2 * latent))

    def forward(self, x: Tensor) -> Tensor:
        """Images ``(B, channels, side, side)`` to latents ``(B, latent)``."""
        _validate.batch("x", x, self.signal_shape)
        return self.gaussian(x)[0]

    def gaussian(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation of the latent, given the image."""
        mean, deviation = self.trunk(x).chunk(2, dim=1)
        return mean, deviation.clamp(-6.0, 2.0)
