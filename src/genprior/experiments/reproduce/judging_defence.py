"""Judging the defence and the plateau."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from genprior.experiments.reproduce import defence, plateau
from genprior.experiments.reproduce.claims import (
    FAILS,
    HOLDS,
    PARTLY,
    Claim,
    Results,
    binomial,
    graded,
    percent,
    share_of,
    slope,
    together,
    within,
)
from genprior.experiments.reproduce.contest import Setting
from genprior.experiments.reproduce.defender import NORMS
from genprior.experiments.reproduce.methods import ADAM, EXACT, EXACT_ADAM, EXACT_L2, GD, LABELS
from genprior.experiments.reproduce.parts import Array

_DUAL_SUM = 3.389


def accuracy_curve(setting: Setting, results: Results, key: str) -> dict[str, list[float]]:
    """Steps, passes, seconds and accuracy of one defence, all chunks together; every chunk makes the same passes."""
    parts = [results[f"{defence.PREFIX}.run.{key}.{start}"] for start, _ in defence.chunks(setting, key)]
    total = sum(part.numbers["pictures"] for part in parts)
    seconds = np.sum([part.times["seconds"] for part in parts], axis=0)
    return {
        "step": parts[0].numbers["steps"],
        "passes": np.mean([part.numbers["passes"] for part in parts], axis=0).tolist(),
        "seconds": seconds.tolist(),
        "accuracy": (np.sum([part.numbers["right"] for part in parts], axis=0) / total).tolist(),
    }


def judge_defence(setting: Setting, results: Results) -> list[Claim]:
    """Against the plain attack, against one another, against attacks that know."""
    curves = {key: accuracy_curve(setting, results, key) for key in (*defence.PAPERS, EXACT_ADAM)}
    return [
        _restores(results, {key: curves[key] for key in defence.PAPERS}),
        _linf_first(setting, results, curves, EXACT),
        _linf_first(setting, results, curves, EXACT_ADAM),
        *(_known(results, key) for key in defence.KNOWN),
    ]


def _restores(results: Results, curves: dict[str, Any]) -> Claim:
    attack = results[f"{defence.PREFIX}.attack"].numbers
    ends = {key: curve["accuracy"][-1] for key, curve in curves.items()}
    gains = {key: end - attack["attacked_accuracy"] for key, end in ends.items()}
    count = attack["pictures"]
    told = ", ".join(f"{LABELS[key]} ({NORMS[key]}) {share_of(end, count)}" for key, end in ends.items())
    return Claim(
        "defence-restores",
        defence.PREFIX,
        "Projection on the range of the generator restores much of the accuracy that the attack destroyed.",
        graded([gain > 0.4 for gain in gains.values()]),
        f"Accuracy {percent(attack['clean_accuracy'])} clean, {percent(attack['attacked_accuracy'])} attacked; "
        f"defended, {count} digits, with 95% intervals: {told} (a gain of 40 points counts).",
        {"clean": attack["clean_accuracy"], "attacked": attack["attacked_accuracy"], "defended": ends},
    )


def right_at(setting: Setting, results: Results, key: str) -> Array:
    """Which pictures are read right, ``(looks, pictures)``, all chunks together."""
    names = [f"{defence.PREFIX}.run.{key}.{start}" for start, _ in defence.chunks(setting, key)]
    return np.concatenate([results[name].arrays["right_at"] for name in names], axis=1)


def paired(ours: Array, theirs: Array) -> tuple[float, float, float]:
    """Difference of two accuracies on the same pictures, and its 95% interval."""
    count = min(len(ours), len(theirs))
    differences = ours[:count].astype(float) - theirs[:count].astype(float)
    half = 1.96 * float(differences.std(ddof=1)) / np.sqrt(count)
    mean = float(differences.mean())
    return mean, mean - half, mean + half


def _linf_first(setting: Setting, results: Results, curves: dict[str, Any], solver: str) -> Claim:
    """At the passes that ADMM used in all, and at the end of everybody; a control tells the norm from the solver."""
    ours, budget = right_at(setting, results, solver)[-1], curves[solver]["passes"][-1]
    found = {}
    for key in (ADAM, GD):
        theirs = right_at(setting, results, key)
        look = min(
            int(np.searchsorted(curves[key]["passes"], budget)), len(theirs) - 1
        )  # no fewer passes than ADMM had
        found[f"{LABELS[key]} at the same passes"] = paired(ours, theirs[look])
        found[f"{LABELS[key]} at its end"] = paired(ours, theirs[-1])
    verdicts = [HOLDS if low > 0 else PARTLY if mean > 0 else FAILS for mean, low, _ in found.values()]
    control = paired(ours, right_at(setting, results, EXACT_L2)[-1]) if solver == EXACT else None
    told = ", ".join(f"{name} {_points(one)}" for name, one in found.items())
    return Claim(
        "defence-linf-first" if solver == EXACT else f"defence-linf-first-{solver}",
        defence.PREFIX,
        "Projection in l_inf by ADMM gives a lower test error than projection in l2 by Adam or gradient descent, with less "
        f"computation{'.' if solver == EXACT else f': {LABELS[solver]}, which is ours.'}",
        together(verdicts),
        f"Accuracy of {LABELS[solver]}, l_inf, {share_of(float(ours.mean()), len(ours))} on {len(ours)} digits. Points "
        f"ahead on the same digits, 95% interval: of {told} (an interval that includes 0 counts as partly)."
        + ("" if control is None else f" Control: of the same solver in l2 {_points(control)}: what the norm does."),
        {"admm": float(ours.mean()), "differences": found, "control": control},
        ours=solver != EXACT,
    )


def _points(one: tuple[float, float, float]) -> str:
    return f"{100 * one[0]:+.1f} [{100 * one[1]:+.1f}, {100 * one[2]:+.1f}]"


def _known(results: Results, key: str) -> Claim:
    """The worst of the plain attack, BPDA and the latent one, picture by picture."""
    bpda, latent = (results[f"{defence.PREFIX}.{kind}.{key}"] for kind in ("bpda", "latent"))
    plain = results[f"{defence.PREFIX}.run.{key}.0"]
    count = min(len(part.arrays["right"]) for part in (plain, bpda, latent))
    each = {name: part.arrays["right"][:count] for name, part in (("plain", plain), ("BPDA", bpda), ("latent", latent))}
    worst = float(np.logical_and.reduce(list(each.values())).mean())
    target = 0.8 * bpda.numbers["unattacked_accuracy"]
    low, high = binomial(round(worst * count), count)
    verdict = HOLDS if high < target else PARTLY if worst < target or worst == 0 else FAILS
    told = ", ".join(f"{name} {share_of(float(one.mean()), count)}" for name, one in each.items())
    ending = {HOLDS: "broken", PARTLY: "perhaps broken", FAILS: "not broken by these attacks"}[verdict]
    return Claim(
        "defence-known",
        defence.PREFIX,
        f"Attacks that know the defence break it: {LABELS[key]}, {NORMS[key]}. (The paper does not ask.)",
        verdict,
        f"Accuracy on the first {count} digits, 95% intervals: without attack "
        f"{share_of(bpda.numbers['unattacked_accuracy'], bpda.numbers['pictures'])}; attacked: {told}; the worst of the "
        f"three for each digit: {share_of(worst, count)}. Under four fifths of the first counts as broken: {ending}. "
        "Stronger attacks may exist: projection on the range of a generator is no proven defence.",
        {"pictures": count, "worst": worst, "interval": [low, high], **{k: float(v.mean()) for k, v in each.items()}},
        ours=True,
    )


def judge_plateau(setting: Setting, results: Results) -> list[Claim]:
    """Gap and distance against the penalty, rate against conditioning and penalty, the duals."""
    return [
        _plateau(setting, results, "gap", "The feasibility gap falls quickly to a plateau of order 1/rho."),
        _plateau(setting, results, "distance", "The distance to a solution falls quickly to a plateau of order 1/rho."),
        _rate(setting, results),
        _slower(setting, results),
        _digit_gap(setting, results),
        _bounded(results),
        _closes(results),
    ]


def _plateau(setting: Setting, results: Results, name: str, text: str) -> Claim:
    rhos = [rho for rho in setting.size.plateau.penalties if rho >= 3]
    values = [results[f"{plateau.PREFIX}.rho.{rho:g}"].numbers[name] for rho in rhos]
    found = slope(rhos, values)
    told = ", ".join(f"{value:.3g} at {rho:g}" for rho, value in zip(rhos, values, strict=True))
    return Claim(
        f"plateau-{name}",
        plateau.PREFIX,
        text,
        within(found, (-1.2, -0.8), (-1.5, -0.5)),
        f"Slope {found:.2f} in log-log for rho from 3 on (relative {name}: {told}). The theorem asks for rho below "
        f"{plateau.LARGEST_PENALTY:g} (mu_L - 2 rho > 0): at these penalties it does not apply, and this is seen beyond it.",
        {"slope": found, "rho": rhos, name: values},
    )


def _rate(setting: Setting, results: Results) -> Claim:
    ones = [one for one in setting.size.plateau.conditionings if one > 1]
    rates = [results[f"{plateau.PREFIX}.rate.{one:g}"].numbers["rate"] for one in ones]
    found = slope(ones, rates)
    told = ", ".join(f"{rate:.3g} at {one:g}" for one, rate in zip(ones, rates, strict=True))
    return Claim(
        "plateau-rate",
        plateau.PREFIX,
        "Up to there convergence is linear, at a rate that falls with the square of the conditioning of G.",
        within(found, (-2.5, -1.5), (-3.5, -0.5)),
        f"Slope {found:.2f} of the rate against the conditioning in log-log (rates: {told}).",
        {"slope": found, "conditioning": ones, "rate": rates},
    )


def _slower(setting: Setting, results: Results) -> Claim:
    steps = {}
    for rho in setting.size.plateau.penalties:
        found = results[f"{plateau.PREFIX}.rho.{rho:g}"]
        near = np.flatnonzero(found.arrays["distance"] <= 1.1 * found.arrays["distance"][-1])
        steps[f"{rho:g}"] = int(found.arrays["step"][near[0]])
    counts = list(steps.values())
    told = ", ".join(f"{count} at {rho}" for rho, count in steps.items())
    return Claim(
        "plateau-slower",
        plateau.PREFIX,
        "A larger penalty has less bias, but is slower.",
        graded([later > earlier for earlier, later in itertools.pairwise(counts)]),
        f"Iterations until the distance is within 10% of its plateau: {told} (penalty).",
        {"steps": steps},
    )


def _digit_gap(setting: Setting, results: Results) -> Claim:
    rhos = list(setting.size.plateau.digit_penalties)
    gaps = [results[f"{plateau.PREFIX}.digits.{rho:g}"].numbers["gap"] for rho in rhos]
    late = [(rho, gap) for rho, gap in zip(rhos, gaps, strict=True) if rho >= 1]
    found = slope([rho for rho, _ in late], [gap for _, gap in late])
    told = ", ".join(f"{gap:.3g} at {rho:g}" for rho, gap in zip(rhos, gaps, strict=True))
    return Claim(
        "plateau-digits",
        plateau.PREFIX,
        "The same on a trained generator: noisy digits, the bundled network.",
        within(found, (-1.3, -0.7), (-1.6, -0.4)),
        f"Slope {found:.2f} for rho from 1 on (relative gap: {told}); the theorem's conditions are not checked here.",
        {"slope": found, "rho": rhos, "gap": gaps},
        ours=True,
    )


def _bounded(results: Results) -> Claim:
    large = results[f"{plateau.PREFIX}.dual.paper-large"].numbers["largest_dual"]
    small = results[f"{plateau.PREFIX}.dual.paper-small"].numbers["largest_dual"]
    checks = [large <= _DUAL_SUM * 1.001, small <= _DUAL_SUM * 0.01 * 1.001]
    return Claim(
        "plateau-bounded",
        plateau.PREFIX,
        "The decaying dual step keeps the dual bounded.",
        graded(checks),
        f"Largest dual {small:.3g} and {large:.3g} for first steps 0.01 and 1: below 3.388 times the first step.",
        {"small": small, "large": large},
    )


def _closes(results: Results) -> Claim:
    gaps = {name: results[f"{plateau.PREFIX}.dual.{name.replace(', ', '-')}"].numbers["gap"] for name in plateau.DUALS}
    told = ", ".join(f"{name} {gap:.2g}" for name, gap in gaps.items())
    frozen = min(gaps["paper, small"], gaps["paper, large"])
    return Claim(
        "plateau-duals",
        plateau.PREFIX,
        "It is the decaying dual step that makes the plateau: with one that does not decay, the gap closes.",
        graded([gaps[name] < 0.1 * frozen for name in ("constant", "adaptive")]),
        f"Relative gap at the end: {told}.",
        {"gap": gaps},
        ours=True,
    )
