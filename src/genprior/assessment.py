"""How far an answer can be trusted: by the item's own numbers, the noise, and the other items.

A status says how the run ended; an assessment says how good the answer is. It is computed from plain numbers, so that a result
in memory, a job on disk and the web page agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from genprior._quantiles import Quantiles
from genprior.status import Status

_LOST = 2.5
"""Factor on the residual of the others, and of known noise, above which an item may be lost."""
_SPREADS = 3.0
"""Robust standard deviations above the others, in the logarithm, that it takes as well."""
_VISIBLE = 0.05
"""Residual below which no item is lost."""
_FITTED = 1e-3
"""Residual below which the data are fitted, even where the run was stopped early."""
_UNEXPLAINED = 0.7
"""Residual above which less than half of the data's energy is explained: lost if alone, or if others are far better."""
_NOTHING = 0.9
"""Residual above which next to nothing is explained: lost in any case."""
_LEAST_OTHERS = 4
"""Least number of items that one can be compared with."""
_FITS = 1.3
"""Factor on the residual of the noise up to which a residual counts as noise."""
_FAR_OUT = 2.0
"""Reach above which a latent is not to be trusted: images that the generator cannot make end there."""
_PENALTY = 0.1
"""Share of the objective above which a term on z is mentioned."""


class Concern(StrEnum):
    """Why an item needs attention, in order of gravity."""

    DIVERGED = "diverged"
    NOT_BEGUN = "not begun"
    INFEASIBLE = "infeasible"
    LOST = "lost"
    FAR_OUT = "latent far outside of the distribution"
    STALLED = "stalled"
    IMPROVING = "still improving"


@dataclass(frozen=True)
class Facts:
    """The numbers of one item."""

    status: Status
    steps: int
    objective: float
    primal_residual: float = 0.0
    rollbacks: int = 0
    restarts: int = 1
    residual: float | None = None
    """``|A x - y| / |y|``, where the loss has one."""
    noise: float | None = None
    """The same for noise of the known level."""
    improving: bool = False
    """Whether the objective was still falling when the run was stopped."""
    latent: float = 0.0
    """Reach of the latent: its distance from the distribution's centre, relative to the farthest draws."""
    bound: bool = False
    """Whether a constraint on the signal or the latent is active."""
    penalty: float = 0.0
    """The term on the latent as a share of the objective."""
    frozen_dual: bool = False
    """Whether the dual step has become too small to reduce the primal residual."""
    representable: bool = True


@dataclass(frozen=True)
class ResidualSummary:
    """The residuals of all items of a result or a job, summarised."""

    count: int
    median: float
    spread: float
    """Robust standard deviation of the logarithm."""
    good: float = math.nan
    """The lower quartile."""

    @classmethod
    def of(cls, residuals: Iterable[float | None]) -> ResidualSummary:
        """Of those that are known."""
        known = Quantiles()
        for residual in residuals:
            if residual is not None and math.isfinite(residual):
                known.add(residual)
        return cls.of_quantiles(known)

    @classmethod
    def of_quantiles(cls, known: Quantiles) -> ResidualSummary:
        """Of residuals that were counted one by one."""
        good = known.ranked(len(known) // 4) if known else math.nan
        return cls(len(known), known.median(), known.log_spread(), good)


@dataclass(frozen=True)
class Words:
    """How options are written, in Python, in a job or on the command line."""

    restarts: str
    steps: str
    time: str
    patience: str
    prior: str
    check: str
    translate: Callable[[str], str] = str
    """Rewrites texts with arguments in backticks, such as notes."""


PYTHON = Words(
    restarts="restarts=8",
    steps="stop=gp.MaxSteps(...)",
    time="stop=gp.Seconds(...)",
    patience="patience=...",
    prior="on_latent=gp.Ball(...) or a weight on gp.SquaredL2()",
    check="gp.checks.check_generator(G)",
)
JOB = Words(
    restarts="restarts=8",
    steps="steps=...",
    time="time=...",
    patience="patience=...",
    prior="latent_ball=...",
    check="genprior.jobs.check.inspect_generator(source)",
)
"""For jobs: the arguments of :class:`genprior.jobs.settings.Recovery`."""


@dataclass(frozen=True)
class Assessment:
    """The assessment of one item."""

    concern: Concern | None
    """Why it needs attention; None: it does not."""
    advice: str
    """In words: how it ended, what to watch, what to try."""

    @property
    def good(self) -> bool:
        """Whether the item needs no attention."""
        return self.concern is None


def assess(facts: Facts, others: ResidualSummary, words: Words = PYTHON) -> Assessment:
    """Assess one item among the others."""
    concern = _concern(facts, others)
    sentences = [_ended(facts, words, concern), _fit(facts, others, concern, words), *_cautions(facts, words)]
    return Assessment(concern, " ".join(sentence for sentence in sentences if sentence))


def is_lost(facts: Facts, others: ResidualSummary) -> bool:
    """Whether the fit is far worse than expected from the noise or the other items."""
    r = facts.residual
    if r is None or not math.isfinite(r):
        return False
    if facts.noise is not None and r <= _FITS * facts.noise:
        return False
    if r > _NOTHING or others.count < _LEAST_OTHERS:
        return r > _UNEXPLAINED
    if r <= _VISIBLE:
        return False
    if r > _UNEXPLAINED and r > _LOST * max(others.good, facts.noise or 0.0):
        return True
    usual = max(others.median, facts.noise or 0.0)
    far = math.log(r) > math.log(max(others.median, 1e-300)) + _SPREADS * others.spread
    return r > _LOST * usual and far


def _concern(facts: Facts, others: ResidualSummary) -> Concern | None:
    """The first that applies: an item that still improves is not lost yet."""
    stopped = facts.status in _STOPPED
    applies = {
        Concern.DIVERGED: facts.status is Status.DIVERGED or not facts.representable,
        Concern.NOT_BEGUN: stopped and facts.steps == 0,
        Concern.INFEASIBLE: facts.objective == math.inf,
        Concern.IMPROVING: stopped and facts.improving and not _fitted(facts),
        Concern.LOST: is_lost(facts, others),
        Concern.FAR_OUT: facts.latent > _FAR_OUT,
        Concern.STALLED: facts.status is Status.STALLED,
    }
    return next((concern for concern, holds in applies.items() if holds), None)


def _fitted(facts: Facts) -> bool:
    """Whether the answer fits the data to the noise, or as well as exactly."""
    return facts.residual is not None and facts.residual <= max(_FITTED, _FITS * (facts.noise or 0.0))


_STOPPED = (Status.MAX_STEPS, Status.OUT_OF_TIME, Status.OUT_OF_PASSES, Status.INTERRUPTED)


def _ended(facts: Facts, words: Words, concern: Concern | None) -> str:
    """How the run ended, in a few sentences."""
    if not facts.representable:
        return (
            "the loss of these data overflows or underflows in this dtype: scale the data closer to 1, or use float64."
        )
    if concern is Concern.NOT_BEGUN:
        left = "no time was left for a single step" if facts.status is Status.OUT_OF_TIME else "no step was made"
        return f"{left}: this is the starting point, not an answer. Allow more."
    if concern is Concern.INFEASIBLE:
        return (
            f"{facts.status.name}, and no iterate satisfied the constraint: at each the loss or on_signal is infinite at "
            "G(z), or on_latent at z. Compare bounds, and the means of counts, with the generator's signals."
        )
    text = facts.status.advice
    if facts.status in _STOPPED and facts.status is not Status.INTERRUPTED:
        more = words.time if facts.status is Status.OUT_OF_TIME else words.steps
        if facts.improving:
            text += f" The objective was still falling: allow more ({more})."
        else:
            text += " The objective had almost stopped falling: more steps would change little."
    if facts.rollbacks:
        text += f" The steps of this item were shortened {facts.rollbacks} times."
    if facts.status is Status.DIVERGED:
        text += f" Check the scale of the data, and the generator ({words.check})."
    if facts.frozen_dual:
        text += (
            f" w and G(z) still differ by {min(facts.primal_residual, 1.0):.1%}: the dual step has become too small to "
            "reduce the difference (dual frozen). Try dual=gp.duals.Constant(), or a larger rho."
        )
    return text


def _fit(facts: Facts, others: ResidualSummary, concern: Concern | None, words: Words) -> str:
    """How well the answer fits the data."""
    r = facts.residual
    if r is None or not math.isfinite(r) or concern in {Concern.DIVERGED, Concern.NOT_BEGUN}:
        return ""
    if concern is Concern.LOST:
        beside = (
            f", {r / others.median:.0f} times the median of all {others.count} items"
            if others.count > 1 and r > _LOST * others.median
            else ""
        )
        many = "" if facts.restarts == 1 else f" although {facts.restarts} starts were tried"
        return (
            f"Lost: the residual is {r:.2g}{beside}{many}. It is a poor local minimum, or a signal that the "
            f"generator cannot make: try {words.restarts}, and another seed."
        )
    if facts.noise is not None and facts.noise > 0:
        if r <= _FITS * facts.noise:
            return f"The residual, {r:.2g}, is that of the noise."
        return (
            f"The residual, {r:.2g}, is {r / facts.noise:.1f} times that of the noise: the rest is what the generator cannot "
            "make, or a poor local minimum."
        )
    return f"The residual is {r:.2g}: the data are fitted." if _fitted(facts) else f"The residual is {r:.2g}."


def _cautions(facts: Facts, words: Words) -> list[str]:
    """What to watch in the answer."""
    found = []
    if facts.latent > 1:
        where = "far outside" if facts.latent > _FAR_OUT else "outside"
        found.append(
            f"The latent lies {where} the generator's latent distribution ({facts.latent:.3g} times as far from its centre "
            f"as its draws): do not trust details that the data do not show. {words.prior} keeps it inside."
        )
    if facts.bound:
        found.append("A constraint is active: the answer lies on its boundary.")
    if facts.penalty > _PENALTY:
        found.append(
            f"The term on the latent is {facts.penalty:.0%} of the objective: a smaller weight fits the data more closely."
        )
    return found
