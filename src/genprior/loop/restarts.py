"""Which items get how many starts: rounds of candidates, and successive halving within a round."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from genprior import _validate
from genprior.loop.rows import Outcome, Rows
from genprior.solvers.base import S
from genprior.status import Status

_SAME = 128.0
"""Scores that differ by less than so many units of rounding count as equal."""
_ENDED = (Status.CONVERGED, Status.SETTLED, Status.STALLED, Status.DIVERGED)
"""How an item has ended that another start may help; the others were stopped by a limit or by the user."""


@dataclass(frozen=True)
class Restarts:
    """Rounds of starts: all items begin in the first one, those that end badly begin again from their next candidates.

    Parameters
    ----------
    rounds
        starts per item in each round. Within a round they run side by side, and the worse ones are culled.
    fitted
        residual ``|A x - y| / |y|`` at which an item is done, whatever the others reach.
    worse
        factor above the lower quartile of the batch's residuals (of its objectives, where there are none) at which an item has
        ended badly. Where there are fewer than ``company`` items, one that is not fitted has. Of 128 real digits, which no
        latent fits (m = 78), 4 starts lowered the residual by 30% for none between 1.5 and 2.5 times the quartile, for a
        third above.
    company
        least number of items that one can be compared with.
    lower
        share by which the value of an item must fall for its new starts to have paid: more than between nearly equal minima.
    pays
        share of a round's items for which new starts must have paid for another round to follow; unless most of the batch is
        fitted: then the data can be fitted, and the rest have a solution that was not found yet.
    longer
        items that needed more than so many times the median of the steps wait for another round: a round begins at the step
        where the last of its items ended, so that they would leave the others no steps.
    """

    rounds: tuple[int, ...] = (1, 4, 8, 16)
    fitted: float = 3e-3
    worse: float = 2.5
    company: int = 4
    lower: float = 0.3
    pays: float = 0.1
    longer: float = 2.0

    def __post_init__(self) -> None:
        for count in self.rounds:
            _validate.whole("restarts", count)

    @property
    def most(self) -> int:
        """Starts of an item in all rounds."""
        return sum(self.rounds)

    def cut(self, candidates: int) -> Restarts:
        """The rounds for which so many candidates are enough."""
        kept = [sum(self.rounds[: number + 1]) <= candidates for number in range(len(self.rounds))]
        return replace(self, rounds=self.rounds[: max(1, sum(kept))])

    def bad(self, outcome: Outcome, residual: Tensor | None) -> Tensor:
        """Which items have ended badly, of those that may begin again."""
        codes = torch.tensor([int(status) for status in _ENDED], device=outcome.status.device)
        may = torch.isin(outcome.status, codes) & ~outcome.unfit
        value = self.value(outcome, residual)
        limit = self.fitted if residual is not None else 0.0
        if len(value) >= self.company:
            limit = max(limit, self.worse * float(value.quantile(0.25, interpolation="lower")))
        return may & (value > limit)

    def of_a_round(self, outcome: Outcome, residual: Tensor | None) -> Tensor:
        """The numbers of the items that begin again together."""
        bad = self.bad(outcome, residual).nonzero()[:, 0]
        steps = outcome.steps[bad]
        return bad[steps <= self.longer * steps.median()] if len(bad) else bad

    @staticmethod
    def value(outcome: Outcome, residual: Tensor | None) -> Tensor:
        """What items are judged by: the residual where there is one, else the objective."""
        value = outcome.objective if residual is None else residual
        return torch.where(value.isnan(), torch.inf, value)

    def paid(self, before: Tensor, after: Tensor) -> bool:
        """Whether a round was worth its time, by the values of its items before and after it."""
        return float((after < (1 - self.lower) * before).float().mean()) > self.pays

    def can_be_fitted(self, residual: Tensor | None) -> bool:
        """Whether most items of the batch are fitted."""
        if residual is None or len(residual) < self.company:
            return False
        return bool(residual.median() <= self.fitted)


# -- successive halving within a round ---------------------------------------------------------------------------------


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
    equal = score <= score[:, :1] + _rounding(score[:, :1])
    wins = equal & (feasible == feasible[:, :1]) & (status != int(Status.CULLED))
    wins[:, 0] |= ~wins.any(dim=1)
    best = order.gather(1, wins.int().argmax(dim=1, keepdim=True))[:, 0]
    return torch.arange(len(best), device=best.device) * restarts + best


def better(new: Outcome, old: Outcome) -> Tensor:
    """Where the new outcome of an item is better than the old one, by more than rounding."""
    feasible, was_feasible = new.objective.isfinite(), old.objective.isfinite()
    lower = (new.score < old.score - _rounding(old.score)) | (old.score.isnan() & ~new.score.isnan())
    return torch.where(feasible == was_feasible, lower, feasible)


def _rounding(score: Tensor) -> Tensor:
    size = torch.where(score.isfinite(), score.abs(), 0.0)
    return _SAME * torch.finfo(score.dtype).eps * size


def _order(score: Tensor, objective: Tensor, restarts: int) -> Tensor:
    """The restarts of each item from the best to the worst: a finite objective before any other, then by score."""
    by_score = torch.where(score.isnan(), math.inf, score).reshape(-1, restarts).argsort(dim=1, stable=True)
    infeasible = (~objective.isfinite()).reshape(-1, restarts).gather(1, by_score)
    return by_score.gather(1, infeasible.int().argsort(dim=1, stable=True))
