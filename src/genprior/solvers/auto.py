"""The solver for people who do not want to choose one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from genprior import _batch
from genprior.generators import Generator
from genprior.problem import Problem
from genprior.solvers import duals, envelope, penalties, z_steps
from genprior.solvers.admm import ADMM
from genprior.solvers.base import Solver
from genprior.solvers.lbfgs import LBFGS
from genprior.solvers.quasi_newton import QuasiNewton

_LARGEST_DENSE = 1024
"""Most latent numbers for which an s x s matrix per item is kept."""
_LARGEST_MEASURED = 64
"""A Jacobian of more columns costs too much wherever it was measured: not worth the measurement."""
_AFFORDABLE = 8.0
"""A Jacobian that costs at most as much as so many iterations is used."""
_TANGENTS = 4


@dataclass(frozen=True)
class Auto(Solver):
    """Choose the method from the problem; needs no option. The default of :func:`genprior.solve`.

    *Up to 1024 latent numbers*: :class:`QuasiNewton`, on ``L(G(z))`` itself where that is smooth, on the augmented Lagrangian
    with w eliminated where R is not. A Jacobian is timed against an iteration, and where it is cheap (small latents),
    Gauss-Newton matrices replace the BFGS matrix every so often.

    *More*: L-BFGS where the problem is smooth, else ADMM with exact w, spectral z steps, adaptive dual and penalty.

    Constants come from a few passes, which are counted: the generator's metric ``E[DG^T DG]`` (one forward, eight backward,
    once per generator), the scale of A on the first signal, the natural size of R. ``result.plan`` says what was chosen and
    why.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> _ = torch.manual_seed(0)
    >>> G = gp.Generator(torch.nn.Linear(3, 16), latent_shape=(3,), signal_shape=(16,))
    >>> y = G(G.sample_latent(2, seed=7)).detach()
    >>> r = gp.solve(gp.Problem(G, loss=gp.SquaredDistance(y)), seed=1)
    >>> r.converged
    True
    """

    def start(self, problem: Problem, z: Tensor) -> Any:
        """The state of the method chosen."""
        return self.method(problem, z).start(problem, z)

    def step(self, problem: Problem, state: Any) -> Any:
        """One iteration of it."""
        return self.method(problem, state.z).step(problem, state)

    def residuals(self, problem: Problem, state: Any) -> tuple[Tensor, Tensor]:
        """Its own."""
        return self.method(problem, state.z).residuals(problem, state)

    def method(self, problem: Problem, z: Tensor) -> Solver:
        """What is used for this problem."""
        if _size(problem) <= _LARGEST_DENSE:
            return QuasiNewton(refresh=_refresh(jacobian_cost(problem.generator, z)))
        if not envelope.needs_splitting(problem):
            return LBFGS(memory=20)
        return ADMM(z_step=z_steps.Adam(), dual=duals.Constant(), penalty=penalties.Constant())

    def plan(self, problem: Problem) -> str:
        """What was chosen, and why."""
        size = _size(problem)
        method = self.method(problem, problem.generator.sample_latent(1))
        if not isinstance(method, QuasiNewton):
            why = f"{size} latent numbers are too many for a matrix per item"
            return f"Auto: {why}, so {method.plan(problem)}"
        return f"Auto: {method.plan(problem)}; {_words(problem.generator, size, method)}"


def jacobian_cost(generator: Generator, z: Tensor) -> float:
    """Seconds of a Jacobian over seconds of one forward and backward pass, from a few columns; measured once.

    Infinite where there are too many columns to be worth it.
    """
    size = math.prod(generator.latent_shape)
    if size > _LARGEST_MEASURED:
        return math.inf
    if "jacobian cost" not in generator._known:
        generator._known["jacobian cost"] = torch.tensor(_measured_cost(generator, z, size))
    return float(generator._known["jacobian cost"])


def _measured_cost(generator: Generator, z: Tensor, size: int) -> float:
    tangents = torch.zeros(min(_TANGENTS, size), *z.shape, device=z.device, dtype=z.dtype)
    _batch.flat(tangents)[:, 0] = 1.0
    ones = torch.ones(len(z), *generator.signal_shape, device=z.device, dtype=z.dtype)
    times = []
    for _ in range(2):  # the first round warms up
        began = perf_counter()
        generator.evaluate(z).pull(ones)
        _wait(z)
        between = perf_counter()
        generator.push(z, tangents)
        _wait(z)
        times.append((between - began, perf_counter() - between))
    pass_seconds, push_seconds = times[-1]
    return push_seconds * size / len(tangents) / max(pass_seconds, 1e-9)


def _wait(z: Tensor) -> None:
    if z.device.type == "cuda":
        torch.cuda.synchronize(z.device)


def _refresh(cost: float) -> int | None:
    """Steps between two Jacobians, so that they take at most a third of the time; None where they are too dear."""
    return max(5, math.ceil(2 * cost)) if cost <= _AFFORDABLE else None


def _size(problem: Problem) -> int:
    return math.prod(problem.generator.latent_shape)


def _words(generator: Generator, size: int, method: QuasiNewton) -> str:
    if size > _LARGEST_MEASURED:
        return f"no Jacobians, for {size} columns cost more than they save"
    cost = float(generator._known["jacobian cost"])
    measured = f"a Jacobian was measured to cost {cost:.1f} iterations"
    if method.refresh is None:
        return f"{measured}: too much"
    return f"{measured}: a Gauss-Newton matrix every {method.refresh} steps"
