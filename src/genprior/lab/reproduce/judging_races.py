"""Judging compressive sensing, the tuning and the denoising. Equal iterations are equal passes, so timing has no influence."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from genprior.lab.reproduce import claims, compressive_sensing, denoising, tuning
from genprior.lab.reproduce.claims import Claim, Results, at_share, compared, first_step, graded, mean, together
from genprior.lab.reproduce.contest import Setting
from genprior.lab.reproduce.methods import ADAM, AUTO, EXACT, EXACT_ADAM, GD, LABELS, LINEARIZED
from genprior.lab.reproduce.parts import Found

_NAMES = {"mnist": "digits", "celeba": "faces"}
_CONSIDERABLE, _EARLY = 200, 100
"""Iterations that count as many for Adam, and as few for ADMM: shorter runs do not decide."""
_TOO_LONG = 3.0
"""For a dual that no rule bounds: a multiplier of the l_inf norm has length 1 at most, and on the way it may overshoot."""
_WATCHED = ("linf", "linf-sign")
"""Cases in which the duals are judged: without noise, and with."""


def judge_sensing(setting: Setting, results: Results) -> list[Claim]:
    """ADMM against tuned gradient descent, at the main fraction and over all; the cost of an iteration."""
    found = []
    for generator, size in (("mnist", setting.size.digits), ("celeba", setting.size.faces)):
        for key in (EXACT, LINEARIZED):
            field = compressive_sensing.field_name(generator, size.main, "range")
            found.append(_ahead(results, field, generator, size.main, key))
    found.append(_sweep(setting, results))
    found.append(_cost(setting, results))
    return found


def _ahead(results: Results, field: str, generator: str, fraction: float, key: str) -> Claim:
    ours, theirs = results[f"{field}.run.{key}"], results[f"{field}.run.{GD}"]
    found = {
        f"{name} at {share:.0%} of the iterations": compared(
            at_share(ours.arrays[name], share), at_share(theirs.arrays[name], share)
        )
        for name in ("objective", "error")
        for share in (0.5, 1.0)
    }
    summary = "; ".join(f"{name} {one}" for name, one in found.items())
    return Claim(
        f"sensing-{generator}-{key}",
        compressive_sensing.PREFIX,
        f"With measurements for {fraction:.0%} of the pixels, {LABELS[key]} is ahead of tuned gradient descent in "
        f"objective and in reconstruction error ({_NAMES[generator]}).",
        together([one.verdict for one in found.values()]),
        f"Mean of {LABELS[key]} over mean of gradient descent, same passes, with a 95% interval: {summary}. Below 1: ahead; "
        "an interval that includes 1 leaves it undecided.",
        {
            "ratios": {name: asdict(one) for name, one in found.items()},
            "solvers": [ours.numbers["solver"], theirs.numbers["solver"]],
        },
    )


def _sweep(setting: Setting, results: Results) -> Claim:
    found = {}
    for generator, size in (("mnist", setting.size.digits), ("celeba", setting.size.faces)):
        for fraction in size.fractions:
            field = compressive_sensing.field_name(generator, fraction, "range")
            ends = [results[f"{field}.run.{key}"].arrays["objective"][-1] for key in (EXACT, GD)]
            found[f"{_NAMES[generator]}, {fraction:.0%}"] = compared(*ends)
    summary = "; ".join(f"{name} {one}" for name, one in found.items())
    return Claim(
        "sensing-sweep",
        compressive_sensing.PREFIX,
        "Exact ADMM is ahead of tuned gradient descent whatever the number of measurements.",
        together([one.verdict for one in found.values()]),
        f"Final mean objective of exact ADMM over that of gradient descent, with a 95% interval: {summary}.",
        {"ratios": {name: asdict(one) for name, one in found.items()}},
        ours=True,
    )


def _cost(setting: Setting, results: Results) -> Claim:
    field = compressive_sensing.field_name("mnist", setting.size.digits.main, "range")
    passes = {}
    for key in (EXACT, LINEARIZED, GD):
        numbers = results[f"{field}.run.{key}"].numbers
        # the pass at the start is not one of an iteration
        passes[key] = ((numbers["forwards"] - 1) / numbers["steps"], numbers["backwards"] / numbers["steps"])
    single = [max(abs(one[0] - 1), abs(one[1] - 1)) < 0.01 for one in passes.values()]
    summary = ", ".join(f"{LABELS[key]} {one[0]:.2f} + {one[1]:.2f}" for key, one in passes.items())
    return Claim(
        "sensing-cost",
        compressive_sensing.PREFIX,
        "An ADMM iteration costs as many passes as a gradient step, one forward and one backward. (The paper counts two "
        "forward passes for ADMM.)",
        graded(single),
        f"Counted forward + backward passes per iteration: {summary}. G(z) of the w step is the forward pass of the next z "
        "step: the paper's count is an upper bound, and a correction of ours.",
        {"passes": passes},
        ours=True,
    )


def judge_tuning(setting: Setting, results: Results) -> list[Claim]:
    """A best step in between: larger ones overshoot, smaller ones are slow."""
    fields = [("mnist", fraction) for fraction in tuning.FRACTIONS]
    fields += [("celeba", fraction) for fraction in tuning.face_fractions(setting)]
    checks, summary, numbers = [], [], {}
    for generator, fraction in fields:
        name = tuning.grid_name(generator, fraction)
        found = results[name].numbers
        values = [np.inf if value is None else value for value in found["mean_last"]]
        best = min(values)
        checks.append(values[0] > 1.2 * best and values[-1] > 1.2 * best)
        steps = [step for step, value in zip(found["steps"], values, strict=True) if value > found["start_objective"]]
        over = f", worse than the start from {min(steps):g} on" if steps else ""
        m = compressive_sensing.measurements(generator, fraction)
        summary.append(f"{_NAMES[generator]}, m = {m}: {found['chosen']:g}{over}")
        numbers[name] = found["chosen"]
    return [
        Claim(
            "tuning-step",
            tuning.PREFIX,
            "Gradient descent has a best step in the middle of the grid: smaller ones are slow, larger ones overshoot.",
            graded(checks),
            "Chosen steps: "
            + "; ".join(summary)
            + ". By the mean objective of the last iterate (the best so far hides overshooting). The claim counts if "
            "both ends of the grid are at least 20% worse than the best.",
            numbers,
        )
    ]


def judge_denoising(setting: Setting, results: Results) -> list[Claim]:
    """Gradient descent, Adam and ADMM on the l_inf problem."""
    return [
        *(_gd_stands(results, case) for case in ("linf", "linf-heavy")),
        _adam_is_slow(results),
        *(_passes_adam(results, case, key) for case in ("linf", "linf-sign") for key in (EXACT, EXACT_ADAM, AUTO)),
        _healthy(results),
    ]


def _run(results: Results, case: str, key: str) -> Found:
    return results[f"{denoising.PREFIX}.{case}.run.{key}"]


def _gd_stands(results: Results, case: str) -> Claim:
    """By the step that is best at the end of all iterations: the most favourable choice for gradient descent."""
    others = [
        found
        for name, found in results.items()
        if name.startswith(f"{denoising.PREFIX}.{case}.{denoising.OTHER_STEPS}.")
    ]
    curves = {found.numbers["solver"]: mean(found, "linf") for found in (_run(results, case, GD), *others)}
    solver, curve = min(curves.items(), key=lambda one: float(one[1][-1]))
    left = float(curve[-1] / curve[0])
    gamma = next(one.gamma for one in denoising.CASES if one.key == case)
    tried = f"best of {len(curves)} steps, each over all iterations" if len(curves) > 1 else "tuned step"
    return Claim(
        f"denoising-gd-{case}",
        denoising.PREFIX,
        f"Gradient descent cannot decrease the l_inf error (gamma = {gamma:g} here; the paper says only that it is small).",
        claims.within(left, (0.95, 9.0), (0.8, 9.0)),
        f"Mean l_inf error from {curve[0]:.3f} to {curve[-1]:.3f} in {len(curve) - 1} iterations ({tried}: {solver}). "
        f"{left:.0%} of it is left: 95% or more counts as no decrease, 80% as partly.",
        {
            "start": float(curve[0]),
            "end": float(curve[-1]),
            "gamma": gamma,
            "ends": {name: float(one[-1]) for name, one in curves.items()},
        },
        ours=case != "linf",
    )


def _adam_is_slow(results: Results) -> Claim:
    curve = mean(_run(results, "linf", ADAM), "linf")
    half = first_step(curve, 0.5 * float(curve[0]))
    unseen = half is None and len(curve) <= _CONSIDERABLE
    slow = len(curve) if half is None else half
    return Claim(
        "denoising-adam",
        denoising.PREFIX,
        "Adam takes a considerable number of iterations to decrease the l_inf error.",
        claims.NOT_JUDGED if unseen else claims.within(float(slow), (_CONSIDERABLE, np.inf), (100, np.inf)),
        f"Adam needs {f'more than {len(curve) - 1}' if half is None else half} iterations to halve it "
        f"(we call more than {_CONSIDERABLE} considerable{', which is more than were run' if unseen else ''}); it ends at "
        f"{curve[-1]:.3f}.",
        {"halved_after": half, "end": float(curve[-1])},
    )


def _passes_adam(results: Results, case: str, key: str) -> Claim:
    adam, curve = mean(_run(results, case, ADAM), "linf"), mean(_run(results, case, key), "linf")
    target, run = float(adam[-1]), min(len(adam), len(curve)) - 1
    step = first_step(curve, target)
    late = f"not in {len(curve) - 1} iterations (it ends at {curve[-1]:.3f})"
    summary = late if step is None else f"after {step} iterations"
    verdict = claims.FAILS if step is None else claims.HOLDS if step <= _EARLY else claims.PARTLY
    short = "" if run >= _EARLY else f" Only {run} iterations were run, too few to judge."
    what = "in the range" if case == "linf" else "with sign noise of size 0.2"
    return Claim(
        f"denoising-{case}-{key}",
        denoising.PREFIX,
        f"ADMM reaches Adam's final l_inf error within its first {_EARLY} iterations ({LABELS[key]}, images {what}).",
        claims.NOT_JUDGED if short else verdict,
        f"Adam's final mean l_inf error {target:.3f} is reached by {LABELS[key]} {summary}.{short}",
        {"adam_end": target, "step": step, "end": float(curve[-1])},
        ours=key != EXACT or case != "linf",
    )


def _healthy(results: Results) -> Claim:
    """The prox acts, the duals are bounded: a run with w = y throughout would be an l2 run."""
    active = {case: min(_active(_run(results, case, key)) for key in (EXACT, EXACT_ADAM)) for case in _WATCHED}
    most = {
        key: {case: float(_run(results, case, key).arrays["dual"].max()) for case in _WATCHED}
        for key in (EXACT, EXACT_ADAM)
    }
    used = {case: most[EXACT][case] / _bound(_run(results, case, EXACT)) for case in _WATCHED}
    noisy, exact = claims.percent(active["linf-sign"]), claims.percent(active["linf"])
    lengths = [f"{most[EXACT][case]:.3g}, {claims.percent(used[case])} of the rule's bound," for case in _WATCHED]
    free = max(most[EXACT_ADAM].values())
    return Claim(
        "denoising-healthy",
        denoising.PREFIX,
        "The l_inf runs are l_inf runs: the prox acts (w differs from y), and the duals stay bounded by the rule.",
        graded([active["linf-sign"] > 0.9, max(used.values()) <= 1.001, free < _TOO_LONG]),
        f"In the second half of the run, after the small penalties, w differs from y in at least {noisy} of all "
        f"steps and images with noise, in {exact} without (there y is the answer, and the prox gives it once rho "
        f"|G(z) - y|_1 is below 1); the largest dual of exact ADMM is {lengths[1]} with noise, {lengths[0]} without; with "
        f"Adam's z step and a constant dual step it is {free:.3g} (a multiplier of the l_inf norm has |lam|_1 <= 1).",
        {"share_active": active, "largest_dual": most, "share_of_bound": used},
        ours=True,
    )


def _active(found: Found) -> float:
    """The share of steps and images, in the second half of a run, in which w differs from y."""
    late = found.arrays["w_from_y"][len(found.arrays["w_from_y"]) // 2 :]
    return float((late > 1e-6).mean())


def _bound(found: Found) -> float:
    """Of the dual's length, by the paper's rule with the first step of this run."""
    return claims.DUAL_SUM * float(found.numbers["solver"].partition("Paper(sigma=")[2].partition(")")[0])
