"""A small recovery that needs no download: pictures of soft discs from a tenth as many random measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior.generators.examples import soft_discs
from genprior.losses import LeastSquares
from genprior.operators import Gaussian
from genprior.problem import Problem
from genprior.result import Result
from genprior.solve import solve
from genprior.solvers import LBFGS, Adam, ExactADMM, GradientDescent, LinearizedADMM, Solver, duals, z_steps
from genprior.stopping import MaxSteps


@dataclass(frozen=True)
class DemoRun:
    """One solver on the demo's pictures."""

    name: str
    result: Result
    errors: Tensor
    """``|G(z) - truth| / |truth|`` per picture."""

    @property
    def solved(self) -> float:
        """Share of pictures with an error under 5%."""
        return float((self.errors < 0.05).double().mean())


@dataclass(frozen=True)
class Demo:
    """Truth, what the measurements alone show, and the runs."""

    truth: Tensor
    backprojection: Tensor
    measurements: int
    pixels: int
    restarts: int
    runs: tuple[DemoRun, ...]


def demo_solvers() -> dict[str, Solver]:
    """The solvers that the demo compares, all with default steps."""
    return {
        "gradient descent": GradientDescent(),
        "Adam": Adam(),
        "L-BFGS": LBFGS(),
        "linearized ADMM": LinearizedADMM(),
        "exact ADMM": ExactADMM(),
        "exact ADMM, Adam z": ExactADMM(z_step=z_steps.Adam(), dual=duals.Constant()),
    }


def run_demo(
    *,
    pictures: int = 6,
    measurements: int = 102,
    steps: int = 500,
    restarts: int = 8,
    seed: int = 0,
    device: str = "cpu",
    announce: Callable[[str], object] = lambda name: None,
) -> Demo:
    """Recover pictures from Gaussian measurements with every solver, from the same starts."""
    _validate.whole("pictures", pictures)
    _validate.whole("measurements", measurements)
    _validate.whole("seed", seed, 0)
    generator = soft_discs(device=device)
    operator = Gaussian(measurements, generator.signal_shape, seed=seed, device=generator.device)
    with torch.no_grad():
        truth = generator(generator.sample_latent(pictures, seed=seed + 1))
        y = operator(truth)
    problem = Problem(generator, loss=LeastSquares(operator, y))
    runs = []
    for name, solver in demo_solvers().items():
        announce(name)
        result = solve(problem, solver, stop=MaxSteps(steps), restarts=restarts, seed=seed)
        errors = _batch.norm(result.signal - truth) / _batch.norm(truth)
        runs.append(DemoRun(name, result, errors))
    return Demo(truth, operator.adjoint(y), measurements, truth[0].numel(), restarts, tuple(runs))
