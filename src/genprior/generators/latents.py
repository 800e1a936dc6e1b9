"""Latent distributions, from which starts are drawn: on the CPU, so that they are the same for every device."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from genprior import _batch, _validate

_BISECTIONS = 60
"""Bisections for a length: as many as float64 resolves."""
_TOO_SMALL = 1e-200
"""Probabilities below this are near the end of float64: fractions of them would be zero."""


class LatentDistribution(ABC):
    """A distribution over latents of a given shape."""

    @abstractmethod
    def sample(self, count: int, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
        """Draw ``count`` latents, float64 on the CPU."""

    @property
    @abstractmethod
    def spread(self) -> float:
        """Typical standard deviation of one coordinate."""

    def spread_in(self, shape: tuple[int, ...]) -> float:
        """The same for latents of this shape, if it depends on it: the unit of length in the latent space."""
        return self.spread

    @property
    def centre(self) -> float:
        """Mean of one coordinate."""
        return 0.0

    def reach(self, z: Tensor) -> Tensor:
        """Distance of each latent from the centre, relative to the farthest draws, shape ``(B,)``.

        A normal latent of dimension s lies within ``sqrt(s) + 5`` standard deviations, except one draw in 300,000.
        """
        return _batch.norm(z - self.centre) / (self.spread_in(tuple(z.shape[1:])) * _farthest(z))

    def within(self, z: Tensor) -> Tensor:
        """The latents, those that are farther out than draws go moved towards the centre."""
        return self.centre + (z - self.centre) / _batch.spread(self.reach(z).clamp_min(1.0), z)


@dataclass(frozen=True)
class Normal(LatentDistribution):
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
class TruncatedNormal(LatentDistribution):
    """``N(0, scale^2 I)`` conditioned on the ball ``|z| <= radius``: the compact domain that the theory requires.

    The direction is uniform; the length follows the chi distribution cut at ``radius``. The cost does not
    depend on the radius.
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
        length = self.scale * _lengths(count, size, self.radius / self.scale, random)
        return (direction * length[:, None]).reshape(count, *shape)

    @property
    def spread(self) -> float:
        """The standard deviation before the cut."""
        return self.scale

    def reach(self, z: Tensor) -> Tensor:
        """Distance of each latent from the centre, relative to the radius, or to the farthest draws if they lie inside."""
        return _batch.norm(z) / min(self.radius, self.scale * _farthest(z))

    def spread_in(self, shape: tuple[int, ...]) -> float:
        """In a small ball the density is flat: ``radius / sqrt(s + 2)`` for latent dimension s; else ``scale``."""
        return min(self.scale, self.radius / math.sqrt(math.prod(shape) + 2))


@dataclass(frozen=True)
class Uniform(LatentDistribution):
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
        """The midpoint."""
        return (self.low + self.high) / 2

    def reach(self, z: Tensor) -> Tensor:
        """Distance of each latent's farthest coordinate from the centre, relative to the bound."""
        return (_batch.flat(z) - self.centre).abs().amax(dim=1) / ((self.high - self.low) / 2)

    def within(self, z: Tensor) -> Tensor:
        """The nearest latents within the bounds."""
        return z.clamp(self.low, self.high)


def _farthest(z: Tensor) -> float:
    return math.sqrt(z[0].numel()) + 5


def _lengths(count: int, size: int, cut: float, random: torch.Generator) -> Tensor:
    """Lengths of standard normal latents in the ball ``|z| <= cut``."""
    half, most = torch.tensor([size / 2, cut**2 / 2], dtype=torch.float64)
    whole = float(torch.special.gammainc(half, most))
    if whole < _TOO_SMALL:
        return _lengths_in_rare_ball(count, size, cut, random)
    level = torch.rand(count, generator=random, dtype=torch.float64, device="cpu")
    return _truncated_chi(level, size, cut, whole)


def _truncated_chi(level: Tensor, size: int, cut: float, whole: float) -> Tensor:
    """Solve ``P(size/2, r^2/2) = level * whole`` for r by bisection, where ``whole`` is ``P(size/2, cut^2/2)``."""
    half = torch.full_like(level, size / 2)
    target = level * whole
    low, high = torch.zeros_like(level), torch.full_like(level, cut)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        below = torch.special.gammainc(half, middle**2 / 2) < target
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2


def _lengths_in_rare_ball(count: int, size: int, cut: float, random: torch.Generator) -> Tensor:
    """The same for a ball of tiny probability, by rejection.

    With a = size/2 and T = cut^2/2, which is far below a, ``x = log(cut^2 / r^2)`` has the density
    ``exp(-a x - T e^{-x})`` on ``x >= 0`` up to a factor. It lies below ``exp(-(a - T) x - T)``: exponential draws are kept
    with the probability ``exp(-T (x - 1 + e^{-x}))``, which is nearly 1.
    """
    most = cut**2 / 2
    x = torch.empty(0, dtype=torch.float64)
    while len(x) < count:
        level, chance = torch.rand(2, count, generator=random, dtype=torch.float64, device="cpu")
        drawn = -torch.log1p(-level) / (size / 2 - most)
        x = torch.cat([x, drawn[chance < (-most * (drawn + torch.expm1(-drawn))).exp()]])
    return cut * (-x[:count] / 2).exp()
