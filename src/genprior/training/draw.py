"""The random numbers of one training step: a function of the seed and the step alone, so that a run resumes exactly."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from genprior.generators.latents import LatentDistribution


@dataclass(frozen=True)
class Draw:
    """Draws for the whole batch, of which each of ``world`` processes keeps its share.

    The numbers therefore do not depend on the number of processes.
    """

    random: torch.Generator
    device: torch.device
    rank: int = 0
    world: int = 1

    @classmethod
    def at(cls, seed: int, step: int, device: torch.device, rank: int = 0, world: int = 1) -> Draw:
        """The draws of one step."""
        digest = hashlib.sha256(f"{seed}:{step}".encode()).digest()
        return cls(torch.Generator().manual_seed(int.from_bytes(digest[:7], "big")), device, rank, world)

    def index(self, count: int, total: int) -> Tensor:
        """Indices into a data set of ``total`` items, with repetition; on the CPU."""
        return self._share(torch.randint(total, (count,), generator=self.random))

    def latent(self, distribution: LatentDistribution, count: int, shape: tuple[int, ...]) -> Tensor:
        """Latents from their distribution."""
        return self._share(distribution.sample(count, shape, self.random)).to(self.device, torch.float32)

    def normal(self, count: int, shape: tuple[int, ...]) -> Tensor:
        """Standard normal values."""
        return self._share(torch.randn(count, *shape, generator=self.random)).to(self.device)

    def uniform(self, count: int) -> Tensor:
        """Uniform values in [0, 1)."""
        return self._share(torch.rand(count, generator=self.random)).to(self.device)

    def _share(self, whole: Tensor) -> Tensor:
        return whole.chunk(self.world)[self.rank]
