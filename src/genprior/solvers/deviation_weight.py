"""The weight of a deviation, chosen for each item by measurements that were held out.

With z held where the generator alone ended, the deviation is fitted to a part of the measurements for a path of weights, from
the one at which it vanishes downwards, and judged by the other part: noise, and what the generator cannot make, both show
there. It takes no pass through G.
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
    close
        relative change at which an item needs no more of them.
    errors
        standard errors by which another weight must predict better than a larger one.
    """

    folds: int = 4
    weights: int = 12
    factor: float = 0.5
    steps: int = 30
    close: float = 1e-4
    errors: float = 0.5

    def chosen(self, problem: Problem, x: Tensor) -> Tensor:
        """The weight of each item, where the generator alone gives the signals ``x``."""
        loss, generator, term = problem.loss, problem.generator, problem.on_latent
        if not isinstance(loss, LeastSquares):
            raise ValueError(
                f"deviation='auto' chooses the weight by held-out measurements, which {type(loss).__name__} has none of: give "
                "the weight, as in deviation=0.1 * gp.L1()"
            )
        assert isinstance(generator, Deviating) and isinstance(term, Blocks), "a problem with a deviation"
        operator, residual = loss.operator, loss.y - loss.operator(x)
        penalty = term.parts[1]
        largest = _batch.flat(generator.coefficients_gradient(operator.adjoint(residual))).abs().amax(dim=1)
        largest = torch.where(largest > 0, largest, 1.0)
        part = _parts(residual, self.folds)
        errors = torch.zeros(self.weights + 1, *residual.shape, device=x.device, dtype=x.dtype)
        nu = operator.gram_bounds()[1] * generator.basis_norm**2
        t = 1 / _batch.above_zero(_batch.column(nu, x))
        for fold in range(self.folds):
            seen = (part != fold).to(x.dtype)
            fit = _Fit(generator, operator, seen, seen * residual, penalty)
            v = x.new_zeros(len(x), *generator.coefficient_shape)
            errors[0] += (1 - seen) * residual.abs().square()
            for number in range(1, self.weights + 1):
                prox = partial(fit.prox, largest * self.factor**number)
                v = accelerated(fit.gradient, prox, v, t, self.steps, self.close)
                errors[number] += (1 - seen) * (residual - operator(generator.deviation(v))).abs().square()
        return largest * self.factor ** self._best(errors.flatten(2))

    def _best(self, errors: Tensor) -> Tensor:
        """For each item the number of the largest weight that predicts about as well as the best one."""
        best = errors.mean(dim=2).argmin(dim=0)
        items = torch.arange(errors.shape[1], device=errors.device)
        worse = errors - errors[best, items]
        good = worse.mean(dim=2) <= self.errors * worse.std(dim=2) / errors.shape[2] ** 0.5
        good[best, items] = True
        first: Tensor = good.to(torch.int8).argmax(dim=0)
        return first


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

    def prox(self, weight: Tensor, v: Tensor, t: Tensor) -> Tensor:
        """``prox_{t weight D}``."""
        return self.penalty.prox(v, weight * t)


def _parts(residual: Tensor, folds: int) -> Tensor:
    """The part that each measurement belongs to, at random, the same for all items."""
    size = residual[0].numel()
    order = torch.randperm(size, generator=_random.stream("folds", 0), device="cpu") % folds
    return order.reshape(residual.shape[1:]).to(residual.device)
