"""The outcome of a race: times and passes to the targets, share solved, speed-ups. Medians over the rounds."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

import torch
from torch import Tensor

from genprior.lab.race.contenders import OURS
from genprior.lab.race.problems import Entry
from genprior.solvers import Choice

ERRORS = (0.05, 0.01)
"""Targets for exact data: median relative error."""
EXCESSES = (1.2, 1.02)
"""Targets for noisy data: median of the objective over the best one found for the image."""


@dataclass(frozen=True)
class Run:
    """One solver, one problem, one round."""

    name: str
    budget: float
    seconds: Tensor
    passes: Tensor
    errors: Tensor
    """``(T, B)``."""
    objectives: Tensor


@dataclass(frozen=True)
class Entrant:
    """A solver with its setting, and whether that lies at the edge of its grid."""

    solver: Choice
    edge: bool = False


@dataclass(frozen=True)
class Standing:
    """One solver on one problem; None if a target was reached in fewer than half of the rounds."""

    solver: str
    settings: str
    edge: bool
    """Whether the setting lies at the edge of its grid."""
    rounds: int
    budget_seconds: float
    seconds: tuple[float | None, float | None]
    """To the loose and to the tight target."""
    passes: tuple[float | None, float | None]
    solved: float
    """Share of images within the loose target at the end."""
    final: float
    """Median error, or median objective over the best, at the end."""


@dataclass(frozen=True)
class ProblemOutcome:
    """One problem."""

    key: str
    title: str
    generator: str
    noisy: bool
    tuning_seconds: float
    standings: tuple[Standing, ...]
    speedups: tuple[float | None, float | None]
    """Of Auto over the fastest tuned baseline, to the loose and to the tight target; None if no solver reached it."""
    kinds: tuple[str, str]
    """``=``, or ``>=`` if no baseline reached the target (its whole time then counts), ``<=`` if only Auto did not."""
    curves: dict[str, tuple[Tensor, Tensor]]
    """Per solver: seconds and the median measure of the first round."""

    def of(self, solver: str) -> Standing:
        """The results of one solver."""
        return next(standing for standing in self.standings if standing.solver == solver)

    def leaders(self) -> list[str]:
        """The baselines that reached a target first, or came nearest if none did: speed-ups depend on them."""
        others = [standing for standing in self.standings if standing.solver not in OURS]
        loose = min(others, key=lambda standing: (_late(standing.seconds[0]), standing.final))
        tight = min(others, key=lambda standing: (_late(standing.seconds[1]), standing.final))
        return list(dict.fromkeys((loose.solver, tight.solver)))


def first_time(times: Tensor, measure: Tensor, target: float) -> float | None:
    """The first time at which the median over the images was at most the target."""
    place = (measure.median(dim=1).values <= target).nonzero()
    return float(times[place[0, 0]]) if len(place) else None


def outcome_of(
    entry: Entry, runs: dict[str, list[Run]], field: dict[str, Entrant], tuning_seconds: float
) -> ProblemOutcome:
    """Combine the rounds of all solvers on one problem."""
    best = torch.stack([run.objectives[-1] for rounds in runs.values() for run in rounds]).amin(dim=0)

    def measure(run: Run) -> Tensor:
        return run.objectives / best.clamp_min(1e-30) if entry.noisy else run.errors

    targets = EXCESSES if entry.noisy else ERRORS
    standings = []
    for name, rounds in runs.items():
        times = [_middle([first_time(run.seconds, measure(run), target) for run in rounds]) for target in targets]
        passes = [_middle([first_time(run.passes, measure(run), target) for run in rounds]) for target in targets]
        ends = torch.stack([measure(run)[-1] for run in rounds])
        standings.append(
            Standing(
                solver=name,
                settings=repr(field[name].solver),
                edge=field[name].edge,
                rounds=len(rounds),
                budget_seconds=min(run.budget for run in rounds),
                seconds=(times[0], times[1]),
                passes=(passes[0], passes[1]),
                solved=float((ends <= targets[0]).float().mean()),
                final=statistics.median(float(end.median()) for end in ends),
            )
        )
    speedups = [_speedup(standings, number) for number in range(2)]
    return ProblemOutcome(
        key=entry.key,
        title=entry.title,
        generator=entry.generator,
        noisy=entry.noisy,
        tuning_seconds=tuning_seconds,
        standings=tuple(standings),
        speedups=(speedups[0][0], speedups[1][0]),
        kinds=(speedups[0][1], speedups[1][1]),
        curves={name: (rounds[0].seconds, measure(rounds[0]).median(dim=1).values) for name, rounds in runs.items()},
    )


def _middle(values: list[float | None]) -> float | None:
    """The lower median, with never as infinity: a target reached in half of the rounds counts as reached."""
    middle = statistics.median_low(_late(value) for value in values)
    return middle if math.isfinite(middle) else None


def _late(value: float | None) -> float:
    return math.inf if value is None else value


def _speedup(standings: list[Standing], number: int) -> tuple[float | None, str]:
    """Of Auto over the fastest baseline to one target, and whether it is exact or a bound."""
    auto = next(s for s in standings if s.solver == "Auto")
    ours = auto.seconds[number]
    others = [s for s in standings if s.solver not in OURS]
    reached = [time for s in others if (time := s.seconds[number]) is not None]
    if ours is None:
        return (min(reached) / auto.budget_seconds, "<=") if reached else (None, "=")
    if reached:
        return min(reached) / ours, "="
    return min(s.budget_seconds for s in others) / ours, ">="


def geometric_mean(values: list[float]) -> float | None:
    """Of positive numbers; None if there are none."""
    return math.exp(statistics.fmean(math.log(value) for value in values)) if values else None
