"""Dual steps: how far lam moves along the constraint residual ``w - G(z)``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior._renamed import warn_renamed

M = TypeVar("M")
"""The memory of a rule: a tree of tensors with one entry per item, or None."""

_PAPER_SHARE = 0.01
"""First dual step of the paper's rule, relative to the penalty: small, because a large one freezes lam at a wrong value."""
_CONSTANT_SHARE = 0.1
"""Constant dual step, relative to the penalty: z has time to follow the multiplier."""


class Progress(NamedTuple):
    """What a dual step may depend on, per item."""

    primal_residual: Tensor
    """``|w+ - G(z+)|``."""
    extent: Tensor
    """``|w|``, or ``|G(z)|`` at the start if that is longer: the unit of the primal residual."""
    k: Tensor
    """Number of the iteration, from 1."""
    rho: Tensor
    first_rho: Tensor

    @property
    def gap(self) -> Tensor:
        """The primal residual, under its old name."""
        warn_renamed("Progress.gap", "Progress.primal_residual")
        return self.primal_residual


class Dual(ABC, Generic[M]):
    """A rule for the dual step size ``sigma`` in ``lam+ = lam + sigma (w+ - G(z+))``, per item."""

    @property
    def description(self) -> str:
        """In words, for the plan: what the dual step is."""
        return f"set by {type(self).__name__}"

    @abstractmethod
    def start(self, like: Tensor) -> M:
        """The memory at the start; ``like`` has one number per item."""

    @abstractmethod
    def __call__(self, at: Progress, memory: M) -> tuple[Tensor, M]:
        """Sigma, and the new memory."""


@dataclass(frozen=True)
class Paper(Dual[None]):
    """``sigma_k = min(sigma, sigma / (|r| k log^2(k + 1)))`` with ``k = 1, 2, ...``, ``r = w+ - G(z+)``: bounded duals.

    With a ``sigma`` the sum of all dual moves is at most ``3.388 sigma``; a large one moves lam far in the first
    iterations and then freezes it at a wrong value. Without a ``sigma`` it is 1% of the first penalty, and the primal residual
    is relative to the signal's norm, so that units do not matter: the rule then differs from the paper's, and the bound is
    ``3.388 sigma`` times the largest such norm.
    """

    sigma: float | None = None

    def __post_init__(self) -> None:
        _check_sigma(self.sigma)

    @property
    def description(self) -> str:
        """In words."""
        first = f"{_PAPER_SHARE:.0%} of the first penalty" if self.sigma is None else f"{self.sigma:g}"
        return f"{first} at the start and decays, as in the paper"

    def start(self, like: Tensor) -> None:
        """Nothing to remember."""

    def __call__(self, at: Progress, memory: None) -> tuple[Tensor, None]:
        """The decaying rule of Algorithm 1."""
        primal_residual = _batch.ratio(at.primal_residual, at.extent) if self.sigma is None else at.primal_residual
        log = torch.log1p(at.k)
        decay = log.mul_(log).mul_(at.k).mul_(primal_residual)
        first = _PAPER_SHARE * at.first_rho if self.sigma is None else self.sigma
        return first / decay.clamp_min_(1.0), None


@dataclass(frozen=True)
class Constant(Dual[None]):
    """The same ``sigma`` at every iteration, or ``share`` of the current penalty; without either, a tenth of it."""

    sigma: float | None = None
    share: float | None = None

    def __post_init__(self) -> None:
        _check_sigma(self.sigma)
        if self.share is None:
            return
        _check_share(self.share)
        if self.sigma is not None:
            raise ValueError(f"sigma={self.sigma} and share={self.share} both set the dual step: give one")

    @property
    def description(self) -> str:
        """In words."""
        if self.sigma is not None:
            return f"constant, {self.sigma:g}"
        return f"{_CONSTANT_SHARE if self.share is None else self.share:.3g} times the penalty"

    def start(self, like: Tensor) -> None:
        """Nothing to remember."""

    def __call__(self, at: Progress, memory: None) -> tuple[Tensor, None]:
        """The constant rule."""
        if self.sigma is not None:
            return torch.full_like(at.rho, self.sigma), None
        return (_CONSTANT_SHARE if self.share is None else self.share) * at.rho, None


@dataclass(frozen=True)
class AdaptiveState:
    """The current share, and the average of recent primal residuals."""

    share: Tensor
    average: Tensor


@dataclass(frozen=True)
class Adaptive(Dual[AdaptiveState]):
    """``sigma = share rho``, where the share follows the primal residual, per item.

    While the residual falls, the share stays. Where it stagnates, the share grows by 5%, up to 1 (the method of multipliers).
    Where it exceeds its recent average by a tenth, it oscillates: the share is halved, down to 0.001.

    Parameters
    ----------
    share
        at the start.
    """

    share: float = 0.05

    def __post_init__(self) -> None:
        _check_share(self.share)

    @property
    def description(self) -> str:
        """In words."""
        return "a share of the penalty that adapts to the primal residual"

    def start(self, like: Tensor) -> AdaptiveState:
        """The share, and the average primal residual."""
        return AdaptiveState(torch.full_like(like, self.share), torch.zeros_like(like))

    def __call__(self, at: Progress, memory: AdaptiveState) -> tuple[Tensor, AdaptiveState]:
        """The adapted step."""
        share, average = memory.share, memory.average
        known = average > 0
        oscillates = known & (at.primal_residual > 1.1 * average)
        stagnates = known & ~oscillates & (at.primal_residual > 0.99 * average)
        share = torch.where(oscillates, 0.5 * share, torch.where(stagnates, 1.05 * share, share)).clamp(1e-3, 1.0)
        average = torch.where(known, 0.9 * average + 0.1 * at.primal_residual, at.primal_residual)
        return share * at.rho, AdaptiveState(share, average)


def _check_share(share: float) -> None:
    if not 0 < _validate.number("share", share) <= 1:
        raise ValueError(f"share must lie in (0, 1], got {share}")


def _check_sigma(sigma: float | None) -> None:
    if sigma is not None:
        _validate.number("sigma", sigma, least=0)
