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


def kappa_from_pull(kappa: Tensor, gradient: Tensor, force: Tensor) -> Tensor:
    """``|DG^T f| / |f|`` bounds kappa from below; the running maximum forgets slowly, as z travels.

    ``force`` is the length ``|f|``.
    """
    return torch.maximum(_FORGET * kappa, _batch.ratio(_batch.norm(gradient), force))


def kappa_from_move(kappa: Tensor, before: Evaluation, after: Evaluation, spread: float) -> Tensor:
    """So does the secant ``|G(z+) - G(z)| / |z+ - z|``; moves too short for rounding count as longer ones."""
    shortest = spread * torch.finfo(kappa.dtype).eps ** 0.5
    secant = _batch.norm(after.x - before.x) / _batch.norm(after.z - before.z).clamp_min(shortest)
    return torch.maximum(kappa, secant)


def lipschitz(curvature: Tensor, kappa: Tensor) -> Tensor:
    """``curvature kappa^2``, kept above zero: the Lipschitz constant of the z gradient for fixed DG."""
    return (curvature * kappa * kappa).clamp_min(_TINY)


def latent_residual(problem: Problem, z: Tensor, gradient: Tensor, curvature: Tensor, kappa: Tensor) -> Tensor:
    """``|z - prox_{tH}(z - t g)| / t`` with ``t = 1/(curvature kappa^2)``; ``|g|`` where H = 0."""
    if isinstance(problem.on_latent, Zero):
        return _batch.norm(gradient)
    t = 1 / lipschitz(curvature, kappa)
    return _batch.norm(z - problem.on_latent.prox(z - _batch.spread(t, z) * gradient, t)) / t


def curvature_of(problem: Problem, x: Tensor) -> Tensor:
    """Smoothness of L per item; 1 where L has none, so that steps stay defined."""
    nu = problem.loss.curvature(x)[1]
    return torch.where(nu > 0, nu, torch.ones_like(nu))
