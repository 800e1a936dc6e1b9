"""How far, on average, each latent direction moves the signal: a shared, cheap picture of the generator's curvature."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from genprior import _batch

if TYPE_CHECKING:
    from genprior.generators.contract import Generator

_LARGEST = 2**23
"""Most signal numbers in one pass."""


def mean_gram(generator: Generator, points: int = 32, pulls: int = 8) -> Tensor:
    """Estimate ``E[DG(z)^T DG(z)]`` over the law from random vectors pulled back: ``E[(DG^T v)(DG^T v)^T]``, v normal.

    It depends on the generator alone (always the same points and vectors), so that every item of every batch sees the
    same one. One forward and ``pulls`` backward passes where the points fit into memory together.
    The identity where the generator gives no finite numbers.
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
    return metric if bool(torch.isfinite(metric).all()) else torch.eye(len(metric)).to(metric)
