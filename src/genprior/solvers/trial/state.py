"""The state of a curvature method: a small tree of named parts. Every tensor has one row per item."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from genprior import _batch
from genprior.solvers.admm.exact import Memory as WMemory
from genprior.solvers.base import State
from genprior.solvers.envelope import EnvelopeValue

M = TypeVar("M")
"""What a direction has learnt: a tree of tensors."""


@dataclass(frozen=True)
class Trial:
    """The function of the signal at the point where G was evaluated last; latents and signals are in ``State.common``."""

    energy: Tensor
    """``e(G(z))``: without the term on z, without the ridge."""
    f: Tensor
    """Its gradient in the signal."""
    r: Tensor | None
    """``w - G(z)``; None where nothing is split."""
    residual: Tensor
    """What the loss keeps of its evaluation."""
    loss: Tensor

    @classmethod
    def of(cls, value: EnvelopeValue, residual: Tensor, loss: Tensor) -> Trial:
        """From an evaluation of the envelope."""
        return cls(value.energy, value.f, value.r, residual, loss)

    @property
    def gap(self) -> Tensor:
        """``|w - G(z)|``."""
        return torch.zeros_like(self.energy) if self.r is None else _batch.norm(self.r)


@dataclass(frozen=True)
class Place:
    """The last accepted point, and what is known of the function there."""

    z: Tensor
    """Flat, ``(B, s)``."""
    x: Tensor
    energy: Tensor
    gradient: Tensor
    """``DG(z)^T f``, flat: exact, or that of the direction's model."""
    cotangent: Tensor
    """``|f|``."""
    gap: Tensor
    """``|w - G(z)|``."""

    def where(self, accepted: Tensor, other: Place) -> Place:
        """The other place for the items in ``accepted``."""
        take = accepted[:, None]
        return Place(
            torch.where(take, other.z, self.z),
            torch.where(_batch.spread(accepted, self.x), other.x, self.x),
            torch.where(accepted, other.energy, self.energy),
            torch.where(take, other.gradient, self.gradient),
            torch.where(accepted, other.cotangent, self.cotangent),
            torch.where(accepted, other.gap, self.gap),
        )


@dataclass(frozen=True)
class SearchState:
    """Along which direction, how far, and what became of it."""

    direction: Tensor
    """From the base, flat."""
    slope: Tensor
    """Change of the function that its linear part and H predict for a full step; never above zero."""
    length: Tensor
    """The trial is ``base + length direction``."""
    low: Tensor
    """Longest length that was too short, and ..."""
    high: Tensor
    """... shortest one that was too long, in searches that bracket."""
    trials: Tensor
    """Rejected trials from this base."""

    @classmethod
    def none(cls, z: Tensor) -> SearchState:
        """Before the first step: the start is its own trial."""
        zero = z.new_zeros(len(z))
        return cls(torch.zeros_like(z), zero, zero, zero, torch.full_like(zero, torch.inf), zero)


@dataclass(frozen=True)
class RidgeState:
    """How strongly the prior still attracts the iterates."""

    weight: Tensor
    """c in ``c/2 |z - centre|^2``."""
    share: Tensor
    """What is left of the first weight, by the number of steps alone."""
    first_weight: Tensor
    first_energy: Tensor


@dataclass(frozen=True)
class SplitState:
    """Dual variable and penalty, where R is neither zero nor quadratic; the penalty itself is ``Common.rho``."""

    lam: Tensor
    memory: WMemory
    """What the w step keeps from one step to the next."""
    age: Tensor
    """Accepted steps since the dual last moved."""
    first_rho: Tensor
    first_cotangent: Tensor
    """``|f|`` at the start: the unit of stationarity where L has no gradient."""
    extent: Tensor
    """``|G(z)|`` at the start."""


@dataclass(frozen=True)
class TrialState(State, Generic[M]):
    """The last accepted point, the trial from it, and what each part of the method keeps. ``at`` is the trial point."""

    trial: Trial
    base: Place
    search: SearchState
    model: M
    ridge: RidgeState | None
    split: SplitState | None
