"""Runs the race: tune on other images, then run all solvers in turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from genprior import _validate
from genprior.engines import Batches, Crew, Engine, EngineError, Place, Poisoned, Serial
from genprior.generators import Generator
from genprior.lab.race.budgets import FULL, QUICK, Budget
from genprior.lab.race.contenders import OURS, untuned
from genprior.lab.race.kept import Kept
from genprior.lab.race.outcome import ProblemOutcome, Run, outcome_of
from genprior.lab.race.problems import ENTRIES, Entry, instance
from genprior.lab.race.sources import missing, needs_archive, open_generator
from genprior.lab.race.tuning import Tuning, run_one
from genprior.lab.workers import crew_in_words, threads_of, use_threads
from genprior.loop.solve import solve
from genprior.solvers import Adam
from genprior.stopping import MaxSteps


@dataclass(frozen=True)
class Race:
    """All measurements."""

    problems: tuple[ProblemOutcome, ...]
    repeats: int
    quick: bool
    threads: int
    """Of the process in which a problem was raced."""
    workers: int = 1
    """Problems that were raced at a time; 1 without workers, too."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Why a problem was left out, and what to do, by its letter."""


@dataclass(frozen=True)
class Heat:
    """One problem of the race, with its budget."""

    key: str
    budget: Budget


@dataclass(frozen=True)
class RaceWork:
    """Whole problems: their solvers take turns in one process, so that ratios of their times stay fair."""

    repeats: int
    quick: bool
    seed: int
    device: str
    threads: int

    def open(self, place: Place) -> Callable[[Heat], ProblemOutcome]:
        """Each heat loads its generator."""
        use_threads(self.threads)
        device = place.device(self.device)

        def announce(text: str) -> None:
            place.on_progress(0.0, text)

        def race(heat: Heat) -> ProblemOutcome:
            entry = next(entry for entry in ENTRIES if entry.key == heat.key)
            generator = open_generator(entry.generator, device)
            return _one_problem(entry, generator, heat.budget, self.repeats, self.quick, self.seed, announce)

        return race


def run_race(
    *,
    keys: str | None = None,
    repeats: int = 2,
    quick: bool = False,
    seed: int = 0,
    device: str = "cpu",
    download: bool = False,
    keep: Path | None = None,
    announce: Callable[[str], object] = lambda text: None,
    engine: Engine | None = None,
) -> Race:
    """Tune, then race, one problem after the other; problems without their generator are left out, with the reason.

    ``keys`` are letters of problems: all by default, a quick race without those on third-party generators. ``download``
    fetches the packages of these. The folder ``keep`` gets the outcome of every finished problem, which the same code with
    the same options does not race again. With an engine, as many problems at a time as it has workers, in any order;
    workers on one machine share its memory bandwidth and clock rate, so that all times are longer than on an idle one.
    """
    _validate.whole("repeats", repeats)
    entries, skipped = _chosen(keys, quick=quick, download=download, announce=announce)
    budgets = QUICK if quick else FULL
    heats = [Heat(entry.key, budgets[entry.generator]) for entry in entries]
    work = RaceWork(repeats, quick, seed, device, threads_of(engine))
    kept = None if keep is None else Kept(keep)
    known = {} if kept is None else {heat: kept.read(heat.key, _identity(heat, work)) for heat in heats}
    done = {heat: outcome for heat, outcome in known.items() if outcome is not None}
    report = _Report(announce, len(heats), len(done))

    def finished(heat: Heat, outcome: ProblemOutcome) -> None:
        done[heat] = outcome
        report.finished = len(done)
        if kept is not None:
            kept.write(outcome, _identity(heat, work))

    left = [heat for heat in heats if heat not in done]
    if left:
        _raced(left, work, Serial() if engine is None else engine, report, finished)
    return Race(tuple(done[heat] for heat in heats), repeats, quick, work.threads, report.workers, skipped)


def _chosen(
    keys: str | None, *, quick: bool, download: bool, announce: Callable[[str], object]
) -> tuple[list[Entry], dict[str, str]]:
    """The problems that can be raced, and why others of those that were asked for cannot."""
    asked = [e for e in ENTRIES if (e.key in keys if keys is not None else not (quick and needs_archive(e.generator)))]
    reasons = {e.key: missing(e.generator, download=download, announce=announce) for e in asked}
    skipped = {key: reason for key, reason in reasons.items() if reason}
    if not asked:
        raise ValueError(f"problems must be some of {''.join(e.key for e in ENTRIES)}, got {keys!r}")
    if len(skipped) == len(asked):
        raise ValueError("; ".join(f"problem {key} is left out: {reason}" for key, reason in skipped.items()))
    return [entry for entry in asked if entry.key not in skipped], skipped


def _identity(heat: Heat, work: RaceWork) -> dict[str, object]:
    """What an outcome depends on, besides the code."""
    return {"key": heat.key, "budget": vars(heat.budget), **vars(work)}


def _raced(
    heats: list[Heat],
    work: RaceWork,
    engine: Engine,
    report: _Report,
    finished: Callable[[Heat, ProblemOutcome], object],
) -> None:
    """All of them, as the engine answers."""
    batches: Batches[Heat, ProblemOutcome] = Batches(
        work,
        range(len(heats)),
        lambda number, whole: heats[number],
        watch=(lambda crew: None) if isinstance(engine, Serial) else report.watch,
        on_progress=lambda done, text: report.announce(text),
    )
    answers = engine.run(batches)
    with closing(answers):
        for number, answer in answers:
            if isinstance(answer, Poisoned):
                raise EngineError(f"problem {heats[number].key} of the race cannot be solved: {answer.reason}")
            finished(heats[number], answer)


@dataclass
class _Report:
    """Announces how far a race on workers is, whenever that has changed."""

    announce: Callable[[str], object]
    count: int
    finished: int = 0
    workers: int = 1
    last: str = ""

    def watch(self, crew: Crew) -> None:
        """An engine calls this twice a second."""
        self.workers = crew.wanted
        text = f"{self.finished} of {self.count} problems, {crew_in_words(crew)}"
        if text != self.last:
            self.last = text
            self.announce(text)


def _one_problem(
    entry: Entry,
    generator: Generator,
    budget: Budget,
    repeats: int,
    quick: bool,
    seed: int,
    announce: Callable[[str], object],
) -> ProblemOutcome:
    began = time.perf_counter()
    practice = instance(entry, generator, budget.tuning_images, seed + 1)
    announce(f"{entry.key}: tuning")
    field = Tuning.begun(practice, budget, quick=quick).field(announce) | untuned()
    contest = instance(entry, generator, budget.images, seed)
    solve(
        contest.problem, Adam(), stop=MaxSteps(1), z0=contest.starts, progress=False
    )  # factorise A outside of any timing
    tuning_seconds = time.perf_counter() - began
    runs: dict[str, list[Run]] = {name: [] for name in field}
    names = [OURS[0], *(other for other in field if other != OURS[0])]
    for repeat in range(repeats):
        for name in names:
            announce(f"{entry.key}: {name}, round {repeat + 1} of {repeats}")
            entrant = field[name]
            long = name == OURS[0] or entrant.role == "baseline"
            seconds = budget.seconds if long else budget.other_seconds
            runs[name].append(run_one(contest, name, entrant.method, seconds))
        found = outcome_of(entry, runs, field, tuning_seconds)
        names = [OURS[0], *found.leaders()]
    return found
