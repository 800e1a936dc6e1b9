"""w steps: how the split variable w follows ``x = G(z+)``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from genprior import _batch, _validate
from genprior.losses.exact_step import Split, Stepped, arrived
from genprior.problem import Problem
from genprior.solvers.admm.exact import Memory, choose
from genprior.terms import Zero


class WStep(ABC):
    """A rule for moving w."""

    @abstractmethod
    def start(self, problem: Problem, x: Tensor, residual: Tensor) -> Memory:
        """The memory at the start, per item."""

    @abstractmethod
    def __call__(self, problem: Problem, at: Split, memory: Any) -> Stepped[Any]:
        """The new w and the new memory."""

    @abstractmethod
    def residual(self, problem: Problem, w: Tensor, lam: Tensor, drift: Tensor, rho: Tensor) -> Tensor:
        """``|w - prox_{tR}(w - t (grad L(w) + lam))| / t`` per item, or a bound on it.

        ``drift`` bounds ``|lam - (lam_old + rho (w - G(z)))|``: how far the dual step is from the one for which w is optimal.
        """

    @abstractmethod
    def name(self, problem: Problem) -> str:
        """In words, for the plan: how w is computed."""


@dataclass(frozen=True)
class Smoothness:
    """The memory of :class:`Linearized`."""

    value: Tensor
    """Smoothness of L per item."""


@dataclass(frozen=True)
class Linearized(WStep):
    """``w+ = prox_{alpha R}(w - alpha (grad L(w) + lam + rho (w - x)))``.

    ``alpha`` defaults to ``1/(nu_L + rho)``, the longest step that Theorem 1 allows. In the k-th scale of a growing
    penalty an explicit alpha is shortened by the same factor.
    """

    alpha: float | None = None

    def __post_init__(self) -> None:
        if self.alpha is not None:
            _validate.number("alpha", self.alpha, above=0)

    def start(self, problem: Problem, x: Tensor, residual: Tensor) -> Smoothness:
        """Smoothness of L."""
        return Smoothness(problem.loss.curvature(x)[1])

    def __call__(self, problem: Problem, at: Split, memory: Smoothness) -> Stepped[Smoothness]:
        """One proximal gradient step."""
        _, aux = problem.loss.evaluate(at.w)
        slope = problem.loss.gradient(at.w, aux) + at.lam
        longest = 1 / (memory.value + at.rho)
        alpha = at.scale * (longest if self.alpha is None else self.alpha * at.first_rho / at.rho)
        ahead = at.w - _batch.spread(alpha, at.w) * (slope + _batch.spread(at.rho, at.w) * (at.w - at.x))
        w = ahead if isinstance(problem.on_signal, Zero) else problem.on_signal.prox(ahead, alpha)
        return arrived(w, at, memory)

    def residual(self, problem: Problem, w: Tensor, lam: Tensor, drift: Tensor, rho: Tensor) -> Tensor:
        """As defined; it costs one evaluation of grad L and one prox of R, and no pass through G."""
        slope = problem.loss.gradient(w, problem.loss.evaluate(w)[1]) + lam
        if isinstance(problem.on_signal, Zero):
            return _batch.norm(slope)
        t = 1 / (problem.loss.curvature(w)[1] + rho)
        return _batch.norm(w - problem.on_signal.prox(w - _batch.spread(t, w) * slope, t)) / t

    def name(self, problem: Problem) -> str:
        """In words."""
        return "one proximal gradient step"


@dataclass(frozen=True)
class Exact(WStep):
    """``w+ = argmin_w L(w) + R(w) + <w, lam> + rho/2 |w - x|^2``, by the loss's own step where it has one.

    ``tolerance`` and ``max_iterations`` are those of the inner solver, used only where the loss has no step of its own for R.
    """

    tolerance: float = 1e-6
    max_iterations: int = 200

    def __post_init__(self) -> None:
        _validate.number("tolerance", self.tolerance, above=0)
        _validate.whole("max_iterations", self.max_iterations)

    def start(self, problem: Problem, x: Tensor, residual: Tensor) -> Memory:
        """The memory of the chosen method."""
        return choose(problem, self.tolerance, self.max_iterations).start(x, residual)

    def __call__(self, problem: Problem, at: Split, memory: Any) -> Stepped[Any]:
        """The minimiser."""
        return choose(problem, self.tolerance, self.max_iterations).advance(at, memory)

    def residual(self, problem: Problem, w: Tensor, lam: Tensor, drift: Tensor, rho: Tensor) -> Tensor:
        """As w is optimal for ``lam_old + rho (w - G(z))``, and the prox does not expand, the drift bounds it."""
        return drift

    def name(self, problem: Problem) -> str:
        """In words, for the plan: how w is computed."""
        return choose(problem, self.tolerance, self.max_iterations).name
