"""Claims of the paper in our own words, each judged by code from the numbers: holds, holds partly, does not hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from genprior.experiments.reproduce.parts import Array, Found

HOLDS, PARTLY, FAILS = "holds", "holds partly", "does not hold"
AHEAD = 0.98
"""A ratio below this counts as ahead."""


@dataclass(frozen=True)
class Claim:
    """A claim, the verdict, and the numbers beside it."""

    key: str
    experiment: str
    paper: str
    """What the paper says, in our words; or, where ``ours``, a question that it does not ask."""
    verdict: str
    finding: str
    """What was found here, with numbers."""
    numbers: dict[str, Any] = field(default_factory=dict)
    ours: bool = False


Results = dict[str, Found]
Judge = Callable[[Results], Claim | None]


def graded(checks: Sequence[bool]) -> str:
    """All: holds; none: does not hold; some: partly."""
    if all(checks):
        return HOLDS
    return PARTLY if any(checks) else FAILS


def within(value: float | None, good: tuple[float, float], fair: tuple[float, float]) -> str:
    """In the good interval: holds; in the fair one: partly."""
    if value is None or not np.isfinite(value):
        return FAILS
    if good[0] <= value <= good[1]:
        return HOLDS
    return PARTLY if fair[0] <= value <= fair[1] else FAILS


def middle(found: Found, name: str) -> Array:
    """The median over the pictures at each step."""
    return np.asarray(np.median(found.arrays[name], axis=1))


def mean(found: Found, name: str) -> Array:
    """The mean over the pictures at each step, as the paper plots."""
    return np.asarray(found.arrays[name].mean(axis=1))


def at_share(curve: Array, share: float) -> float:
    """The curve's value at a share of its steps."""
    return float(curve[round(share * (len(curve) - 1))])


def first_step(curve: Array, target: float) -> int | None:
    """The first step at which the curve is at most the target."""
    places = np.flatnonzero(curve <= target)
    return int(places[0]) if len(places) else None


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Of the line through the logarithms."""
    return float(np.polyfit(np.log(np.asarray(x, float)), np.log(np.maximum(np.asarray(y, float), 1e-300)), 1)[0])


def percent(value: float) -> str:
    """For people."""
    return f"{100 * value:.1f}%"
