"""Solve a random problem, and say what is false in the answer."""

from __future__ import annotations

import inspect
import math
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

import genprior as gp
from tests.laws.judge.descent import descend
from tests.laws.judge.functions import size
from tests.laws.judge.oracle import Item, Stationarity, stationarity
from tests.laws.judge.problems import SOLVERS, Case, case


@dataclass
class Tally:
    """What happened, and a line for each fault that reproduces it."""

    counts: Counter = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def fault(self, kind: str, where: str, what: str) -> None:
        self.counts[kind] += 1
        self.faults.append(f"{where}  {kind}: {what}")


Fault = tuple[str, str]
"""Its kind, and what is wrong."""


@dataclass(frozen=True)
class Answer:
    """One item of a result, and what is known of it."""

    made: Case
    item: Item
    z: np.ndarray
    w: np.ndarray
    objective: float
    again: float
    """``problem.objective(result.z)``."""
    converged: bool
    tolerance: float

    @classmethod
    def of(cls, made: Case, result: gp.Result, index: int, again: float, tolerance: float) -> Answer:
        z, w = (v[index].double().flatten().numpy() for v in (result.z, result.w))
        converged = result.status[index] is gp.Status.CONVERGED
        return cls(made, made.items[index], z, w, float(result.objective[index]), again, converged, tolerance)


def run(number: int, solver: str, tally: Tally) -> None:
    """Solve one problem with one solver and judge every item."""
    tally.counts["problems"] += 1
    words = "not made"
    try:
        made = case(number)
        words = made.words
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            options = made.options_for(solver)
            result = gp.solve(made.problem, SOLVERS[solver](), **options)
    except (ValueError, TypeError):
        tally.counts["refused"] += 1
        return
    except Exception as error:
        tally.fault("ERROR", f"{number}:{solver}", f"{type(error).__name__}: {error} | {words}")
        return
    tally.counts["solved"] += 1
    again = made.problem.objective(result.z)
    tolerance = tolerance_of(result, options)
    for index in range(len(result.status)):
        name = result.status[index].name
        tally.counts[name] += 1
        for kind, what in judged(Answer.of(made, result, index, float(again[index]), tolerance), tally):
            apart = float(result.primal_residual[index])
            claimed = f"claimed {float(result.stationarity[index]):.1e} of {tolerance:.0e}, primal residual {apart:.0e}"
            where = f"{number}:{solver} item {index} {name} step {int(result.steps[index])}"
            tally.fault(kind, where, f"{what} ({claimed}) | {made.words}")


def judged(answer: Answer, tally: Tally) -> Iterator[Fault]:
    """The faults of one item."""
    yield from objective_faults(answer)
    if answer.converged and math.isfinite(answer.objective):
        tally.counts["judged"] += 1
        yield from feasibility_faults(answer)
        found = stationarity(answer.item, answer.z, answer.w, answer.tolerance)
        if not found.holds:
            yield from descent_faults(answer, found, tally)


def objective_faults(answer: Answer) -> Iterator[Fault]:
    """The objective is finite where the item converged, that of the returned latent, and what the judge makes of it."""
    objective, again = answer.objective, answer.again
    if not math.isfinite(objective):
        if answer.converged:
            yield "NOT FINITE", f"objective {objective}"
        if math.isfinite(again):
            yield "OBJECTIVE", f"result says {objective}, problem.objective(result.z) {again}"
        return
    value, eps = answer.item.value(answer.z), torch.finfo(answer.item.dtype).eps
    _, off, _ = answer.item.rounding(answer.z, np.zeros_like(answer.w))
    allowed = 10 * off + 100 * eps * abs(objective) + 1e-3 * eps**2 * answer.made.scale
    if not abs(objective - again) <= allowed:
        yield "OBJECTIVE", f"result says {objective}, problem.objective(result.z) {again}"
    if not abs(objective - value) <= allowed:
        yield "VALUE", f"result says {objective}, the judge {value} +- {allowed:.1e}"


def feasibility_faults(answer: Answer) -> Iterator[Fault]:
    """Signal and latent are as near to the sets of R and H as the tolerance says."""
    item, z = answer.item, answer.z
    x, eps = item.signal(z), torch.finfo(item.dtype).eps
    off, _, _ = item.rounding(z, np.zeros_like(x))
    for name, f, v, blur in (("on_signal", item.on_signal, x, off), ("on_latent", item.on_latent, z, 0.0)):
        numbers = size(v) + size(np.broadcast_to(f.centre, v.shape)) + abs(f.high)
        if f.violation(v) > 2 * answer.tolerance * size(v) + 4 * blur + 200 * eps * numbers:
            yield "INFEASIBLE", f"{name} violated by {f.violation(v):.1e} where the length is {size(v):.1e}"


def descent_faults(answer: Answer, found: Stationarity, tally: Tally) -> Iterator[Fault]:
    """An item that is not stationary, unless it lies on a plateau: G hardly moves there, and nothing near is lower."""
    made, item, z = answer.made, answer.item, answer.z
    value, typical = item.value(z), typical_stretch(made, item)
    low, there = descend(item, z, radius=0.1 * made.units.latent * math.sqrt(z.size))
    flat = found.stretch < 1e-2 * typical and found.ratio * found.stretch <= found.limit * typical
    if flat and value - low <= 1e-2 * abs(value):
        tally.counts["plateau"] += 1
        return
    yield (
        "NOT STATIONARY",
        f"{found.ratio:.1e} > {found.limit:.1e}, |DG| {found.stretch:.1e} (typical {typical:.0e}); descent lowers {value:.6g} "
        f"by {value - low:.1e} ({(value - low) / made.scale:.0e} of the scale) at {size(there - z) / made.units.latent:.0e}",
    )


def typical_stretch(made: Case, item: Item) -> float:
    """The median of ``|DG|`` over the latent distribution."""
    latents = made.units.latent * np.random.default_rng(0).normal(size=(16, math.prod(item.latent_shape)))
    return float(np.median([np.linalg.norm(item.jacobian(z), 2) for z in latents]))


def tolerance_of(result: gp.Result, options: dict) -> float:
    """What the result says, else what was asked for, else the default."""
    default = inspect.signature(gp.solve).parameters["tolerance"].default
    return float(getattr(result, "tolerance", options.get("tolerance", default)))
