"""The loop over the items in memory: begin or resume, check, step, retire, record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

import torch
from torch import Tensor

from genprior import _deadline, _tree
from genprior._clock import Clock, queue_of
from genprior.generators import OutOfTime, Passes
from genprior.history import Counts
from genprior.loop.observers import Observers
from genprior.loop.restarts import losers, survivors, winners
from genprior.loop.rows import Outcome, Rows
from genprior.loop.rules import Options
from genprior.loop.storage import Finished, Stored
from genprior.problem import Problem
from genprior.solvers.base import S, Solver
from genprior.solvers.optimality import PASSES
from genprior.status import Status
from genprior.stopping import Verdict, View

_HISTORY = "history."


@dataclass
class Batch(Generic[S]):
    """The items in memory, with all their restarts as rows, and the state of their run."""

    problem: Problem
    """Of the rows that are running."""
    solver: Solver[S]
    options: Options
    observers: Observers
    passes: Passes
    clock: Clock
    first: int
    """Number of the first item."""
    items: int
    rows: Rows[S]
    outcome: Outcome
    """How rows ended, for all rows."""
    step: int = 0

    # -- begin or resume -------------------------------------------------------------------------------------------

    @classmethod
    def begin(
        cls, problem: Problem, solver: Solver[S], starts: Tensor, options: Options, observers: Observers, *, first: int
    ) -> Batch[S]:
        """At the starts (one forward pass). The passes of ``problem`` must be this batch's own."""
        passes, clock = _limited(problem, options, 0.0)
        with _deadline.limiting(passes.seconds_left):
            rows = Rows.open(problem, solver, starts)
        passes.started = True
        items = len(starts) // options.restarts
        return cls(
            problem, solver, options, observers, passes, clock, first, items, rows, outcome=Outcome.pending(rows)
        )

    @classmethod
    def resume(
        cls,
        stored: Stored,
        problem: Problem,
        solver: Solver[S],
        starts: Tensor,
        options: Options,
        observers: Observers,
        *,
        first: int,
    ) -> Batch[S]:
        """Where it was stored. The running rows are first opened at their starts, to give the structure of the state."""
        tensors, meta = stored
        index = tensors["rows.0"].to(starts.device)
        problem = problem.rows(index)
        passes, clock = _limited(problem, options, meta["seconds"])
        rows = _tree.unpack(Rows.open(problem, solver, starts[index]), tensors, "rows")
        passes.recount(meta["forwards"], meta["backwards"])
        passes.started = True
        outcome = _tree.unpack(Outcome.pending(rows), tensors, "outcome")
        observers.history.restore({n.removeprefix(_HISTORY): t for n, t in tensors.items() if n.startswith(_HISTORY)})
        items = len(starts) // options.restarts
        return cls(
            problem, solver, options, observers, passes, clock, first, items, rows, outcome=outcome, step=meta["step"]
        )

    def stored(self) -> Stored:
        """All that is needed to continue from here."""
        tensors = _tree.pack(self.rows, "rows") | _tree.pack(self.outcome, "outcome")
        tensors |= {f"{_HISTORY}{name}": tensor for name, tensor in self.observers.history.tensors().items()}
        step, seconds, forwards, backwards = self._counts()
        return tensors, {"step": step, "seconds": seconds, "forwards": forwards, "backwards": backwards}

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> bool:
        """Step until no row is left. True if the run was interrupted."""
        counts = self.passes.counts()
        try:
            while len(self.rows):
                if self._inspect():
                    return self._stored_interrupt()
                counts = self.passes.counts()
                if len(self.rows):
                    with _deadline.limiting(self.passes.seconds_left):
                        rows = self.rows.advanced(self.problem, self.solver)
                    self.rows, self.step = rows, self.step + 1
                    counts = self.passes.counts()
        except KeyboardInterrupt:
            self.passes.recount(*counts)  # an iteration cut short is not part of the run
            return self._stored_interrupt()
        except OutOfTime:
            self.passes.recount(*counts)
            self._end_all(Status.OUT_OF_TIME)
        return False

    def _inspect(self) -> bool:
        """After a step: call the callbacks, then judge, roll back, record. True if a callback asks to stop."""
        with self.clock.stopped(settle=self.observers.wait_for_results(self.step)):
            view = self._view()
            if self.observers.ask_to_stop(view):
                return True
        verdict = _checked(self.options.stop.verdict(view), view)
        due = self.step % self.options.check_every == 0 or self._survivors() is not None
        verdict = view.all(Status.RUNNING) if due and verdict is None else verdict
        if verdict is not None and (due or bool(verdict.any())):
            due = due or bool(verdict.all())
            with _deadline.limiting(self.passes.seconds_left):
                self._judge(verdict, all_rows=due)
        with self.clock.stopped():
            if len(self.rows):
                self.observers.record(self._counts(), self.rows, measured=due)
                self.observers.show(self._view, self.options.stop, self.items)
                self.observers.store(self, self.step)
        return False

    def _judge(self, verdict: Tensor, *, all_rows: bool) -> None:
        """Give rows their status, roll back diverging ones, retire finished ones.

        Between two checks only the rows that a stop rule ends are measured; the others stay as they are, as in a batch of one.
        """
        others, options, step = self.rows, self.options, self.step
        self.rows = self.rows.measured(self.problem, self.solver, step, options.progress)
        ends = verdict != 0
        checked = ends | all_rows
        broken = self.rows.broken(self.solver, options.divergence)
        hopeless = checked & (self.rows.unfit | (broken & (self.rows.rollbacks >= options.divergence.most_rollbacks)))
        stalled = checked & ~broken & self.rows.stalled(step, options.patience)
        within = checked & ~broken & self.rows.within(options.tolerance) & (ends | (step >= self.rows.proof_due))
        culled = self._culled() if all_rows else torch.zeros_like(ends)
        over = (verdict == int(Status.OUT_OF_TIME)) | (verdict == int(Status.OUT_OF_PASSES))
        converged = self._converged((stalled | within) & ~over)
        settled = stalled & self.rows.settled(options.progress)
        codes = torch.where(stalled & ~ends, int(Status.STALLED), verdict)
        codes[settled & ~ends] = int(Status.SETTLED)
        codes[converged] = int(Status.CONVERGED)
        codes[hopeless] = int(Status.DIVERGED)
        codes[culled & (codes == 0)] = int(Status.CULLED)
        restarted = broken & all_rows & (codes == 0)
        if bool(restarted.any()):
            self.rows = self.rows.rolled_back(self.problem, self.solver, restarted, step, options.divergence)
        self._retire(codes, self.rows if all_rows else others)

    def _converged(self, asked: Tensor) -> Tensor:
        """The rows in ``asked`` at whose best iterate the optimality conditions hold."""
        count = int(asked.sum())
        if count == 0 or self.passes.share(PASSES / 2, PASSES / 2, count) > 1:
            return torch.zeros_like(asked)
        self.rows, holds = self.rows.proved(self.problem, self.solver, asked, self.options, self.step)
        return holds

    def _survivors(self) -> int | None:
        return survivors(self.step, self.options.restarts, self.options.cull_after)

    def _culled(self) -> Tensor:
        """Rows to be culled, because other restarts of the same item are better."""
        most = self._survivors()
        if most is None:
            return torch.zeros_like(self.rows.index, dtype=torch.bool)
        return losers(self.outcome, self.rows, self.options.restarts, most)

    def _retire(self, codes: Tensor, others: Rows[S]) -> None:
        """Rows with a code leave the batch; the rest of ``others`` is compacted."""
        leaving = codes.nonzero()[:, 0]
        if len(leaving) == 0:
            self.rows = others
            return
        with self.clock.stopped():
            self.observers.record_ends(self._counts(), self.rows, leaving)
        retired = _tree.take(self.rows, leaving)
        ended = Outcome.of(retired, codes[leaving], self.step)
        self.outcome = _tree.put(self.outcome, retired.index, ended)
        staying = (codes == 0).nonzero()[:, 0]
        rows, problem = _tree.take(others, staying), self.problem.rows(staying) if len(staying) else self.problem
        self.rows, self.problem = rows, problem

    # -- the end ---------------------------------------------------------------------------------------------------

    def end(self) -> bool:
        """End every row at its best iterate. True: the run was interrupted."""
        self._end_all(Status.INTERRUPTED)
        return True

    def _end_all(self, status: Status) -> None:
        if len(self.rows):
            self.rows = self.rows.measured(self.problem, self.solver, self.step, self.options.progress)
            self._retire(torch.full_like(self.rows.index, int(status)), self.rows)

    def _stored_interrupt(self) -> bool:
        """Store the run, if it has a checkpoint, then end every row at its best iterate."""
        with self.clock.stopped():
            self.observers.store(self)
        return self.end()

    def finished(self) -> Finished:
        """One entry per item: the best restart."""
        winner = winners(self.outcome, self.options.restarts)
        _, seconds, forwards, backwards = self._counts()
        return Finished(
            outcome=_tree.take(self.outcome, winner),
            restart=winner % self.options.restarts,
            panel=self.observers.history.panel().select(winner.cpu()),
            forwards=forwards,
            backwards=backwards,
            seconds=seconds,
        )

    # -- views --------------------------------------------------------------------------------------------

    def _view(self) -> View:
        return View(
            step=self.step,
            seconds=self.clock.seconds,
            forwards=self.passes.forwards,
            backwards=self.passes.backwards,
            rows=self.rows.index,
            per_item=self.options.restarts,
            first=self.first,
            state=self.rows.state,
            best_objective=self.rows.best.objective,
            best_signal=self.rows.best.x,
            best_latent=self.rows.best.z,
        )

    def _counts(self) -> Counts:
        return self.step, self.clock.seconds, self.passes.forwards, self.passes.backwards


def _limited(problem: Problem, options: Options, seconds: float) -> tuple[Passes, Clock]:
    """The passes of the problem, limited by the stop rule, and the clock of the batch."""
    passes, clock = problem.generator.passes, Clock(seconds, queue_of(problem.generator.device))
    passes.clock, passes.started = clock, False
    passes.seconds, passes.most = options.stop.limits()
    return passes, clock


def _checked(verdict: Verdict, view: View) -> Verdict:
    """The verdict of a stop rule, which may be the user's own, if it is a valid one."""
    if verdict is None or (isinstance(verdict, Tensor) and verdict.shape == view.rows.shape):
        return verdict
    raise TypeError(
        f"a stop rule's verdict must be None, or a tensor with one status code for each of {len(view.rows)} rows, got "
        f"{verdict!r}: view.all(gp.Status.TARGET) ends every row"
    )
