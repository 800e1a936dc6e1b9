"""The usual DCGAN for pictures of 64 x 64 pixels, in our own words: latents (100, 1, 1), values in [-1, 1]."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path

import torch
from _show import short
from torch import Tensor, nn


class DCGAN(nn.Module):
    """Five transposed convolutions of 4 x 4: from 1 x 1 to 4 x 4, then each time twice the side."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        channels = (100, 8 * width, 4 * width, 2 * width, width, 3)
        layers: list[nn.Module] = []
        for inside, outside in itertools.pairwise(channels):
            stride, padding = (2, 1) if layers else (1, 0)
            layers.append(nn.ConvTranspose2d(inside, outside, 4, stride, padding, bias=False))
            layers += [nn.Tanh()] if outside == 3 else [nn.BatchNorm2d(outside), nn.ReLU()]
        self.main = nn.Sequential(*layers)

    def forward(self, z: Tensor) -> Tensor:
        return self.main(z)


def build() -> nn.Module:
    """For ``--generator examples/_dcgan.py:build --weights ...``."""
    return DCGAN()


def untrained(width: int | None = None) -> nn.Module:
    """Smooth kernels, channels mixed at random, batch statistics as a training would leave them: it draws clouds."""
    network = DCGAN(width or short(64, 4)).eval()
    seeded = torch.Generator().manual_seed(0)
    tent = torch.tensor([1.0, 3.0, 3.0, 1.0])
    x = torch.randn(64, 100, 1, 1, generator=seeded)
    with torch.no_grad():
        for layer in network.main:
            if isinstance(layer, nn.ConvTranspose2d):
                smooth = layer.stride == (2, 2)
                mix = torch.randn(*layer.weight.shape[:2], *((1, 1) if smooth else (4, 4)), generator=seeded)
                layer.weight.copy_(mix * tent * tent[:, None] if smooth else mix)
                layer.weight.mul_(0.6 / layer(x).std())
            if isinstance(layer, nn.BatchNorm2d):
                layer.running_mean.copy_(x.mean((0, 2, 3)))
                layer.running_var.copy_(x.var((0, 2, 3)))
                layer.num_batches_tracked.fill_(1)
            x = layer(x)
    return network


def strangers_weights() -> Path | None:
    """The file in the package ``gan-face-generate``, where that is installed; its code is not run."""
    found = importlib.util.find_spec("gan_face_generate")
    folders = [] if found is None else list(found.submodule_search_locations or ())
    files = [Path(folder) / "weights.tar" for folder in folders]
    return next((file for file in files if file.is_file()), None)
