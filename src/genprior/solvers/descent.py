"""Descent on ``f(z) = L(G(z)) + R(G(z)) + H(z)``: gradient descent, momentum, Adam. The baselines of the field."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from genprior.problem import Problem
from genprior.solvers import z_steps
from genprior.solvers.base import Common, Solver, State
from genprior.solvers.z_steps import Task, ZStep


@dataclass(frozen=True)
class DescentState(State):
    """The loss's residual at x, and the memory of the z step."""

    residual: Tensor
    z_memory: object


class Descent(Solver[DescentState]):
    """``z+ = z_step(z, g, H)`` with ``g = DG(z)^T (grad L(x) + r)``, ``r`` a subgradient of R at ``x = G(z)``.

    One forward and one backward pass per iteration. The w of the result is ``G(z)`` itself.
    """

    @property
    @abstractmethod
    def z_step(self) -> ZStep[Any]:
        """The update rule for z."""

    def start(self, problem: Problem, z: Tensor) -> DescentState:
        """The state at ``z``."""
        common, residual = Common.start(problem, z)
        return DescentState(common, residual, self.z_step.start(problem, common.at.z))

    def step(self, problem: Problem, state: DescentState) -> DescentState:
        """One backward pass at z, one forward pass at z+."""
        s = state
        f = problem.signal_gradient(s.x, s.residual)
        at, vjp, z_memory, _ = self.z_step.advance(problem, s, Task(f, s.units.smoothness, s.scale), s.z_memory)
        common, residual = s.common.arrived(problem, at, vjp)
        return DescentState(common, residual, z_memory)

    def plan(self, problem: Problem) -> str:
        """In words."""
        subgradient = ", with a subgradient of R," if problem.needs_splitting else ""
        return f"{type(self).__name__} minimises L(G(z)) + R(G(z)) + H(z){subgradient} by {self.z_step.description}."


@dataclass(frozen=True)
class GradientDescent(Descent):
    """Gradient descent, as in Bora et al. 2017: ``z+ = prox_{beta H}(z - beta g)``, with momentum if wanted.

    Parameters
    ----------
    step_size
        beta; omitted: from a running estimate of ``nu_L |DG|^2``.
    momentum
        heavy-ball momentum in [0, 1).
    """

    step_size: float | None = None
    momentum: float = 0.0

    def __post_init__(self) -> None:
        z_steps.Momentum(self.step_size, self.momentum)

    @property
    def z_step(self) -> ZStep[Any]:
        """Gradient or momentum."""
        return z_steps.Momentum(self.step_size, self.momentum) if self.momentum else z_steps.Gradient(self.step_size)


@dataclass(frozen=True)
class Adam(Descent):
    """Adam on the latent (Kingma and Ba 2015).

    Parameters
    ----------
    step_size
        length of a move per coordinate; omitted: 10% of the latent distribution's spread.
    beta1, beta2, epsilon
        as in the reference.
    """

    step_size: float | None = None
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float | None = None

    def __post_init__(self) -> None:
        _ = self.z_step

    @property
    def z_step(self) -> ZStep[Any]:
        """Adam."""
        return z_steps.Adam(self.step_size, self.beta1, self.beta2, self.epsilon)
