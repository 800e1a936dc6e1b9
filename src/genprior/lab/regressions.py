"""Many small regressions at once: how far the minimiser over the range is from the true weights, compared with the bound.

Inputs are uniform on the sphere of radius ``sqrt(3)``, so that ``E x x^T = I`` and the population risk has ``zeta = 1``.
The true weights lie on a curve, the range of a generator with one latent; noise is uniform. The minimiser of the empirical
risk over the curve is found by brute force.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from genprior.theory.learning import generalisation

_SIZE = 3
_WIDTH = 1.2
"""All weights lie within this of each other: W is the ball of this radius around the true ones."""
_GRID = 4001


@dataclass(frozen=True)
class Regressions:
    """Results, one number per regression."""

    samples: int
    error: Tensor
    """``|w* - w_nat|``."""
    bound: Tensor
    gradient_error: Tensor
    """At least ``max_W |grad L_m - grad L|``."""
    gradient_bound: Tensor
    """``Y``."""
    probability: float


def curve(t: Tensor) -> Tensor:
    """The range: a piece of a helix, ``(..., 3)``."""
    return torch.stack([0.4 * torch.cos(2 * t), 0.4 * torch.sin(2 * t), 0.3 * t], dim=-1)


def simulate(
    samples: int, *, regressions: int = 200, noise: float = 0.2, eps: float = 3.0, seed: int = 0
) -> Regressions:
    """Draw the regressions, solve them by brute force, evaluate the generalisation bound of each."""
    random = torch.Generator().manual_seed(seed)
    shape = (regressions, samples)
    x = torch.randn(*shape, _SIZE, generator=random, dtype=torch.float64)
    x = math.sqrt(_SIZE) * x / x.norm(dim=2, keepdim=True)
    truth = curve(torch.rand(regressions, generator=random, dtype=torch.float64) * 2 - 1)
    hum = noise * (2 * torch.rand(shape, generator=random, dtype=torch.float64) - 1)
    moments, mixed = x.mT @ x / samples, (hum[:, None] @ x)[:, 0] / samples
    found = _best_on_curve(moments, mixed, truth)
    off = torch.linalg.matrix_norm(moments - torch.eye(_SIZE, dtype=torch.float64), 2)
    complexity = _complexity(x, hum, random)
    spread = 2 * math.sqrt(_SIZE) * (math.sqrt(_SIZE) * _WIDTH + noise)  # two gradients x (<x, w - w_nat> - noise)
    bounds = [generalisation(value, spread, samples, 1.0, eps=eps) for value in complexity.tolist()]
    return Regressions(
        samples=samples,
        error=(found - truth).norm(dim=1),
        bound=torch.tensor([bound.distance for bound in bounds]),
        gradient_error=_WIDTH * off + mixed.norm(dim=1),
        gradient_bound=torch.tensor([bound.gradient for bound in bounds]),
        probability=1 - math.exp(-eps),
    )


def _best_on_curve(moments: Tensor, mixed: Tensor, truth: Tensor) -> Tensor:
    """``L_m(w) = 1/2 u^T M u - <b, u> + const`` with ``u = w - w_nat``, least over a fine grid of the curve."""
    grid = curve(torch.linspace(-1, 1, _GRID, dtype=torch.float64))
    u = grid[None] - truth[:, None]
    values = 0.5 * ((u @ moments) * u).sum(dim=2) - (u @ mixed[:, :, None])[:, :, 0]
    return grid[values.argmin(dim=1)]


def _complexity(x: Tensor, hum: Tensor, random: torch.Generator, draws: int = 8) -> Tensor:
    """The upper estimate of the Rademacher complexity, for all regressions at once."""
    total = torch.zeros(len(x), dtype=torch.float64)
    for _ in range(draws):
        signs = torch.randint(0, 2, hum.shape, generator=random).double() * 2 - 1
        matrix = (x * signs[:, :, None]).mT @ x / x.shape[1]
        vector = ((signs * hum)[:, None] @ x)[:, 0] / x.shape[1]
        total += _WIDTH * torch.linalg.matrix_norm(matrix, 2) + vector.norm(dim=1)
    return total / draws
