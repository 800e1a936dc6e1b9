"""The loop over the items in memory: begin or resume, check, step, retire, record, cull restarts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

import numpy as np
import torch
from torch import Tensor

from genprior import _tree
from genprior._clock import Clock, limiting, queue_of
from genprior._threads import crowding
from genprior.generators import OutOfTime, Passes
from genprior.history import Counts, Recorder
from genprior.loop.checkpoint import Finished, Stored
from genprior.loop.rows import Outcome, Rows
from genprior.problem import Problem
from genprior.solvers.base import S
from genprior.solvers.optimality import PASSES
from genprior.status import Status
from genprior.stopping import StopRule, Verdict, View

if TYPE_CHECKING:
    from genprior.loop.run import Run

_HISTORY = "history."
_SAME = 128.0
"""Scores that differ by less than so many units of rounding count as equal."""


@dataclass
class Batch(Generic[S]):
    """The items in memory, with all their restarts as rows, and the state of their run."""

    run: Run[S]
    """With the solver, the options and the observers: callbacks, bar, checkpoint. The clock is stopped for these."""
    problem: Problem
    """Of the rows that are running."""
    stop: StopRule
    """For this batch: its share of the time."""
    history: Recorder
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
        cls, run: Run[S], problem: Problem, starts: Tensor, stop: StopRule, history: Recorder, *, first: int
    ) -> Batch[S]:
        """At the starts (one forward pass). The passes of ``problem`` must be this batch's own."""
        passes, clock = problem.generator.passes, _limited(problem, stop, 0.0)
        with limiting(passes.seconds_left):
            rows = Rows.open(problem, run.solver, starts)
        passes.started = True
        items = len(starts) // run.options.restarts
        return cls(run, problem, stop, history, clock, first, items, rows, Outcome.pending(rows))

    @classmethod
    def resume(
        cls,
        stored: Stored,
        run: Run[S],
        problem: Problem,
        starts: Tensor,
        stop: StopRule,
        history: Recorder,
        *,
        first: int,
    ) -> Batch[S]:
        """Where it was stored. The running rows are first opened at their starts, to give the structure of the state."""
        tensors, meta = stored
        index = tensors["rows.0"].to(starts.device)
        problem = problem.rows(index)
        passes, clock = problem.generator.passes, _limited(problem, stop, meta["seconds"])
        rows = _tree.unpack(Rows.open(problem, run.solver, starts[index]), tensors, "rows")
        passes.recount(meta["forwards"], meta["backwards"])
        passes.started = True
        outcome = _tree.unpack(Outcome.pending(rows), tensors, "outcome")
        history.restore({n.removeprefix(_HISTORY): t for n, t in tensors.items() if n.startswith(_HISTORY)})
        items = len(starts) // run.options.restarts
        return cls(run, problem, stop, history, clock, first, items, rows, outcome, meta["step"])

    @property
    def passes(self) -> Passes:
        """Those of the batch, counted and limited."""
        return self.problem.generator.passes

    def stored(self) -> Stored:
        """All that is needed to continue from here."""
        tensors = _tree.pack(self.rows, "rows") | _tree.pack(self.outcome, "outcome")
        tensors |= {f"{_HISTORY}{name}": tensor for name, tensor in self.history.tensors().items()}
        step, seconds, forwards, backwards = self._counts()
        return tensors, {"step": step, "seconds": seconds, "forwards": forwards, "backwards": backwards}

    # -- the loop --------------------------------------------------------------------------------------------------

    def iterate(self) -> bool:
        """Step until no row is left. True if the run was interrupted."""
        counts = self.passes.counts()
        try:
            while len(self.rows):
                if self._inspect():
                    return self._stored_interrupt()
                counts = self.passes.counts()
                if len(self.rows):
                    with limiting(self.passes.seconds_left):
                        rows = self.rows.advanced(self.problem, self.run.solver)
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
        options, keeper, bar = self.run.options, self.run.keeper, self.run.bar
        read = (
            bool(self.run.callbacks) or bar.due() or keeper.due(self.step)
        )  # the clock includes the device's pending work
        with self.clock.stopped(settle=read):
            view = self._view()
            if any([_says_stop(callback(view)) for callback in self.run.callbacks]):
                return True
        verdict = _checked(self.stop.verdict(view), view)
        due = self.step % options.check_every == 0 or self._survivors() is not None
        verdict = view.all(Status.RUNNING) if due and verdict is None else verdict
        if verdict is not None and (due or bool(verdict.any())):
            due = due or bool(verdict.all())
            with limiting(self.passes.seconds_left):
                self._judge(verdict, all_rows=due)
        with self.clock.stopped():
            if self.problem.generator.device.type == "cpu":
                crowding().look()
            if len(self.rows):
                self._record(measured=due)
                if bar.due():
                    bar.update(self._view(), self.stop, self.items)
                if keeper.due(self.step):
                    keeper.write(self.run.done, self)
        return False

    def _record(self, *, measured: bool) -> None:
        """Record the running rows; residuals only where they were measured."""
        if self.history.wants(self.step):
            rows = self.rows
            residuals = (rows.primal_residual, rows.stationarity) if measured else (None, None)
            self.history.record(self._counts(), rows.index, (rows.state.objective, *residuals, rows.state.rho))

    def _judge(self, verdict: Tensor, *, all_rows: bool) -> None:
        """Give rows their status, roll back diverging ones, retire finished ones.

        Between two checks only the rows that a stop rule ends are measured; the others stay as they are, as in a batch of one.
        """
        others, solver, options, step = self.rows, self.run.solver, self.run.options, self.step
        self.rows = self.rows.measured(self.problem, solver, step, options.progress)
        ends = verdict != 0
        checked = ends | all_rows
        broken = self.rows.broken(solver, options.divergence)
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
            self.rows = self.rows.rolled_back(self.problem, solver, restarted, step, options.divergence)
        self._retire(codes, self.rows if all_rows else others)

    def _converged(self, asked: Tensor) -> Tensor:
        """The rows in ``asked`` at whose best iterate the optimality conditions hold."""
        count = int(asked.sum())
        if count == 0 or self.passes.share(PASSES / 2, PASSES / 2, count) > 1:
            return torch.zeros_like(asked)
        solver, options = self.run.solver, self.run.options
        self.rows, holds = self.rows.proved(self.problem, solver, asked, options.tolerance, self.step, options.proof)
        return holds

    def _survivors(self) -> int | None:
        return survivors(self.step, self.run.options.restarts, self.run.options.cull_after)

    def _culled(self) -> Tensor:
        """Rows to be culled, because other restarts of the same item are better."""
        most = self._survivors()
        if most is None:
            return torch.zeros_like(self.rows.index, dtype=torch.bool)
        return losers(self.outcome, self.rows, self.run.options.restarts, most)

    def _retire(self, codes: Tensor, others: Rows[S]) -> None:
        """Rows with a code leave the batch; the rest of ``others`` is compacted."""
        leaving = codes.nonzero()[:, 0]
        if len(leaving) == 0:
            self.rows = others
            return
        with self.clock.stopped():
            values = (self.rows.state.objective, self.rows.primal_residual, self.rows.stationarity, self.rows.state.rho)
            self.history.end(self._counts(), self.rows.index[leaving], tuple(value[leaving] for value in values))
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
            self.rows = self.rows.measured(self.problem, self.run.solver, self.step, self.run.options.progress)
            self._retire(torch.full_like(self.rows.index, int(status)), self.rows)

    def _stored_interrupt(self) -> bool:
        """Store the run, if it has a checkpoint, then end every row at its best iterate."""
        with self.clock.stopped():
            self.run.keeper.write(self.run.done, self)
        return self.end()

    def finished(self) -> Finished:
        """One entry per item: the best restart."""
        restarts = self.run.options.restarts
        winner = winners(self.outcome, restarts)
        _, seconds, forwards, backwards = self._counts()
        return Finished(
            outcome=_tree.take(self.outcome, winner),
            restart=winner % restarts,
            panel=self.history.panel().select(winner.cpu()),
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
            per_item=self.run.options.restarts,
            first=self.first,
            state=self.rows.state,
            best_objective=self.rows.best.objective,
            best_signal=self.rows.best.x,
            best_latent=self.rows.best.z,
        )

    def _counts(self) -> Counts:
        return self.step, self.clock.seconds, self.passes.forwards, self.passes.backwards


def _limited(problem: Problem, stop: StopRule, seconds: float) -> Clock:
    """The clock of a batch, to which the passes of its problem are limited, as the stop rule says."""
    passes, clock = problem.generator.passes, Clock(seconds, queue_of(problem.generator.device))
    passes.clock, passes.started = clock, False
    passes.seconds, passes.most = stop.limits()
    return clock


def _checked(verdict: Verdict, view: View) -> Verdict:
    """The verdict of a stop rule, which may be the user's own, if it is a valid one."""
    if verdict is None or (isinstance(verdict, Tensor) and verdict.shape == view.rows.shape):
        return verdict
    raise TypeError(
        f"a stop rule's verdict must be None, or a tensor with one status code for each of {len(view.rows)} rows, got "
        f"{verdict!r}: view.all(gp.Status.TARGET) ends every row"
    )


def _says_stop(answer: object) -> bool:
    """Whether a callback returned True, as Python's, NumPy's or torch's."""
    if isinstance(answer, Tensor):
        return answer.ndim == 0 and answer.dtype == torch.bool and bool(answer)
    return isinstance(answer, bool | np.bool_) and bool(answer)


# -- restarts ----------------------------------------------------------------------------------------------------------


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
