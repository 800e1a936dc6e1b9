"""Stop rules, combined with ``|`` (whichever comes first) and ``&`` (all of them)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from genprior import _validate
from genprior.losses import Loss, Misfit, gaussian_misfit
from genprior.solvers.base import State
from genprior.status import Status

Verdict = Tensor | None
"""None: every row continues. Else a status code per row, 0 where the row continues."""


@dataclass(frozen=True)
class View:
    """The state of a run, for stop rules and callbacks. Tensors have one row per item (and restart) that is still running."""

    step: int
    seconds: float
    forwards: int
    backwards: int
    rows: Tensor
    """Numbers of the rows that are running: item times ``per_item`` plus restart, within their batch."""
    per_item: int
    """Restarts per item."""
    first: int
    """Number of the batch's first item."""
    state: State
    best_objective: Tensor
    best_signal: Tensor
    """``G(z)`` at the best iterate so far, by objective."""
    best_latent: Tensor
    subset: Tensor | None = None
    """The items of the batch that are in this round of starts, by their numbers within the batch. If None, all of them."""
    loss: Loss | None = None
    """Of the rows that are running."""
    stage: int = 0
    """With a deviation, 0 while the generator alone is fitted, then 1; steps, seconds and passes are counted anew."""
    stages: int = 1
    """How many there are."""

    def all(self, status: Status) -> Tensor:
        """The verdict that ends every row."""
        return torch.full_like(self.rows, int(status))

    @property
    def items(self) -> Tensor:
        """Number of the item that each row belongs to."""
        place = self.rows // self.per_item
        return self.first + (place if self.subset is None else self.subset[place])

    @property
    def restarts(self) -> Tensor:
        """Number of the restart that each row is."""
        return self.rows % self.per_item


Callback = Callable[[View], object]
"""Called at the start and after every step; one that returns True ends the run."""


class StopRule(ABC):
    """Decides, per item, whether to stop and why."""

    @abstractmethod
    def verdict(self, view: View) -> Verdict:
        """None where every row continues; else a :class:`Status` code per row, 0 where the row continues."""

    def limits(self) -> tuple[float, float]:
        """The seconds and the passes after which the rule ends every item; infinite where it does not count them."""
        return math.inf, math.inf

    def share(self, used: float, parts: float) -> StopRule:
        """The rule for the next of ``parts`` equal parts of the work, after ``used`` seconds."""
        return self

    def __or__(self, other: StopRule) -> StopRule:
        return FirstOf(self, _rule(other))

    def __and__(self, other: StopRule) -> StopRule:
        return AllOf(self, _rule(other))


@dataclass(frozen=True)
class MaxSteps(StopRule):
    """Stop after ``steps`` iterations."""

    steps: int

    def __post_init__(self) -> None:
        _validate.whole("steps", self.steps, 0)

    def verdict(self, view: View) -> Verdict:
        """MAX_STEPS after the limit."""
        return view.all(Status.MAX_STEPS) if view.step >= self.steps else None


@dataclass(frozen=True)
class Seconds(StopRule):
    """Stop after ``seconds`` of computing; recording and callbacks do not count.

    Preparations before the first step count, and are scaled to the limit. No pass through G begins after the limit, so it is
    exceeded by one pass at most. (The first run of a process takes a second or two more, in which
    torch loads what it needs for derivatives.) Where ``batch_size`` splits the work, each part gets an equal share of what
    is left, and one pass for its starts in any case.
    """

    seconds: float

    def __post_init__(self) -> None:
        _validate.number("seconds", self.seconds, least=0)

    def verdict(self, view: View) -> Verdict:
        """OUT_OF_TIME after the limit."""
        return view.all(Status.OUT_OF_TIME) if view.seconds >= self.seconds else None

    def limits(self) -> tuple[float, float]:
        """The seconds."""
        return self.seconds, math.inf

    def share(self, used: float, parts: float) -> StopRule:
        """An equal share of the time that is left."""
        return Seconds(max(0.0, self.seconds - used) / parts)


@dataclass(frozen=True)
class MaxPasses(StopRule):
    """Stop when ``passes`` forward and backward passes, added up, have been made by the item's batch."""

    passes: int

    def __post_init__(self) -> None:
        _validate.whole("passes", self.passes, 0)

    def verdict(self, view: View) -> Verdict:
        """OUT_OF_PASSES after the limit."""
        return view.all(Status.OUT_OF_PASSES) if view.forwards + view.backwards >= self.passes else None

    def limits(self) -> tuple[float, float]:
        """The passes."""
        return math.inf, self.passes


@dataclass(frozen=True)
class Target(StopRule):
    """Stop an item, all its restarts, as soon as its best objective is at most ``objective``."""

    objective: float

    def __post_init__(self) -> None:
        _validate.number("objective", self.objective)

    def verdict(self, view: View) -> Verdict:
        """TARGET, per item."""
        met = view.best_objective <= self.objective
        if view.per_item > 1:
            met = torch.isin(view.items, view.items[met])
        return met.long() * int(Status.TARGET)


@dataclass(frozen=True)
class Discrepancy(StopRule):
    """Stop an item as soon as it fits its measurements to their noise: a closer fit would follow the noise.

    That is Morozov's discrepancy principle: the misfit ``|(A G(z) - y)/sigma|^2`` of the best iterate has sunk to its
    expectation at the truth, the number of measurements. Of several restarts the best one must fit; the others end as culled.
    Signals that the generator cannot make may never get there: such items end by another rule, or at a minimum.

    Parameters
    ----------
    noise
        standard deviation of the noise; omitted: from the loss, ``LeastSquares(A, y, noise=...)``, ``Poisson`` or ``Huber``.
    factor
        on the expectation, at which an item ends.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> _ = torch.manual_seed(0)
    >>> G = gp.Generator(torch.nn.Linear(3, 400), latent_shape=(3,), signal_shape=(400,))
    >>> y = G(G.sample_latent(1, seed=7)).detach() + 0.1 * torch.randn(1, 400)
    >>> loss = gp.LeastSquares(gp.operators.Identity(400), y, noise=0.1)
    >>> gp.solve(gp.Problem(G, loss=loss), stop=gp.Discrepancy(factor=1.2), seed=1).status[0].name
    'FITS_NOISE'
    """

    noise: float | None = None
    factor: float = 1.0

    def __post_init__(self) -> None:
        if self.noise is not None:
            _validate.number("noise", self.noise, above=0)
        _validate.number("factor", self.factor, above=0)

    def verdict(self, view: View) -> Verdict:
        """FITS_NOISE, per item."""
        misfit = self._misfit(view)
        fits = (misfit.value <= self.factor * misfit.expected) & view.best_objective.isfinite()
        if view.per_item == 1:
            return fits.long() * int(Status.FITS_NOISE)
        objective = torch.where(view.best_objective.isnan(), math.inf, view.best_objective)
        items = view.items - view.items.min()
        least = objective.new_full((int(items.max()) + 1,), math.inf).scatter_reduce(0, items, objective, "amin")
        over = torch.isin(items, items[fits & (objective <= least[items])])
        ends = torch.where(fits, int(Status.FITS_NOISE), int(Status.CULLED))
        return torch.where(over, ends, 0)

    def _misfit(self, view: View) -> Misfit:
        """That of the best iterates."""
        loss = view.loss
        observed = None if loss is None or self.noise is None else loss.observed()
        if observed is not None and self.noise is not None:
            return gaussian_misfit(*observed, self.noise, view.best_signal)
        misfit = None if loss is None or self.noise is not None else loss.misfit(view.best_signal)
        if misfit is None:
            raise ValueError(
                f"Discrepancy needs the noise of the measurements, but the loss is {loss!r}: give it a noise level, "
                "LeastSquares(A, y, noise=...), or Discrepancy(noise) with LeastSquares or SquaredDistance"
            )
        return misfit


@dataclass(frozen=True)
class FirstOf(StopRule):
    """Whichever comes first."""

    first: StopRule
    second: StopRule

    def verdict(self, view: View) -> Verdict:
        """The first rule's verdict, else the second's."""
        a, b = self.first.verdict(view), self.second.verdict(view)
        if a is None or b is None:
            return b if a is None else a
        return torch.where(a != 0, a, b)

    def limits(self) -> tuple[float, float]:
        """Whichever comes first."""
        (s, p), (t, q) = self.first.limits(), self.second.limits()
        return min(s, t), min(p, q)

    def share(self, used: float, parts: float) -> StopRule:
        """Both rules' shares."""
        return FirstOf(self.first.share(used, parts), self.second.share(used, parts))


@dataclass(frozen=True)
class AllOf(StopRule):
    """Only when both hold; the second gives the status."""

    first: StopRule
    second: StopRule

    def verdict(self, view: View) -> Verdict:
        """The second rule's verdict where the first holds too."""
        a, b = self.first.verdict(view), self.second.verdict(view)
        return None if a is None or b is None else torch.where(a != 0, b, 0)

    def limits(self) -> tuple[float, float]:
        """Infinite unless both rules limit the same quantity."""
        (s, p), (t, q) = self.first.limits(), self.second.limits()
        return max(s, t), max(p, q)

    def share(self, used: float, parts: float) -> StopRule:
        """Both rules' shares."""
        return AllOf(self.first.share(used, parts), self.second.share(used, parts))


def _rule(value: StopRule) -> StopRule:
    if not isinstance(value, StopRule):
        raise TypeError(f"stop rules combine with stop rules, got {value!r}: write MaxSteps(500) | Seconds(10)")
    return value
