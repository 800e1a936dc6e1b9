"""What the page offers: generators that all visitors share, sample images, solvers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from genprior import samples
from genprior.generators import Generator
from genprior.jobs import settings
from genprior.models import bundled
from genprior.models.classifiers import ConvClassifier
from genprior.solvers import (
    LBFGS,
    Adam,
    Auto,
    Choice,
    ExactADMM,
    GradientDescent,
    LevenbergMarquardt,
    LinearizedADMM,
    ProjectedGradient,
)

GENERATORS = {"mnist": "Handwritten digits", "celeba": "Faces"}
SHAPES = {"mnist": (1, 28, 28), "celeba": (3, 64, 64)}
"""Of their pictures: known before the weights are loaded, for which the page must not wait."""

SOLVERS: dict[str, Callable[[], Choice]] = {
    kind.__name__: kind
    for kind in (
        Auto,
        ExactADMM,
        LinearizedADMM,
        LBFGS,
        Adam,
        GradientDescent,
        ProjectedGradient,
        LevenbergMarquardt,
    )
}
"""In the order of the page, as they come."""

DESCRIPTIONS = {
    "Auto": "Chooses the method and its settings from the problem.",
    "ExactADMM": "Finds in turn an image that fits the data and a z that makes it; multipliers pull the two together (ADMM).",
    "LinearizedADMM": "ADMM with a single gradient step for the image: cheaper steps, and more of them.",
    "LBFGS": "A quasi-Newton method for z: estimates the curvature from its last few gradients.",
    "Adam": "Gradient descent in z with momentum and a step size for each coordinate.",
    "GradientDescent": "Plain gradient descent in z.",
    "ProjectedGradient": "A gradient step on the image, then some steps towards the z that comes nearest to it; and so on.",
    "LevenbergMarquardt": "Solves the problem linearised around z, again and again; damped where that is too bold.",
}
"""One sentence about each solver, for visitors."""

COMMAND_NAMES = {kind.__name__: name for name, kind in settings.SOLVERS.items()}
"""The solvers as ``genprior recover --solver`` names them."""

SAMPLES = 12
"""Pictures to choose from."""

_loading = threading.Lock()


def generator(name: str) -> Generator:
    """A bundled generator, loaded once; its preconditioner is computed here, not in a race."""
    with _loading:
        return _generator(name)


@cache
def _generator(name: str) -> Generator:
    loaded = bundled.load_generator(name)
    _ = loaded.preconditioner().modes
    return loaded


def classifier() -> ConvClassifier:
    """The bundled classifier of digits, loaded once."""
    with _loading:
        return _classifier()


@cache
def _classifier() -> ConvClassifier:
    return bundled.load_classifier("mnist")


@cache
def sample_pictures(name: str) -> Tensor:
    """Pictures to choose from: test digits that the generator never saw; faces that the generator made itself."""
    if name == "mnist":
        return samples.digits(SAMPLES)[0]
    chosen = generator(name)
    with torch.no_grad():
        return torch.cat([chosen(chosen.sample_latent(1, seed=seed)) for seed in range(SAMPLES)])


def sample_code(name: str, number: int) -> str:
    """The Python expression for a sample picture, given ``G``."""
    if name == "mnist":
        return f"samples.digits({number + 1})[0][{number}:]"
    return f"G(G.sample_latent(1, seed={number})).detach()"
