"""A pool of a generator's samples, from which searches choose their starts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from genprior import _batch, _random

if TYPE_CHECKING:
    from genprior.generators.contract import Generator

BLOCK = 16
"""Samples that are drawn together: a pool is a number of whole blocks, the same ones however many there are."""
LARGEST = 2**25
"""Most numbers in a pool, latents and signals added up: 128 MB in float32."""
_AT_ONCE = 2**22
"""Most values of a batch of signals in one pass, to bound the memory."""


@dataclass(frozen=True, eq=False)
class Pool:
    """Latents drawn from the generator's latent distribution, and their signals."""

    latents: Tensor
    signals: Tensor

    def __len__(self) -> int:
        return len(self.latents)

    def first(self, count: int) -> Pool:
        """The first samples of the pool."""
        return self if count == len(self) else Pool(self.latents[:count], self.signals[:count])


def most_samples(generator: Generator) -> int:
    """How many samples a pool may have, to bound its memory."""
    return max(1, LARGEST // (BLOCK * numbers_of(generator))) * BLOCK


def numbers_of(generator: Generator) -> int:
    """Numbers in a latent and its signal."""
    return math.prod(generator.latent_shape) + math.prod(generator.signal_shape)


def latents_of_pool(generator: Generator, count: int, seed: int, begin: int = 0) -> Tensor:
    """The latents of a pool from the sample ``begin`` on: by the seed and the number of the block, on every device."""
    blocks = range(begin // BLOCK, count // BLOCK)
    return torch.cat([generator.draw(BLOCK, _random.stream("pool", seed, block)) for block in blocks])


def extended(generator: Generator, pool: Pool | None, count: int, seed: int) -> Pool:
    """The pool with ``count`` samples; those that it has stay."""
    begin = 0 if pool is None else len(pool)
    latents = latents_of_pool(generator, count, seed, begin)
    size = max(1, _AT_ONCE // math.prod(generator.signal_shape))
    with torch.no_grad():
        signals = torch.cat([generator(part) for part in _batch.pieces(latents, size)])
    if pool is None:
        return Pool(latents, signals)
    return Pool(torch.cat([pool.latents, latents]), torch.cat([pool.signals, signals]))
