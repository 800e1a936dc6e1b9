"""How good a generator is: how a classifier rates its samples, and how well its range covers real images."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from genprior import _batch
from genprior.generators.contract import Generator
from genprior.generators.latents import TruncatedNormal
from genprior.loop.solve import solve
from genprior.losses import SquaredDistance
from genprior.problem import Problem
from genprior.solvers import Auto
from genprior.stopping import MaxSteps
from genprior.terms import Ball


@dataclass(frozen=True)
class Judgement:
    """A classifier's predictions on samples."""

    samples: int
    confident: float
    """Share of samples with a class probability above 0.9."""
    classes: tuple[float, ...]
    """Share of samples in each class."""


@dataclass(frozen=True)
class Coverage:
    """How well the range covers real images."""

    pictures: int
    restarts: int
    steps: int
    solver: str
    mean_squared_error: float
    """Per pixel in [0, 1], mean over the images."""
    worst: float
    latent_norm: float
    """Mean length of the best latents; those of samples are about the square root of the dimension."""


def judge(generator: Generator, classifier: nn.Module, samples: int = 1000, seed: int = 0) -> Judgement:
    """Classify samples of the generator."""
    with torch.no_grad():
        parts = _batch.pieces(generator.sample_latent(samples, seed=seed), 100)
        chances = torch.cat([classifier(generator(part)).softmax(1) for part in parts])
    counts = torch.bincount(chances.argmax(1), minlength=chances.shape[1])
    return Judgement(
        samples,
        float((chances.max(1).values > 0.9).float().mean()),
        tuple((counts / samples).tolist()),
    )


def cover(
    generator: Generator,
    images: Tensor,
    *,
    restarts: int = 4,
    steps: int = 200,
    seed: int = 0,
    z0: Tensor | None = None,
    radius: float | None = None,
) -> tuple[Coverage, Tensor]:
    """Fit ``min_z |G(z) - x|^2`` to each image from several starts; figures and the fits themselves.

    With a ``radius``, latents stay in that ball: the domain of a truncated latent distribution.
    """
    on_latent = None if radius is None else Ball(radius)
    problem = Problem(generator, loss=SquaredDistance(images, weight=1.0), on_latent=on_latent)
    stop = MaxSteps(steps)
    result = solve(problem, Auto(), stop=stop, restarts=restarts, seed=seed, z0=z0, batch_size=64, progress=False)
    errors = _batch.square(result.signal - images) / images[0].numel()
    figures = Coverage(
        len(images),
        restarts,
        steps,
        Auto.__name__,
        float(errors.mean()),
        float(errors.max()),
        float(_batch.norm(result.z).mean()),
    )
    return figures, result.signal


def measure(generator: Generator, images: Tensor, classifier: nn.Module | None = None) -> dict[str, Any]:
    """All figures of a generator, as plain numbers: coverage, also in the ball of its prior, and the classifier's rating."""
    figures = {"coverage": asdict(cover(generator, images)[0])}
    if isinstance(generator.latent, TruncatedNormal):
        inside = cover(generator, images, radius=generator.latent.radius)[0]
        figures["coverage within the ball"] = asdict(inside) | {"radius": generator.latent.radius}
    if classifier is not None:
        figures["judged by the classifier"] = asdict(judge(generator, classifier))
    return figures
