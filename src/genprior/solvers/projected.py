"""Projected gradient descent (Shah and Hegde 2018): a gradient step in the signal, then a projection on the range of G."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior.problem import Problem
from genprior.solvers import z_steps
from genprior.solvers.base import Solver, State
from genprior.solvers.estimates import curvature_of, kappa_from_move, kappa_from_pull, lipschitz, relative_slope
from genprior.solvers.z_steps import Memory, Move, ZStep


@dataclass(frozen=True)
class ProjectedState(State):
    """The target of the current projection, and how far it has come."""

    target: Tensor
    count: Tensor
    nu: Tensor
    kappa: Tensor
    steepest: Tensor
    z_memory: Memory


@dataclass(frozen=True)
class ProjectedGradient(Solver):
    """``v = prox_{eta R}(x - eta grad L(x))``, then ``z`` moves towards ``argmin 1/(2 eta) |G(z) - v|^2 + H(z)``.

    One iteration is one inner step of the projection, so that its cost compares with the other methods: one forward and
    one backward pass. Every ``inner`` of them a new target v is taken.

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
    z_step: ZStep = field(default_factory=z_steps.Adam)

    def __post_init__(self) -> None:
        if self.step_size is not None:
            _validate.number("step_size", self.step_size, above=0)
        _validate.whole("inner", self.inner)
        if not isinstance(self.z_step, ZStep):
            raise TypeError(f"z_step must be a ZStep, got {self.z_step!r}")

    def start(self, problem: Problem, z: Tensor) -> ProjectedState:
        """The state at ``z``, with the first target."""
        at = problem.generator.evaluate(z)
        point = problem.evaluate(at.x, at.z)
        zero = torch.zeros_like(point.objective)
        nu = curvature_of(problem, at.x)
        return ProjectedState(
            at=at,
            w=at.x,
            objective=point.objective,
            score=point.score,
            gap=zero,
            stationarity=torch.full_like(zero, torch.inf),
            rho=zero,
            scale=torch.ones_like(zero),
            target=self._target(problem, at.x, point.residual, nu),
            count=zero,
            nu=nu,
            kappa=zero,
            steepest=zero,
            z_memory=self.z_step.start(z),
        )

    def step(self, problem: Problem, state: ProjectedState) -> ProjectedState:
        """One inner step of the projection; where it was the last one, the next target."""
        s = state
        force = (s.x - s.target) / _batch.spread(self._eta(s.nu), s.x)
        gradient = s.at.pull(force)
        kappa = kappa_from_pull(s.kappa, gradient, force)
        move = Move(
            z=s.z,
            gradient=gradient,
            term=problem.on_latent,
            lipschitz=lipschitz(1 / self._eta(s.nu), kappa),
            shrink=s.scale,
            spread=problem.generator.law.spread,
        )
        z, z_memory = self.z_step(move, s.z_memory)
        at = problem.generator.evaluate(z)
        point = problem.evaluate(at.x, at.z)
        if self.z_step.adaptive:
            kappa = kappa_from_move(kappa, s.at, at, problem.generator.law.spread)

        steepest = torch.maximum(s.steepest, kappa)
        count = (s.count + 1) % self.inner
        fresh = _batch.spread(count == 0, at.x)
        target = torch.where(fresh, self._target(problem, at.x, point.residual, s.nu), s.target)
        return ProjectedState(
            at=at,
            w=at.x,
            objective=point.objective,
            score=point.score,
            gap=s.gap,
            stationarity=self._stationarity(problem, s, gradient, force, steepest),
            rho=s.rho,
            scale=s.scale,
            target=target,
            count=count,
            nu=s.nu,
            kappa=kappa,
            steepest=steepest,
            z_memory=z_memory,
        )

    def _target(self, problem: Problem, x: Tensor, residual: Tensor, nu: Tensor) -> Tensor:
        eta = self._eta(nu)
        ahead = x - _batch.spread(eta, x) * problem.loss.gradient(x, residual)
        return problem.on_signal.prox(ahead, eta)

    def _eta(self, nu: Tensor) -> Tensor:
        return 1 / nu if self.step_size is None else torch.full_like(nu, self.step_size)

    def _stationarity(
        self, problem: Problem, s: ProjectedState, gradient: Tensor, force: Tensor, steepest: Tensor
    ) -> Tensor:
        """Right after a new target, ``force`` is the gradient in the signal; between targets the last verdict holds."""
        slope = relative_slope(problem, s.at, gradient, force, s.nu, steepest)
        return torch.where(s.count == 0, slope, s.stationarity)
