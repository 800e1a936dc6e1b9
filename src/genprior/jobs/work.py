"""What the workers of a recovery do: read a batch where they can, solve it, answer with signals and facts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from genprior.engines import Blind, Place
from genprior.files import Items, Loaded
from genprior.generators import Generator
from genprior.jobs.comparison import TIME_SHARE, compare
from genprior.jobs.forward import ForwardModel
from genprior.jobs.posed import estimated_noise, expected_noise, pose, relative_residual, simulate
from genprior.jobs.records import Solved, SolvedBatch
from genprior.jobs.settings import Recovery
from genprior.jobs.shipment import Shipment, refuse_other_numbers
from genprior.jobs.threads import threads_since
from genprior.loop.run import share_done
from genprior.loop.solve import Hopeless, solve
from genprior.models.bundled import load_start_encoder
from genprior.models.foreign import source_digest
from genprior.models.labels import with_label
from genprior.models.start_encoder import StartEncoder
from genprior.operators import Operator
from genprior.operators.parse import parse_operator
from genprior.problem import Problem
from genprior.result import Result
from genprior.solvers.registry import solver_named
from genprior.status import Status
from genprior.stopping import MaxSteps, Seconds, StopRule, View

_INTERVAL = 0.1
"""Seconds between two progress reports."""


@dataclass(frozen=True)
class Task:
    """One batch, as it is handed out: the items from ``start`` up to ``stop``."""

    start: int
    stop: int
    seconds: float | None
    """Its share of the time that is left."""
    show: tuple[int, ...]
    """Numbers of the items whose images are kept for the report."""
    loaded: tuple[Loaded, ...] | None = None
    """The contents of the items, for a worker that cannot see them."""


def contents(task: Task, items: Items, place: Place) -> list[Loaded] | Blind:
    """The items of a task, as they were sent or as the worker reads them."""
    if task.loaded is not None:
        return list(task.loaded)
    if not place.visible and (missing := items.missing(task.start, task.stop)):
        return Blind(f"{missing[0]} is not there, or is another version")
    return items.read(task.start, task.stop)


@dataclass(frozen=True)
class Model:
    """Generator and operator of a job, opened, and the encoder of its starts, where there is one."""

    generator: Generator
    operator: Operator
    start: StartEncoder | None = None

    @classmethod
    def of(cls, generator: Generator, operator: str, start: str | None = None, forward: str | None = None) -> Model:
        """The operator, or the forward model in its place, fits the generator's signals, and the encoder fits both."""
        if forward is not None:
            return cls(generator, ForwardModel(forward, generator))
        shape, device, dtype = generator.signal_shape, generator.device, generator.dtype
        parsed = parse_operator(operator, shape, device=device, dtype=dtype)
        if start is None:
            return cls(generator, parsed)
        encoder = load_start_encoder(start, device=device)
        encoder.check(generator, parsed)
        return cls(generator, parsed, encoder)


@dataclass(frozen=True)
class RecoveryWork:
    """A recovery as the workers get it.

    When it is pickled, ``here`` stays behind, and so do the names of the inputs, which may hold tokens.
    """

    job: Recovery
    items: Items
    labels: tuple[int, ...] | None
    """One class per item."""
    shipment: Shipment
    digest: str
    """Of the generator, as the driver opened it."""
    here: Model | None = None
    """What the driver has opened, where it solves the batches itself."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "job": replace(self.job, inputs=()), "here": None}

    def open(self, place: Place) -> Callable[[Task], SolvedBatch | Blind]:
        """Open generator, operator and encoder, once for all batches."""
        model = self.here or self._arrived(place.device(self.job.device))
        return Solver(self.job, model, self.items, self.labels, place).solved

    def _arrived(self, device: str) -> Model:
        with self.shipment.arrived() as here:
            generator = here.source.open(device).generator
            found = source_digest(here.source.generator, here.source.weights, generator)
            refuse_other_numbers("generator", found, self.digest)
            return Model.of(generator, here.operator, here.start, here.forward)


@dataclass(frozen=True)
class Solver:
    """Solves the batches of one worker."""

    job: Recovery
    model: Model
    items: Items
    labels: tuple[int, ...] | None
    place: Place

    def solved(self, task: Task) -> SolvedBatch | Blind:
        """Read and solve one batch."""
        loaded = contents(task, self.items, self.place)
        if isinstance(loaded, Blind):
            return loaded
        solved: list[tuple[list[int], Solved]] = []
        rule: StopRule = MaxSteps(self.job.most_steps)
        if task.seconds is not None:
            rule = rule | Seconds(task.seconds * (1 - TIME_SHARE if self.job.compare else 1))
        groups, done, threads = self._groups(task.start, loaded), 0, torch.get_num_threads()
        for left, (rows, generator) in zip(range(len(groups), 0, -1), groups, strict=True):
            numbers = [task.start + row for row in rows]
            share = rule.share(sum(one.result.seconds for _, one in solved), left)
            values = torch.stack([value for row in rows if (value := loaded[row].value) is not None])
            one = self._solve(generator, values, numbers, share, done)
            seconds = None if task.seconds is None else TIME_SHARE * task.seconds * len(rows) / len(loaded)
            solved.append((rows, self._compared(one, seconds) if self.job.compare else one))
            done += len(rows)
        batch = SolvedBatch.of(task.start, loaded, solved, self.model.operator, task.show)
        return batch.with_run(batch.run | threads_since(threads))

    def _groups(self, start: int, loaded: list[Loaded]) -> list[tuple[list[int], Generator]]:
        """Groups of readable items that are solved together: all at once, or class by class."""
        generator = self.model.generator
        good = [row for row, item in enumerate(loaded) if item.value is not None]
        if self.labels is None or not good:
            return [(good, generator)] if good else []
        labels = self.labels[start : start + len(loaded)]
        classes = sorted({labels[row] for row in good})
        return [([row for row in good if labels[row] == label], with_label(generator, label)) for label in classes]

    def _solve(self, generator: Generator, values: Tensor, numbers: list[int], rule: StopRule, done: int) -> Solved:
        values = values.to(generator.device, generator.dtype.to_complex() if values.is_complex() else generator.dtype)
        job, operator = self.job, self.model.operator
        y = simulate(operator, values, job.simulated_noise, job.seed, numbers) if job.simulate else values
        result = _solved(
            pose(job, generator, operator, y),
            solver_named(job.solver),
            stop=rule,
            start=self.model.start,
            restarts=job.restarts,
            seed=job.seed,
            patience=job.patience,
            settle_after=job.settle_after,
            callbacks=[Reporter(self.place.on_progress, len(numbers), done, rule)],
            progress=False,
        )
        if Status.INTERRUPTED in result.status:
            raise KeyboardInterrupt
        residual = relative_residual(operator, result.signal, y)
        noise = expected_noise(operator, y, job.known_noise)
        unknown = job.loss == "l2" and not job.simulate and job.noise_level is None
        estimate = estimated_noise(generator, operator, result, y) if unknown else None
        return Solved(result, y, values if job.simulate else None, residual, noise, estimate)

    def _compared(self, solved: Solved, seconds: float | None) -> Solved:
        """With the answers of classical methods."""
        noise = self.job.known_noise or None
        return replace(solved, baselines=compare(self.model.operator, solved.y, noise, seconds))


def _solved(problem: Problem, *options: Any, **more: Any) -> Result:
    """Solve; if no item of the batch can be solved, return that result and let the job continue."""
    try:
        return solve(problem, *options, **more)
    except Hopeless as found:
        return found.result


class Reporter:
    """Callback that reports, at intervals, how many items of the batch are done, a fraction of the running ones among them."""

    def __init__(self, report: Callable[[float, str], object], count: int, done: int, rule: StopRule) -> None:
        self._report, self._count, self._done, self._rule = report, count, done, rule
        self._last = 0.0

    def __call__(self, view: View) -> None:
        """Report, if it is time."""
        now = time.monotonic()
        if now - self._last < _INTERVAL:
            return
        self._last = now
        done = self._done + self._count * share_done(self._rule, view, self._count)
        self._report(done, f"step {view.step}, median objective {view.best_objective.median().item():.3g}")
