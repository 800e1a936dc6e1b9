"""Running the race: tune on other pictures, then run everybody from the same starts, in turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from genprior import _validate
from genprior.experiments.race.contenders import OURS, grids
from genprior.experiments.race.outcome import ProblemOutcome, Run, first_time, outcome_of
from genprior.experiments.race.problems import ENTRIES, Entry, Instance, instance
from genprior.experiments.trace import ErrorRecorder
from genprior.generators import Generator
from genprior.networks.bundled import has_bundled, load_generator
from genprior.solve import solve
from genprior.solvers import Adam, Solver
from genprior.stopping import MaxSteps, Seconds

_NEVER = 10**9
_MARGIN = 4.0
"""Baselines get at least this many times the time that Auto needs to the tight target."""


@dataclass(frozen=True)
class Budget:
    """Pictures and seconds."""

    pictures: int
    tuning_pictures: int
    tuning_seconds: float
    """Per setting."""
    seconds: float
    """For ours and, at least, for everybody."""
    most_seconds: float
    """For anybody."""


FULL = {"mnist": Budget(20, 10, 1.5, 6.0, 16.0), "celeba": Budget(10, 4, 3.0, 12.0, 24.0)}
QUICK = {"mnist": Budget(8, 4, 0.3, 1.2, 2.0), "celeba": Budget(2, 2, 0.6, 2.0, 2.5)}


@dataclass(frozen=True)
class Race:
    """All that was measured."""

    problems: tuple[ProblemOutcome, ...]
    repeats: int
    quick: bool
    threads: int


def run_race(
    *,
    keys: str = "abcdefgh",
    repeats: int = 2,
    quick: bool = False,
    seed: int = 0,
    device: str = "cpu",
    announce: Callable[[str], object] = lambda text: None,
) -> Race:
    """Tune, then race, one problem after the other; problems whose generator is not bundled are left out."""
    _validate.whole("repeats", repeats)
    entries = [entry for entry in ENTRIES if entry.key in keys and has_bundled(entry.generator, "generator")]
    if not entries:
        raise ValueError(f"problems must be some of {''.join(e.key for e in ENTRIES)}, got {keys!r}")
    outcomes = []
    for entry in entries:
        generator = load_generator(entry.generator, device=device)
        budget = (QUICK if quick else FULL)[entry.generator]
        outcomes.append(_one_problem(entry, generator, budget, repeats, quick, seed, announce))
    return Race(tuple(outcomes), repeats, quick, torch.get_num_threads())


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
    field = _tuned(practice, budget, quick, announce) | {name: make() for name, make in OURS.items()}
    contest = instance(entry, generator, budget.pictures, seed)
    runs: dict[str, list[Run]] = {name: [] for name in field}
    longest = budget.seconds
    for repeat in range(repeats):
        for name in ("Auto", *(other for other in field if other != "Auto")):
            announce(f"{entry.key}: {name}, round {repeat + 1} of {repeats}")
            seconds = budget.seconds if name in OURS else longest
            runs[name].append(run_one(contest, name, field[name], seconds))
            if name == "Auto":
                longest = _allowance(entry, runs[name], budget)
    return outcome_of(entry, runs, {name: repr(solver) for name, solver in field.items()}, budget.tuning_seconds)


def _tuned(practice: Instance, budget: Budget, quick: bool, announce: Callable[[str], object]) -> dict[str, Solver]:
    """Of each grid the setting with the lowest median objective at the end of the tuning time."""
    best: dict[str, Solver] = {}
    for name, choices in grids(quick=quick).items():
        scores = []
        for number, solver in enumerate(choices):
            announce(f"{practice.entry.key}: tuning {name}, {number + 1} of {len(choices)}")
            run = run_one(practice, name, solver, budget.tuning_seconds)
            scores.append(float(torch.nan_to_num(run.objectives[-1], nan=torch.inf).median()))
        best[name] = choices[scores.index(min(scores))]
    return best


def _allowance(entry: Entry, runs: list[Run], budget: Budget) -> float:
    """How long the others may run, from what Auto needed."""
    needed = budget.seconds
    if not entry.noisy:
        tight = [first_time(run.seconds, run.errors, 0.01) for run in runs]
        reached = [time for time in tight if time is not None]
        needed = max(reached) if reached else budget.seconds
    return min(budget.most_seconds, max(budget.seconds, _MARGIN * needed))


def run_one(contest: Instance, name: str, solver: Solver, seconds: float) -> Run:
    """One solver on one problem. What a generator remembers is forgotten first: everybody pays for what they use."""
    contest.problem.generator.forget()
    record = ErrorRecorder(contest.truth)
    result = solve(
        contest.problem,
        solver,
        stop=Seconds(seconds),
        z0=contest.starts,
        patience=_NEVER,
        callbacks=[record],
        progress=False,
    )
    trace = record.trace(result)
    return Run(name, seconds, trace.seconds, trace.passes, trace.errors, _finite(trace.objectives))


def _finite(values: Tensor) -> Tensor:
    return torch.where(values.isnan(), torch.inf, values)
