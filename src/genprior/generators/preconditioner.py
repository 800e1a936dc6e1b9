"""The mean of ``DG^T DG`` over the latent distribution: a cheap model of the generator's curvature, for all items."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from genprior import _batch

if TYPE_CHECKING:
    from genprior.generators.contract import Generator
    from genprior.generators.passes import Passes

POINTS, PULLBACKS = 32, 8
"""Latents of a full estimate, and random cotangents at each: 256 vectors in one forward and eight backward passes."""
_LARGEST = 2**23
"""Most values of a batch of signals in one pass, to bound the memory."""
_LEAST_MODE = 1e-12
"""Least eigenvalue, relative to the largest one."""
_MOST_OF_BUDGET = 0.15
"""Share of a run's limit that an estimate may take."""


@dataclass(frozen=True, eq=False)
class Preconditioner:
    """``E[DG^T DG]`` over the latent distribution, ``(s, s)``, and its eigenvectors."""

    matrix: Tensor

    @cached_property
    def modes(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues (ascending, all above zero) and eigenvectors.

        Where the matrix is zero, as for zero weights, all eigenvalues are set to one.
        """
        values, vectors = torch.linalg.eigh(self.matrix.cpu().double())  # small, and not every device has float64
        largest = float(values[-1])
        values = values.clamp_min(_LEAST_MODE * largest) if largest > 0 else torch.ones_like(values)
        return values.to(self.matrix), vectors.to(self.matrix)

    @property
    def values(self) -> Tensor:
        """The eigenvalues."""
        return self.modes[0]

    @property
    def vectors(self) -> Tensor:
        """The eigenvectors, in columns."""
        return self.modes[1]


@dataclass
class Remembered:
    """Cached facts about a module, shared by all copies of its generator."""

    preconditioner: Preconditioner | None = None
    contents: str = ""
    """Digest of the module's contents from which it was computed."""
    no_jacobian: str | None = None
    """Why the module has no Jacobian, once known."""


def affordable(passes: Passes) -> tuple[int, int]:
    """How many points and pullbacks a run can afford: fewer pullbacks first, then fewer points, at least one of each."""
    for points, pullbacks in (
        (POINTS, PULLBACKS),
        (POINTS, 4),
        (POINTS, 2),
        (POINTS, 1),
        (16, 1),
        (8, 1),
        (4, 1),
        (2, 1),
    ):
        if passes.share(1, pullbacks, points) <= _MOST_OF_BUDGET:
            return points, pullbacks
    return 1, 1


def mean_gram(generator: Generator, points: int = POINTS, pullbacks: int = PULLBACKS) -> Tensor:
    """Estimate ``E[DG(z)^T DG(z)]`` over the latent distribution by random vectors: ``E[(DG^T v)(DG^T v)^T]``, v normal.

    It depends on the generator alone (points and vectors are always the same), hence not on the batch. One forward
    and ``pullbacks`` backward passes where the points fit into memory together. The identity where the generator gives no
    finite numbers. An estimate from fewer than s vectors, for latent dimension s, is singular: it is averaged with a multiple
    of the identity.
    """
    random = torch.Generator().manual_seed(0)
    latents = generator.draw(points, random)
    size = max(1, _LARGEST // math.prod(generator.signal_shape))
    total = torch.zeros((), device=generator.device, dtype=generator.dtype)
    for part in _batch.pieces(latents, size):
        with torch.enable_grad():
            leaf = part.detach().requires_grad_()
            value = generator(leaf)
        for number in range(pullbacks):
            v = torch.randn(value.shape, generator=random, dtype=torch.float32, device="cpu").to(value)
            gradient = _batch.flat(generator.backward(leaf, value, v, keep=number < pullbacks - 1))
            total = total + gradient.mT @ gradient
    gram = total.detach() / (points * pullbacks)
    identity = torch.eye(len(gram)).to(gram)
    if not bool(torch.isfinite(gram).all()):
        return identity
    missing = max(0.0, 1 - points * pullbacks / len(gram))
    return gram if missing == 0 else (1 - missing) * gram + missing * gram.diagonal().mean() * identity
