"""Training of an encoder of images: from images to latents."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior.generators.contract import Generator
from genprior.models.encoders import Encoder
from genprior.models.saved import Saved, save_network
from genprior.models.seeded import seeded
from genprior.report.sheets import contact_sheet
from genprior.training.data import ImageSet
from genprior.training.draw import Draw
from genprior.training.task import Devices, Task, ramp_down, set_rate


@dataclass(frozen=True)
class ImageEncoderSettings:
    """Sizes and duration of a training."""

    width: int = 32
    """Channels of the first convolution."""
    batch: int = 64
    """Images per step."""
    steps: int = 3000
    """Steps."""
    rate: float = 1e-3
    """Adam's learning rate; falls linearly in the second half."""
    own_samples: float = 0.5
    """Share of generated samples in a batch; the rest are images from the data."""
    latent_weight: float = 0.1
    """Weight of ``|E(G(z)) - z|^2 / latent`` on the generator's samples, relative to ``|G(E(x)) - x|^2 / pixel variance``."""

    def __post_init__(self) -> None:
        for name in ("width", "batch", "steps"):
            _validate.whole(name, getattr(self, name))
        _validate.number("rate", self.rate, above=0)
        _validate.number("latent_weight", self.latent_weight, least=0)
        if not 0 <= _validate.number("own_samples", self.own_samples) <= 1:
            raise ValueError(f"own_samples must be a share between 0 and 1, got {self.own_samples}")


class ImageEncoderTask(Task):
    """An encoder for one generator: minimises ``|G(E(x)) - x|^2`` over images and samples of the generator."""

    columns = ("signal_error", "latent_error")

    def __init__(
        self,
        settings: ImageEncoderSettings,
        generator: Generator,
        images: ImageSet | None,
        seed: int,
        start: Encoder | None = None,
        facts: dict[str, Any] | None = None,
    ) -> None:
        if images is None and settings.own_samples < 1:
            raise ValueError("own_samples must be 1 where no images are given")
        if images is not None and images.signal_shape != generator.signal_shape:
            raise ValueError(
                f"the generator makes images {generator.signal_shape}, but the data are {images.signal_shape}"
            )
        self.settings, self.generator, self.images = settings, generator, images
        self.steps, self.batch = settings.steps, settings.batch
        self._more = facts or {}
        (latent,) = generator.latent_shape
        self._shape = {"signal_shape": list(generator.signal_shape), "latent": latent, "width": settings.width}
        shape = generator.signal_shape
        self.network = seeded(lambda: Encoder(shape, latent, settings.width), _validate.seed(seed))
        if start is not None:
            self._start_from(start)
        self.network.to(generator.device)
        self.networks = {"encoder": self.network}
        self.optimisers = {"encoder": torch.optim.Adam(self.network.parameters(), fused=True)}

    def _start_from(self, start: Encoder) -> None:
        try:
            self.network.load_state_dict(start.state_dict())
        except RuntimeError:
            width = start.trunk[0].out_channels
            raise ValueError(
                f"start is an encoder of width {width} from images {start.signal_shape} to latents "
                f"{start.latent_shape}, expected width {self.settings.width}, {self.generator.signal_shape} and "
                f"{self.generator.latent_shape}: give `width={width}`, or another start"
            ) from None

    def identity(self) -> list[object]:
        """Settings, data, generator and the first weights."""
        data = None if self.images is None else self.images.bytes
        return [self.settings, data, self.generator.module, self.network]

    def step(self, number: int, draw: Draw, devices: Devices) -> dict[str, Tensor]:
        """One batch of samples and images."""
        set_rate(self.optimisers["encoder"], self.settings.rate * ramp_down(number, self.steps))
        z, real = self._batch(draw)
        with devices.fabric.autocast():
            found = self.network(real)
        found = found.float()
        pixels = (self.generator(found) - real).square().mean() / real.var().clamp_min(1e-6)
        latents = (found[: len(z)] - z).square().mean() if len(z) else pixels.new_zeros(())
        devices.update(pixels + self.settings.latent_weight * latents, self.optimisers.values())
        return {"signal_error": (pixels * real.var()), "latent_error": latents}

    def _batch(self, draw: Draw) -> tuple[Tensor, Tensor]:
        own = round(self.batch * self.settings.own_samples)
        own -= own % draw.world
        z = draw.latent(self.generator.latent, max(own, draw.world), self.generator.latent_shape)[: own // draw.world]
        with torch.no_grad():
            real = self.generator(z) if len(z) else z.new_zeros(0, *self.generator.signal_shape)
        if self.images is not None and own < self.batch:
            place = draw.index(self.batch - own, len(self.images))
            real = torch.cat([real, self.images.batch(place, draw.device)])
        return z, real

    def save_samples(self, folder: Path, name: str) -> None:
        """Save images and their reconstructions, row by row."""
        real = self._shown()
        with torch.no_grad():
            again = self.generator(self.network(real))
        rows = [part for pair in zip(_batch.pieces(real, 8), _batch.pieces(again, 8), strict=True) for part in pair]
        contact_sheet(torch.cat(rows), folder / f"{name}.png")

    def _shown(self) -> Tensor:
        if self.images is not None:
            return self.images.batch(torch.arange(min(32, len(self.images))), self.generator.device)
        return self.generator(self.generator.sample_latent(32, seed=1)).detach()

    def finish(self, folder: Path, facts: dict[str, Any]) -> list[Path]:
        """Save the encoder."""
        facts = facts | {
            "data": "own samples" if self.images is None else self.images.name,
            "data_licence": "" if self.images is None else self.images.licence,
            **self._more,
            "training": dataclasses.asdict(self.settings),
        }
        path = folder / "encoder.safetensors"
        save_network(path, Saved("encoder", self._shape, self.network, facts))
        return [path]
