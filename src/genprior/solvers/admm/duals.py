"""Dual steps: how far lam moves along the constraint residual ``w - G(z)``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from genprior import _batch, _validate

M = TypeVar("M")
"""What a rule remembers from step to step: a tree of tensors with one entry per item, or None."""

_PAPER_SHARE = 0.01
_CONSTANT_SHARE = 0.1


class Progress(NamedTuple):
    """What a dual step may depend on, per item."""

    gap: Tensor
    """``|w+ - G(z+)|``."""
    extent: Tensor
    """``|w|``, or ``|G(z)|`` at the start if that is longer: the unit of gaps."""
    k: Tensor
    """Number of the iteration, from 1."""
    rho: Tensor
    first_rho: Tensor


class Dual(ABC, Generic[M]):
    """A rule for the dual step size ``sigma`` in ``lam+ = lam + sigma (w+ - G(z+))``, per item."""

    @abstractmethod
    def start(self, like: Tensor) -> M:
        """What the rule remembers at the start; ``like`` has one number per item."""

    @abstractmethod
    def __call__(self, at: Progress, memory: M) -> tuple[Tensor, M]:
        """Sigma, and the new memory."""


@dataclass(frozen=True)
class Paper(Dual[None]):
    """``sigma_k = min(sigma, sigma / (gap k log^2(k + 1)))`` with ``k = 1, 2, ...``: keeps the duals bounded.

    With a ``sigma`` the sum of all dual moves is at most ``3.388 sigma``; a large one lets lam run early and then freezes it
    at a wrong value. Without, it is 1% of the first penalty, and gaps are counted in units of the signal's length, so that
    units do not matter: the rule is then not quite the paper's, and the bound is ``3.388 sigma`` times the largest such
    length.
    """

    sigma: float | None = None

    def __post_init__(self) -> None:
        _check_sigma(self.sigma)

    def start(self, like: Tensor) -> None:
        """Nothing to remember."""

    def __call__(self, at: Progress, memory: None) -> tuple[Tensor, None]:
        """The decaying rule of Algorithm 1."""
        gap = _batch.ratio(at.gap, at.extent) if self.sigma is None else at.gap
        log = torch.log1p(at.k)
        decay = log.mul_(log).mul_(at.k).mul_(gap)
        first = _PAPER_SHARE * at.first_rho if self.sigma is None else self.sigma
        return first / decay.clamp_min_(1.0), None


@dataclass(frozen=True)
class Constant(Dual[None]):
    """The same ``sigma`` at every iteration, or ``share`` of the penalty of the moment; without either, a tenth of it."""

    sigma: float | None = None
    share: float | None = None

    def __post_init__(self) -> None:
        _check_sigma(self.sigma)
        if self.share is None:
            return
        _check_share(self.share)
        if self.sigma is not None:
            raise ValueError(f"sigma={self.sigma} and share={self.share} both set the dual step: give one")

    def start(self, like: Tensor) -> None:
        """Nothing to remember."""

    def __call__(self, at: Progress, memory: None) -> tuple[Tensor, None]:
        """The constant rule."""
        if self.sigma is not None:
            return torch.full_like(at.rho, self.sigma), None
        return (_CONSTANT_SHARE if self.share is None else self.share) * at.rho, None


@dataclass(frozen=True)
class Shares:
    """The share of the moment, and the average of recent gaps."""

    share: Tensor
    average: Tensor


@dataclass(frozen=True)
class Adaptive(Dual[Shares]):
    """``sigma = share rho``, the share adapted to how the gap behaves, per item.

    A gap that falls is left alone. One that stands still needs a multiplier: the share grows by 5%, up to 1 (the method of
    multipliers). One that rises above its recent average by a tenth swings: the share is halved, down to 0.001.

    Parameters
    ----------
    share
        at first.
    """

    share: float = 0.05

    def __post_init__(self) -> None:
        _check_share(self.share)

    def start(self, like: Tensor) -> Shares:
        """The share, and the average gap."""
        return Shares(torch.full_like(like, self.share), torch.zeros_like(like))

    def __call__(self, at: Progress, memory: Shares) -> tuple[Tensor, Shares]:
        """The adapted step."""
        share, average = memory.share, memory.average
        known = average > 0
        swings = known & (at.gap > 1.1 * average)
        stands = known & ~swings & (at.gap > 0.99 * average)
        share = torch.where(swings, 0.5 * share, torch.where(stands, 1.05 * share, share)).clamp(1e-3, 1.0)
        average = torch.where(known, 0.9 * average + 0.1 * at.gap, at.gap)
        return share * at.rho, Shares(share, average)


def _check_share(share: float) -> None:
    if not 0 < _validate.number("share", share) <= 1:
        raise ValueError(f"share must lie in (0, 1], got {share}")


def _check_sigma(sigma: float | None) -> None:
    if sigma is not None:
        _validate.number("sigma", sigma, least=0)
