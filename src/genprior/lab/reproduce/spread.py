"""The parts of a run on the workers of an engine; the driver alone reads and writes the folder."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from genprior.engines import Batches, Crew, Engine, EngineError, Place, Poisoned
from genprior.lab.reproduce.contest import Setting
from genprior.lab.reproduce.parts import Found, Part, Progress, Store
from genprior.lab.workers import use_threads

_GRACE = 300.0
_SLOWER = 10.0
"""A part may take so many times its estimate and this many seconds more; an engine doubles that before it calls it hung."""


@dataclass(frozen=True)
class OnWorkers(Progress):
    """The same on workers: ``part`` is the last one that was handed out, and ``number`` parts are finished."""

    crew: Crew


@dataclass(frozen=True)
class Task:
    """One part, with the results of those that it needs."""

    name: str
    results: dict[str, Found]


@dataclass(frozen=True)
class PartsWork:
    """What the workers do. A part holds functions that cannot be sent: each worker makes all parts from the setting."""

    makers: tuple[Callable[[Setting], list[Part]], ...]
    """Of the experiments."""
    setting: Setting
    settings: dict[str, Any]
    """As the driver records them; ``threads`` is the number with which the workers compute."""
    settings_of: Callable[[Setting], dict[str, Any]]
    """The same on a worker; asked only where it might see other code or other files than the driver."""

    def open(self, place: Place) -> Callable[[Task], Found]:
        """Make the parts."""
        use_threads(self.settings["threads"])
        if not place.visible:
            self._refuse_others()
        setting = replace(self.setting, device=place.device(self.setting.device))
        parts = {part.name: part for make in self.makers for part in make(setting)}

        def run(task: Task) -> Found:
            start = time.perf_counter()
            found = parts[task.name].run(task.results)
            return replace(found, times=found.times | {"part_seconds": round(time.perf_counter() - start, 3)})

        return run

    def _refuse_others(self) -> None:
        here, wanted = (json.loads(json.dumps(one)) for one in (self.settings_of(self.setting), self.settings))
        other = [
            f"{name} is {here.get(name)} there, {value} here"
            for name, value in wanted.items()
            if here.get(name) != value
        ]
        if other:
            raise EngineError(
                f"a worker on {platform.node()} would find other numbers ({'; '.join(other)}): install the same genprior "
                "there, and keep `faces` on a disk that the machines share"
            )


def spread_parts(
    parts: Sequence[Part],
    store: Store,
    work: PartsWork,
    engine: Engine,
    show: Callable[[Progress], object] = lambda progress: None,
) -> dict[str, Found]:
    """All parts, each after those that it needs; those that are in the store are read, not run.

    A worker that is free gets the part with the longest chain of parts behind it, of those that can start. When a worker
    asks and no part can start, an engine lets the others finish and ends them all; the rest of the parts then has new ones,
    which takes the seconds of a start, and some idling before it.
    """
    run = _Spread(parts, store, work, show)
    while run.left:
        run.hand_out(engine)
    return {part.name: run.results[part.name] for part in parts}


class _Spread:
    def __init__(
        self, parts: Sequence[Part], store: Store, work: PartsWork, show: Callable[[Progress], object]
    ) -> None:
        self._parts, self._store, self._work, self._show = parts, store, work, show
        kept = {part.name: store.read(part.name) for part in parts}
        self.results = {name: found for name, found in kept.items() if found is not None}
        chains = chains_of(parts)
        waiting = [number for number, part in enumerate(parts) if part.name not in self.results]
        self._waiting = sorted(waiting, key=lambda number: -chains[parts[number].name])
        """Numbers that were never handed out, the most urgent first."""
        self._last, self._crew = "", Crew("nothing was left to do", 0)
        self._said: object = None
        self._begun, self._fresh = time.monotonic(), 0.0

    @property
    def left(self) -> int:
        """How many parts are not finished."""
        return len(self._parts) - len(self.results)

    def hand_out(self, engine: Engine) -> None:
        """All parts that can start, and those that can when these are finished, as long as no worker asks in vain."""
        before = self.left
        batches: Batches[Task, Found] = Batches(
            self._work, self._ready(), self._task, seconds=self._seconds, watch=self._watch, count=before
        )
        answers = engine.run(batches)
        with closing(answers):
            for number, answer in answers:
                self._keep(self._parts[number], answer)
        assert self.left < before, "every part follows those that it needs"

    def _ready(self) -> Iterator[int]:
        """What can start, at the time it is asked for."""
        while (number := next(filter(self._can_start, self._waiting), None)) is not None:
            self._waiting.remove(number)
            yield number

    def _can_start(self, number: int) -> bool:
        return all(name in self.results for name in self._parts[number].needs)

    def _task(self, number: int, whole: bool) -> Task:
        part = self._parts[number]
        self._last = part.name
        return Task(part.name, {name: self.results[name] for name in part.needs})

    def _seconds(self, number: int) -> float:
        return _GRACE + _SLOWER * self._parts[number].cost

    def _keep(self, part: Part, answer: Found | Poisoned) -> None:
        if isinstance(answer, Poisoned):
            raise EngineError(f"part {part.name} cannot be computed: {answer.reason}; finished parts are kept")
        times = answer.times | {"workers": self._crew.wanted}
        self.results[part.name] = self._store.write(part.name, replace(answer, times=times))
        self._fresh += part.cost
        self._watch(self._crew)

    def _watch(self, crew: Crew) -> None:
        """Report what has changed; an engine calls this twice a second."""
        self._crew = crew
        now = (self.left, crew.alive, crew.deaths)
        if now != self._said:
            self._said = now
            self._show(self._progress())

    def _progress(self) -> OnWorkers:
        left = sum(part.cost for part in self._parts if part.name not in self.results)
        whole = max(sum(part.cost for part in self._parts), 1e-9)
        seconds = (time.monotonic() - self._begun) / self._fresh * left if self._fresh else None
        done, share = len(self.results), 1 - left / whole
        return OnWorkers(self._last, done, len(self._parts), share, seconds, replace(self._crew))


def chains_of(parts: Sequence[Part]) -> dict[str, float]:
    """Estimated seconds from the start of each part to the end of the last one that waits for it."""
    found: dict[str, float] = {}
    for part in reversed(parts):
        found[part.name] = part.cost + found.get(part.name, 0.0)
        for name in part.needs:
            found[name] = max(found.get(name, 0.0), found[part.name])
    return found
