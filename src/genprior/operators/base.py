"""What every linear operator can do: apply itself and its adjoint, invert ``A^T A + rho I``, tell its size."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from genprior import _validate
from genprior._batch import PerItem, spread
from genprior._clock import seconds_left
from genprior.operators.gram import GramForm
from genprior.operators.krylov import conjugate_gradient, largest_eigenvalue

if TYPE_CHECKING:
    from genprior.operators.algebra import Composition, Sum

LARGEST_DENSE = 50_000_000


@dataclass(frozen=True)
class RowForm:
    """An equivalent operator ``A'`` with diagonal ``A' A'^T = diag(gram)``.

    ``|A' x - rotate(y)| = |A x - y|`` for all ``x`` and ``y``, so least squares may use either. ``gram`` is a number or
    a tensor that broadcasts against measurements. ``unrotate`` is the inverse of ``rotate``; with it
    ``A A^T = unrotate diag(gram) rotate``, and ``A.T`` has an accurate resolvent.
    """

    forward: Callable[[Tensor], Tensor]
    adjoint: Callable[[Tensor], Tensor]
    gram: PerItem
    rotate: Callable[[Tensor], Tensor]
    unrotate: Callable[[Tensor], Tensor] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether ``A'`` is A itself: rows that are orthogonal as they are."""
        return self.rotate is unrotated


def unrotated(y: Tensor) -> Tensor:
    """``y``: the rotation of operators whose rows are orthogonal as they are."""
    return y


class Operator(ABC):
    """A linear map ``A`` from real signals ``(B, *signal_shape)`` to measurements ``(B, *measurement_shape)``.

    Measurements may be complex; their inner product is the real one, ``Re <a, b>``, and ``adjoint`` is the adjoint for
    it. Every item of the batch is treated alone. A subclass sets the attributes below in its constructor and gives
    ``_forward`` and ``_adjoint``; the rest has a default (conjugate gradients, Lanczos) that it may replace by
    a closed form.
    """

    signal_shape: tuple[int, ...] | None
    """Shape of one signal; None only for a `Linear` made without shapes."""
    measurement_shape: tuple[int, ...] | None
    """Shape of the measurements of one signal."""
    batch: int | None = None
    """Number of items when the operator differs from item to item, else None."""
    device: torch.device | None = None
    """Where the operator's numbers live; None when it has none."""
    dtype: torch.dtype | None = None
    """The real dtype it works in; None when any will do."""
    complex_measurements: bool | None = False
    """Whether measurements are complex; None when not known."""
    tolerance: float = 1e-6
    """Relative residual at which conjugate gradients stop, where they are used."""
    max_iterations: int = 200
    """Most conjugate gradient iterations, where they are used."""
    parts: tuple[Operator, ...] = ()
    """The operators that this one is made of."""
    is_expression: bool = False
    """Whether its text needs brackets within a product."""

    __array_ufunc__ = None  # a NumPy number times an operator is left to __rmul__
    _bounds: tuple[Tensor, Tensor] | None = None
    _hurried: bool = False
    """Whether these bounds were estimated in a run that had little time; they are found again when there is more."""

    # -- what a subclass gives ------------------------------------------------------------------------------------

    @abstractmethod
    def _forward(self, x: Tensor) -> Tensor:
        """Give ``A x`` for checked signals."""

    @abstractmethod
    def _adjoint(self, y: Tensor) -> Tensor:
        """Give ``A^T y`` for checked measurements."""

    def _resolvent(self, v: Tensor, rho: PerItem, start: Tensor | None) -> Tensor:
        """``(A^T A + rho I)^-1 v``; ``rho`` is a number or already shaped to multiply ``v``."""
        form = self.gram_form()
        if form is not None:
            return form.resolvent(v, rho)

        def apply(x: Tensor) -> Tensor:
            return self._adjoint(self._forward(x)) + rho * x

        if start is not None:
            self._check_signals("start", start)
        return conjugate_gradient(apply, v, start, self.tolerance, self.max_iterations).solution

    def _gram_bounds(self) -> tuple[Tensor, Tensor]:
        """Extreme eigenvalues of ``A^T A``: those of the Gram form; else zero and the estimate of Lanczos."""
        form = self.gram_form()
        if form is not None:
            return form.bounds(self.batch)
        largest = self._largest_eigenvalue()
        return torch.zeros_like(largest), largest

    def _map_tensors(self, change: Callable[[Tensor], Tensor]) -> None:  # noqa: B027 - many hold none
        """Replace each tensor the operator holds by ``change(tensor)``; called on a fresh copy."""

    @property
    def closed_form(self) -> bool:
        """Whether `resolvent` is a closed form; else it is found by conjugate gradients."""
        return type(self)._resolvent is not Operator._resolvent or self.gram_form() is not None

    @property
    def resolvent_method(self) -> str:
        """How `resolvent` is computed, in words."""
        form = self.gram_form()
        if form is not None:
            return form.method
        return f"conjugate gradient (relative residual {self.tolerance:g}, at most {self.max_iterations} iterations)"

    @property
    def has_matrix(self) -> bool:
        """Whether the operator holds its matrix, so that `dense` costs nothing."""
        return False

    def row_form(self) -> RowForm | None:
        """Give an equivalent operator with orthogonal rows, or None where there is no cheap one."""
        return None

    def gram_form(self) -> GramForm | None:
        """Give ``A^T A`` where it is diagonal, in the signal's own basis or that of the Fourier transform, else None.

        The resolvent and `gram_bounds` then follow from it.
        """
        return None

    def transposed_gram_form(self) -> GramForm | None:
        """Give ``A A^T`` where it is diagonal in one of these bases, else None; for `T`."""
        return None

    # -- what users call ------------------------------------------------------------------------------------------

    def __call__(self, x: Tensor) -> Tensor:
        """Give ``A x`` for signals ``(B, *signal_shape)``."""
        return self._forward(self._check_signals("signals", x))

    def adjoint(self, y: Tensor) -> Tensor:
        """Give ``A^T y`` for measurements ``(B, *measurement_shape)``: ``<A x, y> = <x, A^T y>``."""
        return self._adjoint(self._check_measurements("measurements", y))

    def measured(self, y: Tensor) -> Tensor:
        """``y`` with zeros where this operator gives zero for every signal: what stands there was not measured."""
        return y

    def resolvent(self, v: Tensor, rho: PerItem, start: Tensor | None = None) -> Tensor:
        """Give ``(A^T A + rho I)^-1 v`` for ``rho > 0``, one number or one per item.

        A new ``rho`` costs no new factorisation. ``start`` is a first guess; only conjugate gradients use it.
        """
        self._check_signals("v", v)
        return self._resolvent(v, _check_rho(rho, v), start)

    def gram_bounds(self) -> tuple[Tensor, Tensor]:
        """Smallest and largest eigenvalue of ``A^T A``, each of shape ``()``, or ``(B,)`` when per item.

        Exact for all operators but `Linear`, compositions, and those sums, stacks and transposes that say so. For these
        the smallest is a lower bound, as a rule 0, and the largest is estimated from above by 60 Lanczos steps, as a
        rule 1% too large; like every estimate from a random start it can fail on a spectrum made to defeat it.
        """
        if self._bounds is None or (self._hurried and math.isinf(seconds_left())):
            self._hurried = False
            with torch.no_grad():
                self._bounds = self._gram_bounds()
        return self._bounds

    def norm(self) -> Tensor:
        """Operator norm ``|A|``, the root of the largest eigenvalue in `gram_bounds`; ``()`` or ``(B,)``."""
        return self.gram_bounds()[1].sqrt()

    def rows(self, index: Tensor) -> Operator:
        """Give the operator for the items in ``index`` (which may repeat); itself when all items share it."""
        if self.batch is None:
            return self
        index = self._check_index(index)
        picked = self._changed(lambda t: t.index_select(0, index))
        picked.batch = len(index)
        return picked

    def to(self, device: torch.device | str | torch.dtype | None = None, dtype: torch.dtype | None = None) -> Operator:
        """Give the operator on another device or in another real dtype; itself when nothing changes."""
        if isinstance(device, torch.dtype):  # as with tensors
            device, dtype = None, device
        device = None if device is None or self.device is None else torch.empty(0, device=device).device
        dtype = None if self.dtype is None else dtype
        check_real(dtype)
        if device in (None, self.device) and dtype in (None, self.dtype):
            return self
        moved = self._changed(lambda t: _moved(t, device, dtype))
        moved.device = device or self.device
        moved.dtype = dtype or self.dtype
        if is_wider(moved.dtype, self.dtype):
            moved._bounds = None  # rounded numbers; they are found again when they are needed
        return moved

    def check(
        self, name: str, signal_shape: tuple[int, ...], device: torch.device, dtype: torch.dtype | None = None
    ) -> None:
        """Raise a clear error if the operator, called ``name``, does not fit signals of this shape, place and dtype."""
        if self.signal_shape is not None and self.signal_shape != tuple(signal_shape):
            raise ValueError(
                f"{name} takes signals of shape {self.signal_shape}, but the generator gives {tuple(signal_shape)}: "
                f"make {name} with signal_shape={tuple(signal_shape)}"
            )
        if self.device is not None and self.device != device:
            raise ValueError(f"{name} is on {self.device}, but the generator is on {device}: use {name}.to('{device}')")
        if self.dtype is not None and dtype is not None and self.dtype != dtype:
            raise TypeError(f"{name} works in {self.dtype}, but the generator in {dtype}: use {name}.to(dtype={dtype})")

    def dense(self) -> Tensor:
        """Make the explicit matrix ``(m, d)``, or ``(B, m, d)`` when per item, by applying ``A`` to the identity."""
        d, m = self._sizes("dense()")
        if (self.batch or 1) * m * d > LARGEST_DENSE:
            raise ValueError(
                f"dense() of {self!r} would hold {(self.batch or 1) * m * d:,} numbers, more than {LARGEST_DENSE:,}: "
                "use the operator itself"
            )
        if self.batch is None:
            return _columns(self, d, m)
        one = [self.rows(torch.tensor([b])) for b in range(self.batch)]
        return torch.stack([_columns(item, d, m) for item in one])

    def bound(self, signal_shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Operator:
        """The operator for signals of this shape; itself unless it was made without shapes."""
        return self

    # -- the algebra ----------------------------------------------------------------------------------------------

    @property
    def T(self) -> Operator:
        """The transpose, an operator from measurements to signals; refused where measurements are complex."""
        from genprior.operators.algebra import Transpose  # noqa: PLC0415 - algebra.py needs this file

        return Transpose(self)

    def __matmul__(self, inner: Operator) -> Composition:
        """Composition ``A @ B``: first ``B``, then ``A``."""
        from genprior.operators.algebra import Composition  # noqa: PLC0415 - algebra.py needs this file

        if isinstance(inner, Tensor):
            raise TypeError(
                f"A @ x is for operators, got a tensor {tuple(inner.shape)}: to apply the operator write A(x)"
            )
        return Composition(self, inner) if isinstance(inner, Operator) else NotImplemented

    def __mul__(self, factor: PerItem) -> Operator:
        """``c * A`` with a number, or one per item, of shape ``(B,)``."""
        from genprior.operators.algebra import scaled  # noqa: PLC0415 - algebra.py needs this file

        return scaled(factor, self)

    __rmul__ = __mul__

    def __truediv__(self, divisor: PerItem) -> Operator:
        """``A / c`` with a number, or one per item, of shape ``(B,)``."""
        from genprior.operators.algebra import divided  # noqa: PLC0415 - algebra.py needs this file

        return divided(self, divisor)

    def __neg__(self) -> Operator:
        """``-A``."""
        return self * -1.0

    def __add__(self, other: Operator) -> Sum:
        """``A + B``, for operators on the same signals with measurements of the same shape."""
        from genprior.operators.algebra import added  # noqa: PLC0415 - algebra.py needs this file

        return added(self, _operator(other))

    def __sub__(self, other: Operator) -> Sum:
        """``A - B``, as ``A + (-B)``."""
        return self + -_operator(other)

    def __radd__(self, other: int) -> Operator:
        """``sum([A, B])`` begins with ``0 + A``."""
        return self if isinstance(other, int) and other == 0 else _operator(other)

    def __repr__(self) -> str:
        items = "" if self.batch is None else f", {self.batch} items"
        return f"{type(self).__name__}({self.signal_shape} -> {self.measurement_shape}{items})"

    # -- shared parts ---------------------------------------------------------------------------------------------

    def _largest_eigenvalue(self) -> Tensor:
        """Estimate the largest eigenvalue of ``A^T A`` from above, from the same random start for every item."""
        self._sizes("gram_bounds()")
        shape = self.signal_shape or ()
        start = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64, device="cpu")
        start = start.to(self.dtype or torch.get_default_dtype()).to(self.device)
        estimate, whole = largest_eigenvalue(
            lambda x: self._adjoint(self._forward(x)), start.expand(self.batch or 1, *shape).contiguous()
        )
        self._hurried = not whole
        return estimate if self.batch else estimate[0]

    def _changed(self, change: Callable[[Tensor], Tensor]) -> Self:
        other = copy.copy(self)
        if self._bounds is not None:
            other._bounds = (change(self._bounds[0]), change(self._bounds[1]))
        other._map_tensors(change)
        return other

    def _sizes(self, purpose: str) -> tuple[int, int]:
        if self.signal_shape is None or self.measurement_shape is None:
            raise ValueError(f"{purpose} needs to know the shapes of {self!r}: give it signal_shape=...")
        return math.prod(self.signal_shape), math.prod(self.measurement_shape)

    def _check_signals(self, name: str, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}: use torch.as_tensor(...)")
        if self.signal_shape is not None and x.shape[1:] != self.signal_shape:
            _validate.batch(name, x, self.signal_shape, f"{type(self).__name__} was made for other signals")
        if x.dtype is not self.dtype or not x.is_floating_point():
            self._check_dtype(name, x, x.is_floating_point())
        self._check_place(name, x)
        return x

    def _check_measurements(self, name: str, y: Tensor) -> Tensor:
        if not isinstance(y, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(y).__name__}: use torch.as_tensor(...)")
        if self.measurement_shape is not None and y.shape[1:] != self.measurement_shape:
            self._refuse_measurements(name, y)
        if y.dtype is not self.dtype or self.complex_measurements:
            fits = y.is_floating_point() or (self.complex_measurements is not False and y.is_complex())
            self._check_dtype(name, y, fits)
        self._check_place(name, y)
        return y

    def _refuse_measurements(self, name: str, y: Tensor) -> None:
        _, m = self._sizes("the check of measurements")
        given = y[0].numel() if y.ndim > 1 and len(y) else y.numel()
        if y.ndim > 1 and given != m:
            raise ValueError(
                f"{name} have {given} values, but the operator gives {m}: another m? is y transposed (y.T)?"
            )
        _validate.batch(name, y, self.measurement_shape, f"{type(self).__name__} gives another shape")

    def _check_dtype(self, name: str, x: Tensor, fits: bool) -> None:
        if not fits:
            allowed = "real or complex" if self.complex_measurements and name == "measurements" else "real"
            raise TypeError(f"{name} must hold {allowed} floating-point numbers, got {x.dtype}")
        real = x.dtype.to_real()
        if self.dtype is not None and real != self.dtype:
            raise TypeError(
                f"{name} have dtype {x.dtype}, but {self!r} works in {self.dtype}: use operator.to(dtype={real})"
            )

    def _check_place(self, name: str, x: Tensor) -> None:
        if x.shape[0] == 0:
            raise ValueError(f"{name} is an empty batch, shape {tuple(x.shape)}: give at least one item")
        if self.device is not None and x.device != self.device:
            _validate.same_place(name, x, self.device, None, repr(self))
        if self.batch is not None and len(x) != self.batch:
            raise ValueError(
                f"{name} have {len(x)} items, but {self!r} is made for {self.batch}, one each: "
                "use operator.rows(index) to select items"
            )

    def _check_index(self, index: Tensor) -> Tensor:
        if not isinstance(index, Tensor) or index.dtype != torch.int64 or index.ndim != 1:
            raise TypeError(f"index must be a one-dimensional tensor of whole numbers (int64), got {index!r}")
        if len(index) == 0 or int(index.min()) < 0 or int(index.max()) >= (self.batch or 0):
            raise ValueError(f"index must name items 0 to {(self.batch or 0) - 1}, at least one, got {index.tolist()}")
        return index.to(self.device)


def _operator(value: object) -> Operator:
    """Refuse to add what is no operator."""
    if not isinstance(value, Operator):
        raise TypeError(
            f"an operator adds to an operator of the same shapes, got {type(value).__name__}: terms and losses are parts of "
            "gp.Problem; several types of measurement go into operators.Stack(A, B)"
        )
    return value


def is_wider(new: torch.dtype | None, old: torch.dtype | None) -> bool:
    """Whether numbers derived in the old dtype are too coarse for the new one."""
    return new is not None and old is not None and torch.finfo(new).eps < torch.finfo(old).eps


def orthogonal_rows_resolvent(operator: Operator, gram: float, v: Tensor, rho: PerItem) -> Tensor:
    """``(A^T A + rho I)^-1 v`` when ``A A^T = gram I``: ``(v - A^T A v / (gram + rho)) / rho``.

    Where A is square, all digits of that would cancel for small rho: its Gram form is used.
    """
    form = operator.gram_form()
    if form is not None:
        return form.resolvent(v, rho)
    return (v - operator._adjoint(operator._forward(v)) / (gram + rho)) / rho


def _check_rho(rho: PerItem, v: Tensor) -> PerItem:
    """Check ``rho > 0`` and shape it to multiply ``v``; off the CPU only shapes are checked, to avoid waiting."""
    if not isinstance(rho, Tensor):
        return _validate.number("rho", rho, above=0)
    if rho.device.type == "cpu":
        _validate.per_item("rho", rho, above=0)
    if rho.ndim > 1 or (rho.ndim == 1 and len(rho) != len(v)):
        raise ValueError(f"rho has shape {tuple(rho.shape)}, expected () or ({len(v)},): one number per item of v")
    return spread(rho.to(v), v)


def check_real(dtype: torch.dtype | None) -> None:
    """Refuse what signals cannot have."""
    if dtype is not None and not dtype.is_floating_point:
        raise TypeError(f"dtype must be a real floating-point type such as torch.float32, got {dtype}")


def _moved(t: Tensor, device: torch.device | None, dtype: torch.dtype | None) -> Tensor:
    if dtype is not None and t.is_complex():
        dtype = dtype.to_complex()
    return t.to(device=device, dtype=dtype if t.is_floating_point() or t.is_complex() else None)


def _columns(operator: Operator, d: int, m: int) -> Tensor:
    """Apply ``A`` to the unit signals, as many at once as memory easily holds (one by one when per item)."""
    chunk = 1 if operator.batch else max(1, min(d, 2**22 // max(m, d)))
    shape = operator.signal_shape or ()
    parts = []
    for first in range(0, d, chunk):
        count = min(chunk, d - first)
        block = torch.zeros(count, d, dtype=operator.dtype, device=operator.device)
        block.diagonal(first).fill_(1)
        parts.append(operator(block.reshape(count, *shape)).reshape(count, m))
    return torch.cat(parts).T.contiguous()
