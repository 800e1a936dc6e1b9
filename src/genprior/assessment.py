"""Can this answer be trusted? What an item's own numbers say, beside the noise, beside the other items.

A status tells how the search ended; an assessment tells what to make of the answer. It is computed from plain numbers, so that
a result in memory, a job on disk and the web page say the same.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from genprior.status import Status

_LOST = 2.5
"""An item is lost when its residual is so many times that of the others, and of the noise where that is known."""
_SPREADS = 3.0
"""And so many robust standard deviations above the others, in the logarithm."""
_VISIBLE = 0.05
"""A smaller residual is no loss, whatever the others have."""
_FITTED = 1e-3
"""Below this residual the data are fitted, whether or not the search had ended."""
_UNEXPLAINED = 0.7
"""A larger residual explains less than half of the data's energy: lost if the item is alone, or others do far better."""
_NOTHING = 0.9
"""A larger residual explains next to nothing: lost whatever the others have."""
_COMPANY = 4
"""Items that it takes to compare one with."""
_FITS = 1.3
"""Residuals up to so many times that of the noise are the noise's."""
_FAR_OUT = 2.0
"""Latents so many times as far out as draws go are not to be trusted: images of another kind end there."""
_PENALTY = 0.1
"""A share of the objective above which a term on z is worth a word."""


class Concern(StrEnum):
    """Why an item needs attention, the gravest first."""

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
    gap: float = 0.0
    rollbacks: int = 0
    restarts: int = 1
    residual: float | None = None
    """``|A x - y| / |y|``, where the loss has one."""
    noise: float | None = None
    """The same for noise of the known level."""
    improving: bool = False
    """Whether the objective still fell when the search was stopped."""
    latent: float = 0.0
    """How far the latent lies out in the generator's latent distribution: 1 is the end of what is ever drawn."""
    bound: bool = False
    """Whether a constraint on the signal or the latent holds the answer back."""
    penalty: float = 0.0
    """The share of the objective that the term on the latent has."""
    frozen_dual: bool = False
    """Whether the dual step has become too small to close the gap."""
    representable: bool = True


@dataclass(frozen=True)
class Company:
    """The residuals of all items of a result or a job, in three numbers."""

    count: int
    median: float
    spread: float
    """Robust standard deviation of the logarithm."""
    good: float = math.nan
    """The lower quartile."""

    @classmethod
    def of(cls, residuals: Iterable[float | None]) -> Company:
        """Of those that are known."""
        known = [r for r in residuals if r is not None and math.isfinite(r)]
        if not known:
            return cls(0, math.nan, math.nan)
        median = statistics.median(known)
        logs = [math.log(max(r, 1e-300)) for r in known]
        middle = statistics.median(logs)
        spread = 1.4826 * statistics.median(abs(x - middle) for x in logs)
        return cls(len(known), median, spread, sorted(known)[len(known) // 4])


@dataclass(frozen=True)
class Words:
    """What a user would type, in Python or on the command line."""

    restarts: str
    steps: str
    time: str
    patience: str
    prior: str
    check: str
    translate: Callable[[str], str] = str
    """How texts are put that name arguments in backticks, such as notes."""


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
"""Of a job: the arguments of :class:`genprior.jobs.settings.Recovery`."""


@dataclass(frozen=True)
class Assessment:
    """What to make of one item."""

    concern: Concern | None
    """Why it needs attention; None: the search ended well."""
    advice: str
    """In words: what was found, what to watch, what to try."""

    @property
    def good(self) -> bool:
        """Whether nothing asks for attention."""
        return self.concern is None


def assess(facts: Facts, company: Company, words: Words = PYTHON) -> Assessment:
    """Judge one item among its company."""
    concern = _concern(facts, company)
    sentences = [_ended(facts, words, concern), _fit(facts, company, concern, words), *_cautions(facts, words)]
    return Assessment(concern, " ".join(sentence for sentence in sentences if sentence))


def is_lost(facts: Facts, company: Company) -> bool:
    """Whether the fit is far worse than the noise, or the other items, would let one expect."""
    r = facts.residual
    if r is None or not math.isfinite(r):
        return False
    if facts.noise is not None and r <= _FITS * facts.noise:
        return False
    if r > _NOTHING or company.count < _COMPANY:
        return r > _UNEXPLAINED
    if r <= _VISIBLE:
        return False
    if r > _UNEXPLAINED and r > _LOST * max(company.good, facts.noise or 0.0):
        return True
    usual = max(company.median, facts.noise or 0.0)
    far = math.log(r) > math.log(max(company.median, 1e-300)) + _SPREADS * company.spread
    return r > _LOST * usual and far


def _concern(facts: Facts, company: Company) -> Concern | None:
    """The first that applies: what still improves is not lost yet."""
    stopped = facts.status in _STOPPED
    applies = {
        Concern.DIVERGED: facts.status is Status.DIVERGED or not facts.representable,
        Concern.NOT_BEGUN: stopped and facts.steps == 0,
        Concern.INFEASIBLE: facts.objective == math.inf,
        Concern.IMPROVING: stopped and facts.improving and not _fitted(facts),
        Concern.LOST: is_lost(facts, company),
        Concern.FAR_OUT: facts.latent > _FAR_OUT,
        Concern.STALLED: facts.status is Status.STALLED,
    }
    return next((concern for concern, holds in applies.items() if holds), None)


def _fitted(facts: Facts) -> bool:
    """Whether the answer fits the data as closely as anybody could ask for."""
    return facts.residual is not None and facts.residual <= max(_FITTED, _FITS * (facts.noise or 0.0))


_STOPPED = (Status.MAX_STEPS, Status.OUT_OF_TIME, Status.OUT_OF_PASSES, Status.INTERRUPTED)


def _ended(facts: Facts, words: Words, concern: Concern | None) -> str:
    """How the search ended, in a sentence."""
    if not facts.representable:
        return "the loss of these data overflows or vanishes in this dtype: use other units, nearer to 1, or float64."
    if concern is Concern.NOT_BEGUN:
        left = (
            "no time was left for a single step" if facts.status is Status.OUT_OF_TIME else "not a single step was made"
        )
        return f"{left}: this is where the search begins, not an answer. Allow more."
    if concern is Concern.INFEASIBLE:
        return (
            f"{facts.status.name}, and no iterate satisfied the constraint: G(z) never lay in the set of on_signal, or z in "
            "that of on_latent. Check its bounds against what the generator makes."
        )
    text = facts.status.advice
    if facts.status in _STOPPED and facts.status is not Status.INTERRUPTED:
        more = words.time if facts.status is Status.OUT_OF_TIME else words.steps
        if facts.improving:
            text += f" The objective still fell: allow more ({more})."
        else:
            text += " The objective had all but stopped falling: more steps would change little."
    if facts.rollbacks:
        text += f" The steps of this item were shortened {facts.rollbacks} times."
    if facts.status is Status.DIVERGED:
        text += f" Look at the scale of the data, and at the generator ({words.check})."
    if facts.frozen_dual:
        text += (
            f" w and G(z) still differ by {min(facts.gap, 1.0):.1%}: the dual step has become too small to close the gap "
            "(dual frozen, gap plateau). Try dual=gp.duals.Constant(), or a larger rho."
        )
    return text


def _fit(facts: Facts, company: Company, concern: Concern | None, words: Words) -> str:
    """How well the answer fits the data."""
    r = facts.residual
    if r is None or not math.isfinite(r) or concern in {Concern.DIVERGED, Concern.NOT_BEGUN}:
        return ""
    if concern is Concern.LOST:
        beside = (
            f", {r / company.median:.0f} times the median of all {company.count} items"
            if company.count > 1 and r > _LOST * company.median
            else ""
        )
        many = "" if facts.restarts == 1 else f" although {facts.restarts} starts were tried"
        return (
            f"Lost: the residual is {r:.2g}{beside}{many}. A bad minimum, or a signal that the generator cannot make: try "
            f"{words.restarts}, and another seed."
        )
    if facts.noise is not None and facts.noise > 0:
        if r <= _FITS * facts.noise:
            return f"The residual, {r:.2g}, is that of the noise."
        return (
            f"The residual, {r:.2g}, is {r / facts.noise:.1f} times that of the noise: the rest is what the generator cannot "
            "make, or a minimum that is not the best."
        )
    return f"The residual is {r:.2g}: the data are fitted." if _fitted(facts) else f"The residual is {r:.2g}."


def _cautions(facts: Facts, words: Words) -> list[str]:
    """What to watch in an answer that was found."""
    found = []
    if facts.latent > 1:
        kind = "far outside" if facts.latent > _FAR_OUT else "outside"
        found.append(
            f"The latent lies {kind} of the generator's latent distribution ({facts.latent:.3g} times as far out as draws "
            f"go): do not trust details that the data do not show. {words.prior} keeps it inside."
        )
    if facts.bound:
        found.append("A constraint is active: the answer lies on its bound.")
    if facts.penalty > _PENALTY:
        found.append(
            f"The term on the latent is {facts.penalty:.0%} of the objective: a smaller weight fits the data closer."
        )
    return found
