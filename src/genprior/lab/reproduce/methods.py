"""The methods and their settings: equally many for every tuned method."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from genprior.solvers import (
    ADMM,
    Adam,
    Auto,
    Choice,
    ExactADMM,
    GradientDescent,
    LinearizedADMM,
    ProjectedGradient,
    duals,
    penalties,
    z_steps,
)

GD, ADAM, PROJECTED, LINEARIZED, EXACT, EXACT_ADAM, AUTO = (
    "gd",
    "adam",
    "projected",
    "linearized",
    "exact",
    "exact-adam",
    "auto",
)
EXACT_L2 = "exact-l2"
"""The paper's solver in the other norm: to separate the effect of the norm from that of the solver."""
LABELS = {
    GD: "gradient descent",
    ADAM: "Adam",
    PROJECTED: "projected gradient",
    LINEARIZED: "linearized ADMM",
    EXACT: "exact ADMM",
    EXACT_ADAM: "exact ADMM, Adam z step",
    AUTO: "Auto",
    EXACT_L2: "exact ADMM (control)",
}
EDGE, INSIDE, ONE_OF_TWO = "at the edge", "inside", "one of two"
"""Positions in a grid: the smallest or largest of three or more, inside, or one of two."""
PAPERS = (GD, ADAM, LINEARIZED, EXACT)
"""The paper's methods."""


@dataclass(frozen=True)
class GridPoint:
    """A setting: its parameters by name, and the solver for a run of a number of iterations."""

    make: Callable[[int], Choice]
    numbers: dict[str, float]


@dataclass(frozen=True)
class Method:
    """A solver and its settings, tuned by the objective on other images."""

    key: str
    choices: tuple[GridPoint, ...]

    @property
    def tuned(self) -> bool:
        """Whether there is more than one setting."""
        return len(self.choices) > 1

    @property
    def label(self) -> str:
        """For people."""
        return LABELS[self.key]

    def solvers(self, steps: int) -> tuple[Choice, ...]:
        """Every setting for a run of this length: schedules scale with the run, in tuning and in the race."""
        return tuple(choice.make(steps) for choice in self.choices)

    def places(self, number: int) -> dict[str, str]:
        """The position of each parameter in its grid; a constant parameter has none."""
        found = {}
        for name, value in self.choices[number].numbers.items():
            offered = {choice.numbers[name] for choice in self.choices}
            if len(offered) == 2:
                found[name] = ONE_OF_TWO
            elif len(offered) > 2:
                found[name] = EDGE if value in (min(offered), max(offered)) else INSIDE
        return found

    def edges(self, number: int) -> list[str]:
        """The parameters at the edge of a grid of three or more: a better value may lie beyond."""
        return [name for name, place in self.places(number).items() if place == EDGE]


def grid(
    key: str, make: Callable[..., Choice], count: int, *, stretch: bool = False, **numbers: Sequence[float]
) -> Method:
    """``count`` of the settings that list their numbers side by side; ``make`` receives the iterations if they matter."""
    rows = [dict(zip(numbers, row, strict=True)) for row in zip(*numbers.values(), strict=True)]
    return Method(key, tuple(GridPoint(partial(_made, make, row, stretch), row) for row in _few(rows, count)))


def _made(make: Callable[..., Choice], row: dict[str, float], stretch: bool, steps: int) -> Choice:
    return make(**row, iterations=steps) if stretch else make(**row)


def _crossed(first: Sequence[float], second: Sequence[float]) -> tuple[list[float], list[float]]:
    pairs = list(itertools.product(first, second))
    return [one for one, _ in pairs], [other for _, other in pairs]


_STEPS = (0.001, 0.003, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25)
_MOVES = (0.03, 0.05, 0.1, 0.15, 0.2, 0.3, 0.45, 0.7)
_FEW_MOVES = (0.05, 0.1, 0.15, 0.2)
_UNITS = {"mnist": 1.0, "celeba": 0.1}
"""Units of gradient steps in z: the squared Jacobian scales of the generators are about as 1 to 10."""


def sensing_methods(count: int, generator: str, fraction: float) -> list[Method]:
    """For least squares: ``count`` settings each, Auto none.

    Gradient steps are in units of the generator. Those of exact ADMM are longer by d/m: with a small penalty its w step leaves
    of ``G(z) - w`` the part in the rows of A alone, about m/d of its square, which ``A^T A`` has scaled by d/m.
    """
    unit = _UNITS[generator]
    inner, moves = _crossed((1, 2, 5, 10), (0.1, 0.2))
    first, pulls = _crossed((0.1, 0.3, 1.0, 5.0), (0.1 * unit, 0.2 * unit))
    last = (0.3, 0.3, 0.3, 0.3, 0.3, 1.0, 1.0, 1.0)
    long_pulls = tuple(pull * unit / fraction for pull in (0.02, 0.03, 0.05, 0.075, 0.1, 0.05, 0.075, 0.1))
    constant, steps = _crossed((0.3, 1.0), _FEW_MOVES)
    return [
        grid(GD, GradientDescent, count, step_size=[step * unit for step in _STEPS]),
        grid(ADAM, Adam, count, step_size=_MOVES),
        grid(PROJECTED, _projected, count, inner=inner, step=moves),
        grid(LINEARIZED, _linearized, count, rho=first, pull=pulls),
        grid(EXACT, exact, count, stretch=True, rho=last, pull=long_pulls),
        grid(EXACT_ADAM, exact_adam, count, rho=constant, step=steps),
        Method(AUTO, (GridPoint(partial(_made, Auto, {}, False), {}),)),
    ]


def denoising_methods(count: int, norm: str) -> list[Method]:
    """For ``gamma |w - y|_2^2 + |w - y|`` in the norm ``linf`` or ``l1``, or for ``|w - y|_2^2`` (``l2``).

    The smaller the penalty, the more of ``G(z) - y`` the prox removes: all of it if ``rho |G(z) - y|_1`` (l_inf) or
    ``rho |G(z) - y|_inf`` (l1) is below 1. Then w is y, and the z step one of least squares. Algorithm 2 passes from there to
    the last penalty, at which the prox acts.
    """
    descent = {"linf": 0.1, "l1": 0.0003, "l2": 0.002}[norm]
    last, pulls, shares = _SCALED[norm]
    constant, steps = _crossed({"linf": (0.3, 1.0), "l1": (2.0, 6.0), "l2": (0.3, 1.0)}[norm], _FEW_MOVES)
    return [
        grid(GD, GradientDescent, count, step_size=[descent * 3**k for k in range(8)]),
        grid(ADAM, Adam, count, step_size=_MOVES),
        grid(EXACT, _scaled, count, stretch=True, rho=last, pull=pulls, share=shares),
        grid(EXACT_ADAM, _plain_adam, count, rho=constant, step=steps),
        Method(AUTO, (GridPoint(partial(_made, Auto, {}, False), {}),)),
    ]


_SCALED: dict[str, tuple[Sequence[float], Sequence[float], Sequence[float]]] = {
    "linf": (
        (0.03, 0.03, 0.1, 0.1, 0.3, 0.3, 0.3, 1.0),
        (0.05, 0.15, 0.15, 0.4, 0.15, 0.15, 0.4, 1.0),
        (0.03, 0.03, 0.03, 0.03, 0.03, 0.3, 0.03, 0.03),
    ),
    "l1": (*_crossed((1.0, 2.0, 4.0, 8.0), (0.05, 0.15)), (0.3,) * 8),
    "l2": (*_crossed((0.3, 1.0, 3.0, 10.0), (0.05, 0.15)), (0.3,) * 8),
}
"""Of Algorithm 2 in denoising: the last penalty, the z step in units of its inverse, the first dual step as a share of it.

For l_inf penalty and step rise together: the more the prox leaves of ``G(z) - y``, the longer the steps may be.
"""
_SCALES = 3
_EARLY = 20
"""Algorithm 2's n is the iterations over this: its three scales have 10%, 20% and 70% of the run, however long that is."""
_FINE_SCALES = 4
_FINE_EARLY = 100
"""For denoising: 2%, 4%, 8%, and the last penalty for 86% of the run."""


def exact(rho: float, pull: float, iterations: int) -> Choice:
    """Algorithm 2 with last penalty ``rho`` and z steps ``pull / rho``."""
    first = rho / 2**_SCALES
    return ExactADMM(first, beta=pull / first, n=max(1, iterations // _EARLY), scales=_SCALES)


def exact_adam(rho: float, step: float) -> Choice:
    """The same w step, Adam in z, a constant dual step of 3% of the penalty."""
    return ADMM(z_step=z_steps.Adam(step), dual=duals.Constant(0.03 * rho), penalty=penalties.Constant(rho))


def _projected(inner: float, step: float) -> Choice:
    return ProjectedGradient(inner=int(inner), z_step=z_steps.Adam(step))


def _linearized(rho: float, pull: float) -> Choice:
    return LinearizedADMM(rho, beta=pull / rho, dual=duals.Paper())


def _scaled(rho: float, pull: float, share: float, iterations: int) -> Choice:
    """Algorithm 2 in four scales up to ``rho``, the paper's dual rule."""
    first, n = rho / 2**_FINE_SCALES, max(1, iterations // _FINE_EARLY)
    return ExactADMM(first, beta=pull / first, sigma=share * rho, n=n, scales=_FINE_SCALES)


def _plain_adam(rho: float, step: float) -> Choice:
    """Adam in z, a constant dual step of a tenth of the penalty: the paper's rule freezes the dual before it is right."""
    return ADMM(z_step=z_steps.Adam(step), dual=duals.Constant(0.1 * rho), penalty=penalties.Constant(rho))


def _few(rows: list[dict[str, float]], count: int) -> list[dict[str, float]]:
    """``count`` of them, spread evenly; the middle ones if there are two."""
    if count >= len(rows):
        return rows
    stride = len(rows) / count
    return [rows[int((number + 0.5) * stride)] for number in range(count)]
