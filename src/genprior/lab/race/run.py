"""Runs the race: tune on other images, then run all solvers from the same starts, in turns."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import torch
from torch import Tensor

from genprior import _validate
from genprior.engines import Batches, Crew, Engine, EngineError, Place, Poisoned, Serial
from genprior.generators import Generator
from genprior.lab.race.contenders import OURS, at_edge, grids
from genprior.lab.race.outcome import Entrant, ProblemOutcome, Run, outcome_of
from genprior.lab.race.problems import ENTRIES, Entry, Instance, instance
from genprior.lab.trace import ErrorRecorder
from genprior.lab.workers import crew_in_words, threads_of, use_threads
from genprior.loop.solve import solve
from genprior.models.bundled import has_bundled, load_generator
from genprior.solvers import Adam, Choice
from genprior.stopping import MaxSteps, Seconds

_NEVER = 10**9
_TIGHT = 1e-6
"""Runs use their whole budget, without early stopping."""
_FINALISTS = 2
"""Settings of a baseline that enter the second, longer tuning run."""


@dataclass(frozen=True)
class Budget:
    """Images and seconds."""

    pictures: int
    tuning_pictures: int
    first_look: float
    """Seconds for every setting of a baseline."""
    second_look: float
    """For the best of them."""
    seconds: float
    """For Auto and for every baseline."""
    preset_seconds: float
    """For the ADMM presets."""


FULL = {"mnist": Budget(20, 10, 0.75, 3.0, 18.0, 18.0), "celeba": Budget(10, 4, 1.5, 6.0, 20.0, 20.0)}
QUICK = {"mnist": Budget(8, 4, 0.1, 0.3, 2.0, 1.2), "celeba": Budget(2, 2, 0.2, 0.6, 2.5, 2.0)}


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
            generator = load_generator(entry.generator, device=device)
            return _one_problem(entry, generator, heat.budget, self.repeats, self.quick, self.seed, announce)

        return race


def run_race(
    *,
    keys: str = "abcdefgh",
    repeats: int = 2,
    quick: bool = False,
    seed: int = 0,
    device: str = "cpu",
    announce: Callable[[str], object] = lambda text: None,
    engine: Engine | None = None,
) -> Race:
    """Tune, then race, one problem after the other; problems whose generator is not bundled are left out.

    With an engine, as many problems at a time as it has workers, in any order; workers on one machine share its memory
    bandwidth and clock rate, so that all times are longer than on an idle one.
    """
    _validate.whole("repeats", repeats)
    entries = [entry for entry in ENTRIES if entry.key in keys and has_bundled(entry.generator, "generator")]
    if not entries:
        raise ValueError(f"problems must be some of {''.join(e.key for e in ENTRIES)}, got {keys!r}")
    budgets = QUICK if quick else FULL
    heats = [Heat(entry.key, budgets[entry.generator]) for entry in entries]
    work = RaceWork(repeats, quick, seed, device, threads_of(engine))
    report = _Report(announce, len(heats))
    outcomes = _raced(heats, work, Serial() if engine is None else engine, report)
    return Race(outcomes, repeats, quick, work.threads, report.workers)


def _raced(heats: list[Heat], work: RaceWork, engine: Engine, report: _Report) -> tuple[ProblemOutcome, ...]:
    """In the order of the heats."""
    batches: Batches[Heat, ProblemOutcome] = Batches(
        work,
        range(len(heats)),
        lambda number, whole: heats[number],
        watch=(lambda crew: None) if isinstance(engine, Serial) else report.watch,
        on_progress=lambda done, text: report.announce(text),
    )
    found: dict[int, ProblemOutcome] = {}
    answers = engine.run(batches)
    with closing(answers):
        for number, answer in answers:
            if isinstance(answer, Poisoned):
                raise EngineError(f"problem {heats[number].key} of the race cannot be solved: {answer.reason}")
            found[number] = answer
            report.finished = len(found)
    return tuple(found[number] for number in range(len(heats)))


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
    practice = instance(entry, generator, budget.tuning_pictures, seed + 1)
    solve(practice.problem, Adam(), stop=MaxSteps(3), progress=False)  # the first passes of a process are slow
    field = _tuned(practice, budget, quick, announce) | {name: Entrant(make()) for name, make in OURS.items()}
    contest = instance(entry, generator, budget.pictures, seed)
    solve(contest.problem, Adam(), stop=MaxSteps(1), progress=False)  # factorise A outside of any timing
    runs: dict[str, list[Run]] = {name: [] for name in field}
    names = ["Auto", *(other for other in field if other != "Auto")]
    for repeat in range(repeats):
        for name in names:
            announce(f"{entry.key}: {name}, round {repeat + 1} of {repeats}")
            seconds = budget.preset_seconds if name in OURS and name != "Auto" else budget.seconds
            runs[name].append(run_one(contest, name, field[name].solver, seconds))
        found = outcome_of(entry, runs, field, budget.second_look)
        names = ["Auto", *found.leaders()]
    return found


def _tuned(practice: Instance, budget: Budget, quick: bool, announce: Callable[[str], object]) -> dict[str, Entrant]:
    """The best setting of each grid by median objective: a short run of all, then a longer one of the best."""
    best: dict[str, Entrant] = {}
    for name, choices in grids(quick=quick).items():
        announce(f"{practice.entry.key}: tuning {name}, {len(choices)} settings")
        finalists = _ranked(practice, name, choices, budget.first_look)[:_FINALISTS]
        chosen = _ranked(practice, name, finalists, budget.second_look)[0]
        best[name] = Entrant(chosen, at_edge(chosen, choices))
    return best


def _ranked(practice: Instance, name: str, choices: list[Choice], seconds: float) -> list[Choice]:
    """The settings, from the lowest median objective after so many seconds to the highest."""
    ends = [run_one(practice, name, solver, seconds).objectives[-1] for solver in choices]
    scores = [float(torch.nan_to_num(end, nan=torch.inf).median()) for end in ends]
    return [choices[number] for number in sorted(range(len(choices)), key=scores.__getitem__)]


def run_one(contest: Instance, name: str, solver: Choice, seconds: float) -> Run:
    """One solver on one problem. Cached estimates are dropped first; a bundled preconditioner stays."""
    contest.problem.generator.forget()
    record = ErrorRecorder(contest.truth)
    result = solve(
        contest.problem,
        solver,
        stop=Seconds(seconds),
        z0=contest.starts,
        tolerance=_TIGHT,
        patience=_NEVER,
        callbacks=[record],
        progress=False,
    )
    trace = record.trace(result)
    return Run(name, seconds, trace.seconds, trace.passes, trace.errors, _finite(trace.objectives))


def _finite(values: Tensor) -> Tensor:
    return torch.where(values.isnan(), torch.inf, values)
