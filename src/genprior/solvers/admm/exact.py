"""The exact w step: ``argmin_w L(w) + R(w) + <w, lam> + rho/2 |w - x|^2``, in closed form wherever there is one.

:func:`choose` asks the loss for its own step (:meth:`genprior.losses.Loss.exact_step`). Ours give:

==============================================  ==============================================================
L and R                                         method
==============================================  ==============================================================
``LeastSquares``, orthogonal rows, R = 0        one A^T per step, diagonal inverse, in coordinates of the rows
``LeastSquares``, orthogonal rows, R quadratic  one A and one A^T per step, diagonal inverse
``LeastSquares``, R zero or quadratic           the operator's resolvent (SVD, FFT, or CG)
``SquaredDistance`` or none, any R              one prox of R
``LeastSquares`` with a mask, separable R       one prox of R with a step per coordinate
anything else                                   inner accelerated proximal gradient, with a tolerance
==============================================  ==============================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from genprior.losses.exact_step import Split, Stepped, StepWithMemory, arrived
from genprior.problem import Problem
from genprior.solvers.admm.inner import inner_proximal_gradient

Memory = object
"""A frozen dataclass whose tensors have one row per item, or None: only its own method reads it."""


@dataclass(frozen=True)
class InnerMemory:
    """The memory of an inner solver."""

    residual: Tensor
    """Relative residual reached in the last step: the error that it adds to the residual in w."""
    smoothness: Tensor
    """That of L, as found by backtracking."""

    def error(self, nu: Tensor, rho: Tensor, size: Tensor, dual_norm: Tensor) -> Tensor:
        """The residual itself, for a signal of norm ``size`` and a multiplier of norm ``dual_norm``."""
        return self.residual * ((torch.maximum(nu, self.smoothness) + rho) * size + dual_norm)


def inner_error(memory: Memory, nu: Tensor, rho: Tensor, size: Tensor, dual_norm: Tensor) -> Tensor | float:
    """What the inexactness of a w step adds to the residual in w; 0 for closed forms."""
    return memory.error(nu, rho, size, dual_norm) if isinstance(memory, InnerMemory) else 0.0


def choose(problem: Problem, tolerance: float, max_iterations: int) -> StepWithMemory[Any]:
    """The loss's own step for the problem's R, else the inner solver."""
    step = problem.loss.exact_step(problem.on_signal)
    if step is None:
        return Inner(problem, tolerance, max_iterations)
    if not isinstance(step, StepWithMemory):
        raise TypeError(
            f"{type(problem.loss).__name__}.exact_step gave a {type(step).__name__}, expected a genprior.losses.ExactStep "
            "or None: subclass ExactStep, with a name and __call__(v, rho, start)"
        )
    return step


@dataclass(frozen=True)
class Inner(StepWithMemory[InnerMemory]):
    """Accelerated proximal gradient with backtracking, warm-started at the old w."""

    problem: Problem
    tolerance: float
    max_iterations: int

    @property
    def name(self) -> str:
        """For the plan of a run."""
        return (
            f"inner proximal gradient (relative residual {self.tolerance:g}, at most {self.max_iterations} iterations)"
        )

    def start(self, x: Tensor, residual: Tensor) -> InnerMemory:
        """No residual yet, and the smoothness that the loss states."""
        nu = self.problem.loss.curvature(x)[1]
        return InnerMemory(torch.zeros_like(nu), nu)

    def advance(self, at: Split, memory: InnerMemory) -> Stepped[InnerMemory]:
        """Inner iterations up to the tolerance."""
        solution = inner_proximal_gradient(
            self.problem,
            start=at.w,
            lam=at.lam,
            centre=at.x,
            rho=at.rho,
            smoothness=memory.smoothness,
            tolerance=self.tolerance,
            max_iterations=self.max_iterations,
        )
        return arrived(solution.w, at, InnerMemory(solution.residual, solution.smoothness))
