"""A run: its options, its batches in turn, the result assembled from them, and the bar that shows how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Generic

import torch
from torch import Tensor

from genprior import _validate
from genprior._progress import Bar
from genprior.engines import Engine
from genprior.generators import Passes, Preconditioner
from genprior.history import History, Recorder
from genprior.loop.batch import Batch
from genprior.loop.checkpoint import Finished, Keeper
from genprior.loop.rows import Divergence, Outcome, Progress, Proof
from genprior.loop.spread import Spread
from genprior.problem import Problem
from genprior.result import Result
from genprior.solvers.base import S, Solver
from genprior.solvers.optimality import active_bounds, penalty_share
from genprior.status import Status
from genprior.stopping import Callback, FirstOf, MaxSteps, Seconds, StopRule, View

_RECENT = 10
"""An item was still improving if its objective fell clearly in the last 1/10 of its steps."""
_RECORDS = 1_000_000
"""Most records of a history in all: 32 MB of values."""
_RECORDS_PER_ITEM = 2_000
"""Most records of one item: more than a plot can show."""
_INTERVAL = 0.1
"""Least seconds between two updates of the bar: faster ones cannot be read."""


@dataclass(frozen=True)
class Options:
    """The options of :func:`genprior.solve` that the loop reads at every step."""

    stop: StopRule
    tolerance: float
    patience: int
    restarts: int = 1
    cull_after: int = 25
    check_every: int = 10
    progress: Progress = field(default_factory=Progress)
    divergence: Divergence = field(default_factory=Divergence)
    proof: Proof = field(default_factory=Proof)

    def __post_init__(self) -> None:
        for name in ("patience", "restarts", "cull_after", "check_every"):
            _validate.whole(name, getattr(self, name))
        _validate.number("tolerance", self.tolerance, least=0)


@dataclass(frozen=True)
class Run(Generic[S]):
    """The checked arguments of :func:`genprior.solve`, and what its batches share."""

    problem: Problem
    solver: Solver[S]
    options: Options
    starts: Tensor
    """``(items * restarts, *latent_shape)``, item by item."""
    batch_size: int
    callbacks: tuple[Callback, ...]
    keeper: Keeper
    bar: ProgressBar
    plan: Callable[[Problem], str]
    engine: Engine | None = None
    """Whose workers solve the batches; None: they are solved here, one after the other."""
    done: list[Finished] = field(default_factory=list)
    """The batches that are finished, in their order."""

    @property
    def items(self) -> int:
        """Number of items."""
        return len(self.starts) // self.options.restarts

    def result(self) -> Result:
        """Run the batches that are not finished yet, and assemble the result."""
        done = self.done
        done += self.keeper.finished(self.starts)
        ahead = range(len(done) * self.batch_size, self.items, self.batch_size)
        self.bar.batch_done(min(self.items, ahead.start))
        if self.engine is None:
            self._take_here(ahead)
        else:
            Spread(self, self.engine, ahead).take()
        return self._assembled(done)

    def _take_here(self, ahead: range) -> None:
        done = self.done
        preconditioner: Preconditioner | None = None
        interrupted = False
        for left, first in zip(range(len(ahead), 0, -1), ahead, strict=True):
            stop = self.options.stop.share(sum(part.seconds for part in done), left)
            try:
                batch = self.batch(first, stop, preconditioner)
            except KeyboardInterrupt:
                batch, interrupted = self.batch(first, stop, preconditioner), True
            interrupted = batch.end() if interrupted else batch.iterate()
            done.append(batch.finished())
            preconditioner = batch.passes.preconditioner
            self.bar.batch_done(batch.items)
            if not interrupted:
                interrupted = self._stored()

    def _stored(self) -> bool:
        """Store the finished batches. True if the run was interrupted meanwhile."""
        try:
            self.keeper.write(self.done, None)
        except KeyboardInterrupt:
            return True
        return False

    def unwatched(self) -> Run[S]:
        """The same run for a worker: nobody watches, nothing is stored."""
        keeper, bar = Keeper(None), ProgressBar(False, self.items)
        return replace(self, callbacks=(), keeper=keeper, bar=bar, done=[], engine=None)

    def batch(self, first: int, stop: StopRule, preconditioner: Preconditioner | None) -> Batch[S]:
        """The items from ``first`` on, at their starts or where they were stored."""
        restarts, last = self.options.restarts, min(self.items, first + self.batch_size)
        starts = self.starts[first * restarts : last * restarts]
        index = torch.arange(first, last, device=starts.device).repeat_interleave(restarts)
        whole = self.items == last - first and restarts == 1
        problem = self.problem if whole or self.problem.batch is None else self.problem.rows(index)
        problem = problem.counting(Passes(preconditioner=preconditioner))
        records = max(2, min(_RECORDS_PER_ITEM, _RECORDS // len(self.starts)))
        history = Recorder(len(starts), records, self.options.check_every)
        stored = self.keeper.running()
        if stored is None:
            return Batch.begin(self, problem, starts, stop, history, first=first)
        return Batch.resume(stored, self, problem, starts, stop, history, first=first)

    def _assembled(self, done: list[Finished]) -> Result:
        parts = [part.outcome for part in done]
        whole = Outcome(*(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(Outcome)))
        recent = torch.clamp(whole.steps // _RECENT, min=2 * self.options.check_every)
        return Result(
            signal=whole.x,
            z=whole.z,
            w=whole.w,
            objective=whole.objective,
            primal_residual=whole.primal_residual,
            stationarity=whole.stationarity,
            status=tuple(Status(code) for code in whole.status.tolist()),
            steps=whole.steps,
            rollbacks=whole.rollbacks,
            restart=torch.cat([part.restart for part in done]),
            forwards=sum(part.forwards for part in done),
            backwards=sum(part.backwards for part in done),
            seconds=sum(part.seconds for part in done),
            history=History(tuple(part.panel for part in done)),
            plan=self.plan(self.problem),
            reach=self.problem.generator.latent.reach(whole.z),
            improving=(whole.fell > 0) & (whole.steps - whole.fell <= recent),
            bound=active_bounds(self.problem, whole.x, whole.z),
            penalty=penalty_share(self.problem, whole.objective, whole.z),
            unfit=whole.unfit,
            tolerance=self.options.tolerance,
            restarts=self.options.restarts,
            fading_dual=self.solver.dual_fades,
            residual=self.problem.loss.relative_residual(self.problem.loss(whole.x)),
        )


class ProgressBar(Bar):
    """The progress of a run, drawn at most ten times a second."""

    def __init__(self, visible: bool | None, items: int) -> None:
        super().__init__("solving", visible=visible)
        self._items = items
        self._finished = 0
        self._drawn_at = 0.0

    def batch_done(self, items: int) -> None:
        """Count the items of a finished batch."""
        self._finished += items

    def due(self) -> bool:
        """Whether it is time to draw again."""
        return self.drawn and time.monotonic() - self._drawn_at >= _INTERVAL

    def update(self, view: View, stop: StopRule, items: int) -> None:
        """Draw the state of the running batch of so many items."""
        self._drawn_at = time.monotonic()
        done = (self._finished + items * share_done(stop, view, items)) / self._items
        median = view.best_objective.median().item()
        self.show(done, 1.0, f"step {view.step}, {len(view.rows)} running, median objective {median:.3g}")


def share_done(stop: StopRule, view: View, items: int) -> float:
    """How much of the work on so many items is done, at most 1: by the budget used, or the items that have ended."""
    running = len(view.rows) / (items * view.per_item)
    return min(1.0, max(fraction_done(stop, view), 1 - running))


def fraction_done(stop: StopRule, view: View) -> float:
    """How much of the budget in a stop rule is used, 0 where it has none."""
    if isinstance(stop, MaxSteps):
        return view.step / max(1, stop.steps)
    if isinstance(stop, Seconds):
        return view.seconds / stop.seconds if stop.seconds else 1.0
    if isinstance(stop, FirstOf):
        return max(fraction_done(stop.first, view), fraction_done(stop.second, view))
    return 0.0
