"""What the workers of a defence do: read a batch where they can, project its images, classify them before and after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from genprior.defence.projection import Defended, Projection, defend
from genprior.engines import Blind, Place
from genprior.files import Items, Loaded
from genprior.generators import Generator
from genprior.jobs.records import UNREADABLE, SolvedBatch, finite, without_result
from genprior.jobs.settings import Defence
from genprior.jobs.shipment import Shipment, refuse_other_numbers
from genprior.jobs.threads import threads_since
from genprior.jobs.work import Reporter, Task, contents
from genprior.models.foreign import source_digest
from genprior.status import Status
from genprior.stopping import MaxSteps


@dataclass(frozen=True)
class Networks:
    """Generator and classifier of a job, opened."""

    projection: Projection
    classifier: nn.Module
    digests: dict[str, str]
    """Of each network, by its role."""
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, job: Defence, device: str) -> Networks:
        """The classifier fits the generator's signals."""
        opened, named = job.source.open(device), job.classifier
        generator = opened.generator
        classifier = named.open(generator.signal_shape, device)
        digests = {
            "generator": source_digest(job.source.generator, job.source.weights, generator),
            "classifier": source_digest(named.classifier, named.weights, classifier, "classifier"),
        }
        return cls(job.projection(generator), classifier, digests, opened.notes)


@dataclass(frozen=True)
class DefenceWork:
    """A defence as the workers get it; when it is pickled, ``here`` stays behind."""

    job: Defence
    items: Items
    shipment: Shipment
    digests: dict[str, str]
    """Of the networks, as the driver opened them."""
    here: Networks | None = None
    """What the driver has opened, where it solves the batches itself."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "here": None}

    def open(self, place: Place) -> Callable[[Task], SolvedBatch | Blind]:
        """Open generator and classifier, once for all batches."""
        networks = self.here or self._arrived(place.device(self.job.device))
        return Defender(networks, self.items, place).solved

    def _arrived(self, device: str) -> Networks:
        with self.shipment.arrived() as here:
            assert here.classifier is not None, "the driver has sent it"
            networks = Networks.of(replace(self.job, source=here.source, classifier=here.classifier), device)
        for name, wanted in self.digests.items():
            refuse_other_numbers(name, networks.digests[name], wanted)
        return networks


@dataclass(frozen=True)
class Defender:
    """Defends the batches of one worker."""

    networks: Networks
    items: Items
    place: Place

    def solved(self, task: Task) -> SolvedBatch | Blind:
        """Read, project and classify one batch."""
        loaded = contents(task, self.items, self.place)
        if isinstance(loaded, Blind):
            return loaded
        rows = [row for row, item in enumerate(loaded) if item.value is not None]
        unread = SolvedBatch(task.start, tuple(map(_unread, loaded)), (None,) * len(loaded))
        if not rows:
            return unread
        values = torch.stack([value for item in loaded if (value := item.value) is not None])
        images, threads = _within(values, self.networks.projection.generator), torch.get_num_threads()
        found = self._defended(images, [task.start + row for row in rows])
        batch = _filled(unread, rows, images, found, task.show)
        return batch.with_run(batch.run | threads_since(threads))

    def _defended(self, images: Tensor, numbers: list[int]) -> Defended:
        projection = self.networks.projection
        reporter = Reporter(self.place.on_progress, len(numbers), 0, MaxSteps(projection.steps))
        found = defend(self.networks.classifier, projection, images, numbers=numbers, callbacks=[reporter])
        if Status.INTERRUPTED in found.result.status:
            raise KeyboardInterrupt
        return found


def _within(images: Tensor, generator: Generator) -> Tensor:
    """Clamp rounding errors to the generator's range; items further outside were refused."""
    images = images.to(generator.device, generator.dtype)
    return images if generator.signal_range is None else images.clamp(*generator.signal_range)


def _unread(item: Loaded) -> dict[str, Any]:
    return without_result(item.name, UNREADABLE, item.problem)


def _filled(batch: SolvedBatch, rows: list[int], images: Tensor, found: Defended, show: tuple[int, ...]) -> SolvedBatch:
    """The batch with the results of its readable items, which are in these rows."""
    items, signals = list(batch.items), list(batch.signals)
    projected = found.pictures.detach().cpu()
    for place, row in enumerate(rows):
        items[row] = _entry(items[row]["name"], found, place)
        signals[row] = projected[place].clone()  # a view would be sent with all rows
    shown = [place for place, row in enumerate(rows) if batch.first + row in show]
    result = found.result
    return replace(
        batch,
        items=tuple(items),
        signals=tuple(signals),
        shown=tuple(batch.first + rows[place] for place in shown),
        images={"given": images[shown].cpu(), "projected": projected[shown]} if shown else {},
        plan=result.plan,
        run={"seconds": result.seconds, "forwards": result.forwards, "backwards": result.backwards},
    )


def _entry(name: str, found: Defended, place: int) -> dict[str, Any]:
    """One item in plain values; None for numbers that are not finite."""
    sure = {
        "before": finite(float(found.before_confidence[place])),
        "after": finite(float(found.after_confidence[place])),
    }
    return {
        "name": name,
        "status": found.result.status[place].name,
        "before": None if sure["before"] is None else int(found.before[place]),
        "before_confidence": sure["before"],
        "after": None if sure["after"] is None else int(found.after[place]),
        "after_confidence": sure["after"],
        "changed": None if None in sure.values() else bool(found.changed[place]),
        "distance": finite(float(found.distance[place])),
    }
