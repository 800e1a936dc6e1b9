"""The convex terms of the baselines, as ``weight * h(K w)`` with a norm h: what the primal-dual method needs of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from genprior._batch import flat, spread
from genprior.operators import Operator
from genprior.terms.differences import clip_lengths, differences, lengths, minus_adjoint


class Penalty(Protocol):
    """``h(K w)``, where h is a norm (a sum of lengths), so that ``h*`` is the indicator of a set of dual variables."""

    @property
    def norm_squared(self) -> float:
        """``|K|^2``, or a bound."""

    def forward(self, w: Tensor) -> Tensor:
        """``K w``."""

    def adjoint(self, q: Tensor) -> Tensor:
        """``K^T q``."""

    def project(self, q: Tensor, weight: Tensor) -> Tensor:
        """The nearest dual variable at which ``(weight h)*`` is finite."""

    def value(self, image: Tensor) -> Tensor:
        """``h`` of ``image = K w`` per item."""

    def rows(self, index: Tensor) -> Penalty:
        """That of the selected items."""


@dataclass(frozen=True)
class Coefficients:
    """``|Psi^T w|_1`` for an orthonormal basis Psi, ``|w|_1`` without one: no entry of a dual variable exceeds the weight."""

    basis: Operator | None = None

    norm_squared = 1.0

    def forward(self, w: Tensor) -> Tensor:
        """``Psi^T w``."""
        return w if self.basis is None else self.basis.adjoint(w)

    def adjoint(self, q: Tensor) -> Tensor:
        """``Psi q``."""
        return q if self.basis is None else self.basis(q)

    def project(self, q: Tensor, weight: Tensor) -> Tensor:
        """Clip every entry."""
        bound = spread(weight, q)
        return torch.minimum(torch.maximum(q, -bound), bound)

    def value(self, image: Tensor) -> Tensor:
        """``sum |c|``."""
        return flat(image).abs().sum(dim=1)

    def rows(self, index: Tensor) -> Coefficients:
        """With the basis of the selected items."""
        return self if self.basis is None else Coefficients(self.basis.rows(index))


@dataclass(frozen=True)
class Variation:
    """Isotropic total variation along the last ``dims`` axes: a dual variable has vectors no longer than the weight."""

    dims: int

    @property
    def norm_squared(self) -> float:
        """At most 4 for the differences along one axis."""
        return 4.0 * self.dims

    def forward(self, w: Tensor) -> Tensor:
        """``D w``."""
        return differences(w, self.dims)

    def adjoint(self, q: Tensor) -> Tensor:
        """``D^T q``."""
        return minus_adjoint(torch.zeros_like(q[:, 0]), q).neg_()

    def project(self, q: Tensor, weight: Tensor) -> Tensor:
        """Shorten the vectors."""
        return clip_lengths(q.clone(), weight)

    def value(self, image: Tensor) -> Tensor:
        """``sum sqrt(dx^2 + dy^2)``."""
        return flat(lengths(image)).sum(dim=1)

    def rows(self, index: Tensor) -> Variation:
        """The same for all items."""
        return self
