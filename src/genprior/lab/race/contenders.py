"""Who races: ours with defaults, baselines with their tuning grids, and the methods of others as published."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal

from genprior.lab.race.methods import Csgm, DFlow, DMPlug, Method, Unaided
from genprior.solvers import LBFGS, Adam, Choice, GradientDescent, ProjectedGradient, z_steps
from genprior.solvers.registry import CLASSES

Role = Literal["ours", "baseline", "published"]
OURS = ("Auto", "ExactADMM", "LinearizedADMM")
"""With no option."""
PUBLISHED: dict[str, Method] = {"CSGM (deepinv)": Csgm(), "DMPlug": DMPlug(), "D-Flow": DFlow()}
"""The methods of others with their published settings, which were not chosen for these problems."""

_STEPS = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_ADAM = (0.02, 0.05, 0.1, 0.2, 0.3, 0.45, 0.7)
_MEMORIES = (5, 10, 20, 40, 80)
_FEWEST = 3
"""Fewest values of a parameter for its grid to have an edge."""


@dataclass(frozen=True)
class Entrant:
    """Who takes part in a race, with what settings."""

    method: Method
    role: Role
    edge: bool = False
    """Whether a setting of its solver lies at the edge of the grid."""
    starts: int | None = None
    """Of an image; None where the method chooses."""
    most_starts: bool = False
    """Whether that is the largest number that was tried: even more might be better."""


def untuned() -> dict[str, Entrant]:
    """All but the baselines."""
    ours = {name: Entrant(Unaided(CLASSES[name]()), "ours") for name in OURS}
    return ours | {name: Entrant(method, "published", starts=1) for name, method in PUBLISHED.items()}


def grids(*, quick: bool = False, thinning: int = 1) -> dict[str, list[Choice]]:
    """Each baseline with its settings, tuned on other images of the same problem.

    The default of each (steps from a running estimate of the curvature) is among them. ``thinning`` leaves every so manieth.
    """
    found: dict[str, list[Choice]] = {
        "gradient descent": [GradientDescent(), *(GradientDescent(step) for step in _STEPS)],
        "momentum": [
            GradientDescent(momentum=0.9),
            *(GradientDescent(step, momentum=0.9) for step in _STEPS[:-2]),
        ],
        "Adam": [Adam(step) for step in _ADAM],
        "L-BFGS": [LBFGS(memory) for memory in _MEMORIES],
        "projected gradient": [
            ProjectedGradient(inner=inner, z_step=z_steps.Adam(step))
            for inner in (1, 5, 20)
            for step in (0.05, 0.1, 0.2)
        ],
    }
    if quick:
        return {name: choices[:: max(1, len(choices) // 2)][:2] for name, choices in found.items()}
    return {name: choices[::thinning] for name, choices in found.items()}


def at_edge(chosen: Choice, choices: list[Choice]) -> bool:
    """Whether a parameter of the chosen setting is at the edge of its grid: a wider grid might be better."""
    for name, value in _numbers(chosen):
        tried = {other for choice in choices for key, other in _numbers(choice) if key == name}
        if len(tried) >= _FEWEST and value in (min(tried), max(tried)):
            return True
    return False


def _numbers(setting: object) -> Iterator[tuple[str, float]]:
    """The parameters of a solver and of its z step, by name."""
    for field in fields(setting):  # type: ignore[arg-type]
        value = getattr(setting, field.name)
        if isinstance(value, int | float):
            yield field.name, value
        elif isinstance(value, z_steps.ZStep):
            yield from ((f"{field.name}.{name}", number) for name, number in _numbers(value))
