"""Penalties: the weight ``rho`` of ``rho/2 |w - G(z)|^2`` over the iterations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

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
        ends = [2.0 * self.n * (2**scale - 1) for scale in range(1, self.scales)]
        passed = torch.bucketize(k, torch.tensor(ends, dtype=k.dtype, device=k.device))
        return torch.exp2(passed + 1).to(k.dtype) * self.rho
