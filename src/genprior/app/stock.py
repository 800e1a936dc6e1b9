"""What the page has in store: generators that all visitors share, sample pictures, solvers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from genprior import samples
from genprior.generators import Generator
from genprior.networks.bundled import load_classifier as _load_classifier
from genprior.networks.bundled import load_generator
from genprior.networks.classifiers import ConvClassifier
from genprior.solvers import (
    LBFGS,
    Adam,
    Auto,
    ExactADMM,
    GradientDescent,
    LevenbergMarquardt,
    LinearizedADMM,
    ProjectedGradient,
    Solver,
)

GENERATORS = {"mnist": "Handwritten digits", "celeba": "Faces"}

SOLVERS: dict[str, Callable[[], Solver]] = {
    "Auto": Auto,
    "ExactADMM": ExactADMM,
    "LinearizedADMM": LinearizedADMM,
    "LBFGS": LBFGS,
    "Adam": Adam,
    "GradientDescent": GradientDescent,
    "ProjectedGradient": ProjectedGradient,
    "LevenbergMarquardt": LevenbergMarquardt,
}

COMMAND_NAMES = {
    "Auto": "auto",
    "ExactADMM": "exact-admm",
    "LinearizedADMM": "linearized-admm",
    "LBFGS": "lbfgs",
    "Adam": "adam",
    "GradientDescent": "gradient-descent",
    "ProjectedGradient": "projected-gradient",
    "LevenbergMarquardt": "levenberg-marquardt",
}
"""The solvers as ``genprior recover --solver`` names them."""

SAMPLES = 12
"""Pictures to choose from."""

_loading = threading.Lock()


def generator(name: str) -> Generator:
    """A bundled generator, loaded once; what solvers remember about it (its metric) is computed here, not in a race."""
    with _loading:
        return _generator(name)


@cache
def _generator(name: str) -> Generator:
    loaded = load_generator(name)
    loaded.metric_modes()
    return loaded


def classifier() -> ConvClassifier:
    """The bundled classifier of digits, loaded once."""
    with _loading:
        return _classifier()


@cache
def _classifier() -> ConvClassifier:
    return _load_classifier("mnist")


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
