"""The step size of gradient descent: average objective after a fixed number of iterations, as in the paper's supplement."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from genprior.lab.reproduce.compressive_sensing import contest, factorising, field_name, measurements
from genprior.lab.reproduce.compressive_sensing import parts as sensing_parts
from genprior.lab.reproduce.contest import Contest, Setting, race, seconds
from genprior.lab.reproduce.parts import Found, Part, Results
from genprior.lab.reproduce.sizes import Tuning
from genprior.solvers import GradientDescent
from genprior.stopping import View

PREFIX = "tuning"
FRACTIONS = (0.2, 0.4)
"""The paper's 156 and 313 measurements of 784, 2457 and 4915 of 12288."""
QUICK_FACES = 0.05


def parts(setting: Setting) -> list[Part]:
    """The paper's grids; then the tuning of all methods at the same fractions, shared with compressive sensing."""
    size = setting.size
    found = [_grid(setting, "mnist", fraction, size.digit_tuning) for fraction in FRACTIONS]
    faces = reversed(face_fractions(setting))  # the smaller matrix last, because compressive sensing uses it next
    found += [_grid(setting, "celeba", fraction, size.face_tuning) for fraction in faces]
    fractions = {*FRACTIONS, size.digits.main}
    shared = [f"{field_name('mnist', fraction, 'range')}.tune." for fraction in fractions]
    found += [part for part in sensing_parts(setting) if part.name.startswith(tuple(shared))]
    return found


def face_fractions(setting: Setting) -> tuple[float, ...]:
    """The paper's, or a small one to avoid factorising large matrices."""
    return FRACTIONS if setting.size.name == "full" else (QUICK_FACES,)


def grid_name(generator: str, fraction: float) -> str:
    """The part of one of the paper's four plots."""
    return f"{PREFIX}.{generator}.m{measurements(generator, fraction)}"


def watched(contest: Contest) -> Contest:
    """Also the objective of the iterate itself: the best so far hides overshooting."""
    last = torch.full((len(contest.starts),), torch.inf)

    def watch(view: View) -> dict[str, Tensor]:
        last[view.items.cpu()] = view.state.objective.detach().float().cpu()
        return {"current": last}

    return replace(contest, watch=watch)


def _means(found: list[Found], name: str) -> list[float]:
    """Over the images, at the end of each run."""
    return [float(np.nan_to_num(one.arrays[name][-1].astype(float), nan=np.inf).mean()) for one in found]


def _finite(values: list[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]


def _grid(setting: Setting, generator: str, fraction: float, size: Tuning) -> Part:
    make = partial(contest, setting, generator, measurements(generator, fraction), "range")

    def run(results: Results) -> Found:
        contest = make(size.pictures, True)
        found = [race(watched(contest), GradientDescent(step), size.iterations) for step in size.steps]
        last, best = (_means(found, name) for name in ("current", "objective"))
        return Found(
            {
                "steps": list(size.steps),
                "mean_last": _finite(last),
                "mean_best": _finite(best),
                "start_objective": float(found[0].arrays["objective"][0].mean()),
                "chosen": size.steps[last.index(min(last))],
                "pictures": size.pictures,
                "iterations": size.iterations,
                "rollbacks": [one.numbers["rollbacks"] for one in found],
            },
            times={"seconds": sum(one.times["seconds"] for one in found)},
        )

    m = measurements(generator, fraction)
    cost = len(size.steps) * seconds(generator, size.iterations, size.pictures) + factorising(m)
    return Part(grid_name(generator, fraction), run, cost)
