"""The demo: handwritten digits from half as many random measurements as pixels, by six solvers in equal time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from genprior import _batch, _validate, samples
from genprior.generators import Generator
from genprior.lab.trace import ErrorRecorder, Trace
from genprior.loop.solve import solve
from genprior.loop.starts import candidates
from genprior.losses import LeastSquares
from genprior.models.bundled import load_generator
from genprior.operators import Gaussian
from genprior.problem import Problem
from genprior.result import Result
from genprior.solvers import LBFGS, Adam, Auto, Choice, ExactADMM, GradientDescent, LinearizedADMM
from genprior.stopping import MaxSteps, Seconds

TRUTHS = ("test", "range")
_NO_LIMIT = 10**9


@dataclass(frozen=True)
class DemoRun:
    """One solver on the demo's digits."""

    name: str
    result: Result
    trace: Trace
    errors: Tensor
    """``|G(z) - truth| / |truth|`` per digit."""


@dataclass(frozen=True)
class Demo:
    """Truth, back-projection and runs."""

    truth: Tensor
    kind: str
    """``"test"``: digits not used in training; ``"range"``: digits from the generator."""
    backprojection: Tensor
    measurements: int
    seconds: float
    restarts: int
    seed: int
    runs: tuple[DemoRun, ...]

    @property
    def pixels(self) -> int:
        """Of one digit."""
        return self.truth[0].numel()


def demo_solvers() -> dict[str, Choice]:
    """The solvers that the demo compares, all with default steps; those of ADMM are not the paper's."""
    return {
        "gradient descent": GradientDescent(),
        "Adam": Adam(),
        "L-BFGS": LBFGS(),
        "linearized ADMM, our defaults": LinearizedADMM(),
        "exact ADMM, our defaults": ExactADMM(),
        "Auto": Auto(),
    }


def run_demo(
    *,
    pictures: int = 16,
    measurements: int = 392,
    seconds: float = 6.0,
    restarts: int = 1,
    truth: str = "test",
    seed: int = 0,
    device: str = "cpu",
    announce: Callable[[str], object] = lambda name: None,
) -> Demo:
    """Recover digits from Gaussian measurements with six solvers, from the same starts, in the same time each."""
    _validate.whole("measurements", measurements)
    _validate.number("seconds", seconds, above=0)
    generator = load_generator("mnist", device=device)
    operator = Gaussian(measurements, generator.signal_shape, seed=seed, device=generator.device)
    digits = _truth(generator, truth, _validate.whole("pictures", pictures), seed)
    y = operator(digits)
    problem = Problem(generator, loss=LeastSquares(operator, y))
    solve(problem, Adam(), stop=MaxSteps(3), progress=False)  # warm-up: the first passes of a process are slow
    z0 = candidates(problem, pictures, _validate.whole("restarts", restarts), seed)
    runs = []
    for name, solver in demo_solvers().items():
        announce(name)
        record = ErrorRecorder(digits)
        result = solve(
            problem,
            solver,
            stop=Seconds(seconds),
            z0=z0,
            patience=_NO_LIMIT,
            callbacks=[record],
            progress=False,
        )
        errors = _batch.norm(result.signal - digits) / _batch.norm(digits)
        runs.append(DemoRun(name, result, record.trace(result), errors))
    return Demo(digits, truth, operator.adjoint(y), measurements, seconds, restarts, seed, tuple(runs))


def _truth(generator: Generator, kind: str, count: int, seed: int) -> Tensor:
    if kind == "range":
        with torch.no_grad():
            return generator(generator.sample_latent(count, seed=seed + 1))
    if kind == "test":
        return samples.digits(count)[0].to(generator.device)
    raise ValueError(f"truth must be one of {', '.join(TRUTHS)}, got {kind!r}")
