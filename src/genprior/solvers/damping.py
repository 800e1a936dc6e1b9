"""A Jacobian kept over several steps, with Broyden's updates, and the damping of the steps that use it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior.problem import Problem
from genprior.solvers.quadratic import LatentTerm, proximal_direction, solve_spd


def affords_jacobian(problem: Problem, rows: int, share: float) -> bool:
    """Whether the Jacobians of ``rows`` items take at most this share of the rest of a limited run."""
    return problem.generator.passes.share(math.prod(problem.generator.latent_shape), 0, rows) <= share


@dataclass(frozen=True)
class Damping:
    """Nielsen's rule for the damping, and when a Jacobian is too old.

    Parameters
    ----------
    refresh
        steps for which a Jacobian is kept, unless ``most_poor`` in a row gain little.
    first
        damping at the start, in units of the largest squared column.
    poor
        share of the predicted decrease below which a step has gained little.
    most_poor
        such steps in a row after which the Jacobian is computed anew.
    most_growth
        largest factor by which one rejection raises the damping.
    most
        largest damping, in units of the largest squared column: above it steps are lost in rounding.
    share
        share of the rest of a limited run that a Jacobian may take; above it a gradient is used instead.

    References
    ----------
    Nielsen 1999, Damping parameter in Marquardt's method; Broyden 1965.
    """

    refresh: int = 10
    first: float = 1e-3
    poor: float = 0.1
    most_poor: int = 3
    most_growth: float = 64.0
    most: float = 1e8
    share: float = 0.5

    def __post_init__(self) -> None:
        _validate.whole("refresh", self.refresh)
        _validate.whole("most_poor", self.most_poor)
        for name in ("first", "poor", "most_growth", "most", "share"):
            _validate.number(name, getattr(self, name), above=0)

    def due(self, model: JacobianModel) -> Tensor:
        """Where a new Jacobian is needed: too old, or poor several times in a row although it is not new."""
        return (model.age >= self.refresh) | ((model.poor >= self.most_poor) & (model.age > 0))

    def refreshed(self, model: JacobianModel, index: Tensor, jacobian: Tensor) -> JacobianModel:
        """With the exact Jacobian for the items at ``index``; the damping is kept, or a first one is set."""
        gram = jacobian.mT @ jacobian
        old = model.damping[index]
        largest = _batch.above_zero(gram.diagonal(dim1=1, dim2=2).amax(dim=1))
        damping = torch.where(old > 0, old, self.first * largest)
        zero = torch.zeros_like(old)
        return JacobianModel(
            model.jacobian.index_copy(0, index, jacobian),
            model.gram.index_copy(0, index, gram),
            model.damping.index_copy(0, index, damping),
            model.growth,
            model.age.index_copy(0, index, zero),
            model.poor.index_copy(0, index, zero),
        )

    def aligned(self, model: JacobianModel, index: Tensor, e: Tensor, gradient: Tensor) -> JacobianModel:
        """With ``M^T e`` equal to ``gradient`` for the items at ``index``, where whole Jacobians are too expensive.

        The least change that does it has rank one: ``M += e (g - M^T e)^T / |e|^2``, Broyden's update of the adjoint
        (Schlenkrich, Griewank and Walther 2010). From M = 0 it gives a gradient step; the ordinary updates add the rest.
        """
        old = model.jacobian[index]
        missing = gradient - torch.bmm(e[:, None, :], old)[:, 0]
        size = _batch.above_zero(_batch.norm(e))[:, None]
        jacobian = torch.baddbmm(old, (e / size)[:, :, None], (missing / size)[:, None, :])
        return self.refreshed(model, index, torch.where(torch.isfinite(jacobian), jacobian, old))

    def judged(
        self, model: JacobianModel, fall: Tensor, predicted: Tensor, accepted: Tensor, visible: Tensor
    ) -> JacobianModel:
        """The damping after a step that lowered the function by ``fall`` where ``predicted`` was expected.

        Where the predicted decrease is not ``visible`` above rounding, the damping stays.
        """
        gain = gain_of(fall, predicted)
        smaller = model.damping * (1 - (2 * gain.clamp(-1, 2) - 1) ** 3).clamp(1 / 3, 2)
        most = self.most * model.largest
        larger = torch.minimum(model.damping * model.growth, torch.maximum(most, model.damping))
        succeeded, failed = accepted & visible, ~accepted & visible
        growth = torch.where(succeeded, 2.0, torch.where(failed, 2 * model.growth, model.growth))
        return replace(
            model,
            damping=torch.where(succeeded, smaller, torch.where(failed, larger, model.damping)),
            growth=growth.clamp_max(self.most_growth),
            age=model.age + 1,
            poor=torch.where(visible & ~(accepted & (gain > self.poor)), model.poor + 1, 0.0),
        )


def gain_of(fall: Tensor, predicted: Tensor) -> Tensor:
    """Actual over predicted decrease; 1 where both are infinite, as from an infeasible start."""
    return torch.nan_to_num(fall / torch.where(predicted > 0, predicted, 1.0), nan=1.0)


@dataclass(frozen=True)
class JacobianModel:
    """``e(z + d) ~ e + M d`` per item, with its damping and its age."""

    jacobian: Tensor
    """``M``, ``(B, m, s)``."""
    gram: Tensor
    """``M^T M``."""
    damping: Tensor
    growth: Tensor
    """Factor by which the next rejection raises the damping."""
    age: Tensor
    """Steps since M was computed; infinite where it never was."""
    poor: Tensor
    """Steps in a row that gained little of what was predicted."""

    @classmethod
    def unknown(cls, residual: Tensor, size: int) -> JacobianModel:
        """Before the first Jacobian."""
        count = residual.shape[0]
        zero = residual.new_zeros(count)
        return cls(
            jacobian=residual.new_zeros(count, residual.shape[1], size),
            gram=residual.new_zeros(count, size, size),
            damping=zero,
            growth=zero + 2,
            age=zero + torch.inf,
            poor=zero,
        )

    @property
    def largest(self) -> Tensor:
        """The largest squared column of M."""
        return self.gram.diagonal(dim1=1, dim2=2).amax(dim=1)

    def jvp(self, d: Tensor) -> Tensor:
        """``M d``."""
        return torch.bmm(self.jacobian, d[:, :, None])[:, :, 0]

    def vjp(self, e: Tensor) -> Tensor:
        """``M^T e``."""
        return torch.bmm(e[:, None, :], self.jacobian)[:, 0]

    def direction(self, gradient: Tensor, z: Tensor, own: LatentTerm) -> Tensor:
        """Minimise ``<g, d> + 1/2 <d, (M^T M + damping) d>`` plus the own term at ``z + d``; g is without the own term's."""
        add = self.damping + own.curvature(self.damping)
        matrix = self.gram + torch.diag_embed(add[:, None].expand_as(z))
        whole = gradient + own.gradient(z)
        plain = -solve_spd(matrix, whole)
        return plain if own.is_quadratic else proximal_direction(matrix, whole, z, plain, own.term, own.shape)

    def updated(self, d: Tensor, change: Tensor, size: Tensor) -> JacobianModel:
        """Broyden's rank-one update: afterwards ``M d`` equals the change that was measured along d.

        ``size`` is the norm of the vectors whose difference the change is: changes hardly above their rounding are ignored.
        """
        length = _batch.above_zero(_batch.norm(d))[:, None]
        u, d = (change - self.jvp(d)) / length, d / length
        visible = _batch.norm(change) > torch.finfo(d.dtype).eps ** 0.5 * size
        usable = (visible & torch.isfinite(u).all(dim=1) & torch.isfinite(d).all(dim=1))[:, None]
        u, d = torch.where(usable, u, 0.0), torch.where(usable, d, 0.0)
        cross = self.vjp(u)[:, :, None] * d[:, None, :]
        square = _batch.square(u)[:, None, None] * d[:, :, None] * d[:, None, :]
        return replace(
            self,
            jacobian=torch.baddbmm(self.jacobian, u[:, :, None], d[:, None, :]),
            gram=self.gram + cross + cross.mT + square,
        )
