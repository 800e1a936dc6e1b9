"""The function ``solve``: checks the arguments, draws the starts, begins the run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from inspect import isabstract
from pathlib import Path

import torch
from torch import Tensor

from genprior import _random, _validate
from genprior.engines import Engine
from genprior.generators import Generator, Passes
from genprior.generators.derivatives import prepare_forward_mode, prepare_gradients
from genprior.loop.batch import limited
from genprior.loop.checkpoint import Checkpoint, Keeper
from genprior.loop.restarts import Restarts
from genprior.loop.run import Options, ProgressBar, Run
from genprior.loop.stages import in_stages, watching
from genprior.loop.starts import Guess, Starts, nearest
from genprior.problem import Problem
from genprior.result import Result
from genprior.solvers.auto import Auto
from genprior.solvers.base import Choice
from genprior.stopping import Callback, MaxSteps, StopRule

_FINEST = 1e-6
"""Least default tolerance: that of float64."""


def solve(
    problem: Problem,
    solver: Choice | None = None,
    *,
    stop: StopRule | None = None,
    z0: Tensor | None = None,
    start: Guess | None = None,
    restarts: int | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    tolerance: float | None = None,
    patience: int | None = None,
    cull_after: int = 25,
    settle_after: int = 0,
    check_every: int = 10,
    callbacks: Sequence[Callback] = (),
    checkpoint: str | Path | Checkpoint | None = None,
    progress: bool | None = None,
    engine: Engine | None = None,
) -> Result:
    """Minimise ``L(w) + R(w) + H(z)`` subject to ``w = G(z)`` for every item of the problem.

    Parameters
    ----------
    problem
        what to solve.
    solver
        the method; by default :class:`Auto`, which chooses one from the problem.
    stop
        when to stop at the latest, for example ``MaxSteps(500) | Seconds(10)``; by default ``MaxSteps(1000)``. An item
        also stops when it has converged or stalled.
    z0
        starts ``(B, *latent_shape)``, used by the first restart; or the starts of all restarts,
        ``(B, restarts, *latent_shape)``. By default each item starts from those of a pool of the generator's samples, 512 at
        most, whose measurements are nearest to its own (:meth:`genprior.Generator.pool`).
    start
        what guesses one more candidate for each item, such as a :class:`genprior.StartEncoder` from
        ``gp.load_start_encoder(path)``. It is ranked among the samples by its own measurements, behind the nearest one at
        best, so that items that end well keep their answers. Not together with ``z0`` or ``restarts=1``.
    restarts
        number of starts per item; where ``z0`` has an axis for them, its length. They run in parallel, and the
        worse ones are culled on the way. By default as many as pay: one for each item; then, as long as limits allow
        and new starts help, 4, 8 and 16 for the items that ended far worse than the others, or with data not fitted.
        With a ``z0`` one is the default. ``result.candidates`` has all distinct minima that were found.
    cull_after
        steps after which the worse half of the restarts is culled; after twice as many half of the rest, and so on
        until one is left.
    seed
        seed of the pool and of random starts; the same seed gives the same starts on every device and for every
        ``batch_size``. They are independent of what ``sample_latent`` draws, whatever the seeds.
    batch_size
        most items in memory at once; all by default.
    tolerance
        relative primal residual and stationarity at which an item counts as converged; by default 3.5e-4 in float32 and 1e-6
        in float64, which these can reach. The conditions are checked at the answer itself, by two forward and four backward
        passes.
    patience
        steps without progress (0.1% of the objective, 5% of the residuals) after which the search for an item ends:
        SETTLED, or STALLED where it is not at a minimum. By default 100 for curvature methods, 200 for others.
    settle_after
        steps in which the objective of an item must fall by 0.1%; otherwise, if the item is near a minimum (the optimality
        conditions hold to 1%), its search ends as SETTLED without waiting for convergence. 0: it waits. Where signals lie
        outside of the range, 20 saves a quarter of the steps and changes hardly any answer: jobs of many items use it.
    check_every
        steps between two checks of convergence and divergence; primal residual and stationarity are measured then, and are
        NaN in the history in between.
    callbacks
        functions of a :class:`genprior.View`, called at the start and after every step, the last one too, with the clock
        stopped. One that returns True ends the run with status INTERRUPTED.
    checkpoint
        a file in which the run is stored about once a minute, or a :class:`Checkpoint`; the same call with an
        existing file continues where it stopped, with bit-equal results. A finished run is returned as it is; to continue
        it with another stop rule, pass its ``result.z`` as ``z0`` and another path.
    progress
        whether to show a progress bar on standard error; by default only on a terminal.
    engine
        where the batches are solved: ``gp.engines.Local(workers=4)``, processes on this machine, or ``gp.engines.Ray(...)``;
        by default here, one after the other. The result has the same bits for the same ``batch_size`` and number of
        threads. Without a ``batch_size`` each worker gets one batch. ``callbacks`` cannot watch workers, a limit in seconds is
        then one on the clock on the wall, and ``result.seconds`` adds up what all workers used.

    Ctrl-C returns the best so far, once the search has begun.

    A problem with a deviation is solved in two stages: the generator alone, with all these options, and from there z and the
    deviation together. A limit in seconds or passes holds for both, the first takes half at most; one on steps holds for each.
    ``history`` is that of the second stage, and the checkpoint of the first has ``.range`` added to its name. Callbacks see
    one stage after the other: ``view.stage`` is 0, then 1, and ``view.step`` begins anew.

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
    _check_types(problem, choice, stop, callbacks)
    _check_start(start, z0, restarts)
    _check_engine(engine, callbacks)
    call = _Call(
        choice,
        seed,
        batch_size,
        tolerance,
        patience,
        cull_after,
        settle_after,
        check_every,
        tuple(callbacks),
        progress,
        engine,
    )
    if problem.in_range is problem:
        return call.solved(problem, stop, checkpoint, z0, start, restarts)
    first, second = (replace(call, callbacks=watching(call.callbacks, stage)) for stage in (0, 1))
    return in_stages(
        problem,
        stop,
        checkpoint,
        lambda limits, file: first.solved(problem.in_range, limits, file, z0, start, restarts),
        second.solved,
        at_once=engine is not None,
    )


@dataclass(frozen=True)
class _Call:
    """The arguments of :func:`solve` that are the same in all stages."""

    choice: Choice
    seed: int
    batch_size: int | None
    tolerance: float | None
    patience: int | None
    cull_after: int
    settle_after: int
    check_every: int
    callbacks: tuple[Callback, ...]
    progress: bool | None
    engine: Engine | None

    def solved(
        self,
        problem: Problem,
        stop: StopRule,
        checkpoint: str | Path | Checkpoint | None,
        z0: Tensor | None,
        start: Guess | None = None,
        restarts: int | None = None,
    ) -> Result:
        """One run."""
        chosen = self.choice.solver(problem)
        options = Options(
            stop=stop,
            tolerance=_tolerance(problem, self.tolerance),
            patience=chosen.patience if self.patience is None else self.patience,
            restarts=_restarts_of(problem, z0, restarts),
            cull_after=self.cull_after,
            settle_after=self.settle_after,
            check_every=self.check_every,
        )
        prepare_gradients()
        if chosen.takes_jacobians(problem):
            prepare_forward_mode()
        with torch.inference_mode(False), torch.no_grad():
            given, items = _given_starts(problem, z0, options.restarts.most, self.seed), _items_of(problem, z0)
            each = math.ceil(items / (1 if self.engine is None else self.engine.size))
            batch_size = each if self.batch_size is None else min(items, _validate.whole("batch_size", self.batch_size))
            chosen_by = ("pool", self.seed) if start is None else ("pool", self.seed, start)
            identity = chosen_by if given is None else (given.latents,)
            keeper = Keeper(checkpoint, problem, self.choice, options, identity, batch_size)
            with ProgressBar(self.progress, items) as bar:
                found = (
                    _Found(given) if given is not None else _looked(problem, items, options, self.seed, keeper, start)
                )
                options = replace(options, restarts=options.restarts.cut(found.starts.order.shape[1]))
                run = Run(
                    problem,
                    chosen,
                    options,
                    found.starts,
                    batch_size,
                    self.callbacks,
                    keeper,
                    bar,
                    self.choice.plan,
                    self.engine,
                    forwards=found.forwards,
                    seconds=found.seconds,
                )
                result = run.result()
        refuse_hopeless(result)
        return result


@dataclass(frozen=True)
class _Found:
    """Starts, and what choosing them took."""

    starts: Starts
    forwards: int = 0
    seconds: float = 0.0


def _looked(problem: Problem, items: int, options: Options, seed: int, keeper: Keeper, start: Guess | None) -> _Found:
    """The candidates of all items: the generator's pool and the guesses; those of the stored run, where it is continued.

    Where the limits do not allow for a pool, every item starts at random, once or as often as was asked for.
    """
    if keeper.order is not None:
        return _Found(Starts.drawn(problem.generator, keeper.order, seed, keeper.guesses))
    passes = Passes()
    counted = problem.counting(passes)
    clock = limited(counted, options.stop, 0.0)
    starts = None if keeper.continues else nearest(counted, items, options.restarts.most, seed, start)
    if starts is None:
        starts = Starts.given(_random_starts(problem.generator, items, options.restarts.rounds[0], seed))
    else:
        keeper.order, keeper.guesses = starts.order, starts.guesses
    return _Found(starts, passes.forwards, clock.seconds)


def _random_starts(generator: Generator, items: int, restarts: int, seed: int) -> Tensor:
    """``(items, restarts, *latent_shape)``, drawn restart by restart."""
    random = _random.stream("starts", seed)
    return torch.stack([generator.draw(items, random) for _ in range(restarts)], dim=1)


def _check_types(problem: object, choice: object, stop: object, callbacks: object) -> None:
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a genprior Problem, got {type(problem).__name__}: gp.Problem(G, loss=...)")
    if not isinstance(callbacks, Iterable) or not all(callable(callback) for callback in callbacks):
        raise TypeError(f"callbacks must be a list of functions of a View, got {callbacks!r}")
    if not isinstance(choice, Choice):
        raise TypeError(f"solver must be a genprior solver such as gp.ExactADMM(), got {choice!r}{_hint(choice)}")
    if not isinstance(stop, StopRule):
        raise TypeError(f"stop must be a stop rule such as gp.MaxSteps(500) | gp.Seconds(10), got {stop!r}")


def _check_start(start: object, z0: object, restarts: int | None) -> None:
    if start is not None and not isinstance(start, Guess):
        raise TypeError(
            f"start must be a trained encoder such as gp.load_start_encoder('encoder.safetensors'), or have a method "
            f"guess(problem), got {type(start).__name__}{': give latents as z0' if isinstance(start, Tensor) else ''}"
        )
    if start is not None and z0 is not None:
        raise ValueError(
            "start adds a candidate to those that are chosen, but z0 holds the starts: leave one of them out"
        )
    if start is not None and restarts == 1:
        raise ValueError(
            "`start` adds a candidate behind the nearest sample, and `restarts=1` leaves no room for it: leave `restarts` out "
            "or give at least 2"
        )


def _check_engine(engine: object, callbacks: Sequence[Callback]) -> None:
    if engine is not None and not isinstance(engine, Engine):
        raise TypeError(f"engine must be an engine such as gp.engines.Local(workers=4), got {engine!r}")
    if engine is not None and callbacks:
        raise ValueError(
            "callbacks see a run from inside, which workers do not allow: leave out the callbacks or the engine"
        )


def _restarts_of(problem: Problem, z0: Tensor | None, restarts: int | None) -> Restarts:
    """Rounds of starts: one round as asked, or of as many as ``z0`` has per item; by default as many as pay."""
    if restarts is not None:
        _validate.whole("restarts", restarts)
    if not _for_restarts(problem, z0):
        if restarts is None:
            return Restarts() if z0 is None else Restarts((1,))
        return Restarts((restarts,))
    assert z0 is not None, "it has an axis"
    if restarts not in {None, 1, z0.shape[1]}:
        raise ValueError(f"z0 holds {z0.shape[1]} starts per item, but restarts is {restarts}: leave restarts out")
    return Restarts((_validate.whole("the length of z0's second axis, the starts per item,", z0.shape[1]),))


def _items_of(problem: Problem, z0: Tensor | None) -> int:
    """Number of items."""
    return problem.batch or (1 if z0 is None else len(z0))


def _given_starts(problem: Problem, z0: Tensor | None, restarts: int, seed: int) -> Starts | None:
    """The starts in ``z0``, and where it has fewer than wanted, random ones after them; None without ``z0``."""
    if z0 is None:
        _validate.seed(seed)
        return None
    generator, given = problem.in_range.generator, _for_restarts(problem, z0)
    _validate.tensor("z0", z0)
    if problem.in_range is not problem and tuple(z0.shape[1:]) == problem.generator.latent_shape:
        return Starts.given(z0[:, None])  # of a second stage
    _validate.batch("z0", z0, tuple(z0.shape[1:]) if given else generator.latent_shape)
    _validate.same_place("z0", z0, generator.device, generator.dtype, "the generator")
    items = _items_of(problem, z0)
    if len(z0) != items:
        raise ValueError(f"z0 has {len(z0)} items, but the problem has {items}: give one start per item")
    if not given:
        z0 = torch.cat([z0.detach()[:, None], _random_starts(generator, items, restarts, seed)[:, 1:]], dim=1)
    return Starts.given(torch.stack([problem.latents(starts) for starts in z0.unbind(dim=1)], dim=1))


def _for_restarts(problem: Problem, z0: Tensor | None) -> bool:
    """Whether ``z0`` is ``(B, restarts, *latent_shape)``."""
    latent = problem.in_range.generator.latent_shape
    return isinstance(z0, Tensor) and z0.ndim == len(latent) + 2 and tuple(z0.shape[2:]) == latent


class Hopeless(ValueError):
    """No item could be solved, because of the data or the generator; ``result`` holds what was computed."""

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
            f"the loss of these data cannot be represented in {dtype}: its squares overflow or underflow. Scale data and "
            "signals closer to 1, or use float64",
            result,
        )


def _tolerance(problem: Problem, tolerance: float | None) -> float:
    """As given, or what the dtype can reach."""
    if tolerance is None:
        return max(_FINEST, math.sqrt(torch.finfo(problem.generator.dtype).eps))
    return _validate.number("tolerance", tolerance, least=0)


def _hint(solver: object) -> str:
    """The likely fix for a solver that was named, or given as its class."""
    name = solver if isinstance(solver, str) else getattr(solver, "__name__", "")
    names = {cls.__name__.lower(): cls.__name__ for cls in _subclasses(Choice) if not isabstract(cls)}
    return f": write gp.{names[name.lower()]}()" if name.lower() in names else ""


def _subclasses(cls: type[object]) -> list[type[object]]:
    return [cls, *(deeper for below in cls.__subclasses__() for deeper in _subclasses(below))]
