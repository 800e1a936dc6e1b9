"""The batches of a run on the workers of an engine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

import torch

from genprior.engines import Batches, Crew, Engine, EngineError, Place, Poisoned
from genprior.generators import Preconditioner, ScaledIdentity
from genprior.loop.finished import Finished
from genprior.solvers.base import S
from genprior.stopping import StopRule

if TYPE_CHECKING:
    from genprior.loop.run import Run


@dataclass(frozen=True)
class Share:
    """One batch: the number of its first item, and its part of the limits."""

    first: int
    stop: StopRule


@dataclass(frozen=True)
class RunWork(Generic[S]):
    """What the workers do; the run must not watch, nor be watched."""

    run: Run[S]

    def open(self, place: Place) -> Callable[[Share], Finished]:
        """Solve one batch after the other; a worker estimates the preconditioner once, as a run does."""
        known: list[Preconditioner | ScaledIdentity | None] = [None]

        def solve(share: Share) -> Finished:
            with torch.inference_mode(False), torch.no_grad():
                batch, _ = self.run.solved(share.first, share.stop, known[0])
            known[0] = batch.passes.preconditioner
            return batch.finished()

        return solve


class Spread(Generic[S]):
    """Hands out the batches that begin at the items ``ahead``, and takes the finished ones in their order."""

    def __init__(self, run: Run[S], engine: Engine, ahead: range) -> None:
        self._run, self._engine, self._ahead = run, engine, ahead
        self._early: dict[int, Finished] = {}
        """Finished before a batch that precedes them."""
        self._given: set[int] = set()
        self._begun: float | None = None
        self._limit = math.inf
        self._crew = Crew("", engine.size)

    def take(self) -> None:
        """Until all are finished; after Ctrl-C the batches that are not finished end at their starts."""
        waiting = list(reversed(self._ahead))
        batches: Batches[Share, Finished] = Batches(
            RunWork(self._run.unwatched()), self._ahead, self._share, seconds=self._seconds, watch=self._changed
        )
        try:
            answers = self._engine.run(batches)
            with closing(answers):
                for first, answer in answers:
                    if isinstance(answer, Poisoned):
                        raise EngineError(f"the batch from item {first} on cannot be solved: {answer.reason}")
                    self._early[first] = answer
                    while waiting and waiting[-1] in self._early:
                        self._run.done.append(self._early.pop(waiting.pop()))
                        self._run.keeper.write(self._run.done, None)
                    self._run.bar.batch_done(len(answer.restart))
        except KeyboardInterrupt:
            while waiting:
                first = waiting.pop()
                early = self._early.pop(first) if first in self._early else self._unfinished(first)
                self._run.done.append(early)

    def _share(self, first: int, whole: bool) -> Share:
        """A part of the time that is left by the clock on the wall, since several batches run at a time."""
        now = time.monotonic()
        self._begun = now if self._begun is None else self._begun
        left = len(self._ahead) - len(self._given - {first})
        self._given.add(first)
        used = self._run.seconds + now - self._begun
        stop = self._run.options.stop.share(used, left / min(self._crew.at_once, left))
        self._limit = stop.limits()[0]
        return Share(first, stop)

    def _seconds(self, first: int) -> float | None:
        """The time limit of the batch that was just handed out."""
        return self._limit if math.isfinite(self._limit) else None

    def _changed(self, crew: Crew) -> None:
        self._crew = crew

    def _unfinished(self, first: int) -> Finished:
        batch = self._run.batch(first, self._run.options.stop, None)
        batch.end()
        return batch.finished()
