"""Estimates of ``kappa = |DG(z)|`` and the residual in z, from quantities that an iteration computes anyway."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from genprior import _batch
from genprior.problem import Problem
from genprior.terms import Quadratic, Zero

_DECAY = 0.98
"""Factor per iteration on the running estimate of kappa: it halves in 34 iterations, as z moves away."""
_NEARBY = 1 / 16
"""Step, relative to x, for differences of gradients: exact for quadratic losses, and accurate enough for others."""


def vjp_ratio(gradient: Tensor, cotangent: Tensor) -> Tensor:
    """``|DG^T f| / |f|``, which bounds kappa from below; ``cotangent`` is the norm ``|f|``."""
    return _batch.ratio(_batch.norm(gradient), cotangent)


def remembered(kappa: Tensor, ratio: Tensor) -> Tensor:
    """The running maximum of such ratios, with slow decay: step lengths are based on it."""
    return torch.maximum(_DECAY * kappa, ratio)


def move_ratio(moved: Tensor, step: Tensor, spread: float) -> Tensor:
    """The secant ``|G(z+) - G(z)| / |z+ - z|`` of a step ``z+ - z``; steps lost in rounding count as longer ones."""
    return moved / _batch.norm(step).clamp_min(spread * torch.finfo(step.dtype).eps ** 0.75)


def is_long(step: Tensor, z: Tensor) -> Tensor:
    """Whether a step in z is above rounding."""
    least: float = torch.finfo(step.dtype).eps ** 0.75
    return _batch.norm(step) > least * _batch.norm(z)


def secant_of(moved: Tensor, step: Tensor, z: Tensor) -> Tensor:
    """``|G(z+) - G(z)| / |z+ - z|``, infinite where the step is lost in rounding."""
    return torch.where(is_long(step, z), _batch.ratio(_batch.norm(moved), _batch.norm(step)), torch.inf)


def rounding_error(value: Tensor, cotangent: Tensor, x: Tensor) -> Tensor:
    """The rounding error of an objective of this value at x; its gradient f in the signal has the norm ``cotangent``.

    Rounding x alone changes it by about ``eps |f| |x|``, far more than ``eps`` times the value where the data fit well. The
    factor 4 allows for rounding in the network's layers.
    """
    return 4 * torch.finfo(value.dtype).eps * (value.abs() + cotangent * _batch.norm(x))


def lipschitz(curvature: Tensor, kappa: Tensor) -> Tensor:
    """``curvature kappa^2``, kept above zero: the Lipschitz constant of the z gradient for fixed DG."""
    return _batch.above_zero(curvature * kappa * kappa)


def latent_residual(problem: Problem, z: Tensor, gradient: Tensor, curvature: Tensor, jac_scale: Tensor) -> Tensor:
    """``|z - prox_{tH}(z - t g)| / t`` with ``t = 1/(curvature jac_scale^2)``; ``|g|`` where H = 0."""
    if isinstance(problem.on_latent, Zero):
        return _batch.norm(gradient)
    t = torch.nan_to_num(1 / lipschitz(curvature, jac_scale), nan=1.0)  # NaN reappears in the residual
    return _batch.norm(z - problem.on_latent.prox(z - _batch.spread(t, z) * gradient, t)) / t


def smooth_gradient(problem: Problem) -> Callable[[Tensor], Tensor]:
    """The gradient of L, and of R where that is quadratic."""
    quadratic = Quadratic.of(problem.on_signal)

    def slope(x: Tensor) -> Tensor:
        return problem.loss.gradient(x, problem.loss.evaluate(x)[1]) + quadratic.gradient(x)

    return slope


class Hessian:
    """Products with the Hessian of L and a quadratic R at x, by differences of gradients: exact for quadratics."""

    def __init__(self, problem: Problem, x: Tensor, size: Tensor) -> None:
        self._slope, self._x = smooth_gradient(problem), x
        self.gradient = self._slope(x)
        self._step = _batch.above_zero(_NEARBY * size)

    def along(self, d: Tensor) -> tuple[Tensor, Tensor]:
        """``H u`` and the curvature ``<u, H u>`` for the unit vectors u along d."""
        u = d / _batch.spread(_batch.above_zero(_batch.norm(d)), d)
        step = _batch.spread(self._step, u)
        product = (self._slope(self._x + step * u) - self.gradient) / step
        return product, _batch.dot(u, product).clamp_min(0)


def gradient_parts(problem: Problem, x: Tensor, nu: Tensor) -> tuple[Tensor, Tensor]:
    """The two parts of a gradient of L, and of a quadratic R, that cancel at a solution, per item.

    The norm of the constant part, and that of the rest for a signal of norm 1: for least squares ``|A^T y|`` and
    ``|A^T A x| / |x|``; in general the rest of the gradient, and the Hessian at x times x. Not nu, which may be far larger,
    because signals need not contain the operator's largest singular vectors; it is used where both vanish.
    """
    slope = smooth_gradient(problem)
    here = slope(x)
    product = (slope((1 + _NEARBY) * x) - here) / _NEARBY
    constant, growing = _batch.norm(here - product), _batch.ratio(_batch.norm(product), _batch.norm(x))
    known = (constant + growing > 0) & (constant + growing).isfinite()
    return torch.where(known, constant, 0.0), torch.where(known, growing, nu)


def hidden_by_rounding(primal_residual: Tensor, rho: Tensor, size: Tensor, nu: Tensor) -> Tensor:
    """The part of ``rho (w - G(z))`` that rounding may hide where the residual is exactly zero, under a very large penalty."""
    hidden = 0.1 * torch.finfo(size.dtype).eps * rho * size
    return torch.where((primal_residual == 0) & (nu > 0), hidden, 0.0)


def curvature_of(problem: Problem, x: Tensor, residual: Tensor) -> Tensor:
    """Smoothness of L per item; where L has none, the subgradient at x over ``|x|``."""
    nu = problem.loss.curvature(x)[1]
    slope = _batch.norm(problem.signal_gradient(x, residual))
    guess = slope / _batch.above_zero(_batch.norm(x))
    return torch.where(nu > 0, nu, torch.where(guess > 0, guess, torch.ones_like(guess)))
