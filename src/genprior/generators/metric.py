"""How far, on average, each latent direction moves the signal: a shared, cheap picture of the generator's curvature."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from genprior import _batch

if TYPE_CHECKING:
    from genprior._budget import Budget
    from genprior.generators.contract import Generator

POINTS, PULLS = 32, 8
_LARGEST = 2**23
"""Most signal numbers in one pass."""
_LEAST_MODE = 1e-12
"""Eigenvalues are at least this share of the largest one."""
_MOST_OF_BUDGET = 0.15
"""The share of a run's limit that an estimate may take."""


@dataclass
class Preconditioner:
    """``E[DG^T DG]``, and what it was computed from."""

    metric: Tensor
    contents: str
    """Digest of the module's numbers."""

    @cached_property
    def modes(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues (rising, all above zero) and eigenvectors.

        Where no direction moves the signal (all weights are zero), none counts more than another: all values are one.
        """
        values, vectors = torch.linalg.eigh(self.metric.cpu().double())  # small, and not every device has float64
        largest = float(values[-1])
        values = values.clamp_min(_LEAST_MODE * largest) if largest > 0 else torch.ones_like(values)
        return values.to(self.metric), vectors.to(self.metric)


@dataclass
class Remembered:
    """The preconditioner that copies of a generator have in common."""

    latest: Preconditioner | None = None


def affordable(budget: Budget | None) -> tuple[int, int]:
    """How many points and pullbacks a run can afford: fewer pullbacks first, then fewer points, at least one of each."""
    for points, pulls in ((POINTS, PULLS), (POINTS, 4), (POINTS, 2), (POINTS, 1), (16, 1), (8, 1), (4, 1), (2, 1)):
        if budget is None or budget.share(1, pulls, points) <= _MOST_OF_BUDGET:
            return points, pulls
    return 1, 1


def mean_gram(generator: Generator, points: int = POINTS, pulls: int = PULLS) -> Tensor:
    """Estimate ``E[DG(z)^T DG(z)]`` over the law from random vectors pulled back: ``E[(DG^T v)(DG^T v)^T]``, v normal.

    It depends on the generator alone (always the same points and vectors), so that every item of every batch sees the
    same one. One forward and ``pulls`` backward passes where the points fit into memory together.
    The identity where the generator gives no finite numbers. An estimate from fewer than s vectors, for s latent numbers, has
    directions that it never saw: it is averaged with a multiple of the identity.
    """
    random = torch.Generator().manual_seed(0)
    latents = generator.draw(points, random)
    size = max(1, _LARGEST // math.prod(generator.signal_shape))
    total = torch.zeros((), device=generator.device, dtype=generator.dtype)
    for part in _batch.pieces(latents, size):
        with torch.enable_grad():
            leaf = part.detach().requires_grad_()
            value = generator(leaf)
        for pull in range(pulls):
            v = torch.randn(value.shape, generator=random, dtype=torch.float32, device="cpu").to(value)
            gradient = _batch.flat(generator.backward(leaf, value, v, keep=pull < pulls - 1))
            total = total + gradient.mT @ gradient
    metric = total.detach() / (points * pulls)
    identity = torch.eye(len(metric)).to(metric)
    if not bool(torch.isfinite(metric).all()):
        return identity
    unseen = max(0.0, 1 - points * pulls / len(metric))
    return metric if unseen == 0 else (1 - unseen) * metric + unseen * metric.diagonal().mean() * identity
