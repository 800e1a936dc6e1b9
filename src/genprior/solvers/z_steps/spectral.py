"""Gradient steps of spectral (Barzilai-Borwein) length."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from genprior import _batch
from genprior.problem import Problem
from genprior.solvers.base import State, Vjp
from genprior.solvers.estimates import lipschitz
from genprior.solvers.z_steps.base import Advance, Task, ZStep
from genprior.terms import Zero

_LONGEST = 100.0
"""Longest step, in units of 1/Lipschitz: beyond, a curvature near zero would set the length."""
_BACKTRACK = 0.25
"""Factor on the length after a rejected move."""


@dataclass(frozen=True)
class SpectralState:
    """Measured curvature, and the length after a rejected move, per item."""

    curvature: Tensor
    """``|G(z) - G(z_old)|^2 / |dz|^2`` of the last accepted move; 0: none yet."""
    retry: Tensor
    """Length to be tried after a rejected move; 0: the last one was accepted."""


@dataclass(frozen=True)
class Spectral(ZStep[SpectralState]):
    """``z+ = prox_{beta H}(z - beta g)`` with the spectral length of Barzilai and Borwein, and backtracking, per item.

    ``beta = |dz|^2 / (rho |G(z) - G(z_old)|^2)`` over the last move: the inverse of the measured curvature, with w and
    lam fixed (a difference of two iterations' gradients would include their changes). At first ``1/(rho |DG|^2)`` with the
    running estimate of ``|DG|``. A move that raises the augmented Lagrangian ``rho/2 |G(z) - v|^2 + H(z)`` is rejected,
    and a quarter of it is tried next.

    One backward and one forward pass, and a second forward pass after an iteration with a rejected move.

    References
    ----------
    Barzilai and Borwein 1988, Two-point step size gradient methods.
    """

    @property
    def description(self) -> str:
        """In words."""
        return "gradient steps of spectral length, with backtracking"

    def start(self, problem: Problem, z: Tensor) -> SpectralState:
        """No curvature measured, no rejected move."""
        zero = z.new_zeros(z.shape[0])
        return SpectralState(zero, zero)

    def advance(self, problem: Problem, state: State, task: Task, memory: SpectralState) -> Advance[SpectralState]:
        """Gradient, length, move, evaluation; moves that increase the function are rejected."""
        s, vjp = state, Vjp.of(state, task.cotangent)
        length = torch.where(vjp.kappa == 0, 0.0, task.shrink * self._length(vjp, task, memory))
        z = s.z - _batch.spread(length, s.z) * vjp.gradient
        if not isinstance(problem.on_latent, Zero):
            z = problem.on_latent.prox(z, length)
        at = problem.generator.evaluate(z)
        risen = ~(self._change(problem, s, task, at.x, at.z) <= 0)  # NaN too
        measured = _batch.ratio(_batch.norm(at.x - s.x), _batch.norm(at.z - s.z)).square()
        new = SpectralState(
            curvature=torch.where(risen | (measured == 0), memory.curvature, measured),
            retry=torch.where(risen, _BACKTRACK * length, 0.0),
        )
        if bool(risen.any()):
            at = at.where(risen, s.at)
        return Advance(at, vjp, new, ~risen)

    @staticmethod
    def _length(vjp: Vjp, task: Task, memory: SpectralState) -> Tensor:
        usual = 1 / lipschitz(task.curvature, vjp.kappa)
        spectral = 1 / _batch.above_zero(task.curvature * memory.curvature)
        length = torch.where(memory.curvature > 0, torch.minimum(spectral, _LONGEST * usual), usual)
        return torch.where(memory.retry > 0, memory.retry / task.shrink, length)

    @staticmethod
    def _change(problem: Problem, s: State, task: Task, x: Tensor, z: Tensor) -> Tensor:
        """Of ``curvature/2 |x - v|^2 + H`` between the state's point and (x, z), beyond rounding."""
        move = x - s.x
        smooth = _batch.dot(task.cotangent, move) + 0.5 * task.curvature * _batch.square(move)
        size = _batch.square(task.cotangent) / _batch.above_zero(task.curvature)
        rounding = 8 * torch.finfo(move.dtype).eps * (size + smooth.abs())
        if isinstance(problem.on_latent, Zero):
            return smooth - rounding
        return smooth + problem.on_latent(z) - problem.on_latent(s.z) - rounding
