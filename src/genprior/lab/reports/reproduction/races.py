"""Figures of compressive sensing, tuning and denoising."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from genprior.lab.reports.reproduction.style import band, common_legend, draw, figure, finish
from genprior.lab.reproduce import compressive_sensing as sensing
from genprior.lab.reproduce import denoising, tuning
from genprior.lab.reproduce.claims import mean
from genprior.lab.reproduce.methods import EXACT, EXACT_ADAM, LABELS
from genprior.lab.reproduce.parts import Found
from genprior.lab.reproduce.run import Reproduction

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PIXELS = {"mnist": 784, "celeba": 12288}
_THINGS = {"mnist": "digits", "celeba": "faces"}
_FLOOR = 1e-12
LEAST_ERROR = 0.02
"""Below this, an error in [0, 1] is invisible in an image and would compress the scale."""


def runs(done: Reproduction, field: str) -> list[str]:
    """The methods that ran on a problem, in their usual order."""
    return [key for key in LABELS if f"{field}.run.{key}" in done.parts]


def preparation(key: str, found: Found) -> float:
    """Seconds before the first iteration: the factorisation of A, for the methods that use it."""
    return float(found.times.get("preparation_seconds", 0.0)) if key in sensing.FACTORISED else 0.0


def draw_sensing(done: Reproduction, generator: str, fraction: float, truth: str) -> Figure:
    """Objective and error against passes and against time, which begins with the preparation."""
    field = sensing.field_name(generator, fraction, truth)
    made, plots = figure(10.5, 7.2, 2, 2)
    kind = "in the range of the generator" if truth == "range" else "real, not in the range"
    m = sensing.measurements(generator, fraction)
    for key in runs(done, field):
        found = done.parts[f"{field}.run.{key}"]
        for number, place in enumerate(plots):
            x = found.arrays["seconds"] + preparation(key, found) if number % 2 else found.arrays["passes"]
            values = np.maximum(found.arrays["objective" if number < 2 else "error"], _FLOOR)
            draw(place, key, x, values.mean(axis=1))
            band(place, key, x, *np.quantile(values, (0.25, 0.75), axis=1))
    for number, place in enumerate(plots):
        across = "seconds, with the factorisation of A if used" if number % 2 else "forward + backward passes through G"
        up = "mean objective" if number < 2 else "mean relative error"
        finish(place, f"{_THINGS[generator]} {kind}, {m} of {_PIXELS[generator]}", across, up)
    common_legend(made, plots[0], 4)
    return made


def draw_sweep(done: Reproduction) -> Figure:
    """Final objective and error against the number of measurements."""
    made, plots = figure(10.5, 4.4, 1, 2)
    fractions = done.setting.size.digits.fractions
    fields = [sensing.field_name("mnist", fraction, "range") for fraction in fractions]
    for key in sensing.METHODS:
        for place, name in zip(plots, ("objective", "error"), strict=True):
            ends = [max(float(mean(done.parts[f"{field}.run.{key}"], name)[-1]), _FLOOR) for field in fields]
            draw(place, key, np.array([100 * fraction for fraction in fractions]), np.array(ends))
    steps = done.setting.size.digits.steps
    finish(
        plots[0], f"digits in the range, after {steps} iterations", "measurements, % of the pixels", "mean objective"
    )
    finish(
        plots[1],
        f"digits in the range, after {steps} iterations",
        "measurements, % of the pixels",
        "mean relative error",
    )
    common_legend(made, plots[0], 4)
    return made


def draw_tuning(done: Reproduction) -> Figure:
    """The paper's four plots: average objective against the step of gradient descent."""
    fields = [("mnist", fraction) for fraction in tuning.FRACTIONS]
    fields += [("celeba", fraction) for fraction in tuning.face_fractions(done.setting)]
    made, plots = figure(10.5, 3.6 * ((len(fields) + 1) // 2), (len(fields) + 1) // 2, 2)
    for place, (generator, fraction) in zip(plots, fields, strict=False):
        numbers = done.parts[tuning.grid_name(generator, fraction)].numbers
        for name, line_style, label in (("last", "k-o", "last iterate"), ("best", "k:x", "best so far")):
            values = [np.nan if value is None else value for value in numbers[f"mean_{name}"]]
            place.plot(numbers["steps"], values, line_style, markersize=4, label=label)
        place.axvline(numbers["chosen"], color="grey", linestyle="--", label=f"chosen: {numbers['chosen']:g}")
        place.axhline(numbers["start_objective"], color="grey", linestyle="-.", label="at the start")
        title = (
            f"{_THINGS[generator]}, m = {sensing.measurements(generator, fraction)}, {numbers['iterations']} iterations"
        )
        finish(place, title, "step of gradient descent", "mean objective", log_x=True)
        place.legend(fontsize=8)
    for place in plots[len(fields) :]:
        place.set_axis_off()
    return made


def draw_denoising(done: Reproduction) -> Figure:
    """The l_inf error (for l1 and l2: the relative error) at each iteration."""
    made, plots = figure(13, 7.4, 2, 3)
    for place, case in zip(plots, denoising.CASES, strict=False):
        field = f"{denoising.PREFIX}.{case.key}"
        name = "linf" if case.norm == "linf" else "error"
        for key in runs(done, field):
            curve = mean(done.parts[f"{field}.run.{key}"], name)
            draw(place, key, np.maximum(np.arange(len(curve)), 0.7), np.maximum(curve, 1e-6))
        place.axvline(100, color="grey", linestyle=":", linewidth=1)
        up = "mean |G(z) - y|_inf" if case.norm == "linf" else "mean relative error"
        finish(place, case.title, "iteration (the start stands at 0.7; dotted: 100)", up, log_x=True)
        place.set_ylim(bottom=max(place.get_ylim()[0], LEAST_ERROR))
    for place in plots[len(denoising.CASES) :]:
        place.set_axis_off()
    common_legend(made, plots[0], 5)
    return made


def draw_duals(done: Reproduction) -> Figure:
    """Whether the prox acts (w differs from y), and the length of the duals."""
    made, plots = figure(10.5, 4.0, 1, 2)
    for key in (EXACT, EXACT_ADAM):
        for case in ("linf", "linf-sign"):
            arrays = done.parts[f"{denoising.PREFIX}.{case}.run.{key}"].arrays
            label = f"{LABELS[key]}, {'in the range' if case == 'linf' else 'sign noise'}"
            least, most = arrays["w_from_y"][1:].min(axis=1), arrays["dual"][1:].max(axis=1)
            steps = np.arange(1, len(least) + 1)
            width = 1.0 if case == "linf" else 2.4
            for place, values in zip(plots, (np.maximum(least, 1e-7), np.maximum(most, 1e-7)), strict=True):
                draw(place, key, steps, values, label)
                place.lines[-1].set_linewidth(width)
    finish(plots[0], "is the prox active?", "iteration", "smallest |w - y|_inf of the images", log_x=True)
    finish(plots[1], "are the duals bounded?", "iteration", "largest |lam| of the images", log_x=True)
    common_legend(made, plots[0], 2)
    return made
