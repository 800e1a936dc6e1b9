"""Appendix F: with an exact w step and R = H = 0, ADMM moves z as gradient descent on ``L(G(z))``, up to the primal residual.

The w step makes ``grad L(w_t) + lam_{t-1} + rho (w_t - G(z_t)) = 0``, and ``lam_t = lam_{t-1} + sigma_t (w_t - G(z_t))``, so

    z_{t+1} = z_t + beta DG(z_t)^T (sigma_t (w_t - G(z_t)) - grad L(w_t))
    |z_{t+1} - (z_t - beta grad(L o G)(z_t))| <= beta kappa (sigma_t + nu_L) |w_t - G(z_t)|.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from genprior import _batch
from genprior.problem import Problem
from genprior.solvers.admm import ADMMState
from genprior.terms import Zero
from genprior.theory.loss_constants import source_of


@dataclass(frozen=True)
class DescentGap:
    """One iteration of ADMM compared with one of gradient descent, per item."""

    identity: Tensor
    """``|z_{t+1} - z_t - beta DG^T (sigma r - grad L(w))|``: zero up to round-off."""
    distance: Tensor
    """``|z_{t+1} - (z_t - beta grad(L o G)(z_t))|``."""
    bound: Tensor
    """``beta kappa (sigma + nu_L) |w - G(z)|``, for the step beta that was taken."""
    proved: bool
    """Whether ``nu_L`` in the bound is known, or given with the loss; otherwise it is an estimate, and so is the bound."""


def compare_with_descent(
    problem: Problem, before: ADMMState, after: ADMMState, beta: float, kappa: float
) -> DescentGap:
    """Compare two consecutive states of :class:`ExactADMM` with plain gradient z steps of length ``beta``.

    ``before`` must come from at least one step: at the start w is not yet a minimiser. ``kappa`` bounds ``|DG|`` there. The
    penalty must be the same in both, because the identity holds for one rho. If the penalty has changed since the start,
    the step is ``beta`` times the first penalty over this one, and a quarter of that after each roll-back of an item, as in
    the solver.
    """
    if not (isinstance(problem.on_signal, Zero) and isinstance(problem.on_latent, Zero)):
        raise ValueError(
            "the relation with gradient descent is for problems without terms: on_signal and on_latent are set"
        )
    if bool((before.k < 1).any()):
        raise ValueError("before must be a state after at least one step: at the start w is G(z), not a minimiser")
    if not torch.equal(before.rho, after.rho):
        item = int((before.rho != after.rho).nonzero()[0, 0])
        raise ValueError(
            f"rho of item {item} changed between the states, from {float(before.rho[item]):g} to {float(after.rho[item]):g}: "
            "compare two states with the same penalty, as penalty=gp.penalties.Constant(rho) gives"
        )
    r, linear = before.w - before.x, problem.generator.linearised(before.z)
    slope_w = problem.loss.gradient(before.w, problem.loss.evaluate(before.w)[1])
    slope_x = problem.loss.gradient(before.x, problem.loss.evaluate(before.x)[1])
    sigma = _batch.spread(before.sigma, r)
    taken = beta * before.scale * before.first_rho / before.rho
    length = _batch.spread(taken, before.z)
    collapsed = before.z + length * linear.vjp(sigma * r - slope_w)
    descent = before.z - length * linear.vjp(slope_x)
    nu = problem.loss.curvature(before.x)[1]
    return DescentGap(
        identity=_batch.norm(after.z - collapsed),
        distance=_batch.norm(after.z - descent),
        bound=taken * kappa * (before.sigma + nu) * _batch.norm(r),
        proved=source_of(problem.loss)[0],
    )
