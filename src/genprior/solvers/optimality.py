"""The first-order conditions at a given point, computed from scratch: the proof behind CONVERGED.

A solver's own residuals cost nothing, but they belong to past iterates and use running estimates: they only say when this
check is due. It is made at the point that will be returned, with a gradient and a Jacobian scale of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from genprior import _batch
from genprior.generators.derivatives import Linearised
from genprior.problem import Problem
from genprior.solvers import envelope
from genprior.solvers.base import Multiplier
from genprior.solvers.estimates import Hessian, gradient_parts
from genprior.terms import Quadratic, Zero

_SHORT = 1e-3
"""Length of a step that probes for active bounds, relative to the point."""
_CLEARLY = 0.1
"""Share of such a step that an active bound must remove."""
PASSES = 2, 4
"""Forward and backward passes through G that :func:`optimality` takes."""


def optimality(
    problem: Problem, z: Tensor, extent: Tensor, multiplier: Multiplier | None = None
) -> tuple[Tensor, Tensor]:
    """How far each item is at ``z`` from ``0 in DG(z)^T d(L + R)(G(z)) + dH(z)``: primal residual and stationarity.

    The subgradient of ``L + R`` is the gradient where that exists. Otherwise a ``multiplier`` determines it: w minimises
    ``L(w) + R(w) + <w, lam> + rho/2 |w - G(z)|^2``, so that ``-(lam + rho (w - G(z)))`` is one at w, and w must equal G(z).
    The residual in z is that of a proximal gradient step, ``|z - prox_{tH}(z - t g)| / t``. It is relative to the norms
    that the parts of the gradient can have (:func:`_natural_length`), plus ``|h|`` for a subgradient h of H. ``extent`` is the
    norm of a typical signal, the unit where w vanishes. Without a multiplier the primal residual ``|w - G(z)| / |w|`` is zero.
    """
    at = problem.generator.linearised(z)
    f, primal_residual, error = _subgradient(problem, at.x, z, extent, multiplier)
    gradient = _batch.flat(at.vjp(f))
    hessian = Hessian(problem, at.x, torch.maximum(_batch.norm(at.x), 0.1 * extent))
    jacobian, measured = _scales(problem, z, at, hessian)
    jacobian = torch.maximum(jacobian, _batch.ratio(_batch.norm(gradient), _batch.norm(f)))
    in_z = _in_latent(problem, z, gradient, _natural_length(problem, at, f, gradient, hessian, jacobian, measured))
    return primal_residual, torch.maximum(in_z, _batch.ratio(error, _unit(problem, at.x) + _batch.norm(f)))


def _subgradient(
    problem: Problem, x: Tensor, z: Tensor, extent: Tensor, multiplier: Multiplier | None
) -> tuple[Tensor, Tensor, Tensor]:
    """A (sub)gradient f of ``L + R`` near ``x``, the primal residual, and the distance of f from being a subgradient."""
    point = problem.evaluate(x, z)
    zero = torch.zeros_like(point.loss)
    if multiplier is None:
        return problem.signal_gradient(x, point.residual), zero, zero
    value, w, _ = envelope.evaluate(problem, x, point, multiplier.lam, multiplier.rho, None)
    size = torch.maximum(_batch.norm(w), 0.1 * extent)
    of_w = value.f if problem.loss.convex else value.f - problem.loss.gradient(x, point.residual)
    return value.f, _batch.ratio(_batch.norm(w - x), size), _error(problem, w, of_w, size)


def _error(problem: Problem, w: Tensor, f: Tensor, size: Tensor) -> Tensor:
    """``|w - prox_{tR}(w - t (grad L(w) - f))| / t``: zero where f is a subgradient of ``L + R`` at w.

    Of R alone where L stays at G(z). t makes the step as long as the signal, so that rounding matters least.
    """
    loss = problem.of_w.loss
    difference = loss.gradient(w, loss.evaluate(w)[1]) - f
    t = _batch.ratio(size, _unit(problem, w) + _batch.norm(f))
    usable = (t > 0) & t.isfinite()
    t = torch.where(usable, t, 1.0)
    return _batch.norm(w - problem.on_signal.prox(w - _batch.spread(t, w) * difference, t)) / t


def _unit(problem: Problem, x: Tensor) -> Tensor:
    """The larger of the two parts of a gradient of L that cancel at a solution; without L, a subgradient of R."""
    constant, growing = gradient_parts(problem, x, problem.loss.curvature(x)[1])
    unit = torch.maximum(constant, growing * _batch.norm(x))
    if isinstance(problem.on_signal, Zero) or problem.on_signal.is_indicator:
        return unit
    return torch.where(unit > 0, unit, _batch.norm(problem.on_signal.subgradient(torch.zeros_like(x))))


def _scales(problem: Problem, z: Tensor, at: Linearised, hessian: Hessian) -> tuple[Tensor, Tensor]:
    """Lower estimates at z, per item: ``|DG|``, and ``|sqrt(H) DG|`` for the Hessian H of L in the signal (``|A DG|``).

    One step of a power iteration with ``DG^T H DG``, from a random vector, the same for all items.

    The product of H with the random vector is mapped to the latent space by ``DG^T``, and the signal is differenced along the
    result. The difference is short, so that the estimate is local.
    """
    v = _random(at.x)
    product, curvature = hessian.along(v)
    curved = (curvature > 0) & (_batch.norm(product) > 0)
    product = torch.where(_batch.spread(curved, v), product, v)
    direction, flat = _batch.flat(at.vjp(product)), _batch.flat(z)
    length = _batch.norm(direction)
    typical = flat.shape[1] ** 0.5 * problem.generator.spread
    step = torch.finfo(z.dtype).eps ** (1 / 3) * _batch.norm(flat).clamp_min(typical)
    ahead = flat + (step / _batch.above_zero(length))[:, None] * direction
    change = problem.generator.evaluate(ahead.reshape(z.shape), graph=False).x - at.x
    change = torch.where(_batch.spread(_batch.norm(change).isfinite(), change), change, 0.0)
    moved = _batch.norm(change) / step
    jacobian = torch.maximum(moved, length / _batch.norm(product))
    there = torch.where(curved, length / _batch.above_zero(curvature.sqrt()), 0.0)
    return jacobian, torch.maximum(moved * hessian.along(change)[1].sqrt(), there)


def _random(x: Tensor) -> Tensor:
    """A random signal, the same for all items."""
    random = torch.Generator().manual_seed(0)
    return torch.randn((1, *x.shape[1:]), generator=random, dtype=torch.float32, device="cpu").to(x).expand_as(x)


def _natural_length(
    problem: Problem,
    at: Linearised,
    f: Tensor,
    gradient: Tensor,
    hessian: Hessian,
    jacobian: Tensor,
    measured: Tensor,
) -> Tensor:
    """The norm that the gradient in z would have if its parts did not cancel, per item.

    The parts of the gradient of L are ``H x`` and the rest c, for least squares ``A^T A x`` and ``A^T y``; f itself is one
    where it does not vanish at a solution. For a part p, ``|DG^T p|`` is at most ``|DG| |p|``, and at most
    ``|sqrt(H) DG|`` times the norm of p in the seminorm of H, ``|A x|`` and ``|y|``. The lesser bound counts: |DG| alone may
    come from directions that the operator does not measure, and would make any gradient look short. Nor does it count more
    than what of the parts comes back through ``DG^T`` (:func:`_pulled_back`). The part of R is bounded by |DG|.
    """
    x = at.x

    def bounded(part: Tensor, curvature: Tensor) -> Tensor:
        length = _batch.norm(part)
        seen = measured * torch.where(curvature > 0, length / curvature.sqrt(), torch.inf)
        return torch.fmin(jacobian * length, seen)  # NaN is zero times infinity: no curvature at all

    product, curvature = hessian.along(x)
    product = product * _batch.spread(_batch.norm(x), x)
    rest = product - hessian.gradient
    growing = torch.fmin(jacobian * _batch.norm(product), measured * _batch.norm(x) * curvature.sqrt())
    length = torch.maximum(growing, bounded(rest, hessian.along(rest)[1]))
    length = length + bounded(hessian.gradient, hessian.along(hessian.gradient)[1])
    whole = jacobian * (_unit(problem, x) + _batch.norm(f))
    shorter = torch.fmin(length, _pulled_back(at, product, rest, gradient))
    if problem.needs_splitting:
        shorter = shorter + jacobian * _batch.norm(f - hessian.gradient)
    return torch.where(length > 0, shorter, whole)


def _pulled_back(at: Linearised, product: Tensor, rest: Tensor, gradient: Tensor) -> Tensor:
    """The norms ``|DG^T p|`` of both parts p of a gradient, or that with random factors for the entries, if it is greater.

    ``|DG| |p|`` is far above them where p is largest at pixels that do not depend on z: the log of a pixel near zero, or a
    Poisson likelihood there, has a gradient that grows with the inverse of the pixel, and a sigmoid's derivative vanishes.
    Parts may cancel in ``DG^T p`` all the same, as x itself does on a sphere. With random factors v the mean square of
    ``|DG^T (v p)|`` is the sum of ``p_i^2`` times the squares of the rows of DG. By the triangle inequality the rest is at
    most the product and the ``gradient`` in z.
    """
    plain = 2 * _batch.norm(at.vjp(product)) + _batch.norm(gradient)
    return torch.maximum(plain, _batch.norm(at.vjp(_random(at.x) * (product.abs() + rest.abs()))))


def _in_latent(problem: Problem, z: Tensor, gradient: Tensor, whole: Tensor) -> Tensor:
    """The residual in z, relative to the parts of the gradient, of length ``whole`` without the term's own."""
    term, flat = problem.on_latent, _batch.flat(z)
    if isinstance(term, Zero):
        return _batch.ratio(_batch.norm(gradient), whole)
    if term.as_quadratic() is not None:
        own = _batch.flat(Quadratic.of(term).gradient(z))
        return _batch.ratio(_batch.norm(gradient + own), whole + _batch.norm(own))
    if not term.is_indicator:
        whole = whole + _batch.norm(term.subgradient(z))
    # A step as long as z: in a longer one the term would hide the gradient, a shorter one would be lost in rounding.
    t = _batch.ratio(torch.maximum(_batch.norm(flat), _tiny_step(problem, flat)), whole)
    t = torch.where((t > 0) & t.isfinite(), t, 1.0)
    moved = term.prox(z - _batch.spread(t, z) * gradient.reshape(z.shape), t)
    return _batch.ratio(_batch.norm(z - moved) / t, whole)


def _tiny_step(problem: Problem, flat: Tensor) -> Tensor:
    """The unit where z is zero."""
    return flat.new_full((len(flat),), torch.finfo(flat.dtype).eps * problem.generator.spread)


def active_bounds(problem: Problem, x: Tensor, z: Tensor) -> Tensor:
    """Where a constraint on the signal or on the latent is active, per item.

    On the signal: a short gradient step of L, and of the finite part of R, leaves the set. On the latent: a point
    slightly farther from the centre does.
    """
    active = torch.zeros(len(z), dtype=torch.bool, device=z.device)
    constraint = problem.on_signal.constraint
    if constraint is not None:
        gradient = problem.loss.gradient(x, problem.loss.evaluate(x)[1])
        if not problem.on_signal.is_indicator:
            gradient = gradient + problem.on_signal.finite.subgradient(x)
        t = _SHORT * _batch.ratio(_batch.norm(x), _batch.norm(gradient))
        step = _batch.spread(torch.where(t.isfinite(), t, 0.0), x) * gradient
        back = constraint.prox(x - step, 1.0) - (x - step)
        active = active | (_batch.norm(back) > _CLEARLY * _batch.norm(step))
    if problem.on_latent.constraint is not None:
        further = z + _SHORT * (z - problem.generator.latent.centre)
        active = active | (problem.on_latent.violation(further) > _CLEARLY * _SHORT * _batch.norm(z))
    return active


def penalty_share(problem: Problem, objective: Tensor, z: Tensor) -> Tensor:
    """The share of the objective that the term on the latent has, per item; 0 for constraints."""
    if isinstance(problem.on_latent, Zero) or problem.on_latent.is_indicator:
        return torch.zeros_like(objective)
    share = _batch.ratio(problem.on_latent(z), objective)
    return torch.where(share.isfinite(), share, 0.0).clamp(0, 1)
