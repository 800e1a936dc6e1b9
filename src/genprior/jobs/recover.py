"""Recovery of files: batches are handed out, and what comes back is written and recorded; resumable at any point."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from genprior._files import remove_unfinished
from genprior._fingerprint import fingerprint
from genprior.assessment import JOB, Words
from genprior.engines import Engine, Serial
from genprior.files import Outputs, open_items
from genprior.files.expected import Expected
from genprior.files.single import read_array
from genprior.generators import Generator
from genprior.jobs.course import Begin, Course, Progress
from genprior.jobs.forward import ForwardModel
from genprior.jobs.ledger import CONTENT, Ledger, alone
from genprior.jobs.outcome import Outcome
from genprior.jobs.posed import basis_of, check_loss
from genprior.jobs.results import write_result
from genprior.jobs.resume import SIGNALS, plan_of, refuse_losses
from genprior.jobs.settings import Recovery
from genprior.jobs.shipment import Shipment, digest_of
from genprior.jobs.work import Model, RecoveryWork
from genprior.models.foreign import source_digest
from genprior.models.labels import check_labels
from genprior.operators import Operator
from genprior.operators.parse import digest_of_files


def recover(
    job: Recovery,
    on_progress: Progress = lambda done, total, note: None,
    *,
    words: Words = JOB,
    engine: Engine | None = None,
    on_begin: Begin = lambda generator, threads: None,
) -> Outcome:
    """Recover every item of the inputs; write the signals, ``result.json`` and ``report.html`` into ``job.out``.

    Batches that an earlier run of the same job finished are not repeated. Raises ``KeyboardInterrupt`` after Ctrl-C; the same
    call then resumes after the finished batches, on whatever engine. ``words`` are the names of the options in advice.

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
    prepared = Driver(job, on_progress, engine)
    with alone(job.out) as notes:
        return prepared.run(notes, words, on_begin)


class Driver:
    """The driver's side: it alone opens the output folder, writes and records."""

    def __init__(self, job: Recovery, on_progress: Progress, engine: Engine | None) -> None:
        self.job, self.on_progress, self.engine = job, on_progress, Serial() if engine is None else engine
        on_progress(0, 1, "opening")
        self.labels = _labels(job)
        self.source = replace(job.source, label=self.labels[0], labels=None) if self.labels else job.source
        opened = self.source.open(job.device if isinstance(self.engine, Serial) else "cpu")
        self.model, self.notes = Model.of(opened.generator, job.operator, job.start, job.forward), opened.notes
        check_loss(job, self.model.operator)
        basis_of(job, self.model.generator)  # refuses one that does not fit
        expected = _expected(job, self.model.generator, self.model.operator)
        self.items = open_items(job.inputs, expected, skip=job.skip, without=job.out)
        self._check_labels()
        refuse_losses(job.out, self.items)
        self.digest = source_digest(job.source.generator, job.source.weights, self.model.generator)

    def run(self, notes: tuple[str, ...], words: Words, on_begin: Begin) -> Outcome:
        """Have every unfinished batch solved; ``notes`` are for the user."""
        ledger = Ledger(self.job.out, self.identity(), self.items.newer_than)
        folder = self.job.out / SIGNALS
        outputs = Outputs(self.items, folder, ledger.folder, self.model.generator.signal_shape)
        remove_unfinished(folder)
        plan = plan_of(ledger, outputs, len(self.items), self.job.batch_size)
        outputs.begin(self.job.batch_size, plan.done)
        course = Course(self.job, self.items, plan, self.engine, self.on_progress)
        for number, batch in course.solved(self.work(), self.model.generator, on_begin):
            record = batch.to_record(outputs.write(batch.first, batch.signals))
            record["run"] = course.facts() | record["run"]  # the batch of a shard brings its own
            ledger.write_batch(number, record, batch.images)
            outputs.finish(number)
        self.on_progress(len(self.items), len(self.items), "writing the report")
        remarks = (*self.notes, *notes, *course.crew.notes, *ledger.notes, *self.items.notes, *self.items.changes())
        return write_result(self.job, ledger, len(self.items), tuple(map(words.translate, remarks)), words)

    def work(self) -> RecoveryWork:
        """What the workers do."""
        job, whole = self.job, not self.engine.here
        shipment = Shipment.of(self.source, job.operator, start=job.start, forward=job.forward, whole=whole)
        return RecoveryWork(self.job, self.items, self.labels, shipment, self.digest, here=self.model)

    def _check_labels(self) -> None:
        if self.labels is not None and len(self.labels) != len(self.items):
            raise ValueError(
                f"{self.job.source.labels} holds {len(self.labels)} labels for {len(self.items)} items: give one per item"
            )
        if self.labels is not None:
            check_labels(self.model.generator, list(self.labels))

    def identity(self) -> dict[str, Any]:
        """All that makes the job what it is, in plain values."""
        digests = {
            CONTENT + "inputs": self.items.fingerprint(),
            CONTENT + "generator": self.digest,
            CONTENT + "operator": digest_of_files(self.job.operator),
            CONTENT + "start": digest_of(self.job.start),
            CONTENT + "forward": "" if self.job.forward is None else source_digest(self.job.forward),
            CONTENT + "labels": fingerprint(None if self.labels is None else list(self.labels)),
        }
        return {**self.job.asked(), **digests}


def _labels(job: Recovery) -> tuple[int, ...] | None:
    """One class per item, where they were given."""
    if job.source.labels is None:
        return None
    return tuple(read_array(Path(job.source.labels), kinds="ui").reshape(-1).tolist())


def _expected(job: Recovery, generator: Generator, operator: Operator) -> Expected:
    """Whole signals if measurements are simulated, otherwise measurements."""
    shape = generator.signal_shape if job.simulate else operator.measurement_shape or generator.signal_shape
    own = isinstance(operator, ForwardModel)  # of which nothing is known, such as the size of its measurements
    images = len(shape) > 1 and not (operator.complex_measurements and not job.simulate)
    return Expected(
        shape,
        measured=not images and not job.simulate,
        unit_range=generator.signal_range == (0.0, 1.0) and images and (job.simulate or not own),
        complex_too=bool(operator.complex_measurements) and not job.simulate,
        resize=job.resize,
        whole=None if job.simulate else generator.signal_shape,
        operator=None if job.simulate or own else operator,
    )
