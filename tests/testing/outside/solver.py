"""A solver by somebody who knows the documentation alone."""

from dataclasses import dataclass

import torch
from torch import Tensor

import genprior as gp


@dataclass(frozen=True)
class HeavyBallState(gp.State):
    residual: Tensor
    velocity: Tensor


@dataclass(frozen=True)
class HeavyBall(gp.Solver[HeavyBallState]):
    """``v+ = m v - t g``, ``z+ = prox_{tH}(z + v+)``; the velocity is dropped where it points uphill."""

    momentum: float = 0.6

    def start(self, problem, z):
        common, residual = gp.Common.start(problem, z)
        return HeavyBallState(common, residual, torch.zeros_like(z))

    def step(self, problem, state):
        vjp = state.vjp(problem.signal_gradient(state.x, state.residual))
        uphill = gp.per_item.dot(state.velocity, vjp.gradient) > 0
        kept = torch.where(uphill, 0.0, self.momentum)
        length = state.step_length(vjp)
        velocity = gp.per_item.spread(kept, state.z) * state.velocity
        velocity = velocity - gp.per_item.spread(length, state.z) * vjp.gradient
        z = problem.on_latent.prox(state.z + velocity, length)
        common, residual = state.common.step_to(problem, z, vjp)
        return HeavyBallState(common, residual, z - state.z)
