"""A term of measurements: ``f(A x)``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from genprior import _validate
from genprior._batch import PerItem
from genprior.operators import Operator
from genprior.terms import dual
from genprior.terms.base import Term, Zero
from genprior.terms.parameters import step_per_item, times

_EVEN = 32.0
"""Units of rounding by which the rows of a matrix may differ in length and count as equally long."""


class _Rows(NamedTuple):
    """``A A^T = diag(gram)``, with rows that are orthogonal as they are."""

    gram: PerItem
    is_number: bool


@dataclass(frozen=True, eq=False, repr=False)
class Through(Term):
    """``f(A x)`` with a linear operator A that has real measurements. Made by ``term.through(A)``.

    With orthogonal rows, ``A A^T = g I``, the prox is a closed form:

        prox_{t f(A .)}(v) = v + A^T (prox_{t g f}(A v) - A v) / g,

    and the same with a step for each measurement where ``A A^T`` is diagonal and f separable (masks, whose zeros are not
    measured). Otherwise it is found by accelerated projected gradient on the dual, whose gap bounds the error:
    ``|x - x*| <= sqrt(tolerance) |x - v|`` (`genprior.terms.dual`). Each iteration costs one application of A and one of its
    adjoint.

    f must be finite everywhere. For f = ``L1`` that is the fit to measurements some of which are wrong, for ``LInf`` that to
    measurements with bounded errors.

    Parameters
    ----------
    term, operator
        f and A.
    inner_tolerance
        relative duality gap at which an item is finished, where the prox is iterative.
    max_iterations
        bound on the work for one such prox.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> A = gp.operators.Downsample(2, (4,))
    >>> gp.L1().around(torch.ones(1, 2)).through(A)(torch.tensor([[1.0, 1.0, 3.0, 1.0]]))
    tensor([1.])
    """

    term: Term
    operator: Operator
    inner_tolerance: float = 1e-8
    max_iterations: int = 1000

    def __post_init__(self) -> None:
        if not isinstance(self.operator, Operator):
            raise TypeError(
                f"operator of through(A) must be a genprior.operators.Operator, got {type(self.operator).__name__}: wrap a "
                "matrix in operators.Dense, functions in operators.Linear"
            )
        if self.operator.complex_measurements or None in (self.operator.signal_shape, self.operator.measurement_shape):
            what = "gives complex measurements" if self.operator.complex_measurements else "does not know its shapes"
            raise TypeError(f"{self.operator!r} {what}, but a term of measurements needs real ones of a known shape")
        _validate.number("inner_tolerance", self.inner_tolerance, above=0.0)
        _validate.whole("max_iterations", self.max_iterations)
        _ = self.batch  # refuses parts made for different numbers of items
        if self.term.constraint is not None:
            raise ValueError(
                f"{self.term!r} is infinite somewhere, but a term of measurements must be finite: use a norm with a weight"
            )

    @property
    def tolerance(self) -> float:
        """The relative gap, where the prox is iterative."""
        return self.term.tolerance if self._rows() is not None else self.inner_tolerance

    def __call__(self, x: Tensor) -> Tensor:
        """``f(A x)``."""
        return self.term(self.operator(x))

    def subgradient(self, x: Tensor) -> Tensor:
        """``A^T`` times a subgradient of f at ``A x``."""
        return self.operator.adjoint(self.term.subgradient(self.operator(x)))

    def start_score(self, x: Tensor) -> Tensor:
        """That of f at ``A x``."""
        return self.term.start_score(self.operator(x))

    @torch.no_grad()
    def prox(self, v: Tensor, t: PerItem) -> Tensor:
        """In closed form for orthogonal rows, else up to the tolerance."""
        step, rows = step_per_item(t, v), self._rows()
        if rows is None:
            part = dual.Mapped(self.term, step, self.operator)
            return dual.solve(Zero(), step, [part], v, self.inner_tolerance, self.max_iterations)
        seen = self.operator(v)
        gram = torch.as_tensor(rows.gram, dtype=v.dtype, device=v.device)
        if rows.is_number:
            change = self.term.prox(seen, gram.reshape(-1) * step) - seen
        else:
            change = self.term.prox(seen, times(step, gram.expand_as(seen))) - seen
        return v + self.operator.adjoint(torch.where(gram > 0, change / torch.where(gram > 0, gram, 1.0), 0.0))

    def rows(self, index: Tensor) -> Self:
        """Of the selected items."""
        return self._of(self.term.rows(index), self.operator.rows(index))

    def to(self, device: torch.device | str | torch.dtype | None = None, dtype: torch.dtype | None = None) -> Self:
        """With its numbers on another device or in another dtype."""
        return self._of(self.term.to(device, dtype), self.operator.to(device, dtype))

    def check(self, name: str, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
        """Check the operator against the signals, and the term against its measurements."""
        assert self.operator.measurement_shape is not None, "checked when the term was made"
        self.term.check(name, self.operator.measurement_shape, device, dtype)
        self.operator.check(f"the operator of {name}", shape, device, dtype)

    def _rows(self) -> _Rows | None:
        """Where A has orthogonal rows for which this f has a closed form."""
        form = self.operator.row_form()
        if form is None:
            return None
        gram = form.gram
        if not isinstance(gram, Tensor):
            return _Rows(gram, is_number=True)
        even = gram.amax() - gram.amin() <= _EVEN * torch.finfo(gram.dtype).eps * gram.amax()
        if bool(even) and float(gram.amin()) > 0:
            return _Rows(gram.mean(), is_number=True)  # whatever the rotation: A A^T = g I
        return _Rows(gram, is_number=False) if form.is_plain and self.term.separable else None

    def _of(self, term: Term, operator: Operator) -> Self:
        """Another term through another operator, with the same options; itself when nothing changes."""
        if term is self.term and operator is self.operator:
            return self
        return replace(self, term=term, operator=operator)

    def _batch_sizes(self) -> Iterator[tuple[str, int | None]]:
        yield "the term", self.term.batch
        yield "the operator", self.operator.batch

    def _members(self) -> Iterator[tuple[str, Any]]:
        yield "term", self.term

    def __repr__(self) -> str:
        return f"({self.term!r}).through({self.operator!r})"
