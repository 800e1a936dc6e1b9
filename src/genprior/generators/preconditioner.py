"""The preconditioner ``E[DG^T DG]``: how much directions of the latent space change the signal, on average.

It is a cheap model of the generator's curvature, for all items, estimated from vectors ``DG(z)^T v`` with random z and v. Of
large latents, whose matrix would not fit, only the mean eigenvalue is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
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
IN_A_RUN = (4, 2)
"""Those of a run: 8 vectors, for as many passes of one row as six iterations of one item take.

The same for any number of items, so that an item runs as if alone. More vectors save few passes, and cost one item more.
"""
_ROUGHER = ((2, 2), (1, 2), (1, 1))
"""Where limits are tight."""
_MOST_OF_BUDGET = 0.15
"""Share of a run's limit that an estimate may take."""
LARGEST_DENSE = 1024
"""Largest latent dimension s for which the preconditioner is an s x s matrix, which is decomposed."""
_LARGEST = 2**23
"""Most values of a batch of signals in one pass, to bound the memory."""
_LEAST_MODE = 1e-12
"""Least eigenvalue, relative to the largest one."""


@dataclass(frozen=True, eq=False)
class Preconditioner:
    """``E[DG^T DG]`` over the latent distribution, ``(s, s)``, and its eigenvectors."""

    matrix: Tensor
    variance: Tensor
    """``E |G - E G|^2``, a number: how far signals are from each other."""

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


@dataclass(frozen=True, eq=False)
class ScaledIdentity:
    """A multiple of the identity, ``(s, s)``, with the trace of ``E[DG^T DG]``."""

    values: Tensor
    """The eigenvalues, ``(s,)``, all the same."""
    variance: Tensor
    """As that of :class:`Preconditioner`."""

    vectors = None
    """The coordinates themselves."""

    @property
    def matrix(self) -> Tensor:
        """``(s, s)``, far larger than what is stored."""
        return self.values.diag()


def has_matrix(generator: Generator) -> bool:
    """Whether the preconditioner is a matrix: it was given, or is small enough to be estimated."""
    return generator.given_preconditioner is not None or math.prod(generator.latent_shape) <= LARGEST_DENSE


# -- estimates ---------------------------------------------------------------------------------------------------------


def affordable(passes: Passes) -> tuple[int, int]:
    """As many points and pullbacks as the run's limits allow for, at least one of each."""
    for points, pullbacks in (IN_A_RUN, *_ROUGHER):
        rows = min(points, passes.rows)
        if passes.share(points / rows, pullbacks * points / rows, math.ceil(rows)) <= _MOST_OF_BUDGET:
            return points, pullbacks
    return _ROUGHER[-1]


def estimated(generator: Generator, points: int, pullbacks: int) -> Preconditioner | ScaledIdentity:
    """From so many random vectors: a matrix for small latents, a multiple of the identity for large ones.

    It depends on the generator alone (points and vectors are always the same), hence not on the batch.
    """
    if math.prod(generator.latent_shape) <= LARGEST_DENSE:
        variance = Variance()
        gram = mean_gram(generator, points, pullbacks, variance)
        return Preconditioner(gram, variance.total(gram.diagonal().sum() * generator.spread**2))
    return scaled_identity(generator, points, pullbacks)


def completed(generator: Generator, matrix: Tensor, points: int) -> Preconditioner:
    """A matrix that is known, with the variance of so many signals: forward passes alone."""
    variance = Variance()
    for _ in _vectors(generator, points, 0, variance):
        """There are none: the signals alone are of interest."""
    return Preconditioner(matrix, variance.total(matrix.diagonal().sum() * generator.spread**2))


def mean_gram(
    generator: Generator, points: int = POINTS, pullbacks: int = PULLBACKS, variance: Variance | None = None
) -> Tensor:
    """Estimate ``E[DG(z)^T DG(z)]`` over the latent distribution by random vectors: ``E[(DG^T v)(DG^T v)^T]``, v normal.

    One forward and ``pullbacks`` backward passes where the points fit into memory together. The identity where the generator
    gives no finite numbers. An estimate from fewer than s vectors, for latent dimension s, is singular: it is averaged with a
    multiple of the identity. The signals are added to ``variance``.
    """
    vectors = _vectors(generator, points, pullbacks, variance or Variance())
    gram = sum(gradient.mT @ gradient for gradient in vectors) / (points * pullbacks)
    assert isinstance(gram, Tensor), "there is a vector"
    identity = torch.eye(len(gram)).to(gram)
    if not bool(torch.isfinite(gram).all()):
        return identity
    missing = max(0.0, 1 - points * pullbacks / len(gram))
    return gram if missing == 0 else (1 - missing) * gram + missing * gram.diagonal().mean() * identity


def scaled_identity(generator: Generator, points: int, pullbacks: int) -> ScaledIdentity:
    """The identity times the mean eigenvalue of ``E[DG^T DG]``: ``E |DG^T v|^2 / s``, v normal.

    The identity itself where the generator gives no finite numbers, or where all eigenvalues are zero.
    """
    variance = Variance()
    squares = torch.cat([_batch.square(gradient) for gradient in _vectors(generator, points, pullbacks, variance)])
    size = math.prod(generator.latent_shape)
    mean = squares.mean() / size
    usable = bool(torch.isfinite(mean)) and float(mean) > 0
    values = (mean if usable else torch.ones_like(mean)).expand(size)
    return ScaledIdentity(values, variance.total(values.sum() * generator.spread**2))


class Variance:
    """The sum over entries of the variance of signals that come in parts."""

    def __init__(self) -> None:
        self._first: Tensor | None = None
        self._sum = self._squares = torch.zeros(())
        self._count = 0

    def add(self, signals: Tensor) -> None:
        """More signals."""
        flat = _batch.flat(signals.detach())
        if self._first is None:
            self._first = flat[0]
        shifted = flat - self._first  # so that little is lost in rounding where signals are much alike
        self._sum = self._sum.to(shifted) + shifted.sum(dim=0)
        self._squares = self._squares.to(shifted) + shifted.square().sum()
        self._count += len(flat)

    def total(self, of_a_linear_generator: Tensor) -> Tensor:
        """The unbiased estimate; that of a linear generator where there is one signal, or none that is finite."""
        among = self._squares - self._sum.square().sum() / max(1, self._count)
        found = among / max(1, self._count - 1)
        return torch.where((found > 0) & found.isfinite(), found, of_a_linear_generator.to(found))


def _vectors(generator: Generator, points: int, pullbacks: int, variance: Variance) -> Iterator[Tensor]:
    """``DG(z)^T v``, flat, in parts that fit into memory; the signals ``G(z)`` are added to ``variance``."""
    random = torch.Generator().manual_seed(0)
    latents = generator.draw(points, random)
    size = max(1, _LARGEST // math.prod(generator.signal_shape))
    for part in _batch.pieces(latents, size):
        with torch.set_grad_enabled(pullbacks > 0):
            leaf = part.detach().requires_grad_(pullbacks > 0)
            value = generator(leaf)
        variance.add(value)
        for number in range(pullbacks):
            v = torch.randn(value.shape, generator=random, dtype=torch.float32, device="cpu").to(value)
            yield _batch.flat(generator.backward(leaf, value, v, keep=number < pullbacks - 1)).detach()
