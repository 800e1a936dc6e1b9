"""What a run owns of a generator: the counts and limits of its passes, and the preconditioner.

The limits hold for a method's preparations too. The preconditioner is the mean of ``DG^T DG`` over the latent distribution:
a cheap model of the generator's curvature, for all items.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from genprior import _batch
from genprior._clock import Clock

if TYPE_CHECKING:
    from genprior.generators.contract import Generator
    from genprior.generators.pool import Pool

_BACKWARD = 2.0
"""A backward pass takes about as long as so many forward passes."""
_NEXT_TO_NOTHING = 1e-9
"""Least rest of a limit, in seconds or passes, so that shares of it are finite."""
POINTS, PULLBACKS = 32, 8
"""Latents of a full estimate, and random cotangents at each: 256 vectors in one forward and eight backward passes."""
_ROUGHER = ((32, 4), (16, 4), (16, 2), (8, 2), (4, 2), (2, 2), (1, 2), (1, 1))
"""Latents and cotangents of rougher estimates: each has half as many vectors as the one before."""
_USUAL = 100
"""Passes of a usual search, forward and backward."""
_MOST_OF_SEARCH = 0.15
"""Share of the passes of all rows of a usual search that an estimate may take."""
_LARGEST = 2**23
"""Most values of a batch of signals in one pass, to bound the memory."""
_LEAST_MODE = 1e-12
"""Least eigenvalue, relative to the largest one."""
_MOST_OF_BUDGET = 0.15
"""Share of a run's limit that an estimate may take."""


class OutOfTime(Exception):
    """The time limit was reached within a step: the step is dropped, and the run ends at the iterate before it."""


@dataclass(eq=False)
class Passes:
    """Forward and backward passes that were made, and the limits on them: infinite where no stop rule sets one.

    Each run has its own, so that runs of the same generator neither count nor limit each other's passes.
    """

    forwards: int = 0
    backwards: int = 0
    clock: Clock | None = None
    """That of the run."""
    seconds: float = math.inf
    """By this clock."""
    most: float = math.inf
    """Forward and backward passes, added up."""
    rows: float = math.inf
    """Searches of the run: its items, times the starts of each. Infinite outside of runs."""
    started: bool = False
    """Whether the starts are evaluated: from then on no pass begins after the time limit."""
    per_item: float = 0.0
    """Least seconds per item of the forward passes so far."""
    preconditioner: Preconditioner | None = None
    """The generator's at its first use in the run: it must not change during the run."""

    @property
    def total(self) -> int:
        """Forward and backward passes, added up."""
        return self.forwards + self.backwards

    @property
    def of_a_run(self) -> bool:
        """Whether these are the passes of a run, which has a clock."""
        return self.clock is not None

    @property
    def limited(self) -> bool:
        """Whether there is a limit at all."""
        return math.isfinite(self.seconds) or math.isfinite(self.most)

    def seconds_left(self) -> float:
        """By the clock of the run."""
        return self.seconds if self.clock is None else self.seconds - self.clock.seconds

    def begin(self) -> float:
        """Before a pass: :class:`OutOfTime` after the time limit, else the present time."""
        if self.started and self.seconds_left() <= 0:
            raise OutOfTime
        return time.perf_counter()

    def forward(self, items: int, begun: float) -> None:
        """After a forward pass."""
        each = (time.perf_counter() - begun) / max(1, items)
        self.per_item = min(self.per_item, each) if self.per_item else each
        self.forwards += 1

    def counts(self) -> tuple[int, int]:
        """Forward and backward passes."""
        return self.forwards, self.backwards

    def recount(self, forwards: int, backwards: int) -> None:
        """Count on from these numbers."""
        self.forwards, self.backwards = forwards, backwards

    def share(self, forwards: float, backwards: float, items: int) -> float:
        """Share of the rest of the limits that these passes of so many items would take; 0 where there is no limit."""
        if not self.limited:
            return 0.0
        seconds = (forwards + _BACKWARD * backwards) * items * self.per_item
        of_time = seconds / max(self.seconds_left(), _NEXT_TO_NOTHING)
        return max(of_time, (forwards + backwards) / max(self.most - self.total, _NEXT_TO_NOTHING))


# -- preconditioner ----------------------------------------------------------------------------------------------------


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

    preconditioners: dict[tuple[int, int], Preconditioner] = field(default_factory=dict)
    """By the numbers of points and pullbacks from which they were estimated."""
    contents: str = ""
    """Digest of the module's contents from which they were computed."""
    no_jacobian: str | None = None
    """Why the module has no Jacobian, once known."""
    pool: Pool | None = None
    """Samples of the module."""
    pool_of: tuple[str, int] = ("", 0)
    """Digest of the module's contents, and the seed, with which they were drawn."""


def worthwhile(rows: float) -> tuple[int, int]:
    """Points and pullbacks of the preconditioner for a run of so many rows: as many as cost little beside its searches.

    Each point takes one forward and ``pullbacks`` backward passes of one row. The rule asks no clock: runs can be repeated.
    """
    for points, pullbacks in ((POINTS, PULLBACKS), *_ROUGHER):
        if points * (1 + pullbacks) <= _MOST_OF_SEARCH * _USUAL * rows:
            return points, pullbacks
    return _ROUGHER[-1]


def affordable(passes: Passes, wanted: tuple[int, int]) -> tuple[int, int]:
    """As many points and pullbacks as the run's limits allow for, at most the wanted ones, and at least one of each."""
    for points, pullbacks in (wanted, *(size for size in _ROUGHER if size < wanted)):
        rows = min(points, passes.rows)
        if passes.share(points / rows, pullbacks * points / rows, math.ceil(rows)) <= _MOST_OF_BUDGET:
            return points, pullbacks
    return _ROUGHER[-1]


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
