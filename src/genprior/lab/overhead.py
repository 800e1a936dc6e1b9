"""What an iteration costs beyond the generator's own forward and backward pass."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from genprior import _validate
from genprior.generators import Generator
from genprior.loop.solve import solve
from genprior.losses import LeastSquares
from genprior.models.examples import random_dcgan, random_mlp
from genprior.operators import Gaussian
from genprior.problem import Problem
from genprior.result import Result
from genprior.solvers import ExactADMM
from genprior.solvers.z_steps import Gradient
from genprior.stopping import MaxSteps


@dataclass(frozen=True)
class Overhead:
    """Seconds per iteration against seconds of one bare forward and backward pass, medians of interleaved repeats."""

    generator: str
    batch: int
    measurements: int
    threads: int
    repeats: int
    steps: int
    bare_seconds: float
    step_seconds: float
    ratio: float
    """Median over the repeats of the ratio measured side by side."""
    ratio_quartiles: tuple[float, float]
    passes: tuple[float, float]
    """Forward and backward passes per iteration."""


def measure_overhead(
    generator: Generator,
    *,
    name: str,
    batch: int = 20,
    measurements: int = 392,
    repeats: int = 15,
    steps: int = 20,
    seed: int = 0,
) -> Overhead:
    """Time ``ExactADMM`` on Gaussian measurements against the bare module, in turns, from the same latents.

    A solve of ``2 steps`` iterations minus one of none is the time of the iterations, without
    the start. All default features are on: history, best iterate, stopping.
    """
    _validate.whole("repeats", repeats)
    z = generator.sample_latent(batch, seed=seed + 1)
    operator = Gaussian(measurements, generator.signal_shape, seed=seed, device=generator.device)
    with torch.no_grad():
        y = operator(generator(generator.sample_latent(batch, seed=seed + 2)))
    problem = Problem(generator, loss=LeastSquares(operator, y))
    bare, full, ratios = [], [], []
    module = generator.module
    _bare_seconds(module, z, 3)
    _solved(problem, z, 3)
    passes = (0.0, 0.0)
    for _ in range(repeats):
        before_it = _bare_seconds(module, z, steps)
        nothing, _ = _solved(problem, z, 0)
        everything, result = _solved(problem, z, 2 * steps)
        after_it = _bare_seconds(module, z, steps)
        bare.append((before_it + after_it) / (2 * steps))
        passes = ((result.forwards - 1) / (2 * steps), result.backwards / (2 * steps))  # except at the start
        full.append((everything - nothing) / (2 * steps))
        ratios.append(full[-1] / bare[-1])
    quartiles = statistics.quantiles(ratios, n=4) if repeats > 1 else [ratios[0]] * 3
    return Overhead(
        generator=name,
        batch=batch,
        measurements=measurements,
        threads=torch.get_num_threads(),
        repeats=repeats,
        steps=steps,
        bare_seconds=statistics.median(bare),
        step_seconds=statistics.median(full),
        ratio=statistics.median(ratios),
        ratio_quartiles=(quartiles[0], quartiles[2]),
        passes=passes,
    )


def overhead_cases(repeats: int = 15, *, seed: int = 0, device: str = "cpu") -> list[Overhead]:
    """The two cases that are reported: a DCGAN-size generator, and an MLP small enough for the overhead to show."""
    return [
        measure_overhead(random_dcgan(seed=seed, device=device), name="dcgan", repeats=repeats, steps=10, seed=seed),
        measure_overhead(random_mlp(seed=seed, device=device), name="mlp", repeats=4 * repeats, steps=200, seed=seed),
    ]


def _bare_seconds(module: Callable[[Tensor], Tensor], z: Tensor, steps: int) -> float:
    """Seconds of ``steps`` forward and backward passes of the module itself."""
    start = time.perf_counter()
    for _ in range(steps):
        leaf = z.detach().requires_grad_()
        x = module(leaf)
        torch.autograd.grad(x, leaf, x.detach())
    return time.perf_counter() - start


def _solved(problem: Problem, z: Tensor, steps: int) -> tuple[float, Result]:
    start = time.perf_counter()
    plain = ExactADMM(z_step=Gradient())  # against a bare gradient: the same step in z
    result = solve(problem, plain, z0=z, stop=MaxSteps(steps), tolerance=0, patience=10 * steps + 1, progress=False)
    return time.perf_counter() - start, result
