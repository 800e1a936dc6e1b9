"""Penalties: the weight ``rho`` of ``rho/2 |w - G(z)|^2`` over the iterations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from genprior import _validate


class Penalty(ABC):
    """A rule for ``rho``, per item."""

    rho: float

    @abstractmethod
    def __call__(self, k: Tensor) -> Tensor:
        """The penalty of iteration ``k = 1, 2, ...``."""


@dataclass(frozen=True)
class Constant(Penalty):
    """The same penalty at every iteration."""

    rho: float = 1.0

    def __post_init__(self) -> None:
        _validate.number("rho", self.rho, above=0)

    def __call__(self, k: Tensor) -> Tensor:
        """``rho``."""
        return torch.full_like(k, self.rho)


@dataclass(frozen=True)
class Doubling(Penalty):
    """Algorithm 2's scales: ``rho_k = 2^k rho`` for ``n_k = 2^k n`` iterations, ``k = 1 .. scales``, then the last one.

    Iteration ``t`` (from 1) lies in scale ``k`` when ``2 n (2^(k-1) - 1) < t <= 2 n (2^k - 1)``.
    """

    rho: float = 1.0
    n: int = 10
    scales: int = 5

    def __post_init__(self) -> None:
        _validate.number("rho", self.rho, above=0)
        _validate.whole("n", self.n)
        _validate.whole("scales", self.scales)

    def __call__(self, k: Tensor) -> Tensor:
        """``2^scale rho`` for the scale that iteration ``k`` lies in."""
        ends, values = _scales(self, k.dtype, k.device)
        return values[torch.bucketize(k, ends)]


@lru_cache(maxsize=64)
def _scales(doubling: Doubling, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The last iteration of every scale but the last one, and the penalty of every scale."""
    ends = [2.0 * doubling.n * (2**k - 1) for k in range(1, doubling.scales)]
    values = [doubling.rho * 2.0**k for k in range(1, doubling.scales + 1)]
    return torch.tensor(ends, dtype=dtype, device=device), torch.tensor(values, dtype=dtype, device=device)
