"""The two generators of the paper's experiments: smooth, strictly increasing activations, no batch-dependent layer."""

from __future__ import annotations

import itertools

from torch import Tensor, nn

from genprior import _validate


class ConvGenerator(nn.Sequential):
    """Latents ``(B, latent)`` to images ``(B, 1, 28, 28)`` in (0, 1): MNIST and Fashion-MNIST.

    One fully connected layer and three transposed convolutions with 5 x 5 kernels, ELU between, sigmoid at the end: the
    layout of the MNIST experiment of Gulrajani et al., *Improved Training of Wasserstein GANs* (2017), with ELU for ReLU
    as Latorre et al. ask.

    The activations are C1 and strictly increasing, and up to the last layer the widths grow (at width 64: 128, 4096,
    6272, 12544), as Proposition 1 requires. The last convolution maps 12544 values to 784 pixels: there, as in every
    convolutional generator of images with few channels, the proposition does not apply.
    """

    def __init__(self, latent: int = 128, width: int = 64) -> None:
        _validate.whole("latent", latent)
        _validate.whole("width", width)
        super().__init__(
            nn.Linear(latent, 4 * width * 16),
            nn.Unflatten(1, (4 * width, 4, 4)),
            nn.ELU(),
            nn.ConvTranspose2d(4 * width, 2 * width, 5, stride=2, padding=2),
            nn.ELU(),
            nn.ConvTranspose2d(2 * width, width, 5, stride=2, padding=2, output_padding=1),
            nn.ELU(),
            nn.ConvTranspose2d(width, 1, 5, stride=2, padding=2, output_padding=1),
            nn.Sigmoid(),
        )
        self.latent_shape: tuple[int, ...] = (latent,)
        self.signal_shape: tuple[int, ...] = (1, 28, 28)


class UpBlock(nn.Module):
    """``x -> up(mix(x)) + conv(elu(up-conv(elu(x))))``: twice the side, from ``inside`` to ``outside`` channels.

    The transposed convolution has a 4 x 4 kernel and stride 2: every output depends on equally many inputs, which avoids
    checkerboards. The last convolution starts at zero: a deep stack starts as its shortcuts and needs no normalisation.
    """

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(inside, outside, 1)
        self.up = nn.ConvTranspose2d(inside, outside, 4, stride=2, padding=1)
        self.conv = nn.Conv2d(outside, outside, 3, padding=1)
        nn.init.zeros_(self.conv.weight)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, inside, h, w)`` to ``(B, outside, 2h, 2w)``."""
        shortcut = nn.functional.interpolate(self.mix(x), scale_factor=2.0, mode="nearest")
        branch: Tensor = self.conv(nn.functional.elu(self.up(nn.functional.elu(x))))
        return shortcut + branch

    def branches(self) -> tuple[nn.Module, nn.Module]:
        """The two chains whose sum the block is, for `genprior.theory`."""
        shortcut = nn.Sequential(self.mix, nn.Upsample(scale_factor=2.0, mode="nearest"))
        return shortcut, nn.Sequential(nn.ELU(), self.up, nn.ELU(), self.conv)


class ResidualGenerator(nn.Sequential):
    """Latents ``(B, latent)`` to images ``(B, channels, 64, 64)`` in (0, 1): CelebA and other colour images.

    A fully connected layer, four residual up-blocks (8, 8, 4, 2, 1 times ``width`` channels), one convolution; ELU, sigmoid.

    Proposition 1 speaks of plain chains of layers: the sums of the residual blocks are outside of it, and the last
    convolution narrows from ``4096 width`` to 12288 values.
    """

    def __init__(self, latent: int = 128, width: int = 64, channels: int = 3) -> None:
        _validate.whole("latent", latent)
        _validate.whole("width", width)
        _validate.whole("channels", channels)
        sizes = [8 * width, 8 * width, 4 * width, 2 * width, width]
        super().__init__(
            nn.Linear(latent, sizes[0] * 16),
            nn.Unflatten(1, (sizes[0], 4, 4)),
            *(UpBlock(inside, outside) for inside, outside in itertools.pairwise(sizes)),
            nn.ELU(),
            nn.Conv2d(width, channels, 3, padding=1),
            nn.Sigmoid(),
        )
        self.latent_shape: tuple[int, ...] = (latent,)
        self.signal_shape: tuple[int, ...] = (channels, 64, 64)


def parameter_count(module: nn.Module) -> int:
    """Number of parameters of a network."""
    return sum(parameter.numel() for parameter in module.parameters())
