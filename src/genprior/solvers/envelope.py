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
from genprior.losses import LeastSquares, SquaredDistance
from genprior.losses.exact_step import Split
from genprior.problem import Point, Problem
from genprior.solvers.admm.exact import Memory as WMemory
from genprior.solvers.admm.w_steps import Exact
from genprior.terms import Quadratic, Zero

_W_STEP = Exact()


class EnvelopeValue(NamedTuple):
    """The envelope at x, per item."""

    energy: Tensor
    f: Tensor
    """Its gradient in x."""
    w: Tensor
    """The minimiser: x itself where nothing is split."""
    r: Tensor | None
    """``w - x``; None where nothing is split."""
    memory: WMemory
    """State of the w step, for the next one."""


def smooth_value(problem: Problem, x: Tensor, point: Point) -> EnvelopeValue:
    """``L + R`` itself, with its gradient: where R is zero or quadratic."""
    return EnvelopeValue(point.loss + problem.on_signal(x), problem.signal_gradient(x, point.residual), x, None, None)


class WarmStart(NamedTuple):
    """The last w and the state of its step, from which an inner solver starts."""

    w: Tensor
    memory: WMemory


def evaluate(
    problem: Problem, x: Tensor, point: Point, lam: Tensor, rho: Tensor, warm: WarmStart | None
) -> EnvelopeValue:
    """The augmented Lagrangian at ``x`` with w eliminated."""
    start, memory = (x, _W_STEP.start(problem, x, point.residual)) if warm is None else warm
    split = Split(start, lam, x, point.residual, rho, rho, torch.ones_like(rho), 1.0)
    w, r, memory = _W_STEP(problem, split, memory)
    energy = problem.loss(w) + problem.on_signal(w) + _batch.dot(lam, r) + 0.5 * rho * _batch.square(r)
    return EnvelopeValue(energy, torch.addcmul(lam, _batch.spread(rho, r), r).neg_(), w, r, memory)


def method_name(problem: Problem) -> str:
    """The method of the w step, in words."""
    return _W_STEP.name(problem)


def smoothness(problem: Problem, x: Tensor) -> Tensor:
    """Lipschitz constant of the gradient of L, and of R where it is quadratic, per item."""
    return problem.loss.curvature(x)[1] + Quadratic.of(problem.on_signal).curvature(x)


def curvature(problem: Problem, x: Tensor) -> Tensor:
    """The typical second derivative of a smooth ``L + R`` along signals such as x: the scale of a first Hessian."""
    if isinstance(problem.loss, LeastSquares):
        measured = _batch.square(problem.loss.operator(x))
        typical = _batch.ratio(measured, _batch.square(x))
        nu = torch.where(typical > 0, typical, problem.loss.curvature(x)[1])
    else:
        nu = problem.loss.curvature(x)[1]
    total = nu + Quadratic.of(problem.on_signal).curvature(x)
    return torch.where(total > 0, total, 1.0)


# -- sums of squares ---------------------------------------------------------------------------------------------------


def is_sum_of_squares(problem: Problem) -> bool:
    """Whether ``L + R`` is ``1/2 |e|^2`` for a residual e that is linear in the signal."""
    return isinstance(problem.loss, LeastSquares | SquaredDistance) and isinstance(problem.on_signal, Zero)


def squares_residual(problem: Problem, residual: Tensor, like: Tensor) -> Tensor:
    """``e`` with ``L = 1/2 |e|^2``, flat, from the loss's residual."""
    if isinstance(problem.loss, SquaredDistance):
        weight = _batch.column(2 * problem.loss.weight, like).sqrt()
        return _batch.flat(_batch.spread(weight, residual) * residual)
    return _batch.flat(residual)


def residual_jacobian(problem: Problem, z: Tensor) -> Tensor:
    """``M``: the derivative of e in z, ``(B, m, s)``."""
    loss = problem.loss
    if isinstance(loss, SquaredDistance):
        weight = _batch.column(2 * loss.weight, z).sqrt()
        return weight[:, None, None] * problem.generator.jacobian(z)
    if not isinstance(loss, LeastSquares):
        raise TypeError(
            f"{type(loss).__name__} is no sum of squares: only LeastSquares and SquaredDistance have a residual"
        )
    image = loss.operator if loss.form is None else loss.form.forward
    if loss.operator.batch is None:
        return problem.generator.jacobian(z, image)
    columns = problem.generator.jacobian(z).unbind(dim=2)
    shape = problem.generator.signal_shape
    return torch.stack([_batch.flat(image(column.reshape(-1, *shape))) for column in columns], dim=2)


def gauss_newton(problem: Problem, z: Tensor, rho: Tensor) -> Tensor:
    """``DG^T (second derivative of the envelope, or a bound on it) DG`` at z, ``(B, s, s)``."""
    if is_sum_of_squares(problem):
        matrix = residual_jacobian(problem, z)
        return matrix.mT @ matrix
    matrix = problem.generator.jacobian(z)
    weight = rho if problem.needs_splitting else smoothness(problem, problem.generator(z))
    return weight[:, None, None] * (matrix.mT @ matrix)
