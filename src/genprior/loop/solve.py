"""What a person calls: starts, chunks one after the other, the result put together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from inspect import isabstract
from pathlib import Path
from typing import Generic

import torch
from torch import Tensor

from genprior import _random, _validate
from genprior.generators.jacobian import prepare_forward_mode, prepare_gradients
from genprior.history import History
from genprior.loop.checkpoint import Checkpoint
from genprior.loop.chunk import Around, Callback, Chunk, Options
from genprior.loop.progress import ProgressBar
from genprior.loop.rows import Outcome
from genprior.loop.storage import Finished, Keeper
from genprior.problem import Problem
from genprior.result import Result
from genprior.solvers.auto import Auto
from genprior.solvers.base import Choice, S, Solver
from genprior.solvers.optimality import active_bounds, penalty_share
from genprior.status import Status
from genprior.stopping import MaxSteps, StopRule

_FINEST = 1e-6
_RECENT = 10
"""An item was still improving if its objective fell by 1% in the last tenth of its steps."""
_RECORDS = 1_000_000
_RECORDS_PER_ITEM = 2_000


def solve(
    problem: Problem,
    solver: Choice | None = None,
    *,
    stop: StopRule | None = None,
    z0: Tensor | None = None,
    restarts: int = 1,
    seed: int = 0,
    batch_size: int | None = None,
    tolerance: float | None = None,
    patience: int | None = None,
    cull_after: int = 25,
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
        how; :class:`Auto` by default, which chooses by itself.
    stop
        when to stop at the latest, for example ``MaxSteps(500) | Seconds(10)``; by default ``MaxSteps(1000)``. An item
        also stops when it has converged or stalled.
    z0
        starts ``(B, *latent_shape)``, used by the first restart; drawn from the generator's law otherwise. Or the starts of
        all restarts, ``(B, restarts, *latent_shape)``.
    restarts
        number of starts per item; where ``z0`` has an axis for them, its length. They run side by side, and the
        worse ones are given up on the way.
    cull_after
        steps after which the worse half of the restarts is given up; after twice as many half of the rest, and so on
        until one is left.
    seed
        seed of the starts; the same seed gives the same starts on every device and for every ``batch_size``. They are
        independent of what ``sample_latent`` draws, whatever the seeds.
    batch_size
        most items in memory at once; all by default.
    tolerance
        relative gap and stationarity at which an item counts as converged; by default what its dtype can reach: 3.5e-4 in
        float32, 1e-6 in float64. The conditions are checked afresh at the answer itself, by two passes forward and two back.
    patience
        steps without progress (0.1% of the objective, 5% of the residuals) after which the search for an item ends:
        SETTLED, or STALLED where it is not at a minimum. By default 100 for methods that learn curvature, 200 for others.
    check_every
        steps between two looks at convergence and divergence; gap and stationarity are measured then, and are NaN in
        the history in between.
    callbacks
        functions of a :class:`genprior.View`, called at the start and after every step, the last one too, with the clock
        stopped. One that returns
        True ends the run with status INTERRUPTED.
    checkpoint
        a file in which the run is stored about once a minute, or a :class:`Checkpoint`; the same call with an
        existing file goes on where it stopped, to bit-equal results. A run that is finished is returned as it is; to go on
        from it with another stop rule, pass its ``result.z`` as ``z0`` and another path.
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
    choice = Auto() if solver is None else solver
    stop = MaxSteps(1000) if stop is None else stop
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a genprior Problem, got {type(problem).__name__}: gp.Problem(G, loss=...)")
    if not isinstance(callbacks, Iterable) or not all(callable(callback) for callback in callbacks):
        raise TypeError(f"callbacks must be a list of functions of a View, got {callbacks!r}")
    if not isinstance(choice, Choice):
        raise TypeError(f"solver must be a genprior solver such as gp.ExactADMM(), got {choice!r}{_hint(choice)}")
    if not isinstance(stop, StopRule):
        raise TypeError(f"stop must be a stop rule such as gp.MaxSteps(500) | gp.Seconds(10), got {stop!r}")
    chosen = choice.solver(problem)
    options = Options(
        stop=stop,
        tolerance=_tolerance(problem, tolerance),
        patience=_validate.whole("patience", chosen.patience if patience is None else patience),
        restarts=_restarts(problem, z0, restarts),
        cull_after=_validate.whole("cull_after", cull_after),
        check_every=_validate.whole("check_every", check_every),
        callbacks=tuple(callbacks),
    )
    prepare_gradients()
    if chosen.takes_jacobians(problem):
        prepare_forward_mode()
    counted = problem.prepared()
    with torch.inference_mode(False), torch.no_grad():
        starts = _starts(problem, z0, options.restarts, seed)
        items = len(starts) // options.restarts
        batch_size = items if batch_size is None else min(items, _validate.whole("batch_size", batch_size))
        identity = (problem, choice, replace(options, callbacks=()), starts, batch_size)
        keeper = Keeper(checkpoint, *identity)
        try:
            with ProgressBar(progress, items) as bar:
                result = _Run(counted, chosen, choice, options, starts, batch_size, keeper, bar).result()
        finally:
            counted.generator.budget = None  # it knows the generator: nothing should wait for the garbage collector
            problem.generator.forwards += counted.generator.forwards
            problem.generator.backwards += counted.generator.backwards
    refuse_hopeless(result)
    return result


class Hopeless(ValueError):
    """No item could be solved, because of the data or the generator; ``result`` holds what there is."""

    def __init__(self, message: str, result: Result) -> None:
        self.result = result
        super().__init__(message)


class Unrepresentable(Hopeless):
    """Data whose loss overflows or vanishes in the dtype."""


def refuse_hopeless(result: Result) -> None:
    """An error where no item can be solved; where some can, the others end as DIVERGED."""
    if not bool(torch.isfinite(result.signal.flatten(1)).all(dim=1).any()):
        raise Hopeless(
            "the generator gives NaN or infinity at all starts: check its weights and the scale of its latents with "
            "gp.checks.check_generator(G)",
            result,
        )
    if bool(result.unfit.all()):
        dtype = str(result.objective.dtype).removeprefix("torch.")
        raise Unrepresentable(
            f"the loss of these data cannot be represented in {dtype}: its squares overflow, or vanish. Give data and signals "
            "in other units, so that they are nearer to 1, or use float64",
            result,
        )


def _tolerance(problem: Problem, tolerance: float | None) -> float:
    """As given, or what the dtype allows for."""
    if tolerance is None:
        return max(_FINEST, math.sqrt(torch.finfo(problem.generator.dtype).eps))
    return _validate.number("tolerance", tolerance, least=0)


def _hint(solver: object) -> str:
    """The likely fix for a solver that was named, or given as its class."""
    name = solver if isinstance(solver, str) else getattr(solver, "__name__", "")
    names = {kind.__name__.lower(): kind.__name__ for kind in _kinds(Choice) if not isabstract(kind)}
    return f": write gp.{names[name.lower()]}()" if name.lower() in names else ""


def _kinds(kind: type[object]) -> list[type[object]]:
    return [kind, *(deeper for below in kind.__subclasses__() for deeper in _kinds(below))]


def _restarts(problem: Problem, z0: Tensor | None, restarts: int) -> int:
    """As asked, or as many as ``z0`` has starts for."""
    restarts = _validate.whole("restarts", restarts)
    if not _for_restarts(problem, z0):
        return restarts
    assert z0 is not None, "it has an axis"
    if restarts not in {1, z0.shape[1]}:
        raise ValueError(f"z0 holds {z0.shape[1]} starts per item, but restarts is {restarts}: leave restarts out")
    return _validate.whole("the length of z0's second axis, the starts per item,", z0.shape[1])


def _for_restarts(problem: Problem, z0: Tensor | None) -> bool:
    """Whether ``z0`` is ``(B, restarts, *latent_shape)``."""
    latent = problem.generator.latent_shape
    return isinstance(z0, Tensor) and z0.ndim == len(latent) + 2 and tuple(z0.shape[2:]) == latent


def _starts(problem: Problem, z0: Tensor | None, restarts: int, seed: int) -> Tensor:
    """Starts of all rows, item by item: ``z0`` first, the rest drawn; projected where H forbids them."""
    generator = problem.generator
    given = _for_restarts(problem, z0)
    if z0 is not None:
        _validate.tensor("z0", z0)
        _validate.batch("z0", z0, tuple(z0.shape[1:]) if given else generator.latent_shape)
        _validate.same_place("z0", z0, generator.device, generator.dtype, "the generator")
    items = problem.batch or (1 if z0 is None else len(z0))
    if z0 is not None and len(z0) != items:
        raise ValueError(f"z0 has {len(z0)} items, but the problem has {items}: give one start per item")
    random = _random.stream("starts", seed)
    if z0 is not None and given:
        starts = z0.detach().clone(memory_format=torch.contiguous_format).flatten(0, 1)
    else:
        drawn = [generator.draw(items, random) for _ in range(restarts)]
        if z0 is not None:
            drawn[0] = z0.detach().clone()
        starts = torch.stack(drawn, dim=1).flatten(0, 1)
    constraint = problem.on_latent.constraint
    if constraint is None:
        return starts
    return constraint.rows(_repeat(items, restarts, starts.device)).prox(starts, 1.0)


def _repeat(items: int, restarts: int, device: torch.device) -> Tensor:
    """The item of every row."""
    return torch.arange(items, device=device).repeat_interleave(restarts)


class _Run(Generic[S]):
    """All chunks, one after the other."""

    def __init__(
        self,
        problem: Problem,
        solver: Solver[S],
        choice: Choice,
        options: Options,
        starts: Tensor,
        batch_size: int,
        keeper: Keeper,
        bar: ProgressBar,
    ) -> None:
        self.problem, self.solver, self.choice, self.options = problem, solver, choice, options
        self.starts, self.batch_size = starts, batch_size
        self.items = len(starts) // options.restarts
        self.done: list[Finished] = keeper.finished(starts)
        self.around = Around(keeper, self.done, bar)

    def result(self) -> Result:
        """Run what is not done yet, and put everything together."""
        chunks = range(len(self.done) * self.batch_size, self.items, self.batch_size)
        interrupted = False
        self.around.bar.chunk_done(min(self.items, chunks.start))
        for left, first in zip(range(len(chunks), 0, -1), chunks, strict=True):
            used = sum(part.seconds for part in self.done)
            stop = self.options.stop.share(used, left)
            try:
                chunk = self._chunk(first, stop)
            except KeyboardInterrupt:
                chunk, interrupted = self._chunk(first, stop), True
            interrupted = chunk.end() if interrupted else chunk.run()
            self.done.append(chunk.finished())
            self.around.bar.chunk_done(chunk.items)
            if not interrupted:
                interrupted = self._stored()
        return self._assemble()

    def _stored(self) -> bool:
        """Store what is done. True if the run was interrupted meanwhile."""
        try:
            self.around.keeper.write(self.done, None)
        except KeyboardInterrupt:
            return True
        return False

    def _chunk(self, first: int, stop: StopRule) -> Chunk[S]:
        last = min(self.items, first + self.batch_size)
        device = self.starts.device
        index = torch.arange(first, last, device=device).repeat_interleave(self.options.restarts)
        starts = self.starts[first * self.options.restarts : last * self.options.restarts]
        whole = self.items == last - first and self.options.restarts == 1
        problem = self.problem if whole or self.problem.batch is None else self.problem.rows(index)
        records = max(2, min(_RECORDS_PER_ITEM, _RECORDS // (self.items * self.options.restarts)))
        options = replace(self.options, stop=stop)
        return Chunk(problem, self.solver, starts, options, first=first, records=records, around=self.around)

    def _assemble(self) -> Result:
        parts = [part.outcome for part in self.done]
        whole = Outcome(*(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(Outcome)))
        recent = torch.clamp(whole.steps // _RECENT, min=2 * self.options.check_every)
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
            plan=self.choice.plan(self.problem),
            reach=self.problem.generator.law.reach(whole.z),
            improving=(whole.fell > 0) & (whole.steps - whole.fell <= recent),
            bound=active_bounds(self.problem, whole.x, whole.z),
            penalty=penalty_share(self.problem, whole.objective, whole.z),
            unfit=whole.unfit,
            tolerance=self.options.tolerance,
            restarts=self.options.restarts,
            fading_dual=self.solver.dual_fades,
            residual=self.problem.loss.relative_residual(self.problem.loss(whole.x)),
        )
