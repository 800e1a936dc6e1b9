"""The loop over the items in memory: begin or resume, check, step, retire, record, cull restarts, begin another round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

import numpy as np
import torch
from torch import Tensor

from genprior import _tree
from genprior._clock import Clock, limiting, queue_of
from genprior._threads import crowding
from genprior.generators import OutOfTime, Passes
from genprior.history import Counts, Recorder
from genprior.loop.checkpoint import Stored
from genprior.loop.finished import Finished, minima_of
from genprior.loop.restarts import losers, survivors, winners
from genprior.loop.rows import Outcome, Rows
from genprior.problem import Problem
from genprior.solvers.base import S
from genprior.solvers.optimality import PASSES
from genprior.status import Status
from genprior.stopping import StopRule, Verdict, View

if TYPE_CHECKING:
    from genprior.loop.run import Run

_HISTORY = "history."
_BEFORE = "before."


@dataclass(frozen=True)
class Round:
    """Which items of a batch search, and from how many starts each."""

    items: Tensor
    """Their numbers within the batch."""
    starts: int
    """Per item; each is a row."""
    number: int = 0
    begun: int = 0
    """The step at which it began."""
    before: Finished | None = None
    """What the earlier rounds found, for all items of the batch."""

    @property
    def rows(self) -> Tensor:
        """The item of each row."""
        return self.items.repeat_interleave(self.starts)


@dataclass
class Batch(Generic[S]):
    """The items in memory, with the starts of their present round as rows, and the state of their run."""

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
    round: Round
    rows: Rows[S]
    outcome: Outcome
    """How rows ended, for all rows."""
    step: int = 0
    """Of the round."""

    # -- begin or resume -------------------------------------------------------------------------------------------

    @classmethod
    def begin(cls, run: Run[S], first: int, round: Round, stop: StopRule, problem: Problem, clock: Clock) -> Batch[S]:
        """At the starts of a round (one forward pass). The passes of ``problem`` must be this batch's own."""
        passes = problem.generator.passes
        passes.started = False
        with limiting(passes.seconds_left):
            rows = Rows.open(problem, run.solver, run.latents(first, round))
        passes.started = True
        outcome, history = Outcome.pending(rows), run.recorder(len(rows))
        return cls(run, problem, stop, history, clock, first, round, rows, outcome)

    @classmethod
    def resume(cls, stored: Stored, run: Run[S], first: int, stop: StopRule, passes: Passes) -> Batch[S]:
        """Where it was stored. The running rows are first opened at their starts, to give the structure of the state."""
        tensors, meta = stored
        round = _stored_round(stored, run)
        index = tensors["rows.0"].to(run.problem.generator.device)
        problem = run.problem_of(first, round.rows[index]).counting(passes)
        clock = limited(problem, stop, meta["seconds"])
        starts = run.latents(first, round)[index]
        rows = _tree.unpack(Rows.open(problem, run.solver, starts), tensors, "rows")
        passes.recount(meta["forwards"], meta["backwards"])
        passes.started = True
        outcome = _tree.unpack(Outcome.pending(rows), tensors, "outcome")
        history = run.recorder(len(outcome.status))
        history.restore({n.removeprefix(_HISTORY): t for n, t in tensors.items() if n.startswith(_HISTORY)})
        return cls(run, problem, stop, history, clock, first, round, rows, outcome, meta["step"])

    @property
    def passes(self) -> Passes:
        """Those of the batch, counted and limited."""
        return self.problem.generator.passes

    def stored(self) -> Stored:
        """All that is needed to continue from here."""
        tensors = _tree.pack(self.rows, "rows") | _tree.pack(self.outcome, "outcome")
        tensors |= {f"{_HISTORY}{name}": tensor for name, tensor in self.history.tensors().items()}
        tensors["items"] = self.round.items
        _, seconds, forwards, backwards = self._counts()
        meta: dict[str, Any] = {"step": self.step, "seconds": seconds, "forwards": forwards, "backwards": backwards}
        meta |= {"starts": self.round.starts, "round": self.round.number, "begun": self.round.begun, "before": None}
        if self.round.before is not None:
            packed, meta["before"] = self.round.before.packed()
            tensors |= {f"{_BEFORE}{name}": tensor for name, tensor in packed.items()}
        return tensors, meta

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
                    bar.update(self._view(), self.stop, len(self.round.items))
                if keeper.due(self.step):
                    keeper.write(self.run.done, self)
        return False

    def _record(self, *, measured: bool) -> None:
        """Record the running rows; residuals only where they were measured."""
        if self.history.wants(self.round.begun + self.step):
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
        at_rest = self.rows.at_rest(step, options.settle_after, options.progress)
        stalled = checked & ~broken & (self.rows.stalled(step, options.patience) | at_rest)
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
        if count == 0 or self.passes.share(*PASSES, count) > 1:
            return torch.zeros_like(asked)
        solver, options = self.run.solver, self.run.options
        self.rows, holds = self.rows.proved(self.problem, solver, asked, options.tolerance, self.step, options.proof)
        return holds

    def _survivors(self) -> int | None:
        return survivors(self.step, self.round.starts, self.run.options.cull_after)

    def _culled(self) -> Tensor:
        """Rows to be culled, because other restarts of the same item are better."""
        most = self._survivors()
        if most is None:
            return torch.zeros_like(self.rows.index, dtype=torch.bool)
        return losers(self.outcome, self.rows, self.round.starts, most)

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
        """One entry per item: the best start of this round and the earlier ones."""
        starts = self.round.starts
        winner = winners(self.outcome, starts)
        _, seconds, forwards, backwards = self._counts()
        found = Finished(
            outcome=_tree.take(self.outcome, winner),
            restart=winner % starts,
            starts=torch.full_like(winner, starts),
            panel=self.history.panel().select(winner.cpu()),
            minima=minima_of(self.outcome, winner, starts),
            forwards=forwards,
            backwards=backwards,
            seconds=seconds,
        )
        before = self.round.before
        return found if before is None else before.joined(found, self.round.items, self.round.begun)

    def next_round(self) -> Batch[S] | None:
        """The items that ended badly, at their next candidates; None where no item did, or more starts would not pay."""
        run, done, number = self.run, self.finished(), self.round.number + 1
        plan = run.options.restarts
        if number >= len(plan.rounds) or self._is_over():
            return None
        residual, before = run.residual(self.first, done), self.round.before
        value, items = plan.value(done.outcome, residual), self.round.items
        if before is not None:
            earlier = plan.value(before.outcome, run.residual(self.first, before))
            if not plan.paid(earlier[items], value[items]) and not plan.can_be_fitted(residual):
                return None
        again = plan.of_a_round(done.outcome, residual)
        if len(again) == 0:
            return None
        begun = int(done.outcome.steps[again].max())
        following = Round(again, plan.rounds[number], number, begun, done)
        problem = run.problem_of(self.first, following.rows).counting(self.passes)
        return Batch.begin(run, self.first, following, self.stop, problem, self.clock)

    def _is_over(self) -> bool:
        """Whether a limit leaves no time for another round."""
        ended = set(self.outcome.status.tolist())
        return bool(ended & {int(Status.OUT_OF_TIME), int(Status.OUT_OF_PASSES), int(Status.INTERRUPTED)})

    # -- views --------------------------------------------------------------------------------------------

    def _view(self) -> View:
        return View(
            step=self.round.begun + self.step,
            seconds=self.clock.seconds,
            forwards=self.passes.forwards,
            backwards=self.passes.backwards,
            rows=self.rows.index,
            per_item=self.round.starts,
            first=self.first,
            subset=self.round.items,
            state=self.rows.state,
            best_objective=self.rows.best.objective,
            best_signal=self.rows.best.x,
            best_latent=self.rows.best.z,
            loss=self.problem.loss,
        )

    def _counts(self) -> Counts:
        return self.round.begun + self.step, self.clock.seconds, self.passes.forwards, self.passes.backwards


def _stored_round(stored: Stored, run: Run[S]) -> Round:
    tensors, meta = stored
    device = run.problem.generator.device
    before = None
    if meta["before"] is not None:
        parts = {name.removeprefix(_BEFORE): part for name, part in tensors.items() if name.startswith(_BEFORE)}
        before = Finished.unpacked(parts, meta["before"], device)
    return Round(tensors["items"].to(device), meta["starts"], meta["round"], meta["begun"], before)


def limited(problem: Problem, stop: StopRule, seconds: float) -> Clock:
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
