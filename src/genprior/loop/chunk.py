"""THE loop, over the items that are in memory together: clock, passes, stopping, best iterate, roll-back, compaction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

import numpy as np
import torch
from torch import Tensor

from genprior import _tree
from genprior._budget import Budget, OutOfTime
from genprior._clock import Clock, queue_of
from genprior.history import Recorder
from genprior.loop.progress import ProgressBar
from genprior.loop.rows import Outcome, Rows, losers, winners
from genprior.loop.storage import Finished, Keeper, Stored
from genprior.problem import Problem
from genprior.solvers.base import S, Solver
from genprior.solvers.optimality import PASSES
from genprior.status import Status
from genprior.stopping import StopRule, View

Callback = Callable[[View], object]

_MOST_ROLLBACKS = 6


@dataclass(frozen=True)
class Options:
    """The options of :func:`solve` that the loop reads at every turn."""

    stop: StopRule
    tolerance: float
    patience: int
    restarts: int
    cull_after: int
    check_every: int
    callbacks: tuple[Callback, ...]


@dataclass(frozen=True)
class Around:
    """What a chunk shares with the rest of the run: storage, the chunks that are done, the progress bar."""

    keeper: Keeper
    done: list[Finished]
    bar: ProgressBar


class Chunk(Generic[S]):
    """The items that are in memory together, with all their restarts as rows."""

    def __init__(
        self,
        problem: Problem,
        solver: Solver[S],
        starts: Tensor,
        options: Options,
        *,
        first: int,
        records: int,
        around: Around,
    ) -> None:
        self.problem, self.solver, self.starts, self.options = problem, solver, starts, options
        self.first, self.items = first, len(starts) // options.restarts
        self.around = around
        self.generator = problem.generator
        self.recorder = Recorder(len(starts), records, options.check_every)
        self.step, self.base_forwards, self.base_backwards = 0, self.generator.forwards, self.generator.backwards
        self.clock = self._started_at(0.0)
        seconds, passes = options.stop.limits()
        self.budget = Budget(self.clock, seconds, passes, self._counter())
        self.generator.budget = self.budget
        self.rows = Rows.open(problem, self.solver, starts)
        self.budget.started = True
        self.outcome = Outcome.pending(self.rows)

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> bool:
        """Step until no row is left. True if the run was interrupted."""
        self._resume()
        passes = self.forwards, self.backwards
        try:
            while len(self.rows):
                if self._look():
                    return self._stored_interrupt()
                passes = self.forwards, self.backwards
                if len(self.rows):
                    rows = self.rows.advanced(self.problem, self.solver)
                    self.rows, self.step = rows, self.step + 1
                    passes = self.forwards, self.backwards
        except KeyboardInterrupt:
            self._count_from(*passes)  # an iteration cut short is not part of the run
            return self._stored_interrupt()
        except OutOfTime:
            self._count_from(*passes)
            self._end_all(Status.OUT_OF_TIME)
        return False

    def _look(self) -> bool:
        """After a step: show it, then judge, mend, record. True if a callback asks to stop."""
        due = self.step % self.options.check_every == 0 or self._survivors() is not None
        with self.clock.stopped(settle=self._is_read()):
            if self._seen_by_callbacks():
                return True
        verdict = self.options.stop.verdict(self._view())
        if isinstance(verdict, int):
            due = due or bool(verdict)
        elif not due and bool(verdict.any()):
            self._part(verdict)
        if due:
            self._check(verdict)
        with self.clock.stopped():
            if len(self.rows):
                self._record(measured=due)
                self._outside()
        return False

    def _part(self, codes: Tensor) -> None:
        """Retire the rows that a stop rule ends between two checks; the others are left as they were, as if alone."""
        others = self.rows
        self.rows = self.rows.measured(self.problem, self.solver, self.step)
        asked = self.rows.within(self.options.tolerance) & ~self.rows.broken(self.solver) & (codes != 0)
        self._retire(torch.where(self._converged(asked), int(Status.CONVERGED), codes), others)

    def _check(self, verdict: int | Tensor) -> None:
        """Roll back what broke, retire what is done."""
        self.rows = self.rows.measured(self.problem, self.solver, self.step)
        broken = self.rows.broken(self.solver)
        stalled = self.rows.stalled(self.step, self.options.patience) & ~broken
        within = self.rows.within(self.options.tolerance) & ~broken
        goes_on = isinstance(verdict, int) and not verdict and self._survivors() is None
        hopeless = self.rows.unfit | (broken & (self.rows.rollbacks >= _MOST_ROLLBACKS))
        if goes_on and not bool((broken | stalled | within | hopeless).any()):
            return
        codes = torch.zeros_like(self.rows.index) + verdict
        over = (codes == int(Status.OUT_OF_TIME)) | (codes == int(Status.OUT_OF_PASSES))
        due = stalled | (codes != 0) | (self.step >= self.rows.proof_due)
        converged = self._converged((stalled | (within & due)) & ~over)
        settled = stalled & self.rows.settled()
        codes[stalled & (codes == 0)] = int(Status.STALLED)
        codes[settled & (codes == int(Status.STALLED))] = int(Status.SETTLED)
        codes[converged] = int(Status.CONVERGED)
        codes[hopeless] = int(Status.DIVERGED)
        codes[self._culled() & (codes == 0)] = int(Status.CULLED)
        mend = broken & (codes == 0)
        if bool(mend.any()):
            self.rows = self.rows.rolled_back(self.problem, self.solver, mend, self.step)
        self._retire(codes, self.rows)

    def _converged(self, asked: Tensor) -> Tensor:
        """The rows among those asked about at whose best iterate the conditions hold."""
        count = int(asked.sum())
        if count == 0 or self.budget.share(PASSES / 2, PASSES / 2, count) > 1:
            return torch.zeros_like(asked)
        self.rows, holds = self.rows.proved(self.problem, self.solver, asked, self.options.tolerance, self.step)
        return holds

    def _culled(self) -> Tensor:
        """Rows given up at steps c, 2c, 4c, ... in favour of better restarts of the same item."""
        survivors = self._survivors()
        if survivors is None:
            return torch.zeros_like(self.rows.index, dtype=torch.bool)
        return losers(self.outcome, self.rows, self.options.restarts, survivors)

    def _survivors(self) -> int | None:
        """How many restarts of an item may stay after this step; None where it is not a step of culling."""
        rounds, rest = divmod(self.step, self.options.cull_after)
        if self.options.restarts == 1 or rest or rounds == 0 or rounds & (rounds - 1):
            return None
        return max(1, self.options.restarts >> rounds.bit_length())

    def _retire(self, codes: Tensor, others: Rows[S]) -> None:
        """Rows with a code leave the batch; the rest of ``others`` is compacted."""
        leaving = codes.nonzero()[:, 0]
        if len(leaving) == 0:
            return
        with self.clock.stopped():
            self._record_ends(leaving)
        parting = _tree.take(self.rows, leaving)
        ended = Outcome.of(parting, codes[leaving], self.step)
        self.outcome = _tree.put(self.outcome, parting.index, ended)
        staying = (codes == 0).nonzero()[:, 0]
        rows, problem = _tree.take(others, staying), self.problem.rows(staying) if len(staying) else self.problem
        self.rows, self.problem = rows, problem

    def end(self) -> bool:
        """Every row ends where it stood when the run was stored, or at its start. True: the run was interrupted."""
        self._resume()
        return self._interrupt()

    def _interrupt(self) -> bool:
        self._end_all(Status.INTERRUPTED)
        return True

    def _end_all(self, status: Status) -> None:
        """Every row ends as it stands."""
        if len(self.rows):
            self.rows = self.rows.measured(self.problem, self.solver, self.step)
            self._retire(torch.full_like(self.rows.index, int(status)), self.rows)

    def _stored_interrupt(self) -> bool:
        """Store the run, if it can be stored, then let every row end as it stands."""
        with self.clock.stopped():
            self.around.keeper.write(self.around.done, self)
        return self._interrupt()

    # -- storage ---------------------------------------------------------------------------------------------------

    def stored(self) -> Stored:
        """All that is needed to go on from here."""
        tensors = _tree.pack(self.rows, "rows") | _tree.pack(self.outcome, "outcome")
        tensors |= {f"history.{name}": tensor for name, tensor in self.recorder.tensors().items()}
        counts = {"forwards": self.forwards, "backwards": self.backwards}
        return tensors, {"step": self.step, "seconds": self.clock.seconds, **counts}

    def _resume(self) -> None:
        """Go on from what was stored, if anything was."""
        found = self.around.keeper.running()
        if found is None:
            return
        tensors, meta = found
        index = tensors["rows.0"].to(self.starts.device)
        self.problem = self.problem.rows(index)
        self.budget.started = False
        template = Rows.open(self.problem, self.solver, self.starts[index])
        self.rows = _tree.unpack(template, tensors, "rows")
        self.outcome = _tree.unpack(self.outcome, tensors, "outcome")
        start = "history."
        self.recorder.restore({n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)})
        self.step, self.clock = meta["step"], self._started_at(meta["seconds"])
        self.budget.clock, self.budget.started = self.clock, True
        self._count_from(meta["forwards"], meta["backwards"])

    def _started_at(self, seconds: float) -> Clock:
        return Clock(seconds, queue_of(self.generator.device))

    def _is_read(self) -> bool:
        """Whether somebody reads results after this step, and waits for the device: that work is the solver's."""
        return bool(self.options.callbacks) or self.around.bar.due() or self.around.keeper.due(self.step)

    def _count_from(self, forwards: int, backwards: int) -> None:
        """Count passes on from these numbers."""
        self.base_forwards = self.generator.forwards - forwards
        self.base_backwards = self.generator.backwards - backwards
        self.budget.made = self._counter()

    def _counter(self) -> Callable[[], int]:
        """The passes of this chunk; it does not hold on to the chunk, whose callbacks may hold on to much."""
        generator, base = self.generator, self.base_forwards + self.base_backwards
        return lambda: generator.forwards + generator.backwards - base

    # -- what others see -------------------------------------------------------------------------------------------

    @property
    def forwards(self) -> int:
        """Forward passes of this chunk."""
        return self.generator.forwards - self.base_forwards

    @property
    def backwards(self) -> int:
        """Backward passes of this chunk."""
        return self.generator.backwards - self.base_backwards

    def _view(self) -> View:
        return View(
            step=self.step,
            seconds=self.clock.seconds,
            forwards=self.forwards,
            backwards=self.backwards,
            rows=self.rows.index,
            per_item=self.options.restarts,
            first=self.first,
            state=self.rows.state,
            best_objective=self.rows.best.objective,
            best_signal=self.rows.best.x,
            best_latent=self.rows.best.z,
        )

    def _record(self, *, measured: bool) -> None:
        """Note the rows in the history; residuals only where they were measured."""
        if self.recorder.wants(self.step):
            rows = self.rows
            residuals = (rows.gap, rows.stationarity) if measured else (None, None)
            values = (rows.state.objective, *residuals, rows.state.rho)
            self.recorder.record(self._counts(), rows.index, values)

    def _record_ends(self, leaving: Tensor) -> None:
        rows = self.rows
        values = tuple(value[leaving] for value in (rows.state.objective, rows.gap, rows.stationarity, rows.state.rho))
        self.recorder.end(self._counts(), rows.index[leaving], values)

    def _counts(self) -> tuple[int, float, int, int]:
        return self.step, self.clock.seconds, self.forwards, self.backwards

    def _seen_by_callbacks(self) -> bool:
        """Show every row that is running, also those that this step ends. True if a callback asks to stop."""
        if not self.options.callbacks:
            return False
        view = self._view()
        return any([_says_stop(callback(view)) for callback in self.options.callbacks])

    def _outside(self) -> None:
        """Progress, checkpoint."""
        if self.around.bar.due():
            self.around.bar.update(self._view(), self.options.stop, self.items)
        if self.around.keeper.due(self.step):
            self.around.keeper.write(self.around.done, self)

    def finished(self) -> Finished:
        """One entry per item: the best restart."""
        winner = winners(self.outcome, self.options.restarts)
        return Finished(
            outcome=_tree.take(self.outcome, winner),
            restart=winner % self.options.restarts,
            panel=self.recorder.panel().select(winner.cpu()),
            forwards=self.forwards,
            backwards=self.backwards,
            seconds=self.clock.seconds,
        )


def _says_stop(answer: object) -> bool:
    """Whether a callback returned True, as Python's, NumPy's or torch's."""
    if isinstance(answer, Tensor):
        return answer.ndim == 0 and answer.dtype == torch.bool and bool(answer)
    return isinstance(answer, bool | np.bool_) and bool(answer)
