"""Recovery of files: read, solve, write and record one batch after another; in bounded memory, resumable at any point."""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from genprior._files import remove_unfinished
from genprior._fingerprint import fingerprint
from genprior.assessment import JOB, Words
from genprior.files import Loaded, Outputs, open_items
from genprior.files.expected import Expected
from genprior.files.single import read_array
from genprior.generators import Generator
from genprior.jobs.ledger import CONTENT, Ledger, alone
from genprior.jobs.outcome import Outcome
from genprior.jobs.posed import check_loss, expected_noise, pose, relative_residual, simulate
from genprior.jobs.records import Solved, SolvedBatch, sampled
from genprior.jobs.results import write_result
from genprior.jobs.resume import SIGNALS, plan_of, refuse_losses
from genprior.jobs.settings import Recovery
from genprior.loop.progress import share_done
from genprior.loop.solve import Hopeless, solve
from genprior.loop.starts import starts
from genprior.models.foreign import source_digest
from genprior.models.labels import check_labels, with_label
from genprior.operators import Operator
from genprior.operators.parse import digest_of_files, parse_operator
from genprior.problem import Problem
from genprior.result import Result
from genprior.solvers.registry import solver_named
from genprior.status import Status
from genprior.stopping import MaxSteps, Seconds, StopRule, View

_INTERVAL = 0.1
"""Seconds between two progress reports."""

Progress = Callable[[float, int, str], object]
"""Called with the number of items done (a fraction within a batch), their total, and the current activity."""


def recover(job: Recovery, on_progress: Progress = lambda done, total, note: None, *, words: Words = JOB) -> Outcome:
    """Recover every item of the inputs; write the signals, ``result.json`` and ``report.html`` into ``job.out``.

    Batches that an earlier run of the same job finished are not repeated. Raises ``KeyboardInterrupt`` after Ctrl-C; the same
    call then resumes after the finished batches. ``words`` are the names of the options in advice.

    Examples
    --------
    >>> import tempfile, pathlib, numpy, genprior as gp
    >>> from genprior import samples
    >>> from genprior.jobs.recover import recover
    >>> from genprior.jobs.settings import Recovery
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> numpy.save(folder / "digits.npy", samples.digits(2)[0].numpy())
    >>> inputs = (str(folder / "digits.npy"),)
    >>> job = Recovery(inputs=inputs, out=folder / "out", operator="downsample:2", simulate=True, steps=5)
    >>> outcome = recover(job)
    >>> numpy.load(folder / "out" / "recovered" / "digits.npy").shape
    (2, 1, 28, 28)
    """
    prepared = _Job(job, on_progress)
    with alone(job.out) as notes:
        return prepared.run(notes, words)


class _Job:
    def __init__(self, job: Recovery, on_progress: Progress) -> None:
        self.job, self.on_progress = job, on_progress
        source = job.source
        on_progress(0, 1, "opening")
        self.labels = (
            None if source.labels is None else read_array(Path(source.labels), kinds="ui").reshape(-1).tolist()
        )
        if self.labels:
            source = replace(source, label=self.labels[0], labels=None)
        opened = source.open(job.device)
        self.generator, self.notes = opened.generator, opened.notes
        self.operator = parse_operator(
            job.operator, self.generator.signal_shape, device=self.generator.device, dtype=self.generator.dtype
        )
        check_loss(job, self.operator)
        expected = _expected(job, self.generator, self.operator)
        self.items = open_items(job.inputs, expected, skip=job.skip, without=job.out)
        self._check_labels()
        refuse_losses(job.out, self.items)

    def run(self, notes: tuple[str, ...], words: Words) -> Outcome:
        """Solve every unfinished batch; ``notes`` are for the user."""
        ledger = Ledger(self.job.out, self._identity(), self.items.newer_than)
        folder = self.job.out / SIGNALS
        outputs = Outputs(self.items, folder, ledger.folder, self.generator.signal_shape)
        remove_unfinished(folder)
        total, size = len(self.items), self.job.batch_size
        plan = plan_of(ledger, outputs, total, size)
        used, show = plan.used, set(sampled(total, self.job.pictures))
        outputs.begin(size, plan.done)
        for place, number in enumerate(plan.numbers()):
            self.on_progress(number * size, total, "reading")
            stop = self._stop(used, plan.left - place)
            batch = self._batch(number * size, min(total, (number + 1) * size), stop, show)
            record = batch.to_record(outputs.write(batch.first, batch.signals))
            ledger.write_batch(number, record, batch.images)
            outputs.finish(number)
            used += batch.run["seconds"]
        self.on_progress(total, total, "writing the report")
        remarks = (*self.notes, *notes, *ledger.notes, *self.items.notes, *self.items.changes())
        return write_result(self.job, ledger, total, tuple(map(words.translate, remarks)), words)

    def _batch(self, start: int, stop: int, rule: StopRule, show: Container[int]) -> SolvedBatch:
        """Read and solve the items from ``start`` up to ``stop``; keep the images of those to ``show``."""
        loaded = self.items.read(start, stop)
        solved: list[tuple[list[int], Solved]] = []
        groups = self._groups(start, loaded)
        for left, (rows, generator) in zip(range(len(groups), 0, -1), groups, strict=True):
            numbers = [start + row for row in rows]
            share = rule.share(sum(one.result.seconds for _, one in solved), left)
            solved.append((rows, self._solve(generator, [loaded[row] for row in rows], numbers, share)))
        return SolvedBatch.of(start, loaded, solved, self.operator, show)

    def _groups(self, start: int, loaded: list[Loaded]) -> list[tuple[list[int], Generator]]:
        """Groups of readable items that are solved together: all at once, or class by class."""
        good = [row for row, item in enumerate(loaded) if item.value is not None]
        if self.labels is None or not good:
            return [(good, self.generator)] if good else []
        classes = sorted({self.labels[start + row] for row in good})
        return [
            ([row for row in good if self.labels[start + row] == label], with_label(self.generator, label))
            for label in classes
        ]

    def _solve(self, generator: Generator, loaded: list[Loaded], numbers: list[int], rule: StopRule) -> Solved:
        values = torch.stack([item.value for item in loaded if item.value is not None])
        values = values.to(generator.device, generator.dtype.to_complex() if values.is_complex() else generator.dtype)
        y = self._measurements(values, numbers)
        result = self._solved(
            pose(self.job, generator, self.operator, y),
            solver_named(self.job.solver),
            stop=rule,
            z0=starts(generator, self.job.seed, numbers, self.job.restarts),
            patience=self.job.patience,
            callbacks=[_Reporter(self.on_progress, numbers, len(self.items), rule)],
            progress=False,
        )
        if Status.INTERRUPTED in result.status:
            raise KeyboardInterrupt
        residual = relative_residual(self.operator, result.signal, y)
        noise = expected_noise(self.operator, y, self.job.noise) if self.job.simulate else None
        return Solved(result, y, values if self.job.simulate else None, residual, noise)

    @staticmethod
    def _solved(problem: Problem, *options: Any, **more: Any) -> Result:
        """Solve; if no item of the batch can be solved, return that result and let the job continue."""
        try:
            return solve(problem, *options, **more)
        except Hopeless as found:
            return found.result

    def _measurements(self, values: Tensor, numbers: list[int]) -> Tensor:
        """Simulated from whole signals, or as given."""
        if not self.job.simulate:
            return values
        return simulate(self.operator, values, self.job.noise, self.job.seed, numbers)

    def _stop(self, used: float, left: int) -> StopRule:
        steps = MaxSteps(self.job.most_steps)
        return steps if self.job.time is None else steps | Seconds(self.job.time).share(used, left)

    def _check_labels(self) -> None:
        if self.labels is not None and len(self.labels) != len(self.items):
            raise ValueError(
                f"{self.job.source.labels} holds {len(self.labels)} labels for {len(self.items)} items: give one per item"
            )
        if self.labels is not None:
            check_labels(self.generator, self.labels)

    def _identity(self) -> dict[str, Any]:
        digests = {
            CONTENT + "inputs": self.items.fingerprint(),
            CONTENT + "generator": source_digest(self.job.source.generator, self.job.source.weights, self.generator),
            CONTENT + "operator": digest_of_files(self.job.operator),
            CONTENT + "labels": fingerprint(self.labels),
        }
        return {**self.job.asked(), **digests}


class _Reporter:
    """Callback that reports the progress of the running batch at intervals."""

    def __init__(self, on_progress: Progress, numbers: list[int], total: int, rule: StopRule) -> None:
        self._report, self._numbers, self._total, self._rule = on_progress, numbers, total, rule
        self._last = 0.0

    def __call__(self, view: View) -> None:
        now = time.monotonic()
        if now - self._last < _INTERVAL:
            return
        self._last = now
        count = len(self._numbers)
        done = self._numbers[0] + count * share_done(self._rule, view, count)
        self._report(done, self._total, f"step {view.step}, median objective {view.best_objective.median().item():.3g}")


def _expected(job: Recovery, generator: Generator, operator: Operator) -> Expected:
    """Whole signals if measurements are simulated, otherwise measurements."""
    shape = generator.signal_shape if job.simulate else operator.measurement_shape or generator.signal_shape
    images = len(shape) > 1 and not (operator.complex_measurements and not job.simulate)
    return Expected(
        shape,
        measured=not images and not job.simulate,
        unit_range=generator.signal_range == (0.0, 1.0) and images,
        complex_too=bool(operator.complex_measurements) and not job.simulate,
        resize=job.resize,
        whole=None if job.simulate else generator.signal_shape,
        operator=None if job.simulate else operator,
    )
