"""Two generators with large latents that need no download: a decoder with weights drawn from a seed, and a few-step flow."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from genprior.generators import Generator


def decoder(*, device: torch.device | str = "cpu") -> Generator:
    """2048 latents to colour images of 64 x 64, like a small decoder of latent diffusion; weights drawn from a seed."""
    channels, side = 8, 16
    with torch.random.fork_rng(devices=[]):  # layers draw their initial weights from torch's global generator
        module = nn.Sequential(
            nn.Conv2d(channels, 32, 3, padding=1),
            nn.SiLU(),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.SiLU(),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(32, 16, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(16, 3, 3, padding=1),
            nn.Sigmoid(),
        )
    random = torch.Generator().manual_seed(0)
    for layer in module:
        if isinstance(layer, nn.Conv2d):
            nn.init.normal_(layer.weight, std=1.6 / math.sqrt(layer.weight[0].numel()), generator=random)
            nn.init.normal_(layer.bias, std=0.1, generator=random) if layer.bias is not None else None
    return Generator(module.to(device).eval(), (channels, side, side), (3, 64, 64), signal_range=(0.0, 1.0))


class MixtureFlow(nn.Module):
    """A flow from white noise to a mixture of Gaussian textures, in a few steps of Euler's method.

    The data are ``N(m_k, C)`` with equal weights, where C has the variance ``c(f)`` at the frequency f. On the straight
    paths ``x_t = (1 - t) x_0 + t x_1`` the velocity ``E[x_1 - x_0 | x_t]`` has a closed form: at each frequency, ``x_t`` has
    the variance ``v = (1 - t)^2 + t^2 c`` around ``t m_k``, so that ``m_k + (t c - (1 - t)) / v (x_t - t m_k)`` is the
    velocity for one k, and these are averaged with the probabilities of k given ``x_t``.
    """

    centres: Tensor
    """``(K, h, w/2 + 1)``: the spectra of the means."""
    variances: Tensor
    """``(h, w/2 + 1)``."""
    counts: Tensor
    """How often each frequency is in a whole spectrum."""

    def __init__(self, side: int, centres: int, steps: int, seed: int = 0) -> None:
        super().__init__()
        self.side, self.steps = side, steps
        across = torch.fft.rfftfreq(side) * side
        distance = (torch.fft.fftfreq(side)[:, None] * side).square() + across.square()
        random = torch.Generator().manual_seed(seed)
        noise = torch.fft.rfft2(torch.randn(centres, side, side, generator=random), norm="ortho")
        self.register_buffer("variances", 4.0 / (1 + distance / 16) ** 3)
        self.register_buffer("centres", noise * (side / 4 * torch.exp(-distance / 8)))
        counts = torch.full_like(across, 2.0)
        counts[0] = 1.0
        counts[-1] = 1.0 if side % 2 == 0 else 2.0
        self.register_buffer("counts", counts)

    def forward(self, z: Tensor) -> Tensor:
        """White noise ``(B, 1, side, side)`` to signals of the same shape."""
        spectrum = torch.fft.rfft2(z[:, 0], norm="ortho")
        for step in range(self.steps):
            spectrum = spectrum + self.velocity(spectrum, step / self.steps) / self.steps
        signal: Tensor = torch.fft.irfft2(spectrum, s=(self.side, self.side), norm="ortho")
        return signal[:, None]

    def velocity(self, spectrum: Tensor, t: float) -> Tensor:
        """``E[x_1 - x_0 | x_t]`` of spectra ``(B, h, w/2 + 1)``."""
        variance = (1 - t) ** 2 + t**2 * self.variances
        away = spectrum[:, None] - t * self.centres
        energy = (away.real.square() + away.imag.square()) * (self.counts / variance)
        weights = torch.softmax(-0.5 * energy.sum(dim=(2, 3)), dim=1)
        centre = torch.einsum("bk,khw->bhw", weights.to(self.centres.dtype), self.centres)
        velocity: Tensor = centre + (t * self.variances - (1 - t)) / variance * (spectrum - t * centre)
        return velocity


def flow(*, device: torch.device | str = "cpu") -> Generator:
    """:class:`MixtureFlow` of 48 x 48 in 6 steps: as many latents as pixels."""
    side = 48
    return Generator(MixtureFlow(side, centres=8, steps=6).to(device), (1, side, side), (1, side, side))
