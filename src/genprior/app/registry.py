"""What the page offers: generators that all visitors share, sample images, solvers."""

from __future__ import annotations

import threading
from functools import cache

import torch
from torch import Tensor

from genprior import samples
from genprior.generators import Generator
from genprior.models import bundled
from genprior.models.classifiers import ConvClassifier
from genprior.solvers.registry import CLASSES

GENERATORS = {"mnist": "Handwritten digits", "celeba": "Faces"}
SHAPES = {"mnist": (1, 28, 28), "celeba": (3, 64, 64)}
"""Image shapes, needed before the weights are loaded."""

_SHOWN = (
    "Auto",
    "ExactADMM",
    "LinearizedADMM",
    "LBFGS",
    "Adam",
    "GradientDescent",
    "ProjectedGradient",
    "LevenbergMarquardt",
)
SOLVERS = {name: CLASSES[name] for name in _SHOWN}
"""In the order shown on the page, with default settings."""

SAMPLES = 12
"""Number of sample images."""

_loading = threading.Lock()


def generator(name: str) -> Generator:
    """A bundled generator, loaded once; its preconditioner is computed here, so that no race has to."""
    with _loading:
        return _generator(name)


@cache
def _generator(name: str) -> Generator:
    loaded = bundled.load_generator(name)
    _ = loaded.preconditioner().values
    return loaded


def classifier() -> ConvClassifier:
    """The bundled digit classifier, loaded once."""
    with _loading:
        return _classifier()


@cache
def _classifier() -> ConvClassifier:
    return bundled.load_classifier("mnist")


@cache
def sample_images(name: str) -> Tensor:
    """Sample images: test digits, which the generator was not trained on, or faces that it generated."""
    if name == "mnist":
        return samples.digits(SAMPLES)[0]
    chosen = generator(name)
    with torch.no_grad():
        return torch.cat([chosen(chosen.sample_latent(1, seed=seed)) for seed in range(SAMPLES)])


def sample_code(name: str, number: int) -> str:
    """The Python expression for a sample image, given ``G``."""
    if name == "mnist":
        return f"samples.digits({number + 1})[0][{number}:]"
    return f"G(G.sample_latent(1, seed={number})).detach()"
