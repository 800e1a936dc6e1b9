"""What an iteration costs as batch, latent and signal grow, in time and in memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from genprior import _validate
from genprior._tree import pack
from genprior.generators import Generator
from genprior.loop.solve import solve
from genprior.losses import LeastSquares
from genprior.models.bundled import load_generator
from genprior.models.examples import random_dcgan, random_mlp
from genprior.operators import SubsampledHadamard
from genprior.problem import Problem
from genprior.solvers import LBFGS, Choice, ExactADMM, GradientDescent, QuasiNewton
from genprior.stopping import MaxSteps

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
LATENTS = (16, 32, 64, 128, 256, 512, 1024)
SIDES = (16, 32, 64, 128, 256)
SOLVERS: dict[str, Choice] = {
    "gradient descent": GradientDescent(),
    "exact ADMM": ExactADMM(),
    "L-BFGS": LBFGS(),
    "quasi-Newton": QuasiNewton(),
}


@dataclass(frozen=True)
class Point:
    """One size, and the cost of an iteration."""

    batch: int
    latent: int
    signal: int
    pass_seconds: float
    """One bare forward and backward pass."""
    step_seconds: dict[str, float]
    """One iteration, per solver; medians of interleaved repeats."""
    state_bytes: dict[str, int]
    """A solver's state per item between iterations, without the generator's graph."""


def batch_sizes(sizes: tuple[int, ...] = BATCHES, *, repeats: int = 3, device: str = "cpu") -> list[Point]:
    """The bundled MNIST generator, half as many measurements as pixels, with more and more items."""
    generator = load_generator("mnist", device=device)
    return [measure_point(generator, size, repeats) for size in sizes]


def latent_sizes(sizes: tuple[int, ...] = LATENTS, *, repeats: int = 3, device: str = "cpu") -> list[Point]:
    """A DCGAN-size generator of 28 x 28 images with random weights, 20 items."""
    return [measure_point(random_dcgan(size, 32, device=device), 20, repeats) for size in sizes]


def signal_sizes(sides: tuple[int, ...] = SIDES, *, repeats: int = 3, device: str = "cpu") -> list[Point]:
    """A two-layer network with 128 latents and signals from 16 x 16 to 256 x 256, 20 items."""
    return [measure_point(random_mlp(128, 256, (1, side, side), device=device), 20, repeats) for side in sides]


def measure_point(generator: Generator, batch: int, repeats: int) -> Point:
    """Time iterations of every solver, in turns."""
    _validate.whole("repeats", repeats)
    problem = _problem(generator, batch)
    z = generator.sample_latent(batch, seed=1)
    steps = max(2, min(10, 200 // batch))
    bare, times = [], {name: list[float]() for name in SOLVERS}
    for _ in range(repeats):
        bare.append(_timed(lambda: _passes(generator, z, steps)) / steps)
        for name, solver in SOLVERS.items():
            times[name].append(_iteration_seconds(problem, solver, z, steps))
    return Point(
        batch=batch,
        latent=z[0].numel(),
        signal=problem.generator(z[:1])[0].numel(),
        pass_seconds=statistics.median(bare),
        step_seconds={name: statistics.median(found) for name, found in times.items()},
        state_bytes={name: _state_bytes(problem, solver, z) for name, solver in SOLVERS.items()},
    )


def _problem(generator: Generator, batch: int) -> Problem:
    size = torch.Size(generator.signal_shape).numel()
    operator = SubsampledHadamard(size // 2, generator.signal_shape, device=generator.device)
    with torch.no_grad():
        y = operator(generator(generator.sample_latent(batch, seed=2)))
    return Problem(generator, loss=LeastSquares(operator, y))


def _iteration_seconds(problem: Problem, solver: Choice, z: torch.Tensor, steps: int) -> float:
    """A solve of ``2 steps`` iterations minus one of none: without the start."""

    def run(count: int) -> None:
        solve(problem, solver, z0=z, stop=MaxSteps(count), tolerance=0, patience=10**9, progress=False)

    nothing = _timed(lambda: run(0))
    return max(0.0, _timed(lambda: run(2 * steps)) - nothing) / (2 * steps)


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _passes(generator: Generator, z: torch.Tensor, steps: int) -> None:
    for _ in range(steps):
        leaf = z.detach().requires_grad_()
        x = generator(leaf)
        generator.backward(leaf, x, x.detach())


def _state_bytes(problem: Problem, solver: Choice, z: torch.Tensor) -> int:
    tensors = pack(solver.solver(problem).start(problem, z), "state").values()
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors) // len(z)
