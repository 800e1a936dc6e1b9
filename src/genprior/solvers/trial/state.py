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
"""The model of a direction: a tree of tensors."""


@dataclass(frozen=True)
class Trial:
    """The function of the signal at the last evaluation of G; latents and signals are in ``State.common``."""

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
    def primal_residual(self) -> Tensor:
        """``|w - G(z)|``."""
        return torch.zeros_like(self.energy) if self.r is None else _batch.norm(self.r)


@dataclass(frozen=True)
class BasePoint:
    """The last accepted point, with the function's values there."""

    z: Tensor
    """Flat, ``(B, s)``."""
    x: Tensor
    energy: Tensor
    gradient: Tensor
    """``DG(z)^T f``, flat: exact, or that of the direction's model."""
    cotangent: Tensor
    """``|f|``."""
    primal_residual: Tensor
    """``|w - G(z)|``."""

    def where(self, accepted: Tensor, other: BasePoint) -> BasePoint:
        """The other point for the items in ``accepted``."""
        take = accepted[:, None]
        return BasePoint(
            torch.where(take, other.z, self.z),
            torch.where(_batch.spread(accepted, self.x), other.x, self.x),
            torch.where(accepted, other.energy, self.energy),
            torch.where(take, other.gradient, self.gradient),
            torch.where(accepted, other.cotangent, self.cotangent),
            torch.where(accepted, other.primal_residual, self.primal_residual),
        )


@dataclass(frozen=True)
class SearchState:
    """The direction, the step length along it, and the bracket of the search."""

    direction: Tensor
    """From the base, flat."""
    slope: Tensor
    """Change of the function that its linear part and H predict for a full step; never above zero."""
    length: Tensor
    """The trial is ``base + length direction``."""
    low: Tensor
    """Longest length found too short, in searches that bracket."""
    high: Tensor
    """Shortest length found too long."""
    trials: Tensor
    """Rejected trials from this base."""

    @classmethod
    def none(cls, z: Tensor) -> SearchState:
        """Before the first step: the start is its own trial."""
        zero = z.new_zeros(len(z))
        return cls(torch.zeros_like(z), zero, zero, zero, torch.full_like(zero, torch.inf), zero)


@dataclass(frozen=True)
class RidgeState:
    """The weight of the ridge towards the prior."""

    weight: Tensor
    """c in ``c/2 |z - centre|^2``."""
    share: Tensor
    """Share of the first weight that the number of accepted steps allows for."""
    first_weight: Tensor
    first_energy: Tensor


@dataclass(frozen=True)
class SplitState:
    """Dual variable and penalty, where R is neither zero nor quadratic; the penalty itself is ``Common.rho``."""

    lam: Tensor
    memory: WMemory
    """State of the w step."""
    age: Tensor
    """Accepted steps since the last update of the dual."""
    first_rho: Tensor
    first_cotangent: Tensor
    """``|f|`` at the start: the unit of stationarity where L has no gradient."""
    extent: Tensor
    """``|G(z)|`` at the start."""


@dataclass(frozen=True)
class TrialState(State, Generic[M]):
    """The last accepted point, the trial from it, and what each part of the method keeps. ``at`` is the trial point."""

    trial: Trial
    base: BasePoint
    search: SearchState
    model: M
    ridge: RidgeState | None
    split: SplitState | None
