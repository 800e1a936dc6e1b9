"""The smooth function of ``x = G(z)`` that curvature methods descend, whatever R is.

Where R is zero or quadratic it is ``L(x) + R(x)`` itself. Otherwise it is the augmented Lagrangian with w eliminated,

    e(x) = min_w  L(w) + R(w) + <w - x, lam> + rho/2 |w - x|^2,

the Moreau envelope of ``L + R``, shifted by lam: convex and differentiable with the gradient ``-(lam + rho (w - x))``,
whose Lipschitz constant is at most rho, even where R has no gradient. Its minimiser over w is the exact w step.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from genprior import _batch
from genprior.losses import LeastSquares
from genprior.problem import Point, Problem
from genprior.solvers.admm.exact import Memory, Split
from genprior.solvers.admm.w_steps import Exact
from genprior.solvers.levenberg import applies_to, residual_jacobian

_W_STEP = Exact()


class Sight(NamedTuple):
    """The envelope at x, per item."""

    energy: Tensor
    force: Tensor
    """Its gradient."""
    w: Tensor
    r: Tensor
    """``w - x``."""
    w_memory: Memory


def look(problem: Problem, x: Tensor, point: Point, old: Sight | None, lam: Tensor, rho: Tensor) -> Sight:
    """The envelope at ``x``; ``old`` is where an inner solver may start from."""
    if not problem.needs_splitting:
        energy = point.loss + problem.on_signal(x)
        return Sight(energy, problem.signal_gradient(x, point.residual), x, torch.zeros_like(x), {})
    start, memory = (x, _W_STEP.start(problem, x, point.residual)) if old is None else (old.w, old.w_memory)
    one = torch.ones_like(rho)
    split = Split(start, lam, x, point.residual, rho, rho, one, 1.0)
    w, r, memory = _W_STEP(problem, split, memory)
    energy = problem.loss(w) + problem.on_signal(w) + _batch.dot(lam, r) + 0.5 * rho * _batch.square(r)
    return Sight(energy, torch.addcmul(lam, _batch.spread(rho, r), r).neg_(), w, r, memory)


def method_name(problem: Problem) -> str:
    """How w is eliminated, in words."""
    return _W_STEP.name(problem)


def smoothness(problem: Problem, x: Tensor) -> Tensor:
    """Lipschitz constant of the gradient of L, and of R where it is quadratic, per item."""
    weight, _ = problem.on_signal.as_quadratic() or (0.0, 0.0)
    return problem.loss.curvature(x)[1] + _batch.column(weight, x)


def curvature(problem: Problem, x: Tensor, rho: Tensor) -> Tensor:
    """The typical second derivative of the envelope along signals such as x: the scale of a first Hessian."""
    if problem.needs_splitting:
        return rho
    weight, _ = problem.on_signal.as_quadratic() or (0.0, 0.0)
    if isinstance(problem.loss, LeastSquares):
        image = _batch.square(problem.loss.operator(x))
        typical = _batch.ratio(image, _batch.square(x))
        nu = torch.where(typical > 0, typical, problem.loss.curvature(x)[1])
    else:
        nu = problem.loss.curvature(x)[1]
    total = nu + _batch.column(weight, x)
    return torch.where(total > 0, total, 1.0)


def gauss_newton(problem: Problem, z: Tensor, rho: Tensor) -> Tensor:
    """``DG^T (second derivative of the envelope, or a bound on it) DG`` at z, ``(B, s, s)``."""
    if applies_to(problem):
        matrix = residual_jacobian(problem, z)
        return matrix.mT @ matrix
    matrix = problem.generator.jacobian(z)
    weight = rho if problem.needs_splitting else smoothness(problem, problem.generator(z))
    return weight[:, None, None] * (matrix.mT @ matrix)
