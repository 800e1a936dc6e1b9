"""Judging the defence: against the plain attack, against one another, against adaptive attacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from genprior.lab.reproduce import defence
from genprior.lab.reproduce.claims import (
    FAILS,
    HOLDS,
    UNDECIDED,
    Claim,
    Results,
    binomial,
    graded,
    percent,
    share_of,
    together,
)
from genprior.lab.reproduce.contest import Setting
from genprior.lab.reproduce.defender import NORMS
from genprior.lab.reproduce.methods import ADAM, EXACT, EXACT_ADAM, EXACT_L2, GD, LABELS
from genprior.lab.reproduce.parts import Array, Found

KINDS = ("bpda", "latent")
"""The adaptive attacks."""
_BUDGETS = (0.25, 0.5, 1.0)
"""Shares of ADMM's total passes: a method that is ahead only late is not ahead with less computation."""
Difference = tuple[float, float, float]
"""Difference of two accuracies on the same images: mean and its 95% interval."""


def accuracy_curve(setting: Setting, results: Results, key: str) -> dict[str, list[float]]:
    """Steps, passes, seconds and accuracy of one defence, over all batches, which all use the same passes."""
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
    """Against the plain attack, against one another, against adaptive attacks."""
    return [
        _restores(results, {key: accuracy_curve(setting, results, key) for key in defence.PAPERS}),
        _linf_first(setting, results, EXACT),
        _linf_first(setting, results, EXACT_ADAM),
        *(_known(results, key) for key in defence.KNOWN),
    ]


def _restores(results: Results, curves: dict[str, Any]) -> Claim:
    attack = results[f"{defence.PREFIX}.attack"].numbers
    ends = {key: curve["accuracy"][-1] for key, curve in curves.items()}
    gains = {key: end - attack["attacked_accuracy"] for key, end in ends.items()}
    count = attack["pictures"]
    summary = ", ".join(f"{LABELS[key]} ({NORMS[key]}) {share_of(end, count)}" for key, end in ends.items())
    return Claim(
        "defence-restores",
        defence.PREFIX,
        "Projection on the range of the generator restores much of the accuracy that the attack destroyed.",
        graded([gain > 0.4 for gain in gains.values()]),
        f"Accuracy {percent(attack['clean_accuracy'])} clean, {percent(attack['attacked_accuracy'])} attacked; "
        f"defended, {count} digits, with 95% intervals: {summary} (a gain of 40 points counts).",
        {"clean": attack["clean_accuracy"], "attacked": attack["attacked_accuracy"], "defended": ends},
    )


@dataclass(frozen=True)
class Looks:
    """A defence with its accuracy at some steps."""

    passes: list[float]
    right: Array
    """Which images were classified correctly, ``(steps, images)``."""

    def at(self, wanted: float) -> Array:
        """After this many passes, one number per image; linear between two recorded steps."""
        later = min(int(np.searchsorted(self.passes, wanted)), len(self.passes) - 1)
        earlier = max(later - 1, 0)
        span = self.passes[later] - self.passes[earlier]
        share = min(1.0, (wanted - self.passes[earlier]) / span) if span > 0 else 1.0
        return np.asarray((1 - share) * self.right[earlier] + share * self.right[later])

    def first(self, accuracy: float) -> float | None:
        """The passes at the first recorded step with at least this accuracy."""
        places = np.flatnonzero(self.right.mean(axis=1) >= accuracy)
        return self.passes[places[0]] if len(places) else None


def looks(setting: Setting, results: Results, key: str, most: int | None = None) -> Looks:
    """All batches of a defence, or its first images."""
    names = [f"{defence.PREFIX}.run.{key}.{start}" for start, _ in defence.chunks(setting, key)]
    right = np.concatenate([results[name].arrays["right_at"] for name in names], axis=1)
    return Looks(accuracy_curve(setting, results, key)["passes"], right[:, :most])


def paired(ours: Array, theirs: Array) -> Difference:
    """Difference of two accuracies on the same images, and its 95% interval."""
    count = min(len(ours), len(theirs))
    differences = ours[:count].astype(float) - theirs[:count].astype(float)
    half = 1.96 * float(differences.std(ddof=1)) / np.sqrt(count)
    mean = float(differences.mean())
    return mean, mean - half, mean + half


def _linf_first(setting: Setting, results: Results, solver: str) -> Claim:
    """Lower error at the end of each run; less computation at equal passes; a control separates the norm from the solver."""
    ours = looks(setting, results, solver)
    end, count, spent = ours.right[-1], ours.right.shape[1], ours.passes[-1]
    rivals = {LABELS[key]: looks(setting, results, key, count) for key in (ADAM, GD)}
    ends = {name: paired(end, theirs.right[-1]) for name, theirs in rivals.items()}
    budgets = {
        name: [paired(ours.at(share * spent), theirs.at(share * spent)) for share in _BUDGETS]
        for name, theirs in rivals.items()
    }
    error = together([_decided(one) for one in ends.values()])
    computation = together([_decided(one) for rows in budgets.values() for one in rows])
    control = paired(end, looks(setting, results, EXACT_L2).right[-1]) if solver == EXACT else None
    last = ", ".join(f"of {name} {_points(one)}" for name, one in ends.items())
    meanwhile = "; ".join(f"of {name} {', '.join(map(_points, rows))}" for name, rows in budgets.items())
    peaks = "; ".join(_peak(name, theirs, LABELS[solver], ours) for name, theirs in rivals.items())
    return Claim(
        "defence-linf-first" if solver == EXACT else f"defence-linf-first-{solver}",
        defence.PREFIX,
        "Projection in l_inf by ADMM gives a lower test error than projection in l2 by Adam or gradient descent, with less "
        f"computation{'.' if solver == EXACT else f': {LABELS[solver]}, which is ours.'}",
        together([error, computation]),
        f"Accuracy of {LABELS[solver]}, l_inf, {share_of(float(end.mean()), count)} on {count} digits after {spent:.0f} "
        "passes. Points ahead on the same digits, 95% interval (one that includes 0 leaves it undecided). Lower error, each "
        f"at its end: {last}: {error}. With less computation, both at "
        f"{', '.join(f'{share:.0%}' for share in _BUDGETS)} of these passes: {meanwhile}: {computation}. In passes: {peaks}."
        + ("" if control is None else f" Control: of the same solver in l2 {_points(control)}: what the norm does."),
        {
            "admm": float(end.mean()),
            "ends": ends,
            "shares": list(_BUDGETS),
            "at_shares": budgets,
            "lower_error": error,
            "less_computation": computation,
            "control": control,
        },
        ours=solver != EXACT,
    )


def _decided(one: Difference) -> str:
    """Ahead, behind, or neither by the interval."""
    _, low, high = one
    return HOLDS if low > 0 else FAILS if high < 0 else UNDECIDED


def _peak(name: str, theirs: Looks, our_name: str, ours: Looks) -> str:
    """The best that a method reaches, after how many passes, and after how many ADMM reaches it; on the same images."""
    accuracies = theirs.right.mean(axis=1)
    place = int(accuracies.argmax())
    there = ours.first(float(accuracies[place]))
    summary = "does not reach" if there is None else f"reaches after {there:.0f}"
    best, spent = percent(float(accuracies[place])), theirs.passes[place]
    return f"the best of {name} is {best} after {spent:.0f}, which {our_name} {summary}"


def _points(one: Difference) -> str:
    return f"{100 * one[0]:+.1f} [{100 * one[1]:+.1f}, {100 * one[2]:+.1f}]"


def known_accuracy(part: Found) -> float:
    """Under an adaptive attack: BPDA after both starts, the latent attack at its worst."""
    return float(part.arrays["right"].mean())


def _known(results: Results, key: str) -> Claim:
    """The worst of the plain attack, BPDA and the latent one, image by image."""
    bpda, latent = (results[f"{defence.PREFIX}.{kind}.{key}"] for kind in KINDS)
    plain = results[f"{defence.PREFIX}.run.{key}.0"]
    count = min(len(part.arrays["right"]) for part in (plain, bpda, latent))
    each = {name: part.arrays["right"][:count] for name, part in (("plain", plain), ("BPDA", bpda), ("latent", latent))}
    worst = float(np.logical_and.reduce(list(each.values())).mean())
    target = 0.8 * bpda.numbers["unattacked_accuracy"]
    low, high = binomial(round(worst * count), count)
    verdict = HOLDS if high < target else FAILS if low > target else UNDECIDED
    summary = ", ".join(f"{name} {share_of(float(one.mean()), count)}" for name, one in each.items())
    ending = {HOLDS: "broken", UNDECIDED: "perhaps broken", FAILS: "not broken by these attacks"}[verdict]
    return Claim(
        "defence-known",
        defence.PREFIX,
        f"Attacks that know the defence break it: {LABELS[key]}, {NORMS[key]}. (The paper does not ask.)",
        verdict,
        f"Accuracy on the first {count} digits, 95% intervals: without attack "
        f"{share_of(bpda.numbers['unattacked_accuracy'], bpda.numbers['pictures'])}; attacked: {summary}; the worst of the "
        f"three for each digit: {share_of(worst, count)}. Under four fifths of the first counts as broken: {ending}. "
        "Stronger attacks may exist: projection on the range of a generator is no proven defence.",
        {"pictures": count, "worst": worst, "interval": [low, high], **{k: float(v.mean()) for k, v in each.items()}},
        ours=True,
    )
