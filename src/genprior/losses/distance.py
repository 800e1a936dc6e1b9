"""The squared distance to given signals."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior._batch import PerItem
from genprior.losses.base import Loss
from genprior.losses.exact_step import Prox
from genprior.operators import Identity, Operator
from genprior.terms import Quadratic, Term
from genprior.terms.parameters import describe


class SquaredDistance(Loss):
    """``L(w) = weight |w - y|^2`` (the paper's gamma), with ``mu = nu = 2 weight``.

    Parameters
    ----------
    y
        the centre of each item, ``(B, *signal_shape)``.
    weight
        a number, or one per item.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> gp.SquaredDistance(torch.zeros(2, 3), weight=0.5)(torch.ones(2, 3))
    tensor([1.5000, 1.5000])
    """

    def __init__(self, y: Tensor, weight: PerItem = 1.0) -> None:
        self.y = _validate.kept(
            "y", _validate.batch("y", _validate.tensor("y", y), None)
        )  # the caller may change theirs
        weight = _validate.per_item("weight", weight, least=0)
        self.weight = weight.clone() if isinstance(weight, Tensor) else weight
        self.batch = y.shape[0]
        if isinstance(weight, Tensor) and weight.ndim == 1 and len(weight) != self.batch:
            raise ValueError(
                f"weight has {len(weight)} values for {self.batch} items in y: give one number or one each"
            )

    def evaluate(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """``weight |w - y|^2`` and ``w - y``."""
        if w.shape != self.y.shape:
            expected = tuple(self.y.shape)
            raise ValueError(f"signals have shape {tuple(w.shape)}, expected {expected}: one signal per item of y")
        residual = w - self.y
        return self.weight * _batch.square(residual), residual

    def gradient(self, w: Tensor, residual: Tensor) -> Tensor:
        """``2 weight (w - y)``."""
        return 2 * _batch.spread(self.weight, residual) * residual

    def curvature(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """``(2 weight, 2 weight)``."""
        nu = 2 * _batch.column(self.weight, w)
        return nu, nu

    sum_of_squares = True

    def squares(self, w: Tensor, residual: Tensor) -> Tensor:
        """``sqrt(2 weight) (w - y)``."""
        return _batch.flat(self._root(residual) * residual)

    def squares_jvp(self, w: Tensor, tangents: Tensor) -> Tensor:
        """``sqrt(2 weight) v``."""
        return (self._root(w) * tangents).flatten(2)

    def _root(self, like: Tensor) -> Tensor:
        return _batch.spread(_batch.column(2 * self.weight, like).sqrt(), like)

    def exact_step(self, term: Term) -> Prox:
        """One prox of R."""
        return Prox(term, Quadratic(2 * self.weight, self.y))

    def start_scores(self, signals: Tensor, items: int) -> Tensor:
        """The loss, for all pairs at once."""
        weight = _batch.column(self.weight, self.y)
        return weight[:, None] * _batch.distances(self.y, signals).square()

    def observed(self) -> tuple[Operator, Tensor]:
        """The identity, and the given signals."""
        return Identity(tuple(self.y.shape[1:])), self.y

    def relative_residual(self, value: Tensor) -> Tensor:
        """``|w - y| / |y|`` per item from the loss's value."""
        return (value / self.weight).sqrt() / _batch.norm(self.y)

    def __repr__(self) -> str:
        return f"SquaredDistance(y {tuple(self.y.shape)}, weight={describe(self.weight)})"

    def rows(self, index: Tensor) -> SquaredDistance:
        """The loss of the selected items."""
        part = copy.copy(self)
        part.y, part.batch = self.y[index], len(index)
        part.weight = self.weight[index] if isinstance(self.weight, Tensor) and self.weight.ndim else self.weight
        return part

    def check(self, signal_shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
        """The centres must be signals."""
        _validate.batch("y", self.y, signal_shape, "y must have the shape of the generator's signals")
        _validate.same_place("y", self.y, device, dtype, "the generator")
        if isinstance(self.weight, Tensor):
            _validate.same_place("weight", self.weight, device, dtype, "the generator")
