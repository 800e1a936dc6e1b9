"""Compressive sensing: objective and error against time and passes; truth in the range and, separately, real images."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import lru_cache, partial

import torch
from torch import Tensor

from genprior import samples
from genprior.lab.reproduce.contest import Contest, Field, Setting, always, network
from genprior.lab.reproduce.methods import (
    ADAM,
    AUTO,
    EXACT,
    EXACT_ADAM,
    GD,
    LINEARIZED,
    PROJECTED,
    Method,
    sensing_methods,
)
from genprior.lab.reproduce.parts import Part
from genprior.lab.reproduce.sizes import Sensing
from genprior.lab.trace import relative_error
from genprior.losses import LeastSquares
from genprior.operators import Gaussian
from genprior.problem import Problem
from genprior.training.data import image_files

PREFIX = "compressive-sensing"
METHODS = (GD, ADAM, PROJECTED, LINEARIZED, EXACT, AUTO)
"""On faces, on real images, and on digits at other numbers of measurements than the main one: all but our variant
of exact ADMM."""
FACTORISED = (PROJECTED, LINEARIZED, EXACT, EXACT_ADAM, AUTO)
"""Methods whose time includes the factorisation of A, because they use it; descent with given steps does not."""
_PRACTICE_DIGITS = 150
"""Real digits from this index on are for tuning."""


def parts(setting: Setting) -> list[Part]:
    """Digits at every fraction, faces at few, then real images."""
    size = setting.size
    found: list[Part] = []
    for fraction in size.digits.fractions:
        found += _field(setting, "mnist", fraction, size.digits, "range").parts(
            methods(setting, "mnist", fraction, everyone=fraction == size.digits.main), always(size.digits.steps)
        )
    found += _field(setting, "mnist", size.digits.main, size.digits, "real").parts(
        methods(setting, "mnist", size.digits.main), always(size.digits.steps)
    )
    for fraction in size.faces.fractions:
        first, *rest = _field(setting, "celeba", fraction, size.faces, "range").parts(
            methods(setting, "celeba", fraction), always(size.faces.steps)
        )
        found += [replace(first, cost=first.cost + factorising(measurements("celeba", fraction))), *rest]
    if setting.faces is not None:
        found += _field(setting, "celeba", size.faces.main, size.faces, "real").parts(
            methods(setting, "celeba", size.faces.main), always(size.faces.steps)
        )
    return found


def methods(setting: Setting, generator: str, fraction: float, *, everyone: bool = False) -> list[Method]:
    """Those of ``METHODS``, or all."""
    offered = sensing_methods(setting.size.settings, generator, fraction)
    return [method for method in offered if everyone or method.key in METHODS]


def measurements(generator: str, fraction: float) -> int:
    """Number of measurements for a fraction of the pixels, rounded down as in the paper."""
    return int({"mnist": 784, "celeba": 12288}[generator] * fraction + 1e-9)


def field_name(generator: str, fraction: float, truth: str) -> str:
    """The prefix of the parts of one problem."""
    return f"{PREFIX}.{generator}.{truth}.m{measurements(generator, fraction)}"


def _field(setting: Setting, generator: str, fraction: float, size: Sensing, truth: str) -> Field:
    make = partial(contest, setting, generator, measurements(generator, fraction), truth)
    name = field_name(generator, fraction, truth)
    return Field(name, make, generator, size.pictures, size.tuning_pictures, size.tuning_steps)


def contest(setting: Setting, generator: str, m: int, truth: str, count: int, practice: bool) -> Contest:
    """Recover ``count`` images from ``m`` Gaussian measurements each."""
    net = network(generator, setting.device)
    seed = 10 * setting.seed + (5 if practice else 0)
    with torch.no_grad():
        images = (
            net(net.sample_latent(count, seed=1000 + seed))
            if truth == "range"
            else real_images(setting, generator, count, practice).to(net.device)
        )
    operator, prepared = _OPERATORS[generator](generator, m, setting.seed, setting.device)
    problem = Problem(net, loss=LeastSquares(operator, operator(images)))
    measures = {"error": relative_error(images)}
    return Contest(problem, net.sample_latent(count, seed=3000 + seed), measures, preparation=prepared)


def real_images(setting: Setting, generator: str, count: int, practice: bool) -> Tensor:
    """Bundled digits, or the user's own faces."""
    if generator == "mnist":
        start = _PRACTICE_DIGITS if practice else 0
        return samples.digits(start + count)[0][start:]
    if setting.faces is None:
        raise ValueError("real faces need `faces`, a folder, tar or zip of images")
    found = image_files(setting.faces, side=64, channels=3, limit=60)
    order = torch.arange(len(found))[count:] if practice else torch.arange(len(found))
    if len(order) < count:
        raise ValueError(f"{setting.faces} holds {len(found)} images, expected at least {2 * count}")
    return found.batch(order[:count])


def factorising(m: int) -> float:
    """Estimated seconds to factorise an operator: of order m^3, a minute at 6144."""
    return 60 * (m / 6144) ** 3


def _operator(generator: str, m: int, seed: int, device: str) -> tuple[Gaussian, float]:
    """The factorised operator and the seconds that took, which no method's time includes."""
    made = Gaussian(m, network(generator, device).signal_shape, seed=seed, device=device)
    start = time.perf_counter()
    made.gram_bounds()
    return made, time.perf_counter() - start


_OPERATORS = {generator: lru_cache(maxsize=1)(_operator) for generator in ("mnist", "celeba")}
"""The last one of each generator is kept: for faces, its factorisation takes up to a minute."""
