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
a likelihood with a mask or the identity,       one equation per entry
R zero, quadratic or an interval per entry
anything else                                   inner accelerated proximal gradient, with a tolerance
==============================================  ==============================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from genprior import _batch, _clock
from genprior.losses.exact_step import Split, Stepped, StepWithMemory, arrived
from genprior.problem import Problem

_LEAST = 1e-3
"""Where the estimate of nu is 0, because L is flat at the start, backtracking begins at this multiple of rho."""
_SINKS = 0.9
"""Factor on an estimate of nu above the stated one after a step that it allowed, once an item met the border of a domain."""
_MOST_OF_TIME = 0.25
"""Share of the rest of a limited run that one w step may take."""
Memory = object
"""A frozen dataclass whose tensors have one row per item, or None: only its own method reads it."""


@dataclass(frozen=True)
class InnerMemory:
    """The memory of an inner solver."""

    residual: Tensor
    """Relative residual reached in the last step: the error that it adds to the residual in w."""
    smoothness: Tensor
    """That of L, as found by backtracking."""
    stated: Tensor
    """That of L at the start, as the loss states it."""

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
        return InnerMemory(torch.zeros_like(nu), nu, nu)

    def advance(self, at: Split, memory: InnerMemory) -> Stepped[InnerMemory]:
        """Inner iterations up to the tolerance."""
        solution = inner_proximal_gradient(
            self.problem,
            start=at.w,
            lam=at.lam,
            centre=at.x,
            rho=at.rho,
            smoothness=memory.smoothness,
            least=memory.stated,
            tolerance=self.tolerance,
            max_iterations=self.max_iterations,
        )
        return arrived(solution.w, at, InnerMemory(solution.residual, solution.smoothness, memory.stated))


class InnerSolution(NamedTuple):
    """The minimiser found, per item."""

    w: Tensor
    residual: Tensor
    """Relative residual reached."""
    smoothness: Tensor
    """Smoothness of L for which every step was accepted."""
    iterations: Tensor


def inner_proximal_gradient(
    problem: Problem,
    *,
    start: Tensor,
    lam: Tensor,
    centre: Tensor,
    rho: Tensor,
    smoothness: Tensor,
    tolerance: float,
    max_iterations: int,
    least: Tensor | None = None,
) -> InnerSolution:
    """Minimise ``L(w) + R(w) + <w, lam> + rho/2 |w - centre|^2`` by accelerated proximal gradient.

    The smooth part ``s`` is at least rho-strongly convex, so the momentum is the constant one of Nesterov's scheme with
    curvature ratio ``q = rho/(nu + rho)``, restarted for an item whenever it points uphill. The step ``1/(nu + rho)`` is
    checked by the descent inequality and nu doubled where it fails; where it holds for an item that has left the domain
    of L, nu sinks again, to ``least`` at most, because L is steeper at the border than within. An item stops when the
    prox-gradient residual relative to ``(nu + rho) |w| + |lam|`` is below the tolerance; its row is then fixed, so that
    batches equal single runs.
    """
    w, v, nu = start, start, smoothness
    least = smoothness if least is None else least
    residual = torch.full_like(rho, torch.inf)
    iterations = torch.zeros_like(rho)
    active, bordered = torch.ones_like(rho, dtype=torch.bool), torch.zeros_like(rho, dtype=torch.bool)
    over = _clock.allowance(_MOST_OF_TIME)
    for _ in range(max_iterations):
        value, aux = problem.loss.evaluate(v)
        outside = active & ~value.isfinite()
        bordered = bordered | outside
        if bool(outside.any()):  # momentum may leave the domain of L
            v = torch.where(_batch.spread(outside, v), w, v)
            value, aux = problem.loss.evaluate(v)
        slope = problem.loss.gradient(v, aux)
        gradient = slope + lam + _batch.spread(rho, v) * (v - centre)
        length = nu + rho
        candidate = problem.on_signal.prox(v - gradient / _batch.spread(length, v), 1 / length)
        move = candidate - v
        there = problem.loss(candidate)
        rises = _rises(there, candidate, value, slope, move, nu)
        bordered = bordered | there.isinf()
        grown = torch.where(active & rises, torch.maximum(2 * nu, _LEAST * rho), nu)
        accepted = active & ~rises
        grown = torch.where(accepted & bordered, torch.maximum(_SINKS * nu, torch.minimum(least, nu)), grown)
        reached = length * _batch.norm(move)
        scale = length * _batch.norm(candidate) + _batch.norm(lam)
        residual = torch.where(accepted, _batch.ratio(reached, scale), residual)
        q = torch.sqrt(rho / length)
        uphill = _batch.dot(-move, candidate - w) > 0
        momentum = torch.where(uphill, torch.zeros_like(q), (1 - q) / (1 + q))
        ahead = candidate + _batch.spread(momentum, w) * (candidate - w)
        take = _batch.spread(accepted, w)
        w, v, nu = torch.where(take, candidate, w), torch.where(take, ahead, v), grown
        iterations = iterations + active
        active = active & ~(accepted & (residual <= tolerance))
        if not bool(active.any()) or over():
            break
    return InnerSolution(w, residual, nu, iterations)


def _rises(there: Tensor, candidate: Tensor, value: Tensor, slope: Tensor, move: Tensor, nu: Tensor) -> Tensor:
    """Where ``L(candidate) > L(v) + <grad L(v), move> + nu/2 |move|^2``, up to rounding: nu is too small there.

    Rounding w by eps changes L by about ``eps |grad L| |w| <= eps sqrt(2 nu L) |w|``, for least squares and alike: without
    that part of the slack, short moves would fail by chance and nu double without end.
    """
    bound = value + _batch.dot(slope, move) + 0.5 * nu * _batch.square(move)
    size = value.abs() + _batch.dot(slope.abs(), move.abs()) + (2 * nu * value.abs()).sqrt() * _batch.norm(candidate)
    return there > bound + 10 * torch.finfo(value.dtype).eps * size
