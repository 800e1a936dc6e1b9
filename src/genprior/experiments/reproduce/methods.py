"""Who takes part, and the settings that each may choose from: as many for every tuned method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from genprior.solvers import (
    ADMM,
    Adam,
    Auto,
    ExactADMM,
    GradientDescent,
    LinearizedADMM,
    ProjectedGradient,
    Solver,
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
LABELS = {
    GD: "gradient descent",
    ADAM: "Adam",
    PROJECTED: "projected gradient",
    LINEARIZED: "linearized ADMM",
    EXACT: "exact ADMM",
    EXACT_ADAM: "exact ADMM, Adam z step",
    AUTO: "Auto",
}
PAPERS = (GD, ADAM, LINEARIZED, EXACT)
"""What the paper runs; the rest is ours, or of others."""

_SCALES = 3
_LAST = 2.0**_SCALES
"""Algorithm 2's last penalty over its first: settings below name the last one, which most iterations have."""


@dataclass(frozen=True)
class Method:
    """A solver and the settings that it may choose from, by the objective on other pictures."""

    key: str
    choices: tuple[Solver, ...]

    @property
    def tuned(self) -> bool:
        """Whether there is anything to choose."""
        return len(self.choices) > 1

    @property
    def label(self) -> str:
        """For people."""
        return LABELS[self.key]


def sensing_methods(count: int) -> list[Method]:
    """For least squares: ``count`` settings each, Auto none."""
    return [
        Method(GD, _few([GradientDescent(step) for step in (0.001, 0.003, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25)], count)),
        Method(ADAM, _few([Adam(step) for step in (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2)], count)),
        Method(
            PROJECTED,
            _few(
                [
                    ProjectedGradient(inner=inner, z_step=z_steps.Adam(step))
                    for inner in (5, 10, 20, 40)
                    for step in (0.05, 0.1)
                ],
                count,
            ),
        ),
        Method(
            LINEARIZED, _few([_linearized(rho, pull) for rho in (0.1, 0.3, 1.0, 5.0) for pull in (0.1, 0.2)], count)
        ),
        Method(EXACT, _few([exact(rho, pull) for rho in (0.01, 1.0) for pull in _PULLS], count)),
        Method(EXACT_ADAM, _few([exact_adam(rho, step) for rho in (0.3, 1.0) for step in _MOVES], count)),
        Method(AUTO, (Auto(),)),
    ]


def denoising_methods(count: int, norm: str) -> list[Method]:
    """For ``gamma |w - y|_2^2 + |w - y|`` in the norm ``linf`` or ``l1``, or for ``|w - y|_2^2`` (``l2``).

    The smaller the penalty, the more of ``G(z) - y`` the prox takes away: all of it if ``rho |G(z) - y|_1`` (l_inf) or
    ``rho |G(z) - y|_inf`` (l1) is below 1. Then w is y, and the z step one of least squares. Algorithm 2 passes from there to
    the last penalty, at which the prox acts.
    """
    descent = {"linf": 0.1, "l1": 0.0003, "l2": 0.002}[norm]
    last = {"linf": (0.05, 0.1), "l1": (2.0, 4.0), "l2": (0.5, 1.0)}[norm]
    constant = {"linf": (0.1, 0.3), "l1": (2.0, 6.0), "l2": (0.3, 1.0)}[norm]
    scales = [_scaled(rho, pull, n) for rho in last for pull in (0.05, 0.15) for n in (5, 20)]
    return [
        Method(GD, _few([GradientDescent(descent * 3**k) for k in range(8)], count)),
        Method(ADAM, _few([Adam(step) for step in (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2)], count)),
        Method(EXACT, _few(scales, count)),
        Method(EXACT_ADAM, _few([_plain_adam(rho, step, rho) for rho in constant for step in _MOVES], count)),
        Method(AUTO, (Auto(),)),
    ]


_PULLS = (0.02, 0.04, 0.08, 0.15)
"""``beta rho``: how far z goes along ``DG^T`` of the target's distance."""
_MOVES = (0.03, 0.07, 0.1, 0.15)


def exact(rho: float, pull: float) -> Solver:
    """Algorithm 2 with last penalty ``rho`` and z steps ``pull / rho``."""
    return ExactADMM(rho / _LAST, beta=pull / (rho / _LAST), scales=_SCALES)


def exact_adam(rho: float, step: float) -> Solver:
    """The same w step, Adam in z, a constant dual step of 3% of the penalty."""
    return ADMM(z_step=z_steps.Adam(step), dual=duals.Constant(0.03 * rho), penalty=penalties.Constant(rho))


def _linearized(rho: float, pull: float) -> Solver:
    return LinearizedADMM(rho, beta=pull / rho)


def _scaled(rho: float, pull: float, n: int) -> Solver:
    """Algorithm 2 in four scales up to ``rho``, the paper's dual rule."""
    first = rho / 2**4
    return ExactADMM(first, beta=pull / first, sigma=0.3 * rho, n=n, scales=4)


def _plain_adam(rho: float, step: float, sigma: float) -> Solver:
    return ADMM(z_step=z_steps.Adam(step), dual=duals.Paper(sigma), penalty=penalties.Constant(rho))


def _few(choices: Sequence[Solver], count: int) -> tuple[Solver, ...]:
    """``count`` of them, spread evenly; the middle ones if there are two."""
    if count >= len(choices):
        return tuple(choices)
    stride = len(choices) / count
    return tuple(choices[int((number + 0.5) * stride)] for number in range(count))
