"""Least squares with a linear operator."""

from __future__ import annotations

import copy
import warnings

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior.losses.base import Loss
from genprior.losses.exact_step import DiagonalProx, OrthogonalRows, QuadraticRows, Resolvent
from genprior.losses.noise import Misfit, gaussian_misfit, noise_level, selected
from genprior.operators import Identity, Mask, Operator
from genprior.operators.base import RowForm
from genprior.operators.weighted import weighted
from genprior.terms import Quadratic, Term, Zero
from genprior.terms.parameters import describe

_STRAY = 1e-3
"""Share of the measurements that may lie where nothing is measured without a word."""


class LeastSquares(Loss):
    """``L(w) = 1/2 |A w - y|^2``, or ``1/2 |(A w - y)/sigma|^2`` for noise of a known standard deviation.

    ``mu`` and ``nu`` are the extreme eigenvalues of ``A^T A``, of the weighted A where sigma is given. A loss with noise is
    ``-log p(y | w)``: :meth:`misfit` says whether a signal fits the noise, ``gp.Discrepancy()`` stops there, and
    ``gp.map_problem`` adds the generator's own latent distribution.

    Where A has an equivalent form with orthogonal rows (dense matrices with m <= d, masks, Hadamard, averaging), the
    residual is kept in those rotated coordinates: same value, same gradient, and the exact ADMM step becomes diagonal.

    Parameters
    ----------
    operator
        a :class:`genprior.operators.Operator`.
    y
        measurements, ``(B, *operator.measurement_shape)``; for a mask with zeros where it measures nothing, as
        ``operator.measured(y)`` gives them.
    noise
        standard deviation sigma of the noise: a number, or a tensor of the shape of one item's measurements, of y, or
        ``(B, 1, ..., 1)``. Of complex measurements it is that of the real and of the imaginary part. Omitted: not known, 1.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> A = gp.operators.Mask(torch.tensor([True, False, True]))
    >>> gp.LeastSquares(A, torch.zeros(2, 3))(torch.ones(2, 3))
    tensor([1., 1.])
    >>> gp.LeastSquares(A, torch.zeros(2, 3), noise=0.5).misfit(torch.ones(2, 3)).ratio
    tensor([4., 4.])
    """

    sum_of_squares = True

    def __init__(self, operator: Operator, y: Tensor, noise: float | Tensor | None = None) -> None:
        _validate.batch("y", _validate.tensor("y", y, complex_too=True), None)
        _fit(operator, y)
        self.operator = operator
        self.y = _validate.kept("y", y)  # the caller may change theirs, and rotated copies are kept
        _warn_unmeasured(operator, self.y)
        self.noise = None if noise is None else noise_level(noise, self.y)
        self.whitened = operator if self.noise is None else weighted(1 / self.noise, operator)
        self.batch = y.shape[0]
        self._form: RowForm | None = None
        self._rotated: Tensor | None = None

    whitened: Operator
    """``A / sigma``: with it and ``y / sigma`` the loss is the square of a distance. A itself where no noise is given."""

    @property
    def form(self) -> RowForm | None:
        """The equivalent of :attr:`whitened` with orthogonal rows, if it has one (factorised at first use)."""
        if self._form is None:
            self._form = self.whitened.row_form()
        return self._form

    @property
    def target(self) -> Tensor:
        """The measurements over sigma, in rotated coordinates where :attr:`form` exists."""
        if self._rotated is None:
            self._rotated = self._scaled(self.y) if self.form is None else self.form.rotate(self._scaled(self.y))
        return self._rotated

    def evaluate(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """``1/2 |(A w - y)/sigma|^2`` and ``(A w - y)/sigma`` (rotated where :attr:`form` exists)."""
        expected = (self.batch, *(self.operator.signal_shape or w.shape[1:]))
        if w.shape != expected:
            raise ValueError(f"signals have shape {tuple(w.shape)}, expected {expected}: one signal per item of y")
        image = self.whitened(w) if self.form is None else self.form.forward(w)
        residual = image - self.target
        return 0.5 * _batch.square(residual), residual

    def gradient(self, w: Tensor, residual: Tensor) -> Tensor:
        """``A^T (A w - y)/sigma^2``."""
        return self.whitened.adjoint(residual) if self.form is None else self.form.adjoint(residual)

    def backprojection(self) -> Tensor:
        """``A^T y / sigma^2``."""
        return self.whitened.adjoint(self._scaled(self.y))

    def curvature(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """The extreme eigenvalues of ``A^T A``, weighted."""
        low, high = self.whitened.gram_bounds()
        return _batch.column(low, w), _batch.column(high, w)

    def typical_curvature(self, w: Tensor) -> Tensor:
        """``|A w / sigma|^2 / |w|^2``; nu where that vanishes."""
        along = _batch.ratio(_batch.square(self.whitened(w)), _batch.square(w))
        return torch.where(along > 0, along, self.curvature(w)[1])

    def squares(self, w: Tensor, residual: Tensor) -> Tensor:
        """``(A w - y)/sigma``, in coordinates of the rows where :attr:`form` exists."""
        return _batch.flat(residual)

    def squares_jvp(self, w: Tensor, tangents: Tensor) -> Tensor:
        """``A v / sigma``, in the same coordinates."""
        image = self.whitened if self.form is None else self.form.forward
        if self.whitened.batch is None:
            return _batch.flat(image(tangents.flatten(0, 1))).reshape(*tangents.shape[:2], -1)
        return torch.stack([_batch.flat(image(v)) for v in tangents])

    def exact_step(self, term: Term) -> OrthogonalRows | QuadraticRows | Resolvent | DiagonalProx | None:
        """In closed form where R is zero or quadratic, where A is the identity, and where A is a mask and R separable."""
        method, quadratic = self.whitened.resolvent_method, Quadratic.of(term)
        if isinstance(term, Zero) and self.form is not None:
            return OrthogonalRows(self.form, method)
        if term.as_quadratic() is not None:
            if self.form is None:
                return Resolvent(self.whitened, self._scaled(self.y), quadratic)
            return QuadraticRows(self.form, self.target, quadratic, method)
        if not isinstance(self.operator, Identity | Mask) or self.form is None:
            return None
        gram = self.form.gram
        if term.separable or not isinstance(gram, Tensor):
            return DiagonalProx(term, self.whitened, self._scaled(self.y), gram)
        return None

    def bound(self, signal_shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> LeastSquares:
        """The loss with an operator that knows its shapes and its place, for an ``operators.Linear`` made without them."""
        operator = self.operator.bound(signal_shape, device, dtype)
        if operator is self.operator:
            return self
        _fit(operator, self.y)
        _warn_unmeasured(operator, self.y)
        part = copy.copy(self)
        part.operator = operator
        part.whitened = operator if self.noise is None else weighted(1 / self.noise, operator)
        part._form = part._rotated = None
        return part

    def start_scores(self, signals: Tensor, items: int) -> Tensor:
        """The loss, for all pairs at once where the items share the operator."""
        if self.whitened.batch is not None:
            return super().start_scores(signals, items)
        seen = self.whitened(signals) if self.form is None else self.form.forward(signals)
        return 0.5 * _batch.distances(self.target, seen).square()

    def observed(self) -> tuple[Operator, Tensor]:
        """Operator and measurements."""
        return self.operator, self.y

    def relative_residual(self, value: Tensor) -> Tensor:
        """``|A w - y| / |y|`` per item from the loss's value; both over sigma, where that differs between measurements."""
        return (2 * value).sqrt() / _batch.norm(self._scaled(self.y))

    def misfit(self, w: Tensor) -> Misfit | None:
        """``|(A w - y)/sigma|^2``, and the number of measurements (complex ones count twice)."""
        return None if self.noise is None else gaussian_misfit(self.operator, self.y, self.noise, w)

    def __repr__(self) -> str:
        noise = "" if self.noise is None else f", noise={describe(self.noise)}"
        return f"LeastSquares({self.operator!r}, y {tuple(self.y.shape)}{noise})"

    def _scaled(self, y: Tensor) -> Tensor:
        return y if self.noise is None else y / self.noise

    def __getstate__(self) -> dict[str, object]:
        """What is pickled: the row form is made of functions and comes back at first use."""
        return vars(self) | {"_form": None}

    def rows(self, index: Tensor) -> LeastSquares:
        """The loss of the selected items; factorisations are kept."""
        part = copy.copy(self)
        part.operator = self.operator.rows(index)
        part.y, part.batch = self.y[index], len(index)
        part.noise = None if self.noise is None else selected(self.noise, index)
        part.whitened = part.operator if self.noise is None else self.whitened.rows(index)
        shared = part.whitened is self.whitened
        part._form = self._form if shared else None
        # Rotated as a whole: rounding must not depend on which rows are asked for.
        part._rotated = self.target[index] if shared else None
        return part

    def check(self, signal_shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
        """Operator and measurements must fit the generator's signals."""
        self.operator.check("operator", signal_shape, device, dtype)
        real = self.y.real if self.y.is_complex() else self.y
        _validate.same_place("y", real, device, dtype, "the generator")


def _fit(operator: Operator, y: Tensor) -> None:
    """Shapes, and whether both are complex."""
    fit_measurements(operator, y)
    if y.is_complex() and operator.complex_measurements is False:
        raise TypeError(f"y is complex ({y.dtype}), but {operator!r} gives real measurements: use y.real")
    if not y.is_complex() and operator.complex_measurements:
        raise TypeError(
            f"y is real ({y.dtype}), but {operator!r} gives complex measurements: for a signal x, y = A(x) measures it"
        )


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


def fit_measurements(operator: Operator, y: Tensor) -> None:
    """Check that the operator is one, and that y has the shape of its measurements."""
    if not isinstance(operator, Operator):
        raise TypeError(
            f"operator must be a genprior.operators.Operator, got {type(operator).__name__}: "
            "wrap a matrix in operators.Dense, functions in operators.Linear"
        )
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
