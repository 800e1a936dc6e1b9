"""Dual steps: how far lam moves along the constraint residual ``w - G(z)``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from genprior import _validate

_PAPER_SHARE = 0.01
_CONSTANT_SHARE = 0.1


class Dual(ABC):
    """A rule for the dual step size ``sigma`` in ``lam+ = lam + sigma (w+ - G(z+))``, per item."""

    @abstractmethod
    def __call__(self, gap: Tensor, k: Tensor, rho: Tensor, first_rho: float) -> Tensor:
        """Sigma for iteration ``k = 1, 2, ...``, given ``gap = |w+ - G(z+)|``, the penalty now and at the start."""


@dataclass(frozen=True)
class Paper(Dual):
    """``sigma_k = min(sigma, sigma / (gap k log^2(k + 1)))`` with ``k = 1, 2, ...``: keeps the duals bounded.

    The sum of all dual moves is at most ``3.388 sigma``. A large ``sigma`` lets lam run early and then freezes it at a
    wrong value; without one it is 1% of the first penalty.
    """

    sigma: float | None = None

    def __post_init__(self) -> None:
        _check_sigma(self.sigma)

    def __call__(self, gap: Tensor, k: Tensor, rho: Tensor, first_rho: float) -> Tensor:
        """The decaying rule of Algorithm 1."""
        decay = torch.log1p(k).square_().mul_(k).mul_(gap)
        first = _PAPER_SHARE * first_rho if self.sigma is None else self.sigma
        return first / decay.clamp_min_(1.0)


@dataclass(frozen=True)
class Constant(Dual):
    """The same sigma at every iteration; without one, 10% of the penalty of the moment."""

    sigma: float | None = None

    def __post_init__(self) -> None:
        _check_sigma(self.sigma)

    def __call__(self, gap: Tensor, k: Tensor, rho: Tensor, first_rho: float) -> Tensor:
        """The constant rule."""
        return _CONSTANT_SHARE * rho if self.sigma is None else torch.full_like(rho, self.sigma)


def _check_sigma(sigma: float | None) -> None:
    if sigma is not None:
        _validate.number("sigma", sigma, least=0)
