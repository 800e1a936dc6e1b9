"""Laws of the latent variable: how starting points are drawn. All draws happen on the CPU, so every device starts alike."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from genprior import _validate

_BISECTIONS = 60


class Law(ABC):
    """A distribution over latents of a given shape."""

    @abstractmethod
    def sample(self, count: int, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
        """Draw ``count`` latents, float64 on the CPU."""

    @property
    @abstractmethod
    def spread(self) -> float:
        """Typical standard deviation of one coordinate: the unit of length in the latent space."""

    @property
    def centre(self) -> float:
        """Mean of one coordinate."""
        return 0.0


@dataclass(frozen=True)
class Normal(Law):
    """Independent normal coordinates ``N(0, scale^2)``."""

    scale: float = 1.0

    def __post_init__(self) -> None:
        _validate.number("scale", self.scale, above=0)

    def sample(self, count: int, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
        """Draw ``count`` latents, float64 on the CPU."""
        return self.scale * torch.randn(count, *shape, generator=random, dtype=torch.float64, device="cpu")

    @property
    def spread(self) -> float:
        """The standard deviation."""
        return self.scale


@dataclass(frozen=True)
class TruncatedNormal(Law):
    """``N(0, scale^2 I)`` conditioned on the ball ``|z| <= radius``: the compact domain that the theory asks for.

    The direction is uniform; the length follows the chi law cut at ``radius`` and is drawn by inverting its
    distribution function, so the cost does not grow when the ball is small.
    """

    radius: float
    scale: float = 1.0

    def __post_init__(self) -> None:
        _validate.number("radius", self.radius, above=0)
        _validate.number("scale", self.scale, above=0)

    def sample(self, count: int, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
        """Draw ``count`` latents, float64 on the CPU."""
        size = math.prod(shape)
        direction = torch.randn(count, size, generator=random, dtype=torch.float64, device="cpu")
        direction /= torch.linalg.vector_norm(direction, dim=1, keepdim=True)
        level = torch.rand(count, generator=random, dtype=torch.float64, device="cpu")
        length = self.scale * _truncated_chi(level, size, self.radius / self.scale)
        return (direction * length[:, None]).reshape(count, *shape)

    @property
    def spread(self) -> float:
        """The standard deviation before the cut."""
        return self.scale


@dataclass(frozen=True)
class Uniform(Law):
    """Independent coordinates, uniform on ``[low, high]``."""

    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        _validate.number("low", self.low)
        _validate.number("high", self.high)
        if not self.low < self.high:
            raise ValueError(f"high must be above low, got low={self.low} and high={self.high}")

    def sample(self, count: int, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
        """Draw ``count`` latents, float64 on the CPU."""
        unit = torch.rand(count, *shape, generator=random, dtype=torch.float64, device="cpu")
        return self.low + (self.high - self.low) * unit

    @property
    def spread(self) -> float:
        """The standard deviation of one coordinate."""
        return (self.high - self.low) / math.sqrt(12)

    @property
    def centre(self) -> float:
        """The middle."""
        return (self.low + self.high) / 2


def _truncated_chi(level: Tensor, size: int, cut: float) -> Tensor:
    """Solve ``P(size/2, r^2/2) = level * P(size/2, cut^2/2)`` for r by bisection on [0, cut]."""
    half = torch.full_like(level, size / 2)
    target = level * torch.special.gammainc(half, torch.full_like(level, cut**2 / 2))
    low, high = torch.zeros_like(level), torch.full_like(level, cut)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        below = torch.special.gammainc(half, middle**2 / 2) < target
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2
