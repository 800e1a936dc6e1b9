"""Where searches start: candidates for each item, the most promising first.

Most items that fail, fail because of their start. So every item looks before it searches: of a pool of samples of the
generator, drawn once for all items, those come first whose measurements are nearest to its own. A guess, such as that of
a trained encoder, is one more candidate: it comes where its measurements put it, behind the nearest sample at best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from genprior import _batch, _random, _validate
from genprior.generators import Generator, Passes
from genprior.generators.pool import BLOCK, latents_of_pool
from genprior.problem import Problem

SAMPLES = 512
"""Most samples of a pool: 4096 solve hardly more items."""
_PER_ITEM = 8
"""Samples for each item of the run: looking then costs as much as about four iterations, and solves as many items as 16."""
_MOST_OF_BUDGET = 0.15
"""Share of a run's limits that looking may take."""
_FOR_A_GUESS = 2
"""Passes to rank guesses, and to check that they were made for the problem."""
_GUESSED = -1
"""The number of an item's own guess in the order of its candidates."""


@runtime_checkable
class Guess(Protocol):
    """What proposes one start for each item, such as a :class:`genprior.StartEncoder`."""

    def guess(self, problem: Problem) -> Tensor:
        """Latents ``(items, *latent_shape)``. Passes through ``problem.generator`` are counted."""


@dataclass(frozen=True)
class Starts:
    """The latents from which the items of a run may start."""

    latents: Tensor
    """``(N, *latent_shape)``."""
    order: Tensor
    """``(items, K)``: for each item the numbers of its candidates among the latents, the most promising first; -1 is
    its own guess."""
    guesses: Tensor | None = None
    """``(items, *latent_shape)``, where there are any."""

    @classmethod
    def given(cls, z0: Tensor) -> Starts:
        """The candidates ``(items, K, *latent_shape)`` as they are."""
        order = torch.arange(z0.shape[0] * z0.shape[1], device=z0.device).reshape(z0.shape[:2])
        return cls(z0.detach().clone(memory_format=torch.contiguous_format).flatten(0, 1), order)

    @classmethod
    def drawn(cls, generator: Generator, order: Tensor, seed: int, guesses: Tensor | None = None) -> Starts:
        """The candidates that :func:`nearest` had chosen from the pool with this seed; costs no pass."""
        samples = (max(0, int(order.max())) // BLOCK + 1) * BLOCK
        guesses = None if guesses is None else guesses.to(generator.device)
        return cls(latents_of_pool(generator, samples, seed), order.to(generator.device), guesses)

    def __len__(self) -> int:
        """Number of items."""
        return len(self.order)

    def of(self, items: Tensor, skip: int, count: int) -> Tensor:
        """``(len(items) * count, *latent_shape)``: the candidates of these items after the first ``skip``, item by item."""
        numbers = self.order[items, skip : skip + count]
        chosen = self.latents[numbers.clamp_min(0).flatten()]
        if self.guesses is None:
            return chosen
        own = self.guesses[items].repeat_interleave(numbers.shape[1], dim=0)
        return torch.where(_batch.spread(numbers.flatten() == _GUESSED, own), own, chosen)


def nearest(problem: Problem, items: int, most: int, seed: int, guess: Guess | None = None) -> Starts | None:
    """For every item, the ``most`` samples of the generator's pool that fit it best; None where limits forbid a pool.

    A guess counts as one more sample, and stands behind those that fit as well, and always behind the nearest one: so the
    first round is the same with and without it. The passes are counted and limited by those of the problem's generator.
    The candidates of an item depend on the seed, its data, and on how many items there are: up to 64 of them, the pool grows
    with their number. Where more are wanted than it has, samples whose measurements are not known follow.
    """
    generator = problem.generator
    affordable = _affordable(generator, min(SAMPLES, max(BLOCK, _PER_ITEM * items)), items)
    if affordable < BLOCK:
        return None
    pool = generator.pool(affordable, seed, rows=items)
    scores, guesses = _scores(problem, pool.signals, items), None
    if guess is not None and generator.passes.share(_FOR_A_GUESS, 0, items) <= _MOST_OF_BUDGET:
        inner = problem.in_range
        guesses = problem.latents(_checked(guess.guess(inner), inner.generator, items))
        scores = torch.cat([scores, _own_scores(problem, guesses)[:, None]], dim=1)
    order = scores.argsort(dim=1, stable=True)
    if guesses is not None:
        order = torch.where(order == len(pool), _GUESSED, order)
        best = order[:, 0] == _GUESSED
        order[best, :2] = order[best, :2].flip(1)
    latents = pool.latents
    if most > len(pool):
        samples = -(-most // BLOCK) * BLOCK
        latents = torch.cat([latents, latents_of_pool(generator, samples, seed, len(pool))])
        order = torch.cat([order, torch.arange(len(pool), samples, device=order.device).expand(items, -1)], dim=1)
    return Starts(latents, order[:, :most], guesses)


def _scores(problem: Problem, signals: Tensor, items: int) -> Tensor:
    """``(items, N)``: how little each of N signals fits each item."""
    return torch.cat([part.start_scores(signals, part.batch or items) for part in _parts(problem, items)])


def _checked(guesses: Tensor, generator: Generator, items: int) -> Tensor:
    """One latent for each item; one that is not finite is replaced by the distribution's centre."""
    if not isinstance(guesses, Tensor):
        raise TypeError(f"start must guess a torch.Tensor of latents, got {type(guesses).__name__}")
    _validate.batch("the guess of start", guesses, generator.latent_shape)
    _validate.same_place("the guess of start", guesses, generator.device, generator.dtype, "the generator")
    if len(guesses) != items:
        raise ValueError(f"the guess of start has {len(guesses)} latents for {items} items: give one for each")
    finite = guesses.isfinite().flatten(1).all(dim=1)
    centre = torch.full_like(guesses, generator.latent.centre)
    return torch.where(_batch.spread(finite, guesses), guesses, centre).detach()


def _own_scores(problem: Problem, guesses: Tensor) -> Tensor:
    """How little each item's guess fits that item; counts as one forward pass."""
    generator, items = problem.generator, len(guesses)
    forwards = generator.passes.forwards
    found = []
    for rows in _batch.pieces(torch.arange(items, device=generator.device), _TOGETHER):
        part = problem if problem.batch is None else problem.rows(rows)
        found.append(part.start_scores(generator(guesses[rows]), len(rows)).diagonal())
    generator.passes.forwards = forwards + 1
    return torch.cat(found)


_TOGETHER = 16
"""Items whose guesses are compared with each other's data at once, though only each with its own is asked for."""


def candidates(problem: Problem, items: int, each: int, seed: int) -> Tensor:
    """``(items, each, *latent_shape)``: where ``solve`` with so many restarts and without a limit begins, as a ``z0``.

    For comparisons, in which no method pays for the pool.
    """
    found = nearest(problem.counting(Passes()), items, each, seed)
    assert found is not None, "nothing is limited"
    chosen = found.of(torch.arange(items, device=found.order.device), 0, each)
    return chosen.reshape(items, each, *chosen.shape[1:])


def _affordable(generator: Generator, wanted: int, items: int) -> int:
    """As many samples as the run's limits allow for; one pass shows how long they take."""
    passes = generator.passes
    if not passes.limited:
        return wanted
    if passes.share(wanted / items, 0, items) <= _MOST_OF_BUDGET:  # as far as passes are limited
        generator(latents_of_pool(generator, BLOCK, 0)[:1])
    share = passes.share(wanted / items, 0, items)
    return wanted if share <= _MOST_OF_BUDGET else math.floor(wanted * _MOST_OF_BUDGET / share) // BLOCK * BLOCK


def _parts(problem: Problem, items: int) -> list[Problem]:
    """The problem in parts of at most so many items that their scores are computed in bounded memory."""
    if problem.batch is None:
        return [problem]
    numbers = torch.arange(items, device=problem.generator.device)
    size = max(1, _AT_ONCE // math.prod(problem.generator.signal_shape))
    return [problem] if items <= size else [problem.rows(part) for part in _batch.pieces(numbers, size)]


_AT_ONCE = 2**22
"""Most values of the signals of a part."""


def starts(generator: Generator, seed: int, numbers: Sequence[int], restarts: int) -> Tensor:
    """Random starts ``(items, restarts, *latent_shape)``: each by the seed and the numbers of item and restart."""
    drawn = [
        torch.cat([generator.draw(1, _random.stream("starts", seed, number, restart)) for restart in range(restarts)])
        for number in numbers
    ]
    return torch.stack(drawn)
