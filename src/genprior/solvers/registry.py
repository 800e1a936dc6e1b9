"""Solvers by the names that users type: one list for the commands, the page and the race."""

from __future__ import annotations

import re
from dataclasses import dataclass

from genprior.solvers.admm import ExactADMM, LinearizedADMM
from genprior.solvers.auto import Auto
from genprior.solvers.base import Choice
from genprior.solvers.descent import Adam, GradientDescent
from genprior.solvers.projected import ProjectedGradient
from genprior.solvers.trial import LBFGS, LevenbergMarquardt, QuasiNewton


@dataclass(frozen=True)
class Named:
    """A solver with its default settings."""

    name: str
    """As typed on the command line."""
    type: type[Choice]
    description: str
    """One sentence for users who do not know the method."""

    def __call__(self) -> Choice:
        """The solver."""
        return self.type()


SOLVERS = {
    one.name: one
    for one in (
        Named("auto", Auto, "Chooses the method and its settings from the problem."),
        Named(
            "exact-admm",
            ExactADMM,
            "Alternates between an image that fits the data and a z that generates it; multipliers make the two agree (ADMM).",
        ),
        Named(
            "linearized-admm",
            LinearizedADMM,
            "ADMM with a single gradient step for the image: cheaper steps, and more of them.",
        ),
        Named(
            "quasi-newton",
            QuasiNewton,
            "A quasi-Newton method for z that starts from the generator's mean curvature and updates it at every step.",
        ),
        Named(
            "levenberg-marquardt",
            LevenbergMarquardt,
            "Solves the problem linearised around z, again and again, with damping.",
        ),
        Named(
            "lbfgs", LBFGS, "A quasi-Newton method for z: estimates the curvature from its last few gradients (L-BFGS)."
        ),
        Named("adam", Adam, "Gradient descent in z with momentum and a step size for each coordinate."),
        Named("gradient-descent", GradientDescent, "Plain gradient descent in z."),
        Named(
            "projected-gradient",
            ProjectedGradient,
            "Alternates between a gradient step on the image and a few steps towards the z nearest to it.",
        ),
    )
}
"""By the name typed."""

CLASSES = {one.type.__name__: one for one in SOLVERS.values()}
"""By the name of the class."""


def solver_named(name: str) -> Choice:
    """A solver by its name, ``exact-admm`` or ``ExactADMM``."""
    wanted = re.sub(r"[^a-z]", "", name.lower())
    for known, one in SOLVERS.items():
        if known.replace("-", "") == wanted:
            return one()
    raise ValueError(f"there is no solver {name!r}: give one of {', '.join(SOLVERS)}")
