"""How a solver is run in the race: ours without options, baselines as tuned, the methods of others as published."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from genprior import _random
from genprior._clock import Clock, queue_of
from genprior.generators import Passes
from genprior.lab.race.problems import Instance
from genprior.lab.trace import ErrorRecorder, Trace
from genprior.loop.solve import solve
from genprior.solvers import Adam, Choice
from genprior.status import Status
from genprior.stopping import MaxSteps, StopRule, Verdict, View

_NEVER = 10**9
_TIGHT = 1e-6
"""Baselines use their whole time, without early stopping."""


class Watch:
    """Records a run, and ends it when its time is over or nothing is left to be measured; the run's clock stops meanwhile."""

    def __init__(self, contest: Instance, seconds: float) -> None:
        self.record = ErrorRecorder(contest.truth)
        self.seconds = seconds
        self._enough = contest.entry.enough

    def __call__(self, view: View) -> bool:
        """A callback of ``solve``."""
        self.record(view)
        return self.over(view.seconds)

    def over(self, seconds: float) -> bool:
        """Whether the time is over, or all images have arrived. Where the objective counts, how low it gets is unknown."""
        return seconds >= self.seconds or bool((self.record.latest("error") <= self._enough).all())


class Method(ABC):
    """A way to solve a problem of the race."""

    @abstractmethod
    def run(self, contest: Instance, watch: Watch) -> Trace:
        """One run, until it ends by itself or the watch ends it."""

    @property
    @abstractmethod
    def settings(self) -> str:
        """In words."""


@dataclass(frozen=True)
class Unaided(Method):
    """As a user calls it, ``gp.solve(problem, solver)``: its own starts, restarts and stopping."""

    solver: Choice

    def run(self, contest: Instance, watch: Watch) -> Trace:
        """Choosing the starts is part of the run."""
        result = solve(contest.problem, self.solver, callbacks=[watch], progress=False)
        return watch.record.trace(result)

    @property
    def settings(self) -> str:
        """The solver, without options."""
        return repr(self.solver)


@dataclass(frozen=True)
class Baseline(Method):
    """From random starts, the first of which all baselines share; of several, the worse are culled on the way."""

    solver: Choice
    starts: int = 1

    def run(self, contest: Instance, watch: Watch) -> Trace:
        """Until the watch ends it."""
        result = solve(
            contest.problem,
            self.solver,
            stop=MaxSteps(_NEVER),
            z0=contest.starts,
            restarts=self.starts,
            tolerance=_TIGHT,
            patience=_NEVER,
            callbacks=[watch],
            progress=False,
        )
        return watch.record.trace(result)

    @property
    def settings(self) -> str:
        """The solver and the number of starts."""
        return f"{self.solver!r}, {self.starts} start{'s' if self.starts > 1 else ''}"


@dataclass(frozen=True)
class Csgm(Method):
    """The settings of deepinv's ``CSGMGenerator``: Adam from one uniform start, until an iteration changes little.

    One image at a time there; together, which is faster, here.
    """

    step_size: float = 0.01
    tolerance: float = 1e-4
    """Relative change of an image's loss from one iteration to the next at which its run ends."""
    iterations: int = 2500

    def run(self, contest: Instance, watch: Watch) -> Trace:
        """Until every image's loss has come to rest."""
        like = contest.starts
        random = _random.stream("race: uniform starts", 0)
        uniform = 2 * torch.rand(like.shape, generator=random, device="cpu") - 1
        stop = MaxSteps(self.iterations) | _AtRest(self.tolerance, len(like))
        return _adam(contest, watch, self.step_size, uniform.to(like), stop)

    @property
    def settings(self) -> str:
        """Step, stopping, start."""
        return (
            f"as published, untuned: Adam, step {self.step_size:g}, one start uniform in [-1, 1], until the loss changes by "
            f"less than {self.tolerance:g} in an iteration, at most {self.iterations} iterations"
        )


@dataclass(frozen=True)
class DMPlug(Method):
    """The settings of DMPlug (2024): Adam from one start drawn from the latent distribution."""

    step_size: float = 0.01
    iterations: int = 5000

    def run(self, contest: Instance, watch: Watch) -> Trace:
        """All iterations."""
        return _adam(contest, watch, self.step_size, contest.starts, MaxSteps(self.iterations))

    @property
    def settings(self) -> str:
        """Step and number."""
        return f"as published, untuned: Adam, step {self.step_size:g}, one start, {self.iterations} iterations"


@dataclass(frozen=True)
class DFlow(Method):
    """The optimiser of D-Flow (2024): L-BFGS on the sum of all images' objectives, with one step length for all of them.

    Its start, the flow run backwards from the measurements, exists for flows alone: here it starts where the others do.
    """

    iterations: int = 20
    """In a step of the optimiser."""
    steps: int = 20
    history: int = 100

    def run(self, contest: Instance, watch: Watch) -> Trace:
        """All steps of ``torch.optim.LBFGS``."""
        passes = Passes()
        problem = contest.problem.counting(passes)
        generator = problem.generator
        z = contest.starts.clone().requires_grad_()
        optimiser = torch.optim.LBFGS(
            [z], max_iter=self.iterations, history_size=self.history, line_search_fn="strong_wolfe"
        )
        clock = Clock(
            settle=queue_of(generator.device)
        )  # torch loads half of itself for the first optimiser: not counted

        def total() -> Tensor:
            graph = generator(z)
            x = graph.detach()
            point = problem.evaluate(x, z.detach())
            z.grad = generator.backward(z, graph, problem.signal_gradient(x, point.residual))
            with clock.stopped(settle=True):
                watch.record.add(clock.seconds, passes.forwards + passes.backwards, point.objective, x)
                if watch.over(clock.seconds):
                    raise _Over
            return point.objective.sum()

        with suppress(_Over):
            for _ in range(self.steps):
                optimiser.step(total)  # type: ignore[no-untyped-call]
        return watch.record.trace()

    @property
    def settings(self) -> str:
        """Numbers of iterations and of remembered changes."""
        return (
            f"as published, untuned: joint L-BFGS with a strong Wolfe search, history {self.history}, {self.steps} steps of "
            f"{self.iterations} iterations, one start"
        )


class _Over(Exception):
    """Leaves an optimiser that cannot be stopped from inside."""


class _AtRest(StopRule):
    """Stops an item, once, for one run, when its loss has changed by less than a share in one iteration."""

    def __init__(self, share: float, items: int) -> None:
        self._share = share
        self._before = torch.full((items,), torch.inf)

    def verdict(self, view: View) -> Verdict:
        """STALLED, per item."""
        now, rows = view.state.objective.cpu(), view.rows.cpu()
        rest = (now - self._before[rows]).abs() < self._share * now
        self._before[rows] = now
        return (rest.long() * int(Status.STALLED)).to(view.rows.device)


def _adam(contest: Instance, watch: Watch, step_size: float, starts: Tensor, stop: StopRule) -> Trace:
    """Adam by our loop, which stops nothing by itself."""
    result = solve(
        contest.problem,
        Adam(step_size),
        stop=stop,
        z0=starts,
        tolerance=_TIGHT,
        patience=_NEVER,
        callbacks=[watch],
        progress=False,
    )
    return watch.record.trace(result)
