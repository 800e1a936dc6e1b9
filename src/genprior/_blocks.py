"""Named blocks of a flat latent: where they stand, and their units."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Block:
    """Consecutive entries of a flat latent, which stand for a tensor ``centre + unit * entries`` of some shape."""

    name: str
    begin: int
    shape: tuple[int, ...]
    centre: float = 0.0
    unit: float = 1.0

    @property
    def end(self) -> int:
        """One past its last entry."""
        return self.begin + math.prod(self.shape)

    def taken(self, z: Tensor) -> Tensor:
        """What the entries of flat latents ``(B, size)`` stand for, ``(B, *shape)``."""
        return self.centre + self.unit * z[:, self.begin : self.end].reshape(len(z), *self.shape)

    def entries(self, value: Tensor) -> Tensor:
        """The entries that stand for ``value``, ``(B, n)``."""
        return (value.reshape(len(value), -1) - self.centre) / self.unit
