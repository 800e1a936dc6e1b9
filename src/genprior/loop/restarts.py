"""Restarts: successive halving, and which restart of an item is its answer."""

from __future__ import annotations

import torch
from torch import Tensor

from genprior.loop.rows import Outcome, Rows
from genprior.solvers.base import S
from genprior.status import Status

_SAME = 128.0
"""Scores that differ by less than so many units of rounding count as equal."""


def survivors(step: int, restarts: int, cull_after: int) -> int | None:
    """How many restarts of an item stay after this step; None where it is not a step of halving.

    Steps c, 2c, 4c, 8c, ... halve them, until one is left.

    Examples
    --------
    >>> [survivors(step, restarts=8, cull_after=25) for step in (0, 24, 25, 50, 75, 100, 200)]
    [None, None, 4, 2, None, 1, 1]
    """
    rounds, rest = divmod(step, cull_after)
    if restarts == 1 or rest or rounds == 0 or rounds & (rounds - 1):
        return None
    return max(1, restarts >> rounds.bit_length())


def losers(outcome: Outcome, rows: Rows[S], restarts: int, survivors: int) -> Tensor:
    """Running rows that are not among the ``survivors`` best of their item, finished rows included in the ranking."""
    score = outcome.score.index_copy(0, rows.index, rows.best.score)
    objective = outcome.objective.index_copy(0, rows.index, rows.best.objective)
    ranks = _order(score, objective, restarts).argsort(dim=1)
    return (ranks >= survivors).reshape(-1)[rows.index]


def winners(outcome: Outcome, restarts: int) -> Tensor:
    """The row of the best restart of each item: feasible ones first, then by score.

    Among scores that are equal up to rounding, a culled restart comes last: an equal one was continued, and has a verdict.
    """
    order = _order(outcome.score, outcome.objective, restarts)
    score = outcome.score.reshape(-1, restarts).gather(1, order)
    status = outcome.status.reshape(-1, restarts).gather(1, order)
    feasible = outcome.objective.isfinite().reshape(-1, restarts).gather(1, order)
    equal = score <= score[:, :1] + _SAME * torch.finfo(score.dtype).eps * score[:, :1].abs()
    wins = equal & (feasible == feasible[:, :1]) & (status != int(Status.CULLED))
    wins[:, 0] |= ~wins.any(dim=1)
    best = order.gather(1, wins.int().argmax(dim=1, keepdim=True))[:, 0]
    return torch.arange(len(best), device=best.device) * restarts + best


def _order(score: Tensor, objective: Tensor, restarts: int) -> Tensor:
    """The restarts of each item from the best to the worst: a finite objective before any other, then by score."""
    by_score = torch.where(score.isnan(), torch.inf, score).reshape(-1, restarts).argsort(dim=1, stable=True)
    infeasible = (~objective.isfinite()).reshape(-1, restarts).gather(1, by_score)
    return by_score.gather(1, infeasible.int().argsort(dim=1, stable=True))
