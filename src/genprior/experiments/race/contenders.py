"""Who runs: the baselines with the grids they are tuned over, and ours as they come."""

from __future__ import annotations

from collections.abc import Callable

from genprior.solvers import (
    LBFGS,
    Adam,
    Auto,
    ExactADMM,
    GradientDescent,
    LinearizedADMM,
    ProjectedGradient,
    Solver,
    z_steps,
)

OURS: dict[str, Callable[[], Solver]] = {
    "Auto": Auto,
    "ExactADMM": ExactADMM,
    "LinearizedADMM": LinearizedADMM,
}

_STEPS = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3)
_ADAM = (0.02, 0.05, 0.1, 0.2)


def grids(*, quick: bool = False) -> dict[str, list[Solver]]:
    """Each baseline with the settings that it may choose from, on other pictures of the same problem.

    The default of each (steps from a running estimate of the curvature) is among them.
    """
    found: dict[str, list[Solver]] = {
        "gradient descent": [GradientDescent(), *(GradientDescent(step) for step in _STEPS)],
        "momentum": [
            GradientDescent(momentum=0.9),
            *(GradientDescent(step, momentum=0.9) for step in _STEPS),
        ],
        "Adam": [Adam(step) for step in _ADAM],
        "L-BFGS": [LBFGS(memory) for memory in (10, 20, 40)],
        "projected gradient": [
            ProjectedGradient(inner=inner, z_step=z_steps.Adam(step)) for inner in (5, 20) for step in (0.05, 0.1)
        ],
    }
    return {name: choices[:: max(1, len(choices) // 2)][:2] for name, choices in found.items()} if quick else found
