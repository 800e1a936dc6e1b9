"""Least squares with a linear operator."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior.losses.base import Loss
from genprior.losses.exact_step import DiagonalProx, OrthogonalRows, QuadraticRows, Resolvent
from genprior.operators import Identity, Mask, Operator
from genprior.operators.base import RowForm
from genprior.terms import Quadratic, Term, Zero

_STRAY = 1e-3
"""Share of the measurements that may lie where nothing is measured without a word."""


class LeastSquares(Loss):
    """``L(w) = 1/2 |A w - y|^2``; ``mu`` and ``nu`` are the extreme eigenvalues of ``A^T A``.

    Where A has an equivalent form with orthogonal rows (dense matrices with m <= d, masks, Hadamard, averaging), the
    residual is kept in those rotated coordinates: same value, same gradient, and the exact ADMM step becomes diagonal.

    Parameters
    ----------
    operator
        a :class:`genprior.operators.Operator`.
    y
        measurements, ``(B, *operator.measurement_shape)``; for a mask with zeros where it measures nothing, as
        ``operator.measured(y)`` gives them.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> A = gp.operators.Mask(torch.tensor([True, False, True]))
    >>> gp.LeastSquares(A, torch.zeros(2, 3))(torch.ones(2, 3))
    tensor([1., 1.])
    """

    sum_of_squares = True

    def __init__(self, operator: Operator, y: Tensor) -> None:
        if not isinstance(operator, Operator):
            raise TypeError(
                f"operator must be a genprior.operators.Operator, got {type(operator).__name__}: "
                "wrap a matrix in operators.Dense, functions in operators.Linear"
            )
        _validate.batch("y", _validate.tensor("y", y, complex_too=True), None)
        _fit_measurements(operator, y)
        if y.is_complex() and operator.complex_measurements is False:
            raise TypeError(f"y is complex ({y.dtype}), but {operator!r} gives real measurements: use y.real")
        if not y.is_complex() and operator.complex_measurements:
            raise TypeError(
                f"y is real ({y.dtype}), but {operator!r} gives complex measurements: for a signal x, y = A(x) measures it"
            )
        self.operator = operator
        self.y = _validate.kept("y", y)  # the caller may change theirs, and rotated copies are kept
        _warn_unmeasured(operator, self.y)
        self.batch = y.shape[0]
        self._form: RowForm | None = None
        self._rotated: Tensor | None = None

    @property
    def form(self) -> RowForm | None:
        """The operator's equivalent with orthogonal rows, if it has one (factorised at first use)."""
        if self._form is None:
            self._form = self.operator.row_form()
        return self._form

    @property
    def target(self) -> Tensor:
        """The measurements, in rotated coordinates where :attr:`form` exists."""
        if self._rotated is None:
            self._rotated = self.y if self.form is None else self.form.rotate(self.y)
        return self._rotated

    def evaluate(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """``1/2 |A w - y|^2`` and ``A w - y`` (rotated where :attr:`form` exists)."""
        expected = (self.batch, *(self.operator.signal_shape or w.shape[1:]))
        if w.shape != expected:
            raise ValueError(f"signals have shape {tuple(w.shape)}, expected {expected}: one signal per item of y")
        image = self.operator(w) if self.form is None else self.form.forward(w)
        residual = image - self.target
        return 0.5 * _batch.square(residual), residual

    def gradient(self, w: Tensor, residual: Tensor) -> Tensor:
        """``A^T (A w - y)``."""
        return self.operator.adjoint(residual) if self.form is None else self.form.adjoint(residual)

    def backprojection(self) -> Tensor:
        """``A^T y``."""
        return self.operator.adjoint(self.y)

    def curvature(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """The extreme eigenvalues of ``A^T A``."""
        low, high = self.operator.gram_bounds()
        return _batch.column(low, w), _batch.column(high, w)

    def typical_curvature(self, w: Tensor) -> Tensor:
        """``|A w|^2 / |w|^2``; nu where that vanishes."""
        typical = _batch.ratio(_batch.square(self.operator(w)), _batch.square(w))
        return torch.where(typical > 0, typical, self.curvature(w)[1])

    def squares(self, w: Tensor, residual: Tensor) -> Tensor:
        """``A w - y``, in coordinates of the rows where :attr:`form` exists."""
        return _batch.flat(residual)

    def squares_jvp(self, w: Tensor, tangents: Tensor) -> Tensor:
        """``A v``, in the same coordinates."""
        image = self.operator if self.form is None else self.form.forward
        if self.operator.batch is None:
            return _batch.flat(image(tangents.flatten(0, 1))).reshape(*tangents.shape[:2], -1)
        return torch.stack([_batch.flat(image(v)) for v in tangents])

    def exact_step(self, term: Term) -> OrthogonalRows | QuadraticRows | Resolvent | DiagonalProx | None:
        """In closed form where R is zero or quadratic, where A is the identity, and where A is a mask and R separable."""
        method, quadratic = self.operator.resolvent_method, Quadratic.of(term)
        if isinstance(term, Zero) and self.form is not None:
            return OrthogonalRows(self.form, method)
        if term.as_quadratic() is not None:
            if self.form is None:
                return Resolvent(self.operator, self.y, quadratic)
            return QuadraticRows(self.form, self.target, quadratic, method)
        if isinstance(self.operator, Identity):
            return DiagonalProx(term, self.operator, self.y, 1.0)
        if isinstance(self.operator, Mask) and term.separable and self.form is not None:
            return DiagonalProx(term, self.operator, self.y, self.form.gram)
        return None

    def bound(self, signal_shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> LeastSquares:
        """The loss with an operator that knows its shapes and its place, for an ``operators.Linear`` made without them."""
        operator = self.operator.bound(signal_shape, device, dtype)
        return self if operator is self.operator else LeastSquares(operator, self.y)

    def start_scores(self, signals: Tensor, items: int) -> Tensor:
        """The loss, for all pairs at once where the items share the operator."""
        if self.operator.batch is not None:
            return super().start_scores(signals, items)
        seen = self.operator(signals) if self.form is None else self.form.forward(signals)
        return 0.5 * _batch.distances(self.target, seen).square()

    def observed(self) -> tuple[Operator, Tensor]:
        """Operator and measurements."""
        return self.operator, self.y

    def relative_residual(self, value: Tensor) -> Tensor:
        """``|A w - y| / |y|`` per item from the loss's value."""
        return (2 * value).sqrt() / _batch.norm(self.y)

    def __repr__(self) -> str:
        return f"LeastSquares({self.operator!r}, y {tuple(self.y.shape)})"

    def __getstate__(self) -> dict[str, object]:
        """What is pickled: the row form is made of functions and comes back at first use."""
        return vars(self) | {"_form": None}

    def rows(self, index: Tensor) -> LeastSquares:
        """The loss of the selected items; factorisations are kept."""
        part = LeastSquares.__new__(LeastSquares)
        part.operator = self.operator.rows(index)
        part.y, part.batch = self.y[index], len(index)
        shared = part.operator is self.operator
        part._form = self._form if shared else None
        # Rotated as a whole: rounding must not depend on which rows are asked for.
        part._rotated = self.target[index] if shared else None
        return part

    def check(self, signal_shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
        """Operator and measurements must fit the generator's signals."""
        self.operator.check("operator", signal_shape, device, dtype)
        real = self.y.real if self.y.is_complex() else self.y
        _validate.same_place("y", real, device, dtype, "the generator")


def _warn_unmeasured(operator: Operator, y: Tensor) -> None:
    """A picture with holes as it is, say: what the mask does not measure no signal can fit."""
    stray, whole = _batch.norm(y - operator.measured(y)), _batch.norm(y)
    share = float(_batch.ratio(stray, whole).max())
    if share > _STRAY:
        warnings.warn(
            f"y has numbers where {type(operator).__name__} measures nothing ({share:.2g} of |y|): they add a constant to the "
            "objective, beside which small changes are lost: give LeastSquares(A, A.measured(y))",
            stacklevel=3,
        )


def _fit_measurements(operator: Operator, y: Tensor) -> None:
    expected = operator.measurement_shape
    if expected is not None and tuple(y.shape[1:]) != tuple(expected):
        if tuple(y.shape) == tuple(expected):
            raise ValueError(f"y has shape {tuple(y.shape)}, the shape of one item: add the batch axis with y[None]")
        given = y[0].numel()
        count = torch.Size(expected).numel()
        if y.ndim == 2 and len(expected) == 1:
            raise ValueError(
                f"measurements have {given} values, but the operator gives {count}: another m? is y transposed (y.T)?"
            )
        raise ValueError(
            f"y has shape {tuple(y.shape)}, but the operator gives (B, {', '.join(map(str, expected))})"
            f"{_missing_axes(operator, tuple(y.shape[1:]))}"
        )
    if operator.batch is not None and operator.batch != y.shape[0]:
        raise ValueError(
            f"y has {y.shape[0]} items, but the operator is made for {operator.batch}: one of each per item"
        )


def _missing_axes(operator: Operator, given: tuple[int, ...]) -> str:
    """A hint where y has the operator's shape but for axes in front: a mask of rows and columns knows no channels."""
    expected = tuple(operator.measurement_shape or ())
    if not isinstance(operator, Mask) or given[-len(expected) :] != expected:
        return ""
    return f": was the operator made for {given}? Mask(mask, signal_shape=G.signal_shape)"
