"""A run: its batches in turn, and the result assembled from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Generic

import torch
from torch import Tensor

from genprior.generators import Passes, Preconditioner
from genprior.history import History, Recorder
from genprior.loop.batch import Batch
from genprior.loop.observers import Callback, Observers
from genprior.loop.progress import ProgressBar
from genprior.loop.rows import Outcome
from genprior.loop.rules import Options
from genprior.loop.storage import Finished, Keeper
from genprior.problem import Problem
from genprior.result import Result
from genprior.solvers.base import S, Solver
from genprior.solvers.optimality import active_bounds, penalty_share
from genprior.status import Status

_RECENT = 10
"""An item was still improving if its objective fell clearly in the last 1/10 of its steps."""
_RECORDS = 1_000_000
"""Most records of a history in all: 32 MB of values."""
_RECORDS_PER_ITEM = 2_000
"""Most records of one item: more than a plot can show."""


@dataclass(frozen=True)
class Run(Generic[S]):
    """The checked arguments of :func:`genprior.solve`."""

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

    @property
    def items(self) -> int:
        """Number of items."""
        return len(self.starts) // self.options.restarts

    def result(self) -> Result:
        """Run the batches that are not finished yet, and assemble the result."""
        done = self.keeper.finished(self.starts)
        ahead = range(len(done) * self.batch_size, self.items, self.batch_size)
        self.bar.batch_done(min(self.items, ahead.start))
        preconditioner: Preconditioner | None = None
        interrupted = False
        for left, first in zip(range(len(ahead), 0, -1), ahead, strict=True):
            stop = self.options.stop.share(sum(part.seconds for part in done), left)
            options = replace(self.options, stop=stop)
            try:
                batch = self._batch(first, options, done, preconditioner)
            except KeyboardInterrupt:
                batch, interrupted = self._batch(first, options, done, preconditioner), True
            interrupted = batch.end() if interrupted else batch.run()
            done.append(batch.finished())
            preconditioner = batch.passes.preconditioner
            self.bar.batch_done(batch.items)
            if not interrupted:
                interrupted = self._stored(done)
        return self._assembled(done)

    def _stored(self, done: list[Finished]) -> bool:
        """Store the finished batches. True if the run was interrupted meanwhile."""
        try:
            self.keeper.write(done, None)
        except KeyboardInterrupt:
            return True
        return False

    def _batch(
        self, first: int, options: Options, done: list[Finished], preconditioner: Preconditioner | None
    ) -> Batch[S]:
        """The items from ``first`` on, at their starts or where they were stored."""
        restarts, last = options.restarts, min(self.items, first + self.batch_size)
        starts = self.starts[first * restarts : last * restarts]
        index = torch.arange(first, last, device=starts.device).repeat_interleave(restarts)
        whole = self.items == last - first and restarts == 1
        problem = self.problem if whole or self.problem.batch is None else self.problem.rows(index)
        problem = problem.counting(Passes(preconditioner=preconditioner))
        records = max(2, min(_RECORDS_PER_ITEM, _RECORDS // len(self.starts)))
        history = Recorder(len(starts), records, options.check_every)
        observers = Observers(self.callbacks, history, self.bar, self.keeper, done)
        stored = self.keeper.running()
        if stored is None:
            return Batch.begin(problem, self.solver, starts, options, observers, first=first)
        return Batch.resume(stored, problem, self.solver, starts, options, observers, first=first)

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
