"""Smooth convex losses L(w): value, gradient and curvature, one per item.

A loss is evaluated in two strokes, ``value, residual = loss.evaluate(w)`` and ``loss.gradient(w, residual)``, so that a
solver which needs both pays for one application of the operator and one of its adjoint.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior._batch import PerItem
from genprior.operators import Mask, Operator
from genprior.operators.base import RowForm
from genprior.terms.parameters import describe

_POWER_STEPS = 20


class Loss(ABC):
    """A convex loss with Lipschitz gradient, evaluated for each item of a batch."""

    batch: int | None = None

    @abstractmethod
    def evaluate(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """Value per item, and what :meth:`gradient` needs besides ``w``."""

    @abstractmethod
    def gradient(self, w: Tensor, residual: Tensor) -> Tensor:
        """Gradient at ``w``, given the residual that :meth:`evaluate` returned for the same ``w``."""

    @abstractmethod
    def curvature(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """``(mu, nu)`` per item: strong convexity and smoothness constants (at ``w`` where they are only local)."""

    @abstractmethod
    def rows(self, index: Tensor) -> Loss:
        """The loss of the selected items."""

    @abstractmethod
    def check(self, signal_shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
        """Raise a clear error if signals of this shape, device and dtype do not fit."""

    def bound(self, signal_shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Loss:
        """The loss for signals of this shape, device and dtype; itself where it knows them anyway."""
        return self

    def __call__(self, w: Tensor) -> Tensor:
        """Value per item."""
        return self.evaluate(w)[0]

    def relative_residual(self, value: Tensor) -> Tensor | None:
        """``|A w - y| / |y|`` per item from the loss's value, where the loss is the square of a residual; else None."""
        return None

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class NoLoss(Loss):
    """``L = 0``: the problem is all in R and H."""

    def evaluate(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """Zero per item."""
        zero = w.new_zeros(w.shape[0])
        return zero, zero

    def gradient(self, w: Tensor, residual: Tensor) -> Tensor:
        """Zero."""
        return torch.zeros_like(w)

    def curvature(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """No curvature."""
        zero = w.new_zeros(w.shape[0])
        return zero, zero

    def rows(self, index: Tensor) -> Loss:
        """Itself."""
        return self

    def check(self, signal_shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
        """Everything fits."""


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
        self.y = _validate.batch("y", _validate.tensor("y", y), None).detach().clone()  # the caller may change theirs
        self.weight = _validate.per_item("weight", weight, least=0)
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

    def relative_residual(self, value: Tensor) -> Tensor:
        """``|w - y| / |y|`` per item from the loss's value."""
        return (value / self.weight).sqrt() / _batch.norm(self.y)

    def __repr__(self) -> str:
        return f"SquaredDistance(y {tuple(self.y.shape)}, weight={describe(self.weight)})"

    def rows(self, index: Tensor) -> SquaredDistance:
        """The loss of the selected items."""
        part = SquaredDistance.__new__(SquaredDistance)
        part.y, part.batch = self.y[index], len(index)
        part.weight = self.weight[index] if isinstance(self.weight, Tensor) and self.weight.ndim else self.weight
        return part

    def check(self, signal_shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
        """The centres must be signals."""
        _validate.batch("y", self.y, signal_shape, "y must have the shape of the generator's signals")
        _validate.same_place("y", self.y, device, dtype, "the generator")
        if isinstance(self.weight, Tensor):
            _validate.same_place("weight", self.weight, device, dtype, "the generator")


class LeastSquares(Loss):
    """``L(w) = 1/2 |A w - y|^2``; ``mu`` and ``nu`` are the extreme eigenvalues of ``A^T A``.

    Where A has an equivalent form with orthogonal rows (dense matrices with m <= d, masks, Hadamard, averaging), the
    residual is kept in those rotated coordinates: same value, same gradient, and the exact ADMM step becomes diagonal.

    Parameters
    ----------
    operator
        a :class:`genprior.operators.Operator`.
    y
        measurements, ``(B, *operator.measurement_shape)``.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> A = gp.operators.Mask(torch.tensor([True, False, True]))
    >>> gp.LeastSquares(A, torch.zeros(2, 3))(torch.ones(2, 3))
    tensor([1., 1.])
    """

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
        self.y = y.detach().clone()  # the caller may change theirs, and rotated copies are kept
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

    def bound(self, signal_shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> LeastSquares:
        """The loss with an operator that knows its shapes, for an ``operators.Linear`` made without them."""
        if self.operator.signal_shape is not None:
            return self
        return LeastSquares(self.operator.bound(signal_shape, device, dtype), self.y)

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
        part._rotated = self._rotated[index] if shared and self._rotated is not None else None
        return part

    def check(self, signal_shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
        """Operator and measurements must fit the generator's signals."""
        self.operator.check("operator", signal_shape, device, dtype)
        real = self.y.real if self.y.is_complex() else self.y
        _validate.same_place("y", real, device, dtype, "the generator")


class EmpiricalRisk(Loss):
    """``L(w) = 1/n sum_i l(w, sample_i)``: the mean over samples of a convex loss.

    Parameters
    ----------
    loss
        function of ``(w, samples)`` with ``w`` of shape ``(B, *signal_shape)`` and the samples as given, which returns
        the losses ``(B, n)``. It must be differentiable in ``w`` and must treat items independently.
    samples
        a tensor, or a tuple of tensors (inputs and labels, say), shared by all items; with ``per_item=True`` the
        first axis of each is the batch.
    smoothness, strong_convexity
        constants of L if known. The smoothness is otherwise estimated where it is needed, by
        power iteration on the Hessian.

    Examples
    --------
    Logistic regression whose weights lie in the range of a generator:

    >>> import torch, genprior as gp
    >>> inputs, labels = torch.randn(50, 8), torch.randn(50).sign()
    >>> risk = gp.EmpiricalRisk(lambda w, s: torch.nn.functional.softplus(-s[1] * (w @ s[0].T)), (inputs, labels))
    >>> risk(torch.zeros(2, 8))
    tensor([0.6931, 0.6931])
    """

    def __init__(
        self,
        loss: Callable[[Tensor, Tensor | tuple[Tensor, ...]], Tensor],
        samples: Tensor | tuple[Tensor, ...],
        *,
        per_item: bool = False,
        smoothness: float | None = None,
        strong_convexity: float = 0.0,
    ) -> None:
        if not callable(loss):
            raise TypeError(f"loss must be a function of (w, samples), got {type(loss).__name__}")
        self.loss = loss
        self.samples = samples
        parts = (samples,) if isinstance(samples, Tensor) else tuple(samples)
        for part in parts:
            if not isinstance(part, Tensor):
                raise TypeError(f"samples must be a tensor or a tuple of tensors, got {type(part).__name__}")
            if part.is_floating_point():
                _validate.tensor("samples", part)
            if part.ndim == 0 or part.shape[0] == 0:
                raise ValueError(f"samples are empty, shape {tuple(part.shape)}: give at least one")
        if per_item and len({len(part) for part in parts}) > 1:
            raise ValueError(f"samples have {[len(part) for part in parts]} items, expected as many in each part")
        self.per_item = per_item
        self.batch = parts[0].shape[0] if per_item else None
        self.smoothness = None if smoothness is None else _validate.number("smoothness", smoothness, above=0)
        self.strong_convexity = _validate.number("strong_convexity", strong_convexity, least=0)

    def evaluate(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """The mean loss per item; the gradient differentiates again, so there is no residual to share."""
        value = self._mean(w)
        return value, value

    def gradient(self, w: Tensor, residual: Tensor) -> Tensor:
        """The mean gradient per item."""
        with torch.enable_grad():
            point = w.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self._mean(point).sum(), point)
        return gradient

    def curvature(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """The given constants, or the largest Hessian eigenvalue by power iteration, with a margin of 10%.

        At ``w`` and at 0, whichever is larger: losses that saturate, as the logistic one, are flat far from zero.
        """
        mu = _batch.column(self.strong_convexity, w)
        if self.smoothness is not None:
            return mu, _batch.column(self.smoothness, w)
        here, zero = self._hessian_norm(w), self._hessian_norm(torch.zeros_like(w))
        largest = torch.where(zero.isfinite(), torch.maximum(here, zero), here)  # a logarithm has none at 0
        return mu, torch.maximum(mu, 1.1 * largest)

    def rows(self, index: Tensor) -> EmpiricalRisk:
        """The loss of the selected items."""
        if not self.per_item:
            return self
        pick = self.samples[index] if isinstance(self.samples, Tensor) else tuple(part[index] for part in self.samples)
        mu, nu = self.strong_convexity, self.smoothness
        return EmpiricalRisk(self.loss, pick, per_item=True, smoothness=nu, strong_convexity=mu)

    def check(self, signal_shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
        """The user's function must give ``(B, n)`` for signals of this shape."""
        count = self.batch or 2
        w = torch.zeros(count, *signal_shape, device=device, dtype=dtype)
        try:
            values = self.loss(w, self.samples)
        except Exception as problem:
            raise ValueError(
                f"loss failed on w of shape {tuple(w.shape)} ({type(problem).__name__}: {problem}): it is called as "
                "loss(w, samples) with the samples as given, and must give one value per item and sample"
            ) from problem
        if not isinstance(values, Tensor) or values.ndim != 2 or values.shape[0] != count:
            given = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(
                f"loss gave {given} for {count} signals, expected ({count}, n): one value per item and sample"
            )

    def __repr__(self) -> str:
        parts = (self.samples,) if isinstance(self.samples, Tensor) else self.samples
        sizes = ", ".join(str(tuple(part.shape)) for part in parts)
        name = getattr(self.loss, "__name__", type(self.loss).__name__)
        return f"EmpiricalRisk({name}, samples {sizes})"

    def _mean(self, w: Tensor) -> Tensor:
        return self.loss(w, self.samples).mean(dim=1)

    def _hessian_norm(self, w: Tensor) -> Tensor:
        direction = torch.ones_like(w) + torch.linspace(0, 1, w[0].numel(), device=w.device, dtype=w.dtype).view_as(
            w[0]
        )
        largest = w.new_zeros(w.shape[0])
        with torch.enable_grad():
            point = w.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self._mean(point).sum(), point, create_graph=True)
            for _ in range(_POWER_STEPS):
                direction = direction / _batch.spread(_batch.norm(direction).clamp_min(1e-30), direction)
                if not gradient.requires_grad:
                    break
                (direction,) = torch.autograd.grad(gradient, point, direction, retain_graph=True)
                largest = _batch.norm(direction)
        return largest.detach()


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
