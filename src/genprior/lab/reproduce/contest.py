"""A problem with one start for all methods, and the two parts of a fair race: tuning and running."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from genprior.generators import Generator
from genprior.lab.reproduce.methods import Method
from genprior.lab.reproduce.parts import Array, Found, Part, Results
from genprior.lab.reproduce.sizes import Size
from genprior.lab.trace import Course, Measure, Recorder
from genprior.loop.solve import solve
from genprior.models.bundled import load_generator
from genprior.problem import Problem
from genprior.solvers import Choice
from genprior.status import Status
from genprior.stopping import MaxSteps, View

_NEVER = 10**9
_ITEM_SECONDS = {"mnist": 0.0008, "celeba": 0.012}
_BATCH_SECONDS = {"mnist": 0.004, "celeba": 0.012}


@dataclass(frozen=True)
class Setting:
    """Everything that determines the numbers of a run."""

    size: Size
    seed: int = 0
    device: str = "cpu"
    faces: Path | None = None
    """The user's own images, if any."""


@dataclass(frozen=True)
class Contest:
    """A problem with its start, and the measures to record."""

    problem: Problem
    starts: Tensor
    measures: dict[str, Measure]
    watch: Callable[[View], dict[str, Tensor]] | None = None
    """Further values to record at each step: one per item, of the current iterate, zero if a method has none."""
    preparation: float = 0.0
    """Seconds spent once on factorising the operator, outside of the solvers' time."""


Make = Callable[[int, bool], Contest]
"""Makes the contest for a number of images; True uses other images, for tuning."""


@lru_cache(maxsize=4)
def network(name: str, device: str) -> Generator:
    """A bundled generator, loaded once."""
    return load_generator(name, device=device)


def seconds(generator: str, steps: int, images: int) -> float:
    """Estimated time of some iterations on two idle cores, for the time left."""
    return steps * (_BATCH_SECONDS[generator] + images * _ITEM_SECONDS[generator])


@dataclass
class _Watcher:
    watch: Callable[[View], dict[str, Tensor]]
    items: int
    rows: list[dict[str, Tensor]] = field(default_factory=list)

    def __call__(self, view: View) -> None:
        self.rows.append({name: value.detach().cpu().clone() for name, value in self.watch(view).items()})

    def arrays(self) -> dict[str, Array]:
        whole = [row for row in self.rows if all(len(value) == self.items for value in row.values())]
        return {name: torch.stack([row[name] for row in whole]).numpy() for name in (whole[0] if whole else {})}


def race(contest: Contest, solver: Choice, steps: int) -> Found:
    """Run one solver for a number of iterations, without early stopping."""
    contest.problem.generator.forget()
    record = Recorder(contest.measures, contest.starts.flatten(1)[:, 0])
    watcher = None if contest.watch is None else _Watcher(contest.watch, len(contest.starts))
    result = solve(
        contest.problem,
        solver,
        stop=MaxSteps(steps),
        z0=contest.starts,
        patience=_NEVER,
        tolerance=0.0,
        callbacks=[record, *([] if watcher is None else [watcher])],
        progress=False,
    )
    if Status.INTERRUPTED in result.status:
        raise KeyboardInterrupt  # a run cut short must not count as finished
    course = record.course(result)
    return Found(
        numbers={
            "solver": repr(solver),
            "plan": result.plan,
            "steps": int(result.steps.max()),
            "forwards": result.forwards,
            "backwards": result.backwards,
            "rollbacks": int(result.rollbacks.sum()),
            "statuses": sorted({status.name for status in result.status}),
            "objective": quartiles(course.objectives[-1]),
            **{name: quartiles(values[-1]) for name, values in course.measures.items()},
        },
        arrays=_arrays(course) | ({} if watcher is None else watcher.arrays()),
        times={
            "seconds": result.seconds,
            "preparation_seconds": contest.preparation,
            "threads": torch.get_num_threads(),
        },
    )


def _arrays(course: Course) -> dict[str, Array]:
    arrays = {"seconds": course.seconds, "passes": course.passes, "objective": course.objectives, **course.measures}
    return {name: np.asarray(values.numpy()) for name, values in arrays.items()}


def quartiles(values: Tensor) -> dict[str, float | None]:
    """Lower quartile, median, upper quartile, mean; None where not finite."""
    spots = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    low, middle, high = torch.quantile(values.double(), spots).tolist()
    found = {"q25": low, "median": middle, "q75": high, "mean": float(values.double().mean())}
    return {name: value if np.isfinite(value) else None for name, value in found.items()}


def tuning_part(name: str, method: Method, make: Make, images: int, steps: int, generator: str) -> Part:
    """Every setting of a method on the tuning images; the lowest mean objective at the end is chosen."""

    def run(results: Results) -> Found:
        contest = make(images, True)
        solvers = method.solvers(steps)
        found = [race(contest, solver, steps) for solver in solvers]
        ends = [torch.from_numpy(one.arrays["objective"][-1]).double().nan_to_num(nan=torch.inf) for one in found]
        scores = [float(end.mean()) for end in ends]
        best = scores.index(min(scores))
        numbers: dict[str, Any] = {
            "method": method.key,
            "pictures": images,
            "iterations": steps,
            "solvers": [repr(solver) for solver in solvers],
            "scores": scores,
            "chosen": best,
            "edges": method.edges(best),
        }
        return Found(numbers, times={"seconds": sum(one.times["seconds"] for one in found)})

    return Part(name, run, len(method.choices) * seconds(generator, steps, images))


def race_part(
    name: str, method: Method, make: Make, images: int, steps: int, generator: str, tuning: str | None
) -> Part:
    """The chosen setting of a method on the contest's images."""

    def run(results: Results) -> Found:
        return race(make(images, False), chosen(method, results, tuning, steps), steps)

    return Part(name, run, seconds(generator, steps, images), () if tuning is None else (tuning,))


def chosen(method: Method, results: Results, tuning: str | None, steps: int) -> Choice:
    """The tuned setting, or the only one, for a run of this many iterations."""
    if tuning is None:
        return method.solvers(steps)[0]
    numbers = results[tuning].numbers
    number = int(numbers["chosen"])
    tuned, now = numbers["solvers"][number], repr(method.solvers(numbers["iterations"])[number])
    if tuned != now:
        raise ValueError(f"{tuning} chose {tuned}, which is {now} now: the code has changed, give another `out`")
    return method.solvers(steps)[number]


@dataclass(frozen=True)
class Field:
    """A whole race on one problem: its tuning and its runs."""

    prefix: str
    make: Make
    generator: str
    pictures: int
    tuning_pictures: int
    tuning_steps: int

    def parts(self, methods: list[Method], steps: Callable[[Method], int]) -> list[Part]:
        """Tuning first, then the contest."""
        found = []
        for method in methods:
            tuning = f"{self.prefix}.tune.{method.key}" if method.tuned else None
            if tuning is not None:
                found.append(
                    tuning_part(tuning, method, self.make, self.tuning_pictures, self.tuning_steps, self.generator)
                )
        for method in methods:
            tuning = f"{self.prefix}.tune.{method.key}" if method.tuned else None
            name = f"{self.prefix}.run.{method.key}"
            found.append(race_part(name, method, self.make, self.pictures, steps(method), self.generator, tuning))
        return found


def always(steps: int) -> Callable[[Method], int]:
    """The same number of iterations for all."""
    return partial(_constant, steps)


def _constant(steps: int, method: Method) -> int:
    return steps
