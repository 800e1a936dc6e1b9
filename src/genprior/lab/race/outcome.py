"""The outcome of a race: times and passes until most images are solved, share solved, speed-ups. Medians over the rounds."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

import torch
from torch import Tensor

from genprior.lab.race.contenders import OURS, Entrant, Role
from genprior.lab.race.problems import ERRORS, EXCESSES, Entry
from genprior.lab.trace import Trace

MOST = 0.9
"""Share of the images that must be within a target."""


@dataclass(frozen=True)
class Run:
    """One solver, one problem, one round."""

    name: str
    budget: float
    seconds: Tensor
    passes: Tensor
    errors: Tensor
    """``(T, B)``: of each image's answer so far."""
    objectives: Tensor

    @classmethod
    def of(cls, name: str, budget: float, trace: Trace) -> Run:
        """From what was recorded; NaN counts as infinite."""
        errors, objectives = (
            torch.where(values.isnan(), torch.inf, values) for values in (trace.errors, trace.objectives)
        )
        return cls(name, budget, trace.seconds, trace.passes, errors, objectives)

    def measure(self, entry: Entry, best: Tensor) -> Tensor:
        """What images are judged by, ``(T, B)``: the error, or the objective over the best one known."""
        return self.objectives / best.clamp_min(1e-30) if entry.noisy else self.errors


@dataclass(frozen=True)
class Standing:
    """One solver on one problem; None if a target was reached in fewer than half of the rounds."""

    solver: str
    settings: str
    edge: bool
    """Whether a setting of the solver lies at the edge of its grid."""
    rounds: int
    budget_seconds: float
    seconds: tuple[float | None, float | None]
    """Until 90% of the images were within the loose, within the tight target."""
    passes: tuple[float | None, float | None]
    solved: float
    """Share of images within the loose target at the end."""
    final: float
    """Median error, or median objective over the best, at the end."""
    role: Role = "baseline"
    starts: int | None = None
    """Of an image; None where the solver chooses it."""
    most_starts: bool = False
    """Whether the number of starts is the largest that was tried."""
    solved_tight: float = 0.0
    ended: float = 0.0
    """Seconds after which the run ended, by itself or because nothing was left to be measured."""


@dataclass(frozen=True)
class ProblemOutcome:
    """One problem."""

    key: str
    title: str
    generator: str
    noisy: bool
    determined: bool
    images: int
    tuning_seconds: float
    standings: tuple[Standing, ...]
    speedups: tuple[float | None, float | None]
    """Of Auto over the fastest tuned baseline, to the loose and to the tight target; None if no solver reached it."""
    kinds: tuple[str, str]
    """``=``, or ``>=`` if no baseline reached the target (its whole time then counts), ``<=`` if only Auto did not."""
    curves: dict[str, tuple[Tensor, Tensor]]
    """Per solver: seconds and the measure that 90% of the images are within, in the first round."""

    def of(self, solver: str) -> Standing:
        """The results of one solver."""
        return next(standing for standing in self.standings if standing.solver == solver)

    def leaders(self) -> list[str]:
        """The baselines that reached a target first, or came nearest if none did: speed-ups depend on them."""
        others = [standing for standing in self.standings if standing.role == "baseline"]
        loose = min(others, key=lambda standing: (_late(standing.seconds[0]), -standing.solved, standing.final))
        tight = min(others, key=lambda standing: (_late(standing.seconds[1]), -standing.solved_tight, standing.final))
        return list(dict.fromkeys((loose.solver, tight.solver)))


def most_within(measure: Tensor) -> Tensor:
    """The smallest value that 90% of the images are within, ``(T,)``."""
    needed = math.ceil(MOST * measure.shape[1] - 1e-9)
    return measure.sort(dim=1).values[:, needed - 1]


def first_time(times: Tensor, measure: Tensor, target: float) -> float | None:
    """The first time at which 90% of the images were within the target."""
    place = (most_within(measure) <= target).nonzero()
    return float(times[place[0, 0]]) if len(place) else None


def outcome_of(
    entry: Entry, runs: dict[str, list[Run]], field: dict[str, Entrant], tuning_seconds: float
) -> ProblemOutcome:
    """Combine the rounds of all solvers on one problem."""
    best = torch.stack([run.objectives[-1] for rounds in runs.values() for run in rounds]).amin(dim=0)
    standings = [_standing(entry, name, rounds, field[name], best) for name, rounds in runs.items()]
    speedups = [_speedup(standings, number) for number in range(2)]
    return ProblemOutcome(
        key=entry.key,
        title=entry.title,
        generator=entry.generator,
        noisy=entry.noisy,
        determined=entry.determined,
        images=len(best),
        tuning_seconds=tuning_seconds,
        standings=tuple(standings),
        speedups=(speedups[0][0], speedups[1][0]),
        kinds=(speedups[0][1], speedups[1][1]),
        curves={
            name: (rounds[0].seconds, most_within(rounds[0].measure(entry, best))) for name, rounds in runs.items()
        },
    )


def _standing(entry: Entry, name: str, rounds: list[Run], entrant: Entrant, best: Tensor) -> Standing:
    targets = EXCESSES if entry.noisy else ERRORS
    measures = [run.measure(entry, best) for run in rounds]

    def reached(times: list[Tensor], target: float) -> float | None:
        return _middle([first_time(time, one, target) for time, one in zip(times, measures, strict=True)])

    seconds = [reached([run.seconds for run in rounds], target) for target in targets]
    passes = [reached([run.passes for run in rounds], target) for target in targets]
    ends = torch.stack([measure[-1] for measure in measures])
    shares = [float((ends <= target).float().mean()) for target in targets]
    return Standing(
        solver=name,
        settings=entrant.method.settings,
        edge=entrant.edge,
        rounds=len(rounds),
        budget_seconds=min(run.budget for run in rounds),
        seconds=(seconds[0], seconds[1]),
        passes=(passes[0], passes[1]),
        solved=shares[0],
        final=statistics.median(float(end.median()) for end in ends),
        role=entrant.role,
        starts=entrant.starts,
        most_starts=entrant.most_starts,
        solved_tight=shares[1],
        ended=statistics.median(float(run.seconds[-1]) for run in rounds),
    )


def _middle(values: list[float | None]) -> float | None:
    """The lower median, with never as infinity: a target reached in half of the rounds counts as reached."""
    middle = statistics.median_low(_late(value) for value in values)
    return middle if math.isfinite(middle) else None


def _late(value: float | None) -> float:
    return math.inf if value is None else value


def _speedup(standings: list[Standing], number: int) -> tuple[float | None, str]:
    """Of Auto over the fastest baseline to one target, and whether it is exact or a bound."""
    auto = next(s for s in standings if s.solver == OURS[0])
    ours = auto.seconds[number]
    others = [s for s in standings if s.role == "baseline"]
    reached = [time for s in others if (time := s.seconds[number]) is not None]
    if ours is None:
        return (min(reached) / auto.budget_seconds, "<=") if reached else (None, "=")
    if reached:
        return min(reached) / ours, "="
    return min(s.budget_seconds for s in others) / ours, ">="


def geometric_mean(values: list[float]) -> float | None:
    """Of positive numbers; None if there are none."""
    return math.exp(statistics.fmean(math.log(value) for value in values)) if values else None
