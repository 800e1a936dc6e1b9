"""Judging the plateau: primal residual, rate, duals."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from genprior.lab.reproduce import plateau
from genprior.lab.reproduce.claims import DUAL_SUM, Claim, Results, graded, slope, together, within
from genprior.lab.reproduce.contest import Setting


def judge_plateau(setting: Setting, results: Results) -> list[Claim]:
    """Primal residual and distance against the penalty, rate against conditioning and penalty, the duals."""
    return [
        _plateau(setting, results),
        _rate(setting, results),
        _slower(setting, results),
        _digit_gap(setting, results),
        _bounded(results),
        _closes(results),
    ]


def _plateau(setting: Setting, results: Results) -> Claim:
    """One claim: with a dual near zero the primal residual equals the distance, which must not count twice."""
    rhos = [rho for rho in setting.size.plateau.penalties if rho >= 3]
    parts = [results[f"{plateau.PREFIX}.rho.{rho:g}"].numbers for rho in rhos]
    values = {name: [numbers[name] for numbers in parts] for name in ("gap", "distance")}
    slopes = {name: slope(rhos, one) for name, one in values.items()}
    summary = "; ".join(f"{name} {_listed(one, rhos)}" for name, one in values.items())
    return Claim(
        "plateau-gap",
        plateau.PREFIX,
        "The feasibility gap and the distance to a solution fall quickly to a plateau of order 1/rho.",
        together([within(one, (-1.2, -0.8), (-1.5, -0.5)) for one in slopes.values()]),
        f"Slopes {slopes['gap']:.2f} and {slopes['distance']:.2f} in log-log for rho from 3 on (relative {summary}). With the "
        "dual near zero, as here, the two are nearly one number, and count once. How quickly is in the next two rows. The "
        f"theorem asks for rho below {plateau.LARGEST_PENALTY:g} (mu_L - 2 rho > 0): at these penalties it does not apply, "
        "and this is seen beyond it.",
        {"slope": slopes, "rho": rhos, **values},
    )


def _listed(values: Sequence[float], places: Sequence[float]) -> str:
    return ", ".join(f"{value:.3g} at {place:g}" for place, value in zip(places, values, strict=True))


def _rate(setting: Setting, results: Results) -> Claim:
    ones = [one for one in setting.size.plateau.conditionings if one > 1]
    rates = [results[f"{plateau.PREFIX}.rate.{one:g}"].numbers["rate"] for one in ones]
    found = slope(ones, rates)
    return Claim(
        "plateau-rate",
        plateau.PREFIX,
        "Up to there convergence is linear, at a rate that falls with the square of the conditioning of G.",
        within(found, (-2.5, -1.5), (-3.5, -0.5)),
        f"Slope {found:.2f} of the rate against the conditioning in log-log (rates: {_listed(rates, ones)}).",
        {"slope": found, "conditioning": ones, "rate": rates},
    )


def _slower(setting: Setting, results: Results) -> Claim:
    steps = {}
    for rho in setting.size.plateau.penalties:
        found = results[f"{plateau.PREFIX}.rho.{rho:g}"]
        near = np.flatnonzero(found.arrays["distance"] <= 1.1 * found.arrays["distance"][-1])
        steps[f"{rho:g}"] = int(found.arrays["step"][near[0]])
    counts = list(steps.values())
    summary = ", ".join(f"{count} at {rho}" for rho, count in steps.items())
    return Claim(
        "plateau-slower",
        plateau.PREFIX,
        "A larger penalty has less bias, but is slower.",
        graded([later > earlier for earlier, later in itertools.pairwise(counts)]),
        f"Iterations until the distance is within 10% of its plateau: {summary} (penalty).",
        {"steps": steps},
    )


def _digit_gap(setting: Setting, results: Results) -> Claim:
    rhos = list(setting.size.plateau.digit_penalties)
    gaps = [results[f"{plateau.PREFIX}.digits.{rho:g}"].numbers["gap"] for rho in rhos]
    late = [(rho, gap) for rho, gap in zip(rhos, gaps, strict=True) if rho >= 1]
    found = slope([rho for rho, _ in late], [gap for _, gap in late])
    return Claim(
        "plateau-digits",
        plateau.PREFIX,
        "The same on a trained generator: noisy digits, the bundled network.",
        within(found, (-1.3, -0.7), (-1.6, -0.4)),
        f"Slope {found:.2f} for rho from 1 on (relative gap: {_listed(gaps, rhos)}); the theorem's conditions are not checked "
        "here.",
        {"slope": found, "rho": rhos, "gap": gaps},
        ours=True,
    )


def _bounded(results: Results) -> Claim:
    large = results[f"{plateau.PREFIX}.dual.paper-large"].numbers["largest_dual"]
    small = results[f"{plateau.PREFIX}.dual.paper-small"].numbers["largest_dual"]
    checks = [large <= DUAL_SUM * 1.001, small <= DUAL_SUM * 0.01 * 1.001]
    return Claim(
        "plateau-bounded",
        plateau.PREFIX,
        "A check of the rule as built: the decaying dual step keeps the dual bounded, by the sum of its steps.",
        graded(checks),
        f"Largest dual {small:.3g} and {large:.3g} for first steps 0.01 and 1; the sum is {DUAL_SUM:g} times the first step.",
        {"small": small, "large": large},
        ours=True,
    )


def _closes(results: Results) -> Claim:
    gaps = {name: results[f"{plateau.PREFIX}.dual.{name.replace(', ', '-')}"].numbers["gap"] for name in plateau.DUALS}
    summary = ", ".join(f"{name} {gap:.2g}" for name, gap in gaps.items())
    frozen = min(gaps["paper, small"], gaps["paper, large"])
    return Claim(
        "plateau-duals",
        plateau.PREFIX,
        "It is the decaying dual step that makes the plateau: with one that does not decay, the gap closes.",
        graded([gaps[name] < 0.1 * frozen for name in ("constant", "adaptive")]),
        f"Relative gap at the end: {summary}.",
        {"gap": gaps},
        ours=True,
    )
