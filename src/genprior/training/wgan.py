"""Wasserstein GAN with gradient penalty (Gulrajani et al. 2017), started as the decoder of a variational autoencoder.

Stage one trains generator and encoder as a VAE: after a few minutes the range of G covers the data, but samples
are blurred. Stage two is WGAN-GP,

    critic:     min  E D(G(z)) - E D(x) + penalty E (|grad D(t x + (1-t) G(z))| - 1)^2
    generator:  min  -E D(G(z)) + anchor * (negative evidence lower bound)

where a small ``anchor`` keeps the range covering the data while the critic sharpens samples (0: plain WGAN-GP).
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from genprior import _batch, _validate
from genprior.generators.latents import TruncatedNormal
from genprior.models.bundled import store_preconditioner
from genprior.models.critics import Critic
from genprior.models.encoders import Encoder
from genprior.models.saved import GENERATORS, Saved, build, save_network
from genprior.models.seeded import Network, seeded
from genprior.report.sheets import contact_sheet
from genprior.training.data import ImageSet
from genprior.training.draw import Draw
from genprior.training.task import Devices, Task, ramp_down, set_rate

_AHEAD, _AHEAD_FOR = 10, 10  # ten times as many critic steps at first, because the critic starts untrained


@dataclass(frozen=True)
class WganSettings:
    """Sizes, duration and loss weights of a training."""

    network: str = "conv-generator"
    """conv-generator (28 x 28, grey) or residual-generator (64 x 64)."""
    latent: int = 128
    """Dimension of the latent."""
    width: int = 64
    """Channels of the generator before its last layer; those below have multiples of it."""
    critic_width: int = 32
    """Channels of the critic's first layer."""
    encoder_width: int = 32
    """Channels of the encoder's first layer."""
    batch: int = 64
    """Images per step, over all devices."""
    warm_steps: int = 2000
    """Steps of stage one; 0 leaves it out."""
    steps: int = 8000
    """Generator steps of stage two."""
    critic_steps: int = 3
    """Critic steps per generator step."""
    rate: float = 2e-4
    """Adam's learning rate in stage two; falls linearly in the second half."""
    warm_rate: float = 3e-4
    """Adam's learning rate in stage one."""
    variance: float = 0.05
    """Of the decoder's Gaussian, per pixel: the larger, the better the samples of stage one, the worse its fits."""
    anchor: float = 0.01
    """Weight of stage one's loss in stage two; 0 leaves it out."""
    penalty: float = 10.0
    """Weight of the gradient penalty."""
    averaging: float = 0.998
    """Decay of the exponential moving average of the weights."""

    def __post_init__(self) -> None:
        if self.network not in GENERATORS:
            raise ValueError(f"network must be one of {', '.join(GENERATORS)}, got {self.network!r}")
        for name in ("latent", "width", "critic_width", "encoder_width", "batch", "critic_steps"):
            _validate.whole(name, getattr(self, name))
        for name in ("warm_steps", "steps"):
            _validate.whole(name, getattr(self, name), 0)
        for name in ("rate", "warm_rate", "variance"):
            _validate.number(name, getattr(self, name), above=0)
        for name in ("anchor", "penalty", "averaging"):
            _validate.number(name, getattr(self, name), least=0)
        if self.averaging >= 1:
            raise ValueError(f"averaging must be below 1, got {self.averaging}")
        if self.warm_steps + self.steps == 0:
            raise ValueError("steps and warm_steps are both 0: there is nothing to train")

    def network_settings(self, images: ImageSet) -> dict[str, Any]:
        """Arguments of the generator's class."""
        settings: dict[str, Any] = {"latent": self.latent, "width": self.width}
        return settings | ({"channels": images.signal_shape[0]} if self.network == "residual-generator" else {})


class Wgan(Task):
    """The training of one generator on one set of images."""

    columns = ("reconstruction", "divergence", "distance", "penalty", "generator")

    def __init__(
        self,
        settings: WganSettings,
        images: ImageSet,
        seed: int,
        device: torch.device | str = "cpu",
        *,
        layout: torch.memory_format = torch.channels_last,
        fused: bool = True,
    ) -> None:
        self._layout = layout
        self.settings = settings
        self.images = images
        self.steps = settings.warm_steps + settings.steps
        self.batch = settings.batch
        self.prior = TruncatedNormal(radius=round(math.sqrt(settings.latent) + 4, 2))
        random = _validate.seed(seed)
        make: Any = partial(build, settings.network, settings.network_settings(images))
        self.generator: Any = _placed(make, random, device, layout)
        shape = tuple(int(n) for n in self.generator.signal_shape)
        if shape != images.signal_shape:
            raise ValueError(f"{settings.network} makes images {shape}, but the data are {images.signal_shape}")
        self.critic = _placed(lambda: Critic(shape, settings.critic_width), random, device, layout)
        self.encoder = _placed(lambda: Encoder(shape, settings.latent, settings.encoder_width), random, device, layout)
        self.average = copy.deepcopy(self.generator).requires_grad_(False)
        self.networks = {
            "generator": self.generator,
            "critic": self.critic,
            "encoder": self.encoder,
            "average": self.average,
        }
        self.optimisers = {
            "warm": torch.optim.Adam([*self.generator.parameters(), *self.encoder.parameters()], fused=fused),
            "critic": torch.optim.Adam(self.critic.parameters(), betas=(0.0, 0.9), fused=fused),
            "generator": torch.optim.Adam(self.generator.parameters(), betas=(0.0, 0.9), fused=fused),
            "encoder": torch.optim.Adam(self.encoder.parameters(), fused=fused),
        }

    def identity(self) -> list[object]:
        """Settings and data."""
        return [self.settings, self.images.bytes]

    def step(self, number: int, draw: Draw, devices: Devices) -> dict[str, Tensor]:
        """One step of stage one, or one generator step of stage two with its critic steps."""
        inside = number - self.settings.warm_steps
        losses = self._warm_step(number, draw, devices) if inside < 0 else self._wgan_step(inside, draw, devices)
        keep = min(self.settings.averaging, (1 + number) / (10 + number))
        with torch.no_grad():
            for mean, now in zip(self.average.parameters(), self.generator.parameters(), strict=True):
                mean.lerp_(now, 1 - keep)
        return losses

    def _warm_step(self, number: int, draw: Draw, devices: Devices) -> dict[str, Tensor]:
        set_rate(self.optimisers["warm"], self.settings.warm_rate * ramp_down(number, self.settings.warm_steps))
        bound, reconstruction, divergence = self._evidence(draw, devices)
        devices.update(bound, [self.optimisers["warm"]])
        return {"reconstruction": reconstruction, "divergence": divergence}

    def _wgan_step(self, inside: int, draw: Draw, devices: Devices) -> dict[str, Tensor]:
        settings = self.settings
        share = ramp_down(inside, settings.steps)
        for name in ("critic", "generator", "encoder"):
            set_rate(self.optimisers[name], settings.rate * share)
        ahead = _AHEAD if inside < _AHEAD_FOR else 1
        for _ in range(ahead * settings.critic_steps):
            distance, penalty = self._critic_step(draw, devices)
        self.critic.requires_grad_(False)
        z = draw.latent(self.prior, settings.batch, self.generator.latent_shape)
        with devices.fabric.autocast():
            loss = -self.critic(self.generator(z)).float().mean()
        losses = {"distance": distance, "penalty": penalty, "generator": loss}
        trained = [self.optimisers["generator"]]
        if settings.anchor:
            bound, losses["reconstruction"], losses["divergence"] = self._evidence(draw, devices)
            loss = loss + settings.anchor * bound
            trained.append(self.optimisers["encoder"])
        devices.update(loss, trained)
        self.critic.requires_grad_(True)
        return losses

    def _critic_step(self, draw: Draw, devices: Devices) -> tuple[Tensor, Tensor]:
        real = self._real(draw)
        z = draw.latent(self.prior, self.settings.batch, self.generator.latent_shape)
        with devices.fabric.autocast():
            with torch.no_grad():
                fake = self.generator(z)
            on_real, on_fake = self.critic(torch.cat([real, fake])).float().chunk(2)
            distance = on_real.mean() - on_fake.mean()
            penalty = gradient_penalty(self.critic, real, fake, draw.uniform(self.settings.batch))
            loss = self.settings.penalty * penalty - distance
        devices.update(loss, [self.optimisers["critic"]])
        return distance, penalty

    def _evidence(self, draw: Draw, devices: Devices) -> tuple[Tensor, Tensor, Tensor]:
        """Negative evidence lower bound up to a constant; squared error per pixel; divergence from the standard normal."""
        real = self._real(draw)
        noise = draw.normal(self.settings.batch, self.generator.latent_shape)
        with devices.fabric.autocast():
            mean, deviation = (part.float() for part in self.encoder.gaussian(real))
            error = (self.generator(mean + deviation.exp() * noise) - real).square().flatten(1).sum(1).mean()
        divergence = 0.5 * (mean.square() + (2 * deviation).exp() - 1 - 2 * deviation).sum(1).mean()
        return error / (2 * self.settings.variance) + divergence, error / real[0].numel(), divergence

    def _real(self, draw: Draw) -> Tensor:
        real = self.images.batch(draw.index(self.settings.batch, len(self.images)), draw.device)
        return real.contiguous(memory_format=self._layout)

    def samples(self, count: int, seed: int = 0) -> Tensor:
        """Samples of the averaged generator."""
        z = self.prior.sample(count, self.generator.latent_shape, _validate.seed(seed)).float()
        with torch.no_grad():
            return torch.cat(
                [self.average(part.to(next(self.average.parameters()).device)) for part in _batch.pieces(z, 64)]
            )

    def save_samples(self, folder: Path, name: str) -> None:
        """A sheet of 64 samples."""
        contact_sheet(self.samples(64), folder / f"{name}.png")

    def finish(self, folder: Path, facts: dict[str, Any]) -> list[Path]:
        """Save the averaged generator and, if it was trained, the encoder."""
        facts = facts | {
            "data": self.images.name,
            "data_licence": self.images.licence,
            "training": dataclasses.asdict(self.settings),
            "signal_range": [0.0, 1.0],
            "law": {"radius": self.prior.radius, "scale": self.prior.scale},
        }
        settings = self.settings.network_settings(self.images)
        files = [folder / "generator.safetensors"]
        save_network(files[0], Saved(self.settings.network, settings, self.average, facts))
        store_preconditioner(files[0])
        if self.settings.anchor or not self.settings.steps:  # an untrained encoder belongs to another generator
            encoder = {
                "signal_shape": list(self.images.signal_shape),
                "latent": self.settings.latent,
                "width": self.settings.encoder_width,
            }
            files.append(folder / "encoder.safetensors")
            own = {
                name: value for name, value in facts.items() if name != "quality"
            }  # this one describes the generator
            save_network(files[1], Saved("encoder", encoder, self.encoder, own))
        return files


def _placed(
    make: Callable[[], Network], random: torch.Generator, device: torch.device | str, layout: torch.memory_format
) -> Network:
    return seeded(make, random).to(device, memory_format=layout)  # type: ignore[call-overload, no-any-return]


def gradient_penalty(critic: nn.Module, real: Tensor, fake: Tensor, mix: Tensor) -> Tensor:
    """``E (|grad D(mix real + (1 - mix) fake)| - 1)^2``, the norm per item."""
    weight = mix.reshape(-1, *[1] * (real.ndim - 1))
    between = (weight * real + (1 - weight) * fake).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return (_batch.norm(gradient) - 1).square().mean()
