"""Continuations: a ridge towards the prior that keeps the first iterates where the generator was trained, and fades."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior.problem import Problem
from genprior.solvers.trial.state import RidgeState


class EnergyChange(NamedTuple):
    """How a trial changed the energy."""

    before: Tensor
    """Energy of the old base."""
    after: Tensor
    """Energy of the new one."""
    predicted: Tensor
    """Decrease predicted for a full step."""
    accepted: Tensor
    same: Tensor
    """Where both energies are of the same function: no multiplier has changed."""


class Continuation(ABC):
    """A rule for the weight c of ``c/2 |z - centre|^2``, which is added to the function and vanishes in the end."""

    @abstractmethod
    def start(self, problem: Problem, curvature: Tensor, energy: Tensor) -> RidgeState | None:
        """At a start of this energy, where the function has this curvature in the signal; None: there is no ridge."""

    @abstractmethod
    def next(self, ridge: RidgeState, change: EnergyChange) -> RidgeState:
        """After a trial."""


@dataclass(frozen=True)
class NoRidge(Continuation):
    """No ridge, from the first step."""

    def start(self, problem: Problem, curvature: Tensor, energy: Tensor) -> RidgeState | None:
        """No ridge."""
        return None

    def next(self, ridge: RidgeState, change: EnergyChange) -> RidgeState:
        """Unchanged."""
        return ridge


@dataclass(frozen=True)
class Ridge(Continuation):
    """The weight falls with the energy or with the steps, whichever is less, and ends at zero.

    At the start it is ``weight u``, where u is the mean of the first Hessian's eigenvalues; reduced by the
    square of ``energy / (far s u)`` below one, because warm starts must not be left (a linear generator of latent dimension
    s has the energy ``s u`` between two random points of unit size). Then it is the first weight times
    ``min(energy left, share)^power``. The share falls by a factor with every accepted step. The ridge changes the path, not
    the answer.

    Parameters
    ----------
    weight
        at the start, relative to the typical curvature in z; 0: none.
    far
        share of the energy between random points above which the ridge has its full weight.
    decay, slow_decay, settled_decay
        factors on the share after an accepted step; after one that gained less than ``slow``, because the ridge may be
        what keeps the energy up; after one with a predicted decrease below ``settled``, because the function is then near its
        minimum for this ridge.
    slow, settled
        shares of the energy.
    power
        of the energy: above 1, strong while the image is found, weak while it is refined.
    end
        share at which the ridge ends.
    """

    weight: float = 3.0
    far: float = 0.15
    decay: float = 0.92
    slow_decay: float = 0.8
    settled_decay: float = 0.3
    slow: float = 0.01
    settled: float = 2e-3
    power: float = 1.2
    end: float = 1e-4

    def __post_init__(self) -> None:
        _validate.number("weight", self.weight, least=0)
        for name in ("far", "decay", "slow_decay", "settled_decay", "slow", "settled", "power", "end"):
            _validate.number(name, getattr(self, name), above=0)

    def start(self, problem: Problem, curvature: Tensor, energy: Tensor) -> RidgeState:
        """Weight zero for the first trial; then the first weight, where the energy of the start is finite."""
        zero = torch.zeros_like(energy)
        first = self._first(problem, curvature, energy)
        return RidgeState(zero, torch.ones_like(zero), first, energy.abs())

    def _first(self, problem: Problem, curvature: Tensor, energy: Tensor) -> Tensor:
        values = problem.generator.preconditioner().values
        typical = curvature * values.mean()
        at_random = typical * len(values) * problem.generator.spread**2
        far = _batch.ratio(energy.abs(), self.far * at_random).clamp_max(1.0)
        return torch.where(energy.isfinite(), self.weight * typical * far.square(), 0.0)

    def next(self, ridge: RidgeState, change: EnergyChange) -> RidgeState:
        """A smaller share where the trial was accepted, and the weight that goes with it."""
        slow = change.same & (change.before - change.after < self.slow * change.before.abs())
        settled = change.predicted < self.settled * change.before.abs()
        decay = torch.where(settled, self.settled_decay, torch.where(slow, self.slow_decay, self.decay))
        left = _batch.ratio(change.after.clamp_min(0), ridge.first_energy)
        # A large reduction starts from the current weight: the share alone may exceed the energy left.
        current = torch.where(settled, torch.minimum(ridge.share, left), ridge.share)
        share = torch.where(change.accepted, decay.to(ridge.share) * current, ridge.share)
        weight = ridge.first_weight * torch.minimum(left, share) ** self.power
        return replace(ridge, weight=torch.where((share > self.end) & weight.isfinite(), weight, 0.0), share=share)
