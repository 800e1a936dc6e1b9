"""Dual steps: how far lam moves along the constraint residual ``w - G(z)``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from genprior import _validate

_FRACTION = 0.03


class Dual(ABC):
    """A rule for the dual step size ``sigma`` in ``lam+ = lam + sigma (w+ - G(z+))``, per item."""

    @abstractmethod
    def __call__(self, gap: Tensor, k: Tensor, rho: Tensor, first_rho: Tensor) -> Tensor:
        """Sigma for iteration ``k = 1, 2, ...``, given ``gap = |w+ - G(z+)|``, the penalty now and at the start."""


@dataclass(frozen=True)
class Paper(Dual):
    """``sigma_k = min(sigma, sigma / (gap k log^2(k + 1)))`` with ``k = 1, 2, ...``: keeps the duals bounded.

    The sum of all dual moves is at most ``3.388 sigma``. A large ``sigma`` lets lam run early and then freezes it at a
    wrong value; without one it is 3% of the first penalty.
    """

    sigma: float | None = None

    def __post_init__(self) -> None:
        _check_sigma(self.sigma)

    def __call__(self, gap: Tensor, k: Tensor, rho: Tensor, first_rho: Tensor) -> Tensor:
        """The decaying rule of Algorithm 1."""
        decay = gap * k * torch.log(k + 1).square()
        first = _FRACTION * first_rho if self.sigma is None else self.sigma
        return first / decay.clamp_min(1.0)


@dataclass(frozen=True)
class Constant(Dual):
    """The same sigma at every iteration; without one, 3% of the penalty of the moment."""

    sigma: float | None = None

    def __post_init__(self) -> None:
        _check_sigma(self.sigma)

    def __call__(self, gap: Tensor, k: Tensor, rho: Tensor, first_rho: Tensor) -> Tensor:
        """The constant rule."""
        return _FRACTION * rho if self.sigma is None else torch.full_like(rho, self.sigma)


def _check_sigma(sigma: float | None) -> None:
    if sigma is not None:
        _validate.number("sigma", sigma, least=0)
