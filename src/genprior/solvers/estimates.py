"""Free estimates of ``kappa = |DG(z)|``, and the residual in z, from quantities that an iteration has anyway."""

from __future__ import annotations

import torch
from torch import Tensor

from genprior import _batch
from genprior.generators import Evaluation
from genprior.problem import Problem
from genprior.terms import Zero

_FORGET = 0.98
_TINY = 1e-30


def pull_ratio(gradient: Tensor, force: Tensor) -> Tensor:
    """``|DG^T f| / |f|``, which bounds kappa from below; ``force`` is the length ``|f|``."""
    return _batch.ratio(_batch.norm(gradient), force)


def remembered(kappa: Tensor, ratio: Tensor) -> Tensor:
    """The running maximum of such ratios, which forgets slowly, as z travels: the basis of step lengths."""
    return torch.maximum(_FORGET * kappa, ratio)


def move_ratio(before: Evaluation, after: Evaluation, spread: float) -> Tensor:
    """The secant ``|G(z+) - G(z)| / |z+ - z|``; moves too short for rounding count as longer ones."""
    shortest = spread * torch.finfo(after.z.dtype).eps ** 0.75
    return _batch.norm(after.x - before.x) / _batch.norm(after.z - before.z).clamp_min(shortest)


def lipschitz(curvature: Tensor, kappa: Tensor) -> Tensor:
    """``curvature kappa^2``, kept above zero: the Lipschitz constant of the z gradient for fixed DG."""
    return (curvature * kappa * kappa).clamp_min(_TINY)


def latent_residual(problem: Problem, z: Tensor, gradient: Tensor, curvature: Tensor, stretch: Tensor) -> Tensor:
    """``|z - prox_{tH}(z - t g)| / t`` with ``t = 1/(curvature stretch^2)``; ``|g|`` where H = 0."""
    if isinstance(problem.on_latent, Zero):
        return _batch.norm(gradient)
    t = torch.nan_to_num(
        1 / lipschitz(curvature, stretch), nan=1.0
    )  # where the generator gave none, the residual tells
    return _batch.norm(z - problem.on_latent.prox(z - _batch.spread(t, z) * gradient, t)) / t


def gradient_unit(problem: Problem, x: Tensor, nu: Tensor) -> Tensor:
    """``|grad L(0)|`` per item, of a quadratic R too: a length of the two parts of a gradient that cancel at a solution.

    Not ``nu |x|``, which may be far longer: the direction that the operator stretches most need not occur in signals. But
    that is the unit where the gradient at 0 vanishes (measurements that are all zero) or does not exist, and the unit is
    never so much shorter that rounding hides the end.
    """
    origin = torch.zeros_like(x)
    gradient = problem.loss.gradient(origin, problem.loss.evaluate(origin)[1])
    weight, centre = problem.on_signal.as_quadratic() or (0.0, 0.0)
    length = _batch.norm(gradient - _batch.spread(_batch.column(weight, x), x) * _batch.spread(centre, x))
    whole = nu * _batch.norm(x)
    known = (length > 0) & length.isfinite()
    return torch.where(known, torch.maximum(length, torch.finfo(x.dtype).eps ** 0.5 * whole), whole)


def curvature_of(problem: Problem, x: Tensor, residual: Tensor) -> Tensor:
    """Smoothness of L per item; where L has none, the curvature that would carry the subgradient at x across ``|x|``."""
    nu = problem.loss.curvature(x)[1]
    slope = _batch.norm(problem.signal_gradient(x, residual))
    guess = slope / _batch.norm(x).clamp_min(_TINY)
    return torch.where(nu > 0, nu, torch.where(guess > 0, guess, torch.ones_like(guess)))
