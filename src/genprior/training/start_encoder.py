"""Training of an encoder for starts, from measurements to latents, on the generator's own samples."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from genprior import _batch, _random, _validate
from genprior.generators.contract import Generator
from genprior.models.saved import Saved, save_network
from genprior.models.seeded import seeded
from genprior.models.start_encoder import (
    StartEncoder,
    measurements_of_probe,
    real_parts,
    signals_of_probes,
    thinned,
)
from genprior.operators import Operator
from genprior.training.draw import Draw
from genprior.training.task import Devices, Task, ramp_down, set_rate

_MOST_VALUES = 2**25
"""Most numbers of the measurements of which principal components are computed."""
_LEAST_SAMPLES = 64
_AT_ONCE = 2**20
"""Most values of the signals that are made at once for them."""
GUESSES = "its guesses"
"""The name of the figures on the card."""
_FRESH = 64
"""Samples on which the trained encoder is measured."""


@dataclass(frozen=True)
class StartEncoderSettings:
    """Sizes and duration of a training."""

    width: int = 512
    """Width of the two hidden layers."""
    components: int = 512
    """Most principal components of the measurements that the encoder sees."""
    samples: int = 2048
    """Samples from which these are computed; fewer where the measurements have very many values."""
    batch: int = 48
    """Samples per step."""
    steps: int = 3000
    """Steps."""
    rate: float = 1e-3
    """Adam's learning rate; falls linearly in the second half."""
    noise: float = 0.1
    """Largest standard deviation of the noise that is added to the measurements, relative to theirs. Each sample gets a
    level of its own, most of them far below. Real signals, which the generator makes only nearly, look like noisy ones."""
    latent_weight: float = 0.1
    """Weight of ``|E(y) - z|^2``, relative to ``|G(E(y)) - G(z)|^2``, both in units of their variance."""

    def __post_init__(self) -> None:
        for name in ("width", "components", "samples", "batch", "steps"):
            _validate.whole(name, getattr(self, name))
        _validate.number("rate", self.rate, above=0)
        for name in ("noise", "latent_weight"):
            _validate.number(name, getattr(self, name), least=0)


class StartEncoderTask(Task):
    """Minimises ``|G(E(A x + noise)) - x|^2 / Var x + weight |E(A x + noise) - z|^2 / Var z`` over samples ``x = G(z)``."""

    columns = ("signal_error", "latent_error")

    def __init__(
        self,
        settings: StartEncoderSettings,
        generator: Generator,
        operator: Operator,
        seed: int,
        facts: dict[str, Any] | None = None,
    ) -> None:
        if operator.batch is not None:
            raise ValueError(
                f"operator must be one for all items, got {operator!r} for {operator.batch} items: an encoder knows one "
                "operator"
            )
        self.settings, self.generator, self.operator = settings, generator, operator
        self.steps, self.batch = settings.steps, settings.batch
        self._more = facts or {}
        signals, measurements = self._samples(_random.stream("encoder", seed))
        self._variance = float((signals - signals.mean(dim=0)).square().mean())
        mean, basis, self._unit = components(measurements, settings.components, settings.noise)
        self._shape: dict[str, Any] = {
            "measurements": len(mean),
            "components": basis.shape[1],
            "latent_shape": list(generator.latent_shape),
            "signal_shape": list(generator.signal_shape),
            "width": settings.width,
        }
        self.network = seeded(lambda: StartEncoder(**self._shape), _validate.seed(seed)).to(generator.device)
        with torch.no_grad():
            self.network.mean.copy_(mean)
            self.network.basis.copy_(basis)
            self.network.centre.fill_(generator.latent.centre)
            self.network.spread.fill_(generator.spread)
            self.network.probed_signals.copy_(signals_of_probes(generator))
            self.network.probed_measurements.copy_(thinned(measurements_of_probe(generator, operator)))
        self.networks = {"encoder": self.network}
        self.optimisers = {"encoder": torch.optim.Adam(self.network.parameters(), fused=True)}

    def identity(self) -> list[object]:
        """Settings, generator, operator and the first weights."""
        return [self.settings, self.generator.module, self.generator.latent, self.operator, self.network]

    def step(self, number: int, draw: Draw, devices: Devices) -> dict[str, Tensor]:
        """One batch of samples."""
        set_rate(self.optimisers["encoder"], self.settings.rate * ramp_down(number, self.steps))
        z = draw.latent(self.generator.latent, self.batch, self.generator.latent_shape).to(self.generator.dtype)
        with torch.no_grad():
            x = self.generator(z)
            y = self._noisy(x, draw)
        with devices.fabric.autocast():
            found = self.network(y)
        found = found.to(z)
        signal_error = (self.generator(found) - x).square().mean() / max(self._variance, torch.finfo(x.dtype).tiny)
        latent_error = (found - z).square().mean() / self.generator.spread**2
        devices.update(signal_error + self.settings.latent_weight * latent_error, self.optimisers.values())
        return {"signal_error": signal_error, "latent_error": latent_error}

    def _noisy(self, x: Tensor, draw: Draw) -> Tensor:
        """Measurements with noise of another level for each sample, where the operator measures anything."""
        y = self.operator(x)
        flat = real_parts(y)
        level = self.settings.noise * self._unit * draw.uniform(self.batch).square()
        noise = (level[:, None] * draw.normal(self.batch, (flat.shape[1],))).to(flat)
        shape = torch.view_as_real(y).shape if y.is_complex() else y.shape
        noise = noise.reshape(shape)
        return y + self.operator.measured(torch.view_as_complex(noise) if y.is_complex() else noise)

    def _samples(self, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """Samples of the generator and their measurements, in rows."""
        generator, settings = self.generator, self.settings
        values = math.prod(generator.signal_shape)
        most = max(_LEAST_SAMPLES, _MOST_VALUES // max(values, real_parts(self._one()).shape[1]))
        with torch.no_grad():
            signals, measurements = [], []
            latents = generator.draw(min(settings.samples, most), random)
            for z in _batch.pieces(latents, max(1, _AT_ONCE // values)):
                x = generator(z)
                signals.append(x.flatten(1))
                measurements.append(real_parts(self.operator(x)))
        return torch.cat(signals), torch.cat(measurements)

    def _one(self) -> Tensor:
        shape, generator = (1, *self.generator.signal_shape), self.generator
        with torch.no_grad():
            return self.operator(torch.zeros(shape, device=generator.device, dtype=generator.dtype))

    def quality(self, seed: int = 1) -> dict[str, float]:
        """On samples that were not trained on: how the guess fits beside each of a pool's samples. Medians, without noise."""
        generator = self.generator
        with torch.no_grad():
            z = generator.sample_latent(_FRESH, seed)
            x = generator(z)
            y = real_parts(self.operator(x))
            guess = generator.latent.within(self.network(self.operator(x)).to(z))
            own = _batch.norm(real_parts(self.operator(generator(guess))) - y)
            parts = _batch.pieces(generator.pool(512).signals, _FRESH)
            pool = torch.cat([_batch.distances(y, real_parts(self.operator(part))) for part in parts], dim=1)
        size = _batch.norm(y)
        return {
            "fresh_samples": _FRESH,
            "pool": pool.shape[1],
            "share_that_fits_better_than_the_whole_pool": float((own < pool.amin(dim=1)).double().mean()),
            "residual_of_the_guess": float(_batch.ratio(own, size).median()),
            "residual_of_the_nearest_sample": float(_batch.ratio(pool.amin(dim=1), size).median()),
        }

    def finish(self, folder: Path, facts: dict[str, Any]) -> list[Path]:
        """Save the encoder; its facts, with how well it guesses, are added to ``facts``."""
        facts |= {
            "data": "the generator's own samples",
            **self._more,
            "training": dataclasses.asdict(self.settings),
            "operator": repr(self.operator),
            "quality": {GUESSES: self.quality()},
        }
        path = folder / "encoder.safetensors"
        save_network(path, Saved("start-encoder", self._shape, self.network, facts, stored=torch.float32))
        return [path]


def components(measurements: Tensor, most: int, noise: float) -> tuple[Tensor, Tensor, float]:
    """Mean, principal components over their standard deviations with noise, and the typical deviation of one value.

    The noise counts with its mean square, over levels ``noise u^2`` with u uniform in [0, 1].
    """
    rows = measurements.cpu().double()
    mean = rows.mean(dim=0)
    rows = rows - mean
    unit = float(rows.square().mean().sqrt())
    count, size = rows.shape
    if size <= count:
        values, vectors = torch.linalg.eigh(rows.mT @ rows / count)
    else:
        values, left = torch.linalg.eigh(rows @ rows.mT / count)
        vectors = rows.mT @ (left / (count * values).clamp_min(torch.finfo(torch.float64).tiny).sqrt())
    values, vectors = values.flip(0)[:most], vectors.flip(1)[:, :most]
    kept = values > 1e-10 * values[0]
    kept[0] = True
    values, vectors = values[kept], vectors[:, kept]
    floor = (noise * unit) ** 2 / 5
    deviation = (values.clamp_min(0.0) + floor).sqrt()
    deviation = torch.where(deviation > 0, deviation, 1.0)
    return mean.to(measurements), (vectors / deviation).to(measurements), unit
