"""The step size of gradient descent: average objective after a fixed number of iterations, as in the paper's supplement."""

from __future__ import annotations

import math
from functools import partial

import torch

from genprior.experiments.reproduce.compressive_sensing import contest, factorising, field_name, measurements
from genprior.experiments.reproduce.compressive_sensing import parts as sensing_parts
from genprior.experiments.reproduce.contest import Setting, race, seconds
from genprior.experiments.reproduce.parts import Found, Part, Results
from genprior.experiments.reproduce.sizes import Tuning
from genprior.solvers import GradientDescent

PREFIX = "tuning"
FRACTIONS = (0.2, 0.4)
"""The paper's 156 and 313 measurements of 784, 2457 and 4915 of 12288."""
QUICK_FACES = 0.05


def parts(setting: Setting) -> list[Part]:
    """The paper's grids; then the tuning of all methods at the same fractions, shared with compressive sensing."""
    size = setting.size
    found = [_grid(setting, "mnist", fraction, size.digit_tuning) for fraction in FRACTIONS]
    faces = reversed(face_fractions(setting))  # the smaller matrix last: compressive sensing goes on with it
    found += [_grid(setting, "celeba", fraction, size.face_tuning) for fraction in faces]
    fractions = {*FRACTIONS, size.digits.main}
    shared = [f"{field_name('mnist', fraction, 'range')}.tune." for fraction in fractions]
    found += [part for part in sensing_parts(setting) if part.name.startswith(tuple(shared))]
    return found


def face_fractions(setting: Setting) -> tuple[float, ...]:
    """The paper's, or a small one where no time is to be spent on factorising large matrices."""
    return FRACTIONS if setting.size.name == "full" else (QUICK_FACES,)


def grid_name(generator: str, fraction: float) -> str:
    """The part of one of the paper's four plots."""
    return f"{PREFIX}.{generator}.m{measurements(generator, fraction)}"


def _grid(setting: Setting, generator: str, fraction: float, size: Tuning) -> Part:
    make = partial(contest, setting, generator, measurements(generator, fraction), "range")

    def run(results: Results) -> Found:
        found = [race(make(size.pictures, True), GradientDescent(step), size.iterations) for step in size.steps]
        ends = [torch.from_numpy(one.arrays["objective"][-1]).double().nan_to_num(nan=torch.inf) for one in found]
        means = [float(end.mean()) for end in ends]
        finite = [mean if math.isfinite(mean) else None for mean in means]
        return Found(
            {
                "steps": list(size.steps),
                "mean_objective": finite,
                "median_objective": [float(end.median()) for end in ends],
                "start_objective": float(found[0].arrays["objective"][0].mean()),
                "chosen": size.steps[means.index(min(means))],
                "pictures": size.pictures,
                "iterations": size.iterations,
                "rollbacks": [one.numbers["rollbacks"] for one in found],
            },
            times={"seconds": sum(one.times["seconds"] for one in found)},
        )

    m = measurements(generator, fraction)
    cost = len(size.steps) * seconds(generator, size.iterations, size.pictures) + factorising(m)
    return Part(grid_name(generator, fraction), run, cost)
