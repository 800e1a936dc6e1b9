"""Figures of the defence and of the plateau."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from genprior.lab.reports.reproduction.style import common_legend, draw, figure, finish
from genprior.lab.reproduce import defence, plateau
from genprior.lab.reproduce.defender import NORMS
from genprior.lab.reproduce.judging_defence import KINDS, accuracy_curve, known_accuracy
from genprior.lab.reproduce.methods import LABELS
from genprior.lab.reproduce.run import Reproduction

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def defence_keys(done: Reproduction) -> list[str]:
    """The defences that ran."""
    return [key for key in NORMS if f"{defence.PREFIX}.run.{key}.0" in done.parts]


def draw_defence(done: Reproduction) -> Figure:
    """Test error on attacked digits against passes and against time per image."""
    made, plots = figure(10.5, 4.6, 1, 2)
    for key in defence_keys(done):
        curve = accuracy_curve(done.setting, done.parts, key)
        images = sum(stop - start for start, stop in defence.chunks(done.setting, key))
        error = 100 * (1 - np.array(curve["accuracy"]))
        label = f"{LABELS[key]}, {NORMS[key].replace('linf', 'l_inf')}, n = {images}"
        draw(plots[0], key, np.array(curve["passes"]), error, label)
        draw(plots[1], key, 1e3 * np.array(curve["seconds"]) / images, error, label)
    numbers = done.parts[f"{defence.PREFIX}.attack"].numbers
    for place, across in zip(plots, ("forward + backward passes through G", "milliseconds per image"), strict=True):
        place.axhline(
            100 * (1 - numbers["attacked_accuracy"]), color="grey", linestyle=":", label="attacked, undefended"
        )
        place.axhline(100 * (1 - numbers["clean_accuracy"]), color="grey", linestyle="--", label="clean, undefended")
        finish(place, "attacked digits through the defence", across, "test error, %", log_y=False)
        place.set_ylim(0, 103)
    common_legend(made, plots[0], 4)
    return made


def draw_known(done: Reproduction) -> Figure:
    """Accuracy of each defence: clean, under the plain attack, under adaptive attacks."""
    keys = defence_keys(done)
    made, plots = figure(10.5, 4.2)
    groups = ("clean", "plain attack", "BPDA, both its starts", "latent attack")
    hatches, greys = ("", "//", "..", "xx"), ("#dddddd", "#bbbbbb", "#888888", "#555555")
    for number, (group, hatch, grey) in enumerate(zip(groups, hatches, greys, strict=True)):
        values = [_accuracies(done, key)[number] for key in keys]
        places = np.arange(len(keys)) + 0.2 * (number - 1.5)
        heights = [0.0 if value is None else 100 * value for value in values]
        plots[0].bar(places, heights, 0.18, label=group, hatch=hatch, color=grey, edgecolor="black", linewidth=0.6)
        for place, value in zip(places, values, strict=True):
            text = "not run" if value is None else f"{100 * value:.0f}"
            plots[0].text(
                place,
                0 if value is None else 100 * value + 1,
                text,
                ha="center",
                fontsize=7,
                rotation=90 if value is None else 0,
            )
    plots[0].set_xticks(
        range(len(keys)), [f"{LABELS[key]},\n{NORMS[key].replace('linf', 'l_inf')}" for key in keys], fontsize=8
    )
    plots[0].set_ylim(0, 112)
    plots[0].set_ylabel("accuracy of the defended classifier, %", fontsize=9)
    plots[0].legend(fontsize=8, ncols=4, loc="upper center")
    return made


def _accuracies(done: Reproduction, key: str) -> list[float | None]:
    """Clean, plain attack, BPDA, latent attack."""
    parts = done.parts
    clean = parts.get(f"{defence.PREFIX}.clean.{key}")
    plain = accuracy_curve(done.setting, parts, key)["accuracy"][-1]
    known = [parts.get(f"{defence.PREFIX}.{kind}.{key}") for kind in KINDS]
    return [
        None if clean is None else clean.numbers["accuracy"],
        plain,
        *(None if one is None else known_accuracy(one) for one in known),
    ]


def draw_plateau(done: Reproduction) -> Figure:
    """Plateau against the penalty, rate against the conditioning, primal residuals under three dual rules."""
    size, parts = done.setting.size.plateau, done.parts
    made, plots = figure(12.5, 7.2, 2, 3)
    for rho, dash in zip(size.penalties, ("-", "--", "-.", ":", (0, (5, 1, 1, 1)), (0, (1, 1))), strict=False):
        arrays = parts[f"{plateau.PREFIX}.rho.{rho:g}"].arrays
        plots[0].plot(arrays["step"][1:], arrays["gap"][1:], linestyle=dash, label=f"rho = {rho:g}")
    finish(plots[0], "the primal residual over the iterations", "iteration", "|w - G(z)| / |w*|", log_x=True)
    plots[0].legend(fontsize=8)
    for name, mark in (("gap", "o-"), ("distance", "s--")):
        values = [parts[f"{plateau.PREFIX}.rho.{rho:g}"].numbers[name] for rho in size.penalties]
        plots[1].plot(size.penalties, values, f"k{mark}", markersize=5, fillstyle="none", label=name)
    first = parts[f"{plateau.PREFIX}.rho.{size.penalties[0]:g}"].numbers["gap"]
    rhos = np.array(size.penalties)
    plots[1].plot(rhos, first * rhos[0] / rhos, color="grey", linestyle=":", label="slope -1")
    finish(plots[1], "plateau against the penalty", "rho", "relative to |w*|", log_x=True)
    plots[1].legend(fontsize=8)
    gaps = [parts[f"{plateau.PREFIX}.digits.{rho:g}"].numbers["gap"] for rho in size.digit_penalties]
    plots[2].plot(size.digit_penalties, gaps, "ko-", label="primal residual")
    finish(plots[2], "noisy digits, bundled generator", "rho", "|w - G(z)| / |truth|", log_x=True)
    rates = [parts[f"{plateau.PREFIX}.rate.{one:g}"].numbers["rate"] for one in size.conditionings]
    ones = np.array(size.conditionings)
    plots[3].plot(ones, rates, "ko-", label="measured")
    plots[3].plot(ones, rates[-1] * (ones[-1] / ones) ** 2, color="grey", linestyle=":", label="slope -2")
    finish(plots[3], "rate against the conditioning of G", "kappa / iota", "eta", log_x=True)
    plots[3].legend(fontsize=8)
    for place, name, up in ((plots[4], "gap", "|w - G(z)| / |w*|"), (plots[5], "dual", "|lam|")):
        for rule, dash in zip(plateau.DUALS, ("-", "--", "-.", ":"), strict=True):
            arrays = parts[f"{plateau.PREFIX}.dual.{rule.replace(', ', '-')}"].arrays
            curve = np.maximum(arrays[name][1:], 1e-12)
            place.plot(arrays["step"][1:], curve, linestyle=dash, linewidth=1.8, label=rule)
        finish(place, "dual rules, rho = 1", "iteration", up, log_x=True)
        place.legend(fontsize=8)
    return made
