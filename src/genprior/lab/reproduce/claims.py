"""Claims of the paper in our own words, each judged from the numbers: holds, partly, not; undecided, or too short."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from genprior.lab.reproduce.parts import Array, Found

HOLDS, PARTLY, FAILS = "holds", "holds partly", "does not hold"
UNDECIDED = "undecided"
"""The 95% interval includes "no difference": these images do not decide, whatever their mean."""
NOT_JUDGED = "not judged"
"""The run was too short for the claim."""
DUAL_SUM = 3.389
"""The sum of ``1/(k log^2(k+1))``: the paper's rule moves a dual at most this many times its first step."""
_RESAMPLES = 4000
_TINY = 1e-30


@dataclass(frozen=True)
class Claim:
    """A claim, its verdict and the numbers."""

    key: str
    experiment: str
    paper: str
    """The paper's claim in our words; if ``ours``, a question that the paper does not ask."""
    verdict: str
    finding: str
    """The finding, with numbers."""
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


@dataclass(frozen=True)
class Comparison:
    """Two methods on the same images from the same starts; below 1 the first is better."""

    ratio: float
    """Ratio of the means over the images, because the paper plots averages."""
    low: float
    high: float
    """95% bootstrap interval of that ratio, images resampled in pairs."""
    median_ratio: float
    won: float
    """Share of the images on which the first is lower."""
    pictures: int

    @property
    def verdict(self) -> str:
        """Undecided if the interval includes 1; partly if most images contradict their mean, on either side.

        They contradict it if the ratio of medians and the share won both do.
        """
        if self.low <= 1 <= self.high:
            return UNDECIDED
        if self.high < 1:
            return HOLDS if self.median_ratio < 1 or self.won > 0.5 else PARTLY
        return PARTLY if self.median_ratio < 1 and self.won > 0.5 else FAILS

    def __str__(self) -> str:
        """Ratio, interval and shares in words."""
        return (
            f"{self.ratio:.2f} [{self.low:.2f}, {self.high:.2f}] (medians {self.median_ratio:.2f}, "
            f"lower on {self.won:.0%} of {self.pictures})"
        )


def compared(ours: Array, theirs: Array, seed: int = 0) -> Comparison:
    """Paired, with a bootstrap over the images."""
    ours, theirs = np.asarray(ours, float), np.asarray(theirs, float)
    drawn = np.random.default_rng(seed).integers(len(ours), size=(_RESAMPLES, len(ours)))
    ratios = ours[drawn].mean(axis=1) / np.maximum(theirs[drawn].mean(axis=1), _TINY)
    low, high = np.quantile(ratios, (0.025, 0.975))
    return Comparison(
        float(ours.mean() / max(theirs.mean(), _TINY)),
        float(low),
        float(high),
        float(np.median(ours) / max(float(np.median(theirs)), _TINY)),
        float((ours < theirs).mean()),
        len(ours),
    )


def together(verdicts: Sequence[str]) -> str:
    """The common verdict if all agree; if none holds and one does not: does not hold; otherwise partly."""
    found = set(verdicts)
    if len(found) == 1:
        return verdicts[0]
    return FAILS if found == {FAILS, UNDECIDED} else PARTLY


def mean(found: Found, name: str) -> Array:
    """The mean over the images at each step, as the paper plots."""
    return np.asarray(found.arrays[name].mean(axis=1))


def at_share(curves: Array, share: float) -> Array:
    """The curves' values, one per image, at a share of their steps."""
    return np.asarray(curves[round(share * (len(curves) - 1))])


def first_step(curve: Array, target: float) -> int | None:
    """The first step at which the curve is at most the target."""
    places = np.flatnonzero(curve <= target)
    return int(places[0]) if len(places) else None


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Slope of the line through the logarithms."""
    return float(np.polyfit(np.log(np.asarray(x, float)), np.log(np.maximum(np.asarray(y, float), 1e-300)), 1)[0])


def binomial(right: int, count: int) -> tuple[float, float]:
    """Wilson's 95% interval of a share."""
    z, share = 1.959964, right / count
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * np.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return max(0.0, float(centre - half)), min(1.0, float(centre + half))


def share_of(value: float, count: int) -> str:
    """A share of the images with its interval, in words."""
    low, high = binomial(round(value * count), count)
    return f"{percent(value)} [{percent(low)}, {percent(high)}]"


def percent(value: float) -> str:
    """A share as text."""
    return f"{100 * value:.1f}%"
