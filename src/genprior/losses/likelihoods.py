"""Likelihoods of single measurements: ``l(a; y) = -log p(y | a)`` for a prediction a, entry by entry, convex in a.

They know nothing of signals and operators: :class:`genprior.losses.LikelihoodLoss` sums one over ``a = A w``, and any other
forward model may do the same.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from genprior import _validate
from genprior.losses.noise import noise_level, selected

_INSIDE = 0.1
"""Outside of the domain a Poisson likelihood has the slope of this share of the counts: finite, and pointing inwards."""


class Likelihood(ABC):
    """``l(a; y)`` with its derivatives and its prox; all tensors have the shape of the measurements ``(B, ...)``."""

    @abstractmethod
    def value(self, a: Tensor, y: Tensor) -> Tensor:
        """``l(a; y)``, 0 at its minimum over a, infinite outside of the domain."""

    @abstractmethod
    def slope(self, a: Tensor, y: Tensor) -> Tensor:
        """The derivative in a; finite outside of the domain too, and pointing inwards there."""

    @abstractmethod
    def curvature(self, a: Tensor, y: Tensor) -> Tensor:
        """The second derivative in a; where it jumps, the larger one."""

    @abstractmethod
    def most_curvature(self, a: Tensor, y: Tensor) -> Tensor:
        """The largest second derivative, for all a where it is bounded, else that at a."""

    @abstractmethod
    def prox(self, v: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """``argmin_a t l(a; y) + 1/2 (a - v)^2``, with a step t > 0 that broadcasts against v."""

    @abstractmethod
    def misfit(self, a: Tensor, y: Tensor) -> Tensor:
        """A squared deviation in units of the noise."""

    @property
    def expected(self) -> float:
        """The expectation of :meth:`misfit` where a is the truth."""
        return 1.0

    def plain(self, y: Tensor) -> Tensor:
        """The prediction of which y is a noisy version."""
        return y

    def checked(self, y: Tensor) -> Likelihood:
        """The likelihood for these measurements; raises a clear error where they are impossible, or do not fit."""
        return self

    def rows(self, index: Tensor) -> Likelihood:
        """That of the selected items."""
        return self


@dataclass(frozen=True)
class PoissonLikelihood(Likelihood):
    """Counts with the mean ``u = gain a + background``: ``l = u - y log u``, shifted so that it is 0 at ``u = y``.

    Its domain is ``u > 0``, and ``u >= 0`` where nothing was counted. The prox solves a quadratic equation: with
    ``q = gain v + background`` and ``s = gain^2 t``, ``u`` is the root of ``u^2 - (q - s) u - s y = 0`` that is not negative.
    """

    gain: float = 1.0
    background: float = 0.0

    def __post_init__(self) -> None:
        _validate.number("gain", self.gain, above=0)
        _validate.number("background", self.background, least=0)

    def value(self, a: Tensor, y: Tensor) -> Tensor:
        """``y (r - 1 - log r)`` with ``r = u/y``; ``u`` where ``y = 0``.

        Near ``r = 1`` by ``log1p(r - 1)``, which does not cancel; below 1/2, where ``r - 1`` may be -1, by ``log u - log y``.
        """
        u = self._mean(a)
        count = torch.where(y > 0, y, 1.0)
        excess = (u - y) / count
        near = excess - torch.log1p(excess.clamp_min(-0.5))
        far = excess + count.log() - torch.where(u > 0, u, 1.0).log()
        inside = torch.where(y > 0, y * torch.where(excess < -0.5, far, near), u)
        allowed = torch.where(y > 0, u > 0, u >= 0)
        return torch.where(allowed, inside, torch.where(u.isnan(), u, math.inf))

    def slope(self, a: Tensor, y: Tensor) -> Tensor:
        """``gain (1 - y/u)``; outside of the domain that of a tenth of the counts."""
        u = self._mean(a)
        outside = torch.where(y > 0, u <= 0, u < 0)
        inside = torch.where(y > 0, y / torch.where(u > 0, u, 1.0), 0.0)
        return self.gain * (1 - torch.where(outside, 1 / _INSIDE, inside))

    def curvature(self, a: Tensor, y: Tensor) -> Tensor:
        """``gain^2 y/u^2``; outside of the domain that of the counts themselves."""
        u = self._mean(a)
        return self.gain**2 * y / torch.where(u > 0, u, y.clamp_min(1.0)).square()

    def most_curvature(self, a: Tensor, y: Tensor) -> Tensor:
        """That at a: it grows without bound towards ``u = 0``."""
        return self.curvature(a, y)

    def prox(self, v: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """The root, without cancellation."""
        s = self.gain**2 * t
        half = (self._mean(v) - s) / 2
        root = torch.sqrt(half.square() + s * y)
        u = torch.where(half > 0, half + root, s * y / (root - half).clamp_min(torch.finfo(v.dtype).tiny))
        return (u - self.background) / self.gain

    def misfit(self, a: Tensor, y: Tensor) -> Tensor:
        """Pearson's ``(y - u)^2 / u``: its expectation is 1 for every mean u, however small."""
        u = self._mean(a)
        return torch.where(u > 0, (y - u).square() / u, torch.where(y == u, 0.0, math.inf))

    def plain(self, y: Tensor) -> Tensor:
        """``(y - background) / gain``."""
        return (y - self.background) / self.gain

    def checked(self, y: Tensor) -> Likelihood:
        """Counts are at least 0."""
        if y.is_complex():
            raise TypeError(f"y is complex ({y.dtype}), but counts are real: use y.real, or LeastSquares")
        if bool((y < 0).any()):
            raise ValueError(
                f"y has {int((y < 0).sum())} negative values (down to {float(y.min()):.3g}), but counts are at least 0: "
                "is a background subtracted? Add it again and give it as background="
            )
        return self

    def _mean(self, a: Tensor) -> Tensor:
        return self.gain * a + self.background


@dataclass(frozen=True)
class HuberLikelihood(Likelihood):
    """Gaussian noise with outliers: ``l = h((a - y)/sigma)``, ``h(r) = r^2/2`` up to ``|r| = delta``, then a straight line.

    Beyond delta the slope is constant, however wrong a measurement is. ``delta = 1.345`` loses 5% of the efficiency where
    there are no outliers (Huber 1981).
    """

    delta: float = 1.345
    noise: float | Tensor = 1.0

    def __post_init__(self) -> None:
        _validate.number("delta", self.delta, above=0)
        if not isinstance(self.noise, Tensor):
            _validate.number("noise", self.noise, above=0)

    def value(self, a: Tensor, y: Tensor) -> Tensor:
        """``h(r)``."""
        r = ((a - y) / self.noise).abs()
        near = r.clamp_max(self.delta)
        return near * (r - near / 2)

    def slope(self, a: Tensor, y: Tensor) -> Tensor:
        """``clip(r, -delta, delta) / sigma``."""
        return ((a - y) / self.noise).clamp(-self.delta, self.delta) / self.noise

    def curvature(self, a: Tensor, y: Tensor) -> Tensor:
        """``1/sigma^2`` for measurements within delta, else 0."""
        return torch.where(((a - y) / self.noise).abs() <= self.delta, self.most_curvature(a, y), 0.0)

    def most_curvature(self, a: Tensor, y: Tensor) -> Tensor:
        """``1/sigma^2``."""
        return torch.ones_like(y) / self.noise / self.noise

    def prox(self, v: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """``y + r``: with ``s = t/sigma^2``, r is divided by ``1 + s`` near zero, else ``delta s sigma`` shorter."""
        s = t / self.noise / self.noise
        r = v - y
        most = self.delta * s * self.noise
        cut = r * s / (1 + s)
        return v - torch.minimum(torch.maximum(cut, -most), most)

    def misfit(self, a: Tensor, y: Tensor) -> Tensor:
        """``2 h(r)``."""
        return 2 * self.value(a, y)

    @property
    def expected(self) -> float:
        """For noise of the density ``exp(-h(r))``, which has longer tails than the normal one: above 1."""
        normal = math.sqrt(2 * math.pi) * math.erf(self.delta / math.sqrt(2))
        tails = 2 / self.delta * math.exp(-(self.delta**2) / 2)
        return (normal + 2 * tails) / (normal + tails)

    def checked(self, y: Tensor) -> Likelihood:
        """With a noise level that fits y."""
        if y.is_complex():
            raise TypeError(f"y is complex ({y.dtype}), but Huber's function takes real measurements: use LeastSquares")
        return replace(self, noise=noise_level(self.noise, y))

    def rows(self, index: Tensor) -> Likelihood:
        """With their noise levels."""
        return replace(self, noise=selected(self.noise, index))
