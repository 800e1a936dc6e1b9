"""THE loop: clock, pass counts, stopping, best iterate, roll-back, restarts, compaction, checkpoints, progress."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch
from torch import Tensor

from genprior import _tree, _validate
from genprior._clock import Clock
from genprior.checkpoint import Checkpoint
from genprior.history import History, Recorder
from genprior.problem import Problem
from genprior.progress import ProgressBar
from genprior.result import Result
from genprior.rows import Outcome, Rows, losers, winners
from genprior.solvers.admm import ExactADMM
from genprior.solvers.base import Solver
from genprior.status import Status
from genprior.stopping import MaxSteps, StopRule, View
from genprior.storage import Finished, Keeper, Stored
from genprior.terms import Zero

Callback = Callable[[View], object]

_RECORDS = 1_000_000
_RECORDS_PER_ITEM = 2_000
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


def solve(
    problem: Problem,
    solver: Solver | None = None,
    *,
    stop: StopRule | None = None,
    z0: Tensor | None = None,
    restarts: int = 1,
    seed: int = 0,
    batch_size: int | None = None,
    tolerance: float = 1e-6,
    patience: int = 500,
    cull_after: int = 50,
    check_every: int = 10,
    callbacks: Sequence[Callback] = (),
    checkpoint: str | Path | Checkpoint | None = None,
    progress: bool | None = None,
) -> Result:
    """Minimise ``L(w) + R(w) + H(z)`` subject to ``w = G(z)`` for every item of the problem.

    Parameters
    ----------
    problem
        what to solve.
    solver
        how; :class:`ExactADMM` by default.
    stop
        when to stop at the latest, for example ``MaxSteps(500) | Seconds(10)``; by default ``MaxSteps(1000)``. An item
        also stops when it has converged or stalled.
    z0
        starts ``(B, *latent_shape)``, used by the first restart; drawn from the generator's law otherwise.
    restarts
        number of starts per item. They run side by side, and the worse ones are given up on the way.
    cull_after
        steps after which the worse half of the restarts is given up; after twice as many half of the rest, and so on
        until one is left.
    seed
        seed of the starts; the same seed gives the same starts on every device and for every ``batch_size``.
    batch_size
        most items in memory at once; all by default.
    tolerance
        relative gap and stationarity at which an item counts as converged.
    patience
        steps without progress after which an item counts as stalled.
    check_every
        steps between two looks at convergence and divergence; gap and stationarity are measured then, and are NaN in
        the history in between.
    callbacks
        functions of a :class:`genprior.View`, called after every step with the clock stopped. One that returns
        True ends the run with status INTERRUPTED.
    checkpoint
        a file in which the run is stored about once a minute, or a :class:`Checkpoint`; the same call with an
        existing file goes on where it stopped, to bit-equal results.
    progress
        whether to show a progress bar on standard error; by default only on a terminal.

    Ctrl-C returns the best so far.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> _ = torch.manual_seed(0)
    >>> module = torch.nn.Linear(3, 16)
    >>> G = gp.Generator(module, latent_shape=(3,), signal_shape=(16,))
    >>> A = gp.operators.Gaussian(8, G.signal_shape, seed=1)
    >>> y = A(G(G.sample_latent(2, seed=7))).detach()
    >>> r = gp.solve(gp.Problem(G, loss=gp.LeastSquares(A, y)), gp.ExactADMM(rho=1.0), stop=gp.MaxSteps(500))
    >>> bool((r.objective < 1e-4).all())
    True
    """
    solver = ExactADMM() if solver is None else solver
    stop = MaxSteps(1000) if stop is None else stop
    if not isinstance(solver, Solver):
        raise TypeError(f"solver must be a genprior solver such as gp.ExactADMM(), got {solver!r}")
    if not isinstance(stop, StopRule):
        raise TypeError(f"stop must be a stop rule such as gp.MaxSteps(500) | gp.Seconds(10), got {stop!r}")
    options = Options(
        stop=stop,
        tolerance=_validate.number("tolerance", tolerance, least=0),
        patience=_validate.whole("patience", patience),
        restarts=_validate.whole("restarts", restarts),
        cull_after=_validate.whole("cull_after", cull_after),
        check_every=_validate.whole("check_every", check_every),
        callbacks=tuple(callbacks),
    )
    starts = _starts(problem, z0, restarts, seed)
    items = len(starts) // restarts
    batch_size = items if batch_size is None else min(items, _validate.whole("batch_size", batch_size))
    keeper = Keeper(checkpoint, problem, solver, replace(options, callbacks=()), starts, batch_size)
    with torch.no_grad(), ProgressBar(progress, items) as bar:
        return _Run(problem, solver, options, starts, batch_size, keeper, bar).result()


def _starts(problem: Problem, z0: Tensor | None, restarts: int, seed: int) -> Tensor:
    """Starts of all rows, item by item: ``z0`` first, the rest drawn; projected where H forbids them."""
    generator = problem.generator
    if z0 is not None:
        _validate.tensor("z0", z0)
        _validate.batch("z0", z0, generator.latent_shape)
        _validate.same_place("z0", z0, generator.device, generator.dtype, "the generator")
    items = problem.batch or (1 if z0 is None else len(z0))
    if z0 is not None and len(z0) != items:
        raise ValueError(f"z0 has {len(z0)} items, but the problem has {items}: give one start per item")
    random = torch.Generator().manual_seed(_validate.whole("seed", seed, 0))
    drawn = [generator.draw(items, random) for _ in range(restarts)]
    if z0 is not None:
        drawn[0] = z0.detach()
    starts = torch.stack(drawn, dim=1).flatten(0, 1)
    if isinstance(problem.on_latent, Zero) or not problem.on_latent.is_indicator:
        return starts
    return problem.on_latent.rows(_repeat(items, restarts, starts.device)).prox(starts, 1.0)


def _repeat(items: int, restarts: int, device: torch.device) -> Tensor:
    """The item of every row."""
    return torch.arange(items, device=device).repeat_interleave(restarts)


class _Run:
    """All chunks, one after the other."""

    def __init__(
        self,
        problem: Problem,
        solver: Solver,
        options: Options,
        starts: Tensor,
        batch_size: int,
        keeper: Keeper,
        bar: ProgressBar,
    ) -> None:
        self.problem, self.solver, self.options = problem, solver, options
        self.starts, self.batch_size = starts, batch_size
        self.keeper, self.bar = keeper, bar
        self.items = len(starts) // options.restarts
        self.done: list[Finished] = keeper.finished(starts)

    def result(self) -> Result:
        """Run what is not done yet, and put everything together."""
        chunks = range(len(self.done) * self.batch_size, self.items, self.batch_size)
        interrupted = False
        self.bar.chunk_done(min(self.items, chunks.start))
        for left, first in zip(range(len(chunks), 0, -1), chunks, strict=True):
            used = sum(part.seconds for part in self.done)
            stop = self.options.stop.share(used, left)
            try:
                chunk = self._chunk(first, stop)
            except KeyboardInterrupt:
                chunk, interrupted = self._chunk(first, stop), True
            interrupted = chunk.interrupt() if interrupted else chunk.run()
            self.done.append(chunk.finished())
            self.bar.chunk_done(chunk.items)
            if not interrupted:
                self.keeper.write(self.done, None)
        return self._assemble()

    def _chunk(self, first: int, stop: StopRule) -> _Chunk:
        last = min(self.items, first + self.batch_size)
        device = self.starts.device
        index = torch.arange(first, last, device=device).repeat_interleave(self.options.restarts)
        starts = self.starts[first * self.options.restarts : last * self.options.restarts]
        whole = self.items == last - first and self.options.restarts == 1
        problem = self.problem if whole or self.problem.batch is None else self.problem.rows(index)
        records = max(2, min(_RECORDS_PER_ITEM, _RECORDS // (self.items * self.options.restarts)))
        return _Chunk(self, first, last - first, problem, starts, replace(self.options, stop=stop), records)

    def _assemble(self) -> Result:
        parts = [part.outcome for part in self.done]
        whole = Outcome(*(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(Outcome)))
        return Result(
            signal=whole.x,
            z=whole.z,
            w=whole.w,
            objective=whole.objective,
            gap=whole.gap,
            stationarity=whole.stationarity,
            status=tuple(Status(code) for code in whole.status.tolist()),
            steps=whole.steps,
            rollbacks=whole.rollbacks,
            restart=torch.cat([part.restart for part in self.done]),
            forwards=sum(part.forwards for part in self.done),
            backwards=sum(part.backwards for part in self.done),
            seconds=sum(part.seconds for part in self.done),
            history=History(tuple(part.panel for part in self.done)),
            plan=self.solver.plan(self.problem),
        )


class _Chunk:
    """The items that are in memory together, with all their restarts as rows."""

    def __init__(
        self, run: _Run, first: int, items: int, problem: Problem, starts: Tensor, options: Options, records: int
    ) -> None:
        self.run_of, self.first, self.items = run, first, items
        self.solver, self.options = run.solver, options
        self.problem, self.starts = problem, starts
        self.generator = problem.generator
        self.recorder = Recorder(len(starts), records)
        self.step, self.base_forwards, self.base_backwards = 0, self.generator.forwards, self.generator.backwards
        self.clock = Clock()
        self.rows = Rows.open(problem, self.solver, starts)
        if not bool(torch.isfinite(self.rows.state.x).all()):
            raise ValueError(
                "the generator gives NaN or infinity at the starts: check its weights and the scale of its latents with "
                "gp.checks.check_generator(G)"
            )
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
        return False

    def _look(self) -> bool:
        """Between two steps: judge, mend, record. True if a callback asks to stop."""
        view = self._view()
        verdict = self.options.stop.verdict(view)
        due = self.step % self.options.check_every == 0 or self._survivors() is not None
        check = due or not isinstance(verdict, int) or bool(verdict)
        if check:
            self._check(verdict)
        with self.clock.stopped():
            if len(self.rows):
                self._record(measured=check)
            return self._outside()

    def _check(self, verdict: int | Tensor) -> None:
        """Roll back what broke, retire what is done."""
        self.rows = self.rows.measured(self.problem, self.solver, self.step)
        broken = self.rows.broken()
        hopeless = broken & (self.rows.rollbacks >= _MOST_ROLLBACKS)
        codes = torch.zeros_like(self.rows.index) + verdict
        codes[self.rows.stalled(self.step, self.options.patience) & (codes == 0)] = int(Status.STALLED)
        codes[self.rows.converged(self.options.tolerance)] = int(Status.CONVERGED)
        codes[broken & (codes == int(Status.CONVERGED))] = 0
        codes[hopeless] = int(Status.DIVERGED)
        codes[self._culled() & (codes == 0)] = int(Status.CULLED)
        mend = broken & (codes == 0)
        if bool(mend.any()):
            self.rows = self.rows.rolled_back(self.problem, self.solver, mend)
        self._retire(codes)

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

    def _retire(self, codes: Tensor) -> None:
        """Rows with a code leave the batch; the rest is compacted."""
        leaving = codes.nonzero()[:, 0]
        if len(leaving) == 0:
            return
        with self.clock.stopped():
            self._record_ends(leaving)
        parting = _tree.take(self.rows, leaving)
        ended = Outcome.of(parting, codes[leaving], self.step)
        self.outcome = _tree.put(self.outcome, parting.index, ended)
        staying = (codes == 0).nonzero()[:, 0]
        self.rows = _tree.take(self.rows, staying)
        if len(staying):
            self.problem = self.problem.rows(staying)

    def interrupt(self) -> bool:
        """Every row ends as it stands."""
        self.rows = self.rows.measured(self.problem, self.solver, self.step)
        self._retire(torch.full_like(self.rows.index, int(Status.INTERRUPTED)))
        return True

    def _stored_interrupt(self) -> bool:
        """Store the run, if it can be stored, then let every row end as it stands."""
        with self.clock.stopped():
            try:
                self.run_of.keeper.write(self.run_of.done, self)
            except OSError as problem:
                warnings.warn(f"the checkpoint could not be written ({problem}); it is as it was before", stacklevel=2)
        return self.interrupt()

    # -- storage ---------------------------------------------------------------------------------------------------

    def stored(self) -> Stored:
        """All that is needed to go on from here."""
        tensors = _tree.pack(self.rows, "rows") | _tree.pack(self.outcome, "outcome")
        tensors |= {f"history.{name}": tensor for name, tensor in self.recorder.tensors().items()}
        counts = {"forwards": self.forwards, "backwards": self.backwards}
        return tensors, {"step": self.step, "seconds": self.clock.seconds, **counts}

    def _resume(self) -> None:
        """Go on from what was stored, if anything was."""
        found = self.run_of.keeper.running()
        if found is None:
            return
        tensors, meta = found
        index = tensors["rows.0"].to(self.starts.device)
        self.problem = self.problem.rows(index)
        template = Rows.open(self.problem, self.solver, self.starts[index])
        self.rows = _tree.unpack(template, tensors, "rows")
        self.outcome = _tree.unpack(self.outcome, tensors, "outcome")
        start = "history."
        self.recorder.restore({n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)})
        self.step, self.clock = meta["step"], Clock(meta["seconds"])
        self._count_from(meta["forwards"], meta["backwards"])

    def _count_from(self, forwards: int, backwards: int) -> None:
        """Count passes on from these numbers."""
        self.base_forwards = self.generator.forwards - forwards
        self.base_backwards = self.generator.backwards - backwards

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
        )

    def _record(self, *, measured: bool) -> None:
        """Note the rows in the history; residuals only where they were measured."""
        if self.recorder.wants(self.step):
            rows = self.rows
            residuals = (rows.gap, rows.stationarity) if measured else (torch.full_like(rows.gap, torch.nan),) * 2
            values = (rows.state.objective, *residuals, rows.state.rho)
            self.recorder.record(self._counts(), rows.index, values, final=False)

    def _record_ends(self, leaving: Tensor) -> None:
        rows = self.rows
        values = tuple(value[leaving] for value in (rows.state.objective, rows.gap, rows.stationarity, rows.state.rho))
        self.recorder.record(self._counts(), rows.index[leaving], values, final=True)

    def _counts(self) -> tuple[int, float, int, int]:
        return self.step, self.clock.seconds, self.forwards, self.backwards

    def _outside(self) -> bool:
        """Callbacks, progress, checkpoint. True if a callback asks to stop."""
        if not len(self.rows):
            return False
        if self.options.callbacks:
            view = self._view()
            if any([callback(view) is True for callback in self.options.callbacks]):
                return True
        if self.run_of.bar.due():
            self.run_of.bar.update(self._view(), self.options.stop, self.items)
        if self.run_of.keeper.due(self.step):
            self.run_of.keeper.write(self.run_of.done, self)
        return False

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
