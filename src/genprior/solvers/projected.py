"""Projected gradient descent (Shah and Hegde 2018): a gradient step in the signal, then a projection on the range of G."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior.problem import Problem
from genprior.solvers import z_steps
from genprior.solvers.base import Common, Solver, State
from genprior.solvers.z_steps import Task, ZStep


@dataclass(frozen=True)
class ProjectedState(State):
    """The target of the current projection, its inner steps so far, and the memory of the z step.

    Its evidence is from the last step after a new target: only there is the cotangent the gradient of L + R in the signal.
    """

    target: Tensor
    count: Tensor
    z_memory: object


@dataclass(frozen=True)
class ProjectedGradient(Solver[ProjectedState]):
    """``v = x - eta (grad L(x) + r)``, r a subgradient of R; then z moves towards ``argmin |G(z) - v|^2/(2 eta) + H(z)``.

    One iteration is one inner step of the projection, at the cost of one in the other methods: one forward and one
    backward pass. Every ``inner`` iterations a new target v is computed.

    Parameters
    ----------
    step_size
        eta; omitted: ``1/nu_L``.
    inner
        steps per projection.
    z_step
        how z moves in the projection; Adam by default.
    """

    step_size: float | None = None
    inner: int = 10
    z_step: ZStep[Any] = field(default_factory=z_steps.Adam)

    def __post_init__(self) -> None:
        if self.step_size is not None:
            _validate.number("step_size", self.step_size, above=0)
        _validate.whole("inner", self.inner)
        if not isinstance(self.z_step, ZStep):
            raise TypeError(f"z_step must be a ZStep, got {self.z_step!r}")

    def start(self, problem: Problem, z: Tensor) -> ProjectedState:
        """The state at ``z``, with the first target."""
        common, residual = Common.start(problem, z)
        target = self._target(problem, common.at.x, residual, common.units.smoothness)
        return ProjectedState(common, target, common.k, self.z_step.start(problem, common.at.z))

    def step(self, problem: Problem, state: ProjectedState) -> ProjectedState:
        """One inner step of the projection; where it was the last one, the next target."""
        s = state
        nu = s.units.smoothness
        f = (s.x - s.target) / _batch.spread(self._eta(nu), s.x)
        at, vjp, z_memory, exact = self.z_step.advance(problem, s, Task(f, 1 / self._eta(nu), s.scale), s.z_memory)
        new = s.count == 0  # between two targets the last evidence holds
        common, residual = s.common.arrived(problem, at, vjp, new if exact is None else exact & new)

        count = (s.count + 1) % self.inner
        target = self._target(problem, at.x, residual, nu)
        return ProjectedState(
            common,
            torch.where(_batch.spread(count == 0, target), target, s.target),
            count,
            z_memory,
        )

    def plan(self, problem: Problem) -> str:
        """In words."""
        subgradient = ", with a subgradient of R," if problem.needs_splitting else ""
        return (
            f"ProjectedGradient takes gradient steps in the signal{subgradient} and projects each on the range of G by "
            f"{self.inner} {self.z_step.description}."
        )

    def _target(self, problem: Problem, x: Tensor, residual: Tensor, nu: Tensor) -> Tensor:
        return x - _batch.spread(self._eta(nu), x) * problem.signal_gradient(x, residual)

    def _eta(self, nu: Tensor) -> Tensor:
        return 1 / nu if self.step_size is None else torch.full_like(nu, self.step_size)
