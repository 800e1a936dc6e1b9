"""Encoders for starts: from the measurements of one operator to the latents of one generator."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from genprior import _batch, _random, _validate
from genprior.generators import Generator
from genprior.operators import Operator
from genprior.problem import Problem

_FARTHEST = 8.0
"""Bound on a component of the measurements, in standard deviations: data that no sample resembles stay bounded."""
_ENTRIES = 256
"""Most entries of a probe that are stored."""
_SAME = 0.01
"""Largest difference, relative to the probes, of a generator or an operator that counts as the same."""
_AT_ONCE = 256
_TRAIN = "train an encoder for it with genprior train encoder"


class StartEncoder(nn.Module):
    """Guesses a latent from measurements: ``z = c + s (B f + N(f))``, with a matrix B and a small network N.

    ``f`` are the measurements in their principal components over the generator's samples, each divided by its standard
    deviation with noise. ``c`` and ``s`` are centre and spread of the latent distribution. It holds what generator and
    operator made of a few probes, and refuses others. :func:`genprior.load_start_encoder` reads one that ``genprior train
    encoder`` wrote.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> encoder = gp.StartEncoder(measurements=6, components=4, latent_shape=(3,), signal_shape=(8,), width=16)
    >>> encoder(torch.zeros(2, 6)).shape
    torch.Size([2, 3])
    """

    mean: Tensor
    basis: Tensor
    centre: Tensor
    spread: Tensor
    probed_signals: Tensor
    probed_measurements: Tensor

    def __init__(
        self,
        measurements: int,
        components: int,
        latent_shape: Sequence[int],
        signal_shape: Sequence[int],
        width: int = 512,
    ) -> None:
        super().__init__()
        for name, value in (("measurements", measurements), ("components", components), ("width", width)):
            _validate.whole(name, value)
        self.latent_shape = _validate.shape("latent_shape", latent_shape)
        self.signal_shape = _validate.shape("signal_shape", signal_shape)
        latent = math.prod(self.latent_shape)
        self.register_buffer("mean", torch.zeros(measurements))
        self.register_buffer("basis", torch.zeros(measurements, components))
        self.register_buffer("centre", torch.zeros(()))
        self.register_buffer("spread", torch.ones(()))
        self.register_buffer("probed_signals", torch.zeros(2, _kept(math.prod(self.signal_shape))))
        self.register_buffer("probed_measurements", torch.zeros(1, _kept(measurements)))
        self.linear = nn.Linear(components, latent)
        self.network = nn.Sequential(
            nn.Linear(components, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, latent)
        )
        for last in (self.linear, self.network[-1]):
            nn.init.zeros_(last.weight)  # type: ignore[arg-type]
            nn.init.zeros_(last.bias)  # type: ignore[arg-type]

    def forward(self, y: Tensor) -> Tensor:
        """Measurements ``(B, *measurement_shape)`` to latents ``(B, *latent_shape)``."""
        features = ((real_parts(y).to(self.mean) - self.mean) @ self.basis).clamp(-_FARTHEST, _FARTHEST)
        found: Tensor = self.centre + self.spread * (self.linear(features) + self.network(features))
        return found.reshape(len(found), *self.latent_shape)

    def guess(self, problem: Problem) -> Tensor:
        """One latent for each item of the problem, within the reach of the generator's latent distribution.

        Raises where the encoder was made for another generator or operator; the check takes one pass of two samples.
        """
        observed = problem.loss.observed()
        if observed is None:
            raise ValueError(
                f"start needs measurements, but the loss is {type(problem.loss).__name__}: give LeastSquares(A, y) or "
                "SquaredDistance(y), or latents of your own as z0"
            )
        operator, y = observed
        generator = problem.generator
        with torch.no_grad():
            self.check(generator, operator)
            found = torch.cat([self(part) for part in _batch.pieces(y, _AT_ONCE)])
            return generator.latent.within(found.to(generator.device, generator.dtype))

    def check(self, generator: Generator, operator: Operator) -> None:
        """Raise a clear error where the encoder was made for another generator or operator."""
        if self.latent_shape != generator.latent_shape or self.signal_shape != generator.signal_shape:
            raise ValueError(
                f"start is an encoder for a generator from latents {self.latent_shape} to signals {self.signal_shape}, but "
                f"this one goes from {generator.latent_shape} to {generator.signal_shape}: {_TRAIN}"
            )
        with torch.no_grad():
            signals = signals_of_probes(generator).to(self.mean)
            apart = _batch.norm(self.probed_signals[:1] - self.probed_signals[1:])
            far = float(_batch.ratio(_batch.norm(signals - self.probed_signals), apart.expand(2)).max())
            if not far <= _SAME:
                raise ValueError(
                    "start is an encoder for another generator: from the same latents this one makes signals that differ by "
                    f"{far:.0%} of the distance between two samples (other weights, latent distribution, range or class?): "
                    f"{_TRAIN}"
                )
            images = measurements_of_probe(generator, operator)
            if images.shape[1] != len(self.mean):
                raise ValueError(
                    f"start is an encoder of {len(self.mean)} measurements, but the operator {operator!r} gives "
                    f"{images.shape[1]}: {_TRAIN}"
                )
            images = thinned(images).to(self.mean)
            size = _batch.norm(self.probed_measurements).expand(len(images))
            far = float(_batch.ratio(_batch.norm(images - self.probed_measurements), size).max())
            if not far <= _SAME:
                each = ", one for each item" if operator.batch is not None else ""
                raise ValueError(
                    f"start is an encoder for another operator: of the same signal this one ({operator!r}{each}) gives "
                    f"measurements that differ by {far:.0%} (another seed, mask or file?): {_TRAIN}"
                )


def real_parts(y: Tensor) -> Tensor:
    """Measurements as rows of real numbers."""
    return (torch.view_as_real(y) if y.is_complex() else y).flatten(1)


def thinned(rows: Tensor) -> Tensor:
    """At most so many entries of each row as are stored, evenly spread."""
    return rows[:, :: -(-rows.shape[1] // _ENTRIES)]


def signals_of_probes(generator: Generator) -> Tensor:
    """Entries of two samples, the same ones at every call: one forward pass."""
    return thinned(generator(generator.draw(2, _random.stream("probe", 0))).flatten(1))


def measurements_of_probe(generator: Generator, operator: Operator) -> Tensor:
    """What the operator, or that of each item, makes of a random signal that is the same at every call."""
    drawn = torch.randn(generator.signal_shape, generator=_random.stream("probe", 1), dtype=torch.float64)
    probe = drawn.to(generator.device, generator.dtype).expand(operator.batch or 1, *generator.signal_shape)
    return real_parts(operator(probe))


def _kept(count: int) -> int:
    """Entries that are left of so many."""
    return len(range(0, count, -(-count // _ENTRIES)))
