"""Fits of a deviation with z held, where the generator alone has ended, without a pass through G.

Its weight is chosen for each item by measurements that were held out: the deviation is fitted to a part of them for a path of
weights, from the one at which it vanishes downwards, and judged by the other part. Noise, and what the generator cannot make,
both show there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from genprior import _batch, _random
from genprior.generators.deviating import Deviating
from genprior.losses import LeastSquares
from genprior.operators import Operator
from genprior.problem import Problem
from genprior.solvers.accelerated import accelerated
from genprior.terms import Blocks, Term


@dataclass(frozen=True)
class HeldOut:
    """The rule, with its constants.

    Parameters
    ----------
    folds
        parts of the measurements, each of which is held out once.
    weights
        number of weights on the path.
    factor
        from one weight to the next.
    steps
        of accelerated proximal gradient for each weight, at most, from the solution for the last one.
    lowered
        factor on the weight that predicts best, unless the deviation predicts nothing: a fit to all measurements wants a
        smaller one than fits to a part of them. (On faces the best weight by the truth was one to three halvings below.)
    patience
        weights in a row that predict no better than the best one, after which no smaller one is tried for an item.
    close
        relative change at which an item needs no more of them.
    """

    folds: int = 8
    weights: int = 12
    factor: float = 0.5
    steps: int = 30
    lowered: float = 0.5
    patience: int = 3
    close: float = 1e-4

    def chosen(self, problem: Problem, x: Tensor) -> Tensor:
        """The weight of each item, where the generator alone gives the signals ``x``.

        Measurements count as in the loss: in units of their noise, where that is known.
        """
        loss, generator, term = problem.loss, problem.generator, problem.on_latent
        assert isinstance(generator, Deviating) and isinstance(term, Blocks), "a problem with a deviation"
        assert isinstance(loss, LeastSquares), "checked by the problem"
        operator, y = loss.whitened, loss.y if loss.noise is None else loss.y / loss.noise
        residual = y - operator(x)
        penalty = term.parts[1]
        largest = _batch.flat(generator.coefficients_gradient(operator.adjoint(residual))).abs().amax(dim=1)
        largest = torch.where(largest > 0, largest, 1.0)
        part, lipschitz = _parts(residual, self.folds), _lipschitz(loss.curvature(x)[1], generator)
        seen = [(part != fold).to(x.dtype) for fold in range(self.folds)]
        fits = [_Fit(generator, operator, rows, rows * residual, penalty) for rows in seen]
        found = [x.new_zeros(len(x), *generator.coefficient_shape) for _ in fits]
        least, best = _batch.square(residual), torch.zeros_like(largest)
        worse = torch.zeros_like(largest)
        for number in range(1, self.weights + 1):
            prox_weight = largest * self.factor**number
            found = [
                accelerated(fit.gradient, partial(fit.prox, prox_weight), v, lipschitz, self.steps, self.close)
                for fit, v in zip(fits, found, strict=True)
            ]
            error = torch.stack([fit.missed(residual, v) for fit, v in zip(fits, found, strict=True)]).sum(dim=0)
            better = (error < least) & (worse < self.patience)
            least, best = torch.where(better, error, least), torch.where(better, float(number), best)
            worse = torch.where(better, 0.0, worse + 1)
            if bool((worse >= self.patience).all()):
                break
        weight = largest * self.factor**best
        return torch.where(best > 0, self.lowered * weight, weight)


class _Fit(NamedTuple):
    """The least-squares fit of a deviation to a part of the measurements, where the generator leaves ``target``."""

    generator: Deviating
    operator: Operator
    seen: Tensor
    target: Tensor
    penalty: Term

    def gradient(self, v: Tensor) -> Tensor:
        """``Psi^T A^T (S A Psi v - target)``."""
        missed = self.seen * self.operator(self.generator.deviation(v)) - self.target
        return self.generator.coefficients_gradient(self.operator.adjoint(missed))

    def missed(self, residual: Tensor, v: Tensor) -> Tensor:
        """The squared error at the measurements that were held out, of each item."""
        return _batch.square((1 - self.seen) * (residual - self.operator(self.generator.deviation(v))))

    def prox(self, weight: Tensor, v: Tensor, t: Tensor) -> Tensor:
        """``prox_{t weight D}``."""
        return self.penalty.prox(v, weight * t)


_HALVINGS = 12
"""Of the weight, until the deviation is fitted with its own: small weights need a start that is near."""
_STEPS, _CLOSE = 30, 1e-4
"""For each of them, as in :class:`HeldOut`."""


def fitted(problem: Problem, x: Tensor) -> Tensor:
    """The coefficients v that minimise ``L(x + Psi v) + D(v)``, nearly: from zero, with a weight that falls to that of D."""
    loss, generator, term = problem.loss, problem.generator, problem.on_latent
    assert isinstance(generator, Deviating) and isinstance(term, Blocks), "a problem with a deviation"
    penalty = term.parts[1]

    def gradient(v: Tensor) -> Tensor:
        signal = x + generator.deviation(v)
        value, residual = loss.evaluate(signal)
        f = torch.where(_batch.spread(value.isfinite(), signal), loss.gradient(signal, residual), torch.nan)
        return generator.coefficients_gradient(f)

    def prox(factor: float, v: Tensor, t: Tensor) -> Tensor:
        return penalty.prox(v, factor * t)

    v, lipschitz = x.new_zeros(len(x), *generator.coefficient_shape), _lipschitz(loss.curvature(x)[1], generator)
    for halvings in reversed(range(_HALVINGS + 1)):
        v = accelerated(gradient, partial(prox, 2.0**halvings), v, lipschitz, _STEPS, _CLOSE)
    value, before = (loss(x + generator.deviation(u)) + penalty(u) for u in (v, torch.zeros_like(v)))
    return torch.where(_batch.spread(value <= before, v), v, 0.0)


def _lipschitz(nu: Tensor, generator: Deviating) -> Tensor:
    return _batch.above_zero(nu * generator.basis_norm**2)


def _parts(residual: Tensor, folds: int) -> Tensor:
    """The part that each measurement belongs to, at random, the same for all items."""
    size = residual[0].numel()
    order = torch.randperm(size, generator=_random.stream("folds", 0), device="cpu") % folds
    return order.reshape(residual.shape[1:]).to(residual.device)
