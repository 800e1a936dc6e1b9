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
from genprior.generators import Passes, Preconditioner, ScaledIdentity
from genprior.generators.deviating import Deviating
from genprior.history import History, Recorder
from genprior.loop.batch import Batch, Round, limited
from genprior.loop.checkpoint import Keeper
from genprior.loop.finished import Finished, all_minima, distinct
from genprior.loop.restarts import Restarts
from genprior.loop.rows import Divergence, Outcome, Progress, Proof
from genprior.loop.spread import Spread
from genprior.loop.starts import Starts
from genprior.problem import Problem
from genprior.result import Minima, Result
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
    restarts: Restarts = field(default_factory=Restarts)
    cull_after: int = 25
    settle_after: int = 0
    check_every: int = 10
    progress: Progress = field(default_factory=Progress)
    divergence: Divergence = field(default_factory=Divergence)
    proof: Proof = field(default_factory=Proof)

    def __post_init__(self) -> None:
        for name in ("patience", "cull_after", "check_every"):
            _validate.whole(name, getattr(self, name))
        _validate.whole("settle_after", self.settle_after, 0)
        _validate.number("tolerance", self.tolerance, least=0)


@dataclass(frozen=True)
class Run(Generic[S]):
    """The checked arguments of :func:`genprior.solve`, and what its batches share."""

    problem: Problem
    solver: Solver[S]
    options: Options
    starts: Starts
    batch_size: int
    callbacks: tuple[Callback, ...]
    keeper: Keeper
    bar: ProgressBar
    plan: Callable[[Problem], str]
    engine: Engine | None = None
    """Whose workers solve the batches; None: they are solved here, one after the other."""
    forwards: int = 0
    """Forward passes that choosing the starts took; they count as the first batch's."""
    seconds: float = 0.0
    """Seconds that it took."""
    done: list[Finished] = field(default_factory=list)
    """The batches that are finished, in their order."""

    @property
    def items(self) -> int:
        """Number of items."""
        return len(self.starts)

    def result(self) -> Result:
        """Run the batches that are not finished yet, and assemble the result."""
        done = self.done
        done += self.keeper.finished(self.problem.generator.device)
        ahead = range(len(done) * self.batch_size, self.items, self.batch_size)
        self.bar.batch_done(min(self.items, ahead.start))
        if self.engine is None:
            self._take_here(ahead)
        else:
            Spread(self, self.engine, ahead).take()
        return self._assembled(done)

    def _take_here(self, ahead: range) -> None:
        done = self.done
        preconditioner: Preconditioner | ScaledIdentity | None = None
        interrupted = False
        for left, first in zip(range(len(ahead), 0, -1), ahead, strict=True):
            stop = self.options.stop.share(sum(part.seconds for part in done), left)
            part, interrupted = self.solved(first, stop, preconditioner, interrupted=interrupted)
            done.append(part.finished())
            preconditioner = part.passes.preconditioner
            self.bar.batch_done(min(self.batch_size, self.items - first))
            if not interrupted:
                interrupted = self._stored()

    def solved(
        self,
        first: int,
        stop: StopRule,
        preconditioner: Preconditioner | ScaledIdentity | None,
        *,
        interrupted: bool = False,
    ) -> tuple[Batch[S], bool]:
        """The items from ``first`` on, in as many rounds as pay; and whether the run was interrupted."""
        try:
            batch = self.batch(first, stop, preconditioner)
        except KeyboardInterrupt:
            batch, interrupted = self.batch(first, stop, preconditioner), True
        interrupted = batch.end() if interrupted else batch.iterate()
        try:
            while not interrupted and (following := batch.next_round()) is not None:
                batch = following
                interrupted = batch.iterate()
        except KeyboardInterrupt:
            interrupted = True
        return batch, interrupted

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

    def batch(self, first: int, stop: StopRule, preconditioner: Preconditioner | ScaledIdentity | None) -> Batch[S]:
        """The items from ``first`` on, at their first starts or where they were stored."""
        passes = Passes(preconditioner=preconditioner, rows=self.items * self.options.restarts.rounds[0])
        stored = self.keeper.running()
        if stored is not None:
            return Batch.resume(stored, self, first, stop, passes)
        count = min(self.batch_size, self.items - first)
        items = torch.arange(count, device=self.problem.generator.device)
        begun = Round(items, self.options.restarts.rounds[0])
        problem = self.problem_of(first, begun.rows).counting(passes)
        passes.forwards = 0 if first else self.forwards
        clock = limited(problem, stop, 0.0 if first else self.seconds)
        return Batch.begin(self, first, begun, stop, problem, clock)

    def problem_of(self, first: int, rows: Tensor) -> Problem:
        """The problem of these items of the batch that begins at ``first``; they may repeat."""
        whole = self.items == len(rows) and torch.equal(rows, torch.arange(self.items, device=rows.device))
        return self.problem if whole or self.problem.batch is None else self.problem.rows(first + rows)

    def latents(self, first: int, begun: Round) -> Tensor:
        """The starts of a round, row by row; projected where H forbids them."""
        skip = sum(self.options.restarts.rounds[: begun.number])
        z = self.starts.of(first + begun.items, skip, begun.starts)
        constraint = self.problem.on_latent.constraint
        return z if constraint is None else constraint.rows(first + begun.rows).prox(z, 1.0)

    def recorder(self, rows: int) -> Recorder:
        """The history of a round with so many rows."""
        starts = self.items * self.options.restarts.rounds[0]
        records = max(2, min(_RECORDS_PER_ITEM, _RECORDS // starts))
        return Recorder(rows, records, self.options.check_every)

    def residual(self, first: int, done: Finished) -> Tensor | None:
        """``|A x - y| / |y|`` of a batch's items, where the loss has one."""
        x = done.outcome.x
        loss = self.problem_of(first, torch.arange(len(x), device=x.device)).loss
        return loss.relative_residual(loss(x))

    def _assembled(self, done: list[Finished]) -> Result:
        parts = [part.outcome for part in done]
        whole = Outcome(*(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(Outcome)))
        recent = torch.clamp(whole.steps // _RECENT, min=2 * self.options.check_every)
        minima, z, coefficients, deviation = _all_minima(done, whole.x), whole.z, None, None
        generator = self.problem.generator
        if isinstance(generator, Deviating):
            (z, coefficients), minima = generator.split(whole.z), replace(minima, z=generator.split(minima.z)[0])
            deviation = generator.deviation(coefficients)
        signal, w, parameters = whole.x, whole.w, None
        if (blocks := generator.signal_blocks) is not None:
            own, *others = blocks
            parameters = {block.name: block.taken(signal) for block in others}
            signal, w, minima = own.taken(signal), own.taken(w), replace(minima, x=own.taken(minima.x))
        return Result(
            signal=signal,
            z=z,
            w=w,
            objective=whole.objective,
            primal_residual=whole.primal_residual,
            stationarity=whole.stationarity,
            status=tuple(Status(code) for code in whole.status.tolist()),
            steps=whole.steps,
            rollbacks=whole.rollbacks,
            restart=torch.cat([part.restart for part in done]),
            starts=torch.cat([part.starts for part in done]),
            forwards=sum(part.forwards for part in done),
            backwards=sum(part.backwards for part in done),
            seconds=sum(part.seconds for part in done),
            batch_passes=max((part.forwards + part.backwards for part in done), default=0),
            history=History(tuple(part.panel for part in done)),
            plan=self.plan(self.problem),
            reach=self.problem.generator.latent.reach(whole.z),
            improving=(whole.fell > 0) & (whole.steps - whole.fell <= recent),
            bound=active_bounds(self.problem, whole.x, whole.z),
            penalty=penalty_share(self.problem.in_range, whole.objective, z),
            unfit=whole.unfit,
            tolerance=self.options.tolerance,
            minima=minima,
            fading_dual=self.solver.dual_fades,
            residual=self.problem.loss.relative_residual(self.problem.loss(whole.x)),
            misfit=self.problem.loss.misfit(whole.x),
            deviation=deviation,
            coefficients=coefficients,
            parameters=parameters,
        )


def _all_minima(done: list[Finished], signal: Tensor) -> Minima:
    """Those of all batches, by the numbers of the run's items."""
    first, found = 0, []
    for part in done:
        found.append(replace(part.minima, item=part.minima.item + first))
        first += len(part.restart)
    return distinct(all_minima(found), signal)


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
    """How much of the work on so many items is done, at most 1: by the budget used, or the items that have ended.

    Each of several stages counts as an equal part.
    """
    running = len(view.rows) / (items * view.per_item)
    return (view.stage + min(1.0, max(fraction_done(stop, view), 1 - running))) / view.stages


def fraction_done(stop: StopRule, view: View) -> float:
    """How much of the budget in a stop rule is used, 0 where it has none."""
    if isinstance(stop, MaxSteps):
        return view.step / max(1, stop.steps)
    if isinstance(stop, Seconds):
        return view.seconds / stop.seconds if stop.seconds else 1.0
    if isinstance(stop, FirstOf):
        return max(fraction_done(stop.first, view), fraction_done(stop.second, view))
    return 0.0
