"""Starting points: of a run by its seed; of a job by the seed and the item's number, whatever its batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from genprior import _random, _validate
from genprior.generators import Generator
from genprior.problem import Problem


def starts(generator: Generator, seed: int, numbers: Sequence[int], restarts: int) -> Tensor:
    """Starts ``(items, restarts, *latent_shape)`` of a job: each by the seed and the numbers of item and restart."""
    drawn = [
        torch.cat([generator.draw(1, _random.stream("starts", seed, number, restart)) for restart in range(restarts)])
        for number in numbers
    ]
    return torch.stack(drawn)


def restarts_of(problem: Problem, z0: Tensor | None, restarts: int) -> int:
    """Restarts of a run: as asked, or as many as ``z0`` has starts per item."""
    restarts = _validate.whole("restarts", restarts)
    if not _for_restarts(problem, z0):
        return restarts
    assert z0 is not None, "it has an axis"
    if restarts not in {1, z0.shape[1]}:
        raise ValueError(f"z0 holds {z0.shape[1]} starts per item, but restarts is {restarts}: leave restarts out")
    return _validate.whole("the length of z0's second axis, the starts per item,", z0.shape[1])


def drawn_starts(problem: Problem, z0: Tensor | None, restarts: int, seed: int) -> Tensor:
    """Starts of all rows of a run, item by item: ``z0`` first, the rest drawn; projected where H forbids them."""
    generator = problem.generator
    given = _for_restarts(problem, z0)
    if z0 is not None:
        _validate.tensor("z0", z0)
        _validate.batch("z0", z0, tuple(z0.shape[1:]) if given else generator.latent_shape)
        _validate.same_place("z0", z0, generator.device, generator.dtype, "the generator")
    items = problem.batch or (1 if z0 is None else len(z0))
    if z0 is not None and len(z0) != items:
        raise ValueError(f"z0 has {len(z0)} items, but the problem has {items}: give one start per item")
    random = _random.stream("starts", seed)
    if z0 is not None and given:
        begun = z0.detach().clone(memory_format=torch.contiguous_format).flatten(0, 1)
    else:
        drawn = [generator.draw(items, random) for _ in range(restarts)]
        if z0 is not None:
            drawn[0] = z0.detach().clone()
        begun = torch.stack(drawn, dim=1).flatten(0, 1)
    constraint = problem.on_latent.constraint
    if constraint is None:
        return begun
    item = torch.arange(items, device=begun.device).repeat_interleave(restarts)
    return constraint.rows(item).prox(begun, 1.0)


def _for_restarts(problem: Problem, z0: Tensor | None) -> bool:
    """Whether ``z0`` is ``(B, restarts, *latent_shape)``."""
    latent = problem.generator.latent_shape
    return isinstance(z0, Tensor) and z0.ndim == len(latent) + 2 and tuple(z0.shape[2:]) == latent
