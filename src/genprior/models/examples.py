"""Small generators to try things on: an MLP, a DCGAN-size network with random weights, and soft discs on a canvas."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from genprior.generators.contract import Generator
from genprior.models.generators import ConvGenerator


def random_mlp(
    latent: int = 20,
    hidden: int = 400,
    signal_shape: tuple[int, ...] = (784,),
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Generator:
    """A two-layer ELU network with sigmoid output and random weights."""
    size = math.prod(signal_shape)
    with torch.random.fork_rng(devices=[]):  # layers draw their initial weights from torch's global generator
        first, second = nn.Linear(latent, hidden), nn.Linear(hidden, size)
    layers = nn.Sequential(first, nn.ELU(), second, nn.Sigmoid(), nn.Unflatten(1, signal_shape))
    module = _randomised(layers, seed, gain=1.5).to(device)
    return Generator(module, (latent,), signal_shape, signal_range=(0.0, 1.0))


def random_dcgan(latent: int = 128, width: int = 64, *, seed: int = 0, device: torch.device | str = "cpu") -> Generator:
    """A :class:`ConvGenerator` with random weights: realistic size, no training."""
    with torch.random.fork_rng(devices=[]):
        module = ConvGenerator(latent, width)
    network = _randomised(module, seed, gain=2.0).to(device)
    return Generator(network, (latent,), (1, 28, 28), signal_range=(0.0, 1.0))


class SoftDiscs(nn.Module):
    """Images of soft discs: each has two latents for its place, one for its size, one for its brightness."""

    rows: Tensor
    columns: Tensor

    def __init__(self, discs: int = 2, side: int = 32, sharpness: float = 2.0) -> None:
        super().__init__()
        self.discs = discs
        self.sharpness = sharpness
        ticks = torch.linspace(-1, 1, side)
        self.register_buffer("rows", ticks.reshape(1, 1, side, 1))
        self.register_buffer("columns", ticks.reshape(1, 1, 1, side))

    def forward(self, z: Tensor) -> Tensor:
        """Latents ``(B, 4 discs)`` to images ``(B, 1, side, side)`` with values in [0, 1]."""
        across, down, size, light = z.reshape(len(z), self.discs, 4, 1, 1).unbind(dim=2)
        distance = (self.rows - 0.6 * torch.tanh(down)) ** 2 + (self.columns - 0.6 * torch.tanh(across)) ** 2
        radius = 0.25 + 0.15 * torch.tanh(size)
        disc = torch.sigmoid(self.sharpness * (1 - distance / radius**2))
        shade = torch.sigmoid(1.0 + light) * disc
        return 1 - (1 - shade).prod(dim=1, keepdim=True)


def soft_discs(discs: int = 2, side: int = 32, *, device: torch.device | str = "cpu") -> Generator:
    """The generator of :class:`SoftDiscs`: no training, an image that is easy to recognise, a smooth derivative."""
    return Generator(SoftDiscs(discs, side).to(device), (4 * discs,), (1, side, side), signal_range=(0.0, 1.0))


def _randomised(module: nn.Module, seed: int, gain: float) -> nn.Module:
    """Normal weights that keep the signal's size through the layers, from an own seed."""
    random = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        if parameter.ndim == 1:
            nn.init.zeros_(parameter)
        else:
            # Inputs per output: a stride of two in both directions uses a quarter of the kernel at a time.
            fan = parameter[0].numel() if parameter.ndim == 2 else parameter.shape[0] * parameter[0, 0].numel() / 4
            nn.init.normal_(parameter, std=gain / math.sqrt(fan), generator=random)
    return module
