"""Explicit matrices, and the Gaussian measurements of compressive sensing.

Products with a matrix that stays are packed once for the processor: more than twice as fast as plain ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.autograd import forward_ad

from genprior import _validate
from genprior._batch import PerItem
from genprior.operators.base import Operator, RowForm, is_wider

_WORTH_PACKING = 2**20
"""Multiplications of one product; below it, a plain product is as fast or faster."""


class _Factors:
    """Eigenvectors of the smaller Gram matrix, as the resolvent needs them.

    ``wide`` (m <= d): ``A A^T = U diag(values) U^T``, ``basis = U``, ``rows = U^T A``. Otherwise
    ``A^T A = V diag(values) V^T``, ``basis = V``, ``rows = V^T``. ``onto`` multiplies signals with the rows, ``back``
    gives combinations of the rows.
    """

    def __init__(self, values: Tensor, basis: Tensor, rows: Tensor) -> None:
        self.values, self.basis, self.rows = values, basis, rows
        self.onto, self.back = Product(rows.mT), Product(rows)

    def map(self, change: Callable[[Tensor], Tensor]) -> _Factors:
        return _Factors(change(self.values), change(self.basis), change(self.rows))


class Dense(Operator):
    """``A x = matrix @ x`` with a matrix ``(m, d)``, or ``(B, m, d)`` with one for each item.

    The resolvent comes from one eigendecomposition (float64) of the smaller Gram matrix, made when first needed and
    kept. For m <= d, ``A A^T = U S^2 U^T`` and ``A' = U^T A`` give

        (A^T A + rho I)^-1 v = (v - A'^T (S^2 + rho)^-1 A' v) / rho,

    for m > d, ``A^T A = V S^2 V^T`` gives ``V (S^2 + rho)^-1 V^T v``. No singular value is divided by, and no d x d
    matrix is made when m < d. On a CPU the rows ``A'`` are kept packed for both products, see `Product`.

    Parameters
    ----------
    matrix
        ``(m, d)``, or ``(B, m, d)`` with one for each item; floating-point.
    signal_shape
        shape of one signal with d values, such as (1, 28, 28); ``(d,)`` by default.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> gp.operators.Dense(torch.ones(3, 64), signal_shape=(1, 8, 8))(torch.ones(2, 1, 8, 8)).shape
    torch.Size([2, 3])
    """

    def __init__(self, matrix: Tensor, signal_shape: int | Sequence[int] | None = None) -> None:
        _validate.tensor("matrix", matrix)
        if matrix.ndim not in (2, 3) or matrix.numel() == 0:
            raise ValueError(f"matrix must have shape (m, d), or (B, m, d) per item, got {tuple(matrix.shape)}")
        m, d = matrix.shape[-2:]
        self.signal_shape = (d,) if signal_shape is None else _validate.shape("signal_shape", signal_shape)
        if math.prod(self.signal_shape) != d:
            raise ValueError(
                f"matrix has {d} columns, but signal_shape {self.signal_shape} has {math.prod(self.signal_shape)} "
                "values: they must agree"
            )
        self.measurement_shape = (m,)
        self.batch = matrix.shape[0] if matrix.ndim == 3 else None
        self.device, self.dtype = matrix.device, matrix.dtype
        self.matrix = matrix.detach().clone(memory_format=torch.contiguous_format)  # the caller may change theirs
        self._onto, self._back = Product(self.matrix.mT), Product(self.matrix)
        self._wide = m <= d
        self._factors: _Factors | None = None
        self._source: tuple[Dense, Tensor] | None = None

    @property
    def resolvent_method(self) -> str:
        """How `resolvent` is computed, in words."""
        return "thin SVD"

    @property
    def has_matrix(self) -> bool:
        """It does."""
        return True

    def row_form(self) -> RowForm | None:
        """Rows ``U^T A`` with ``gram = S^2``, for m <= d."""
        if not self._wide:
            return None
        factors = self._factorise()
        return RowForm(
            forward=lambda x: factors.onto(x.reshape(len(x), -1)),
            adjoint=lambda y: self._signals(factors.back(y)),
            gram=factors.values,
            rotate=lambda y: times(y, factors.basis),
            unrotate=lambda y: times(y, factors.basis.mT),
        )

    def rows(self, index: Tensor) -> Operator:
        """Give the operator for the items in ``index``; each matrix is factorised at most once, here or there."""
        picked = super().rows(index)
        if isinstance(picked, Dense) and picked is not self and self._factors is None:
            picked._source = (self, self._check_index(index))
        return picked

    def dense(self) -> Tensor:
        """Give the matrix itself, as a copy."""
        return self.matrix.clone()

    def _forward(self, x: Tensor) -> Tensor:
        return self._onto(x.reshape(len(x), -1))

    def _adjoint(self, y: Tensor) -> Tensor:
        return self._signals(self._back(y))

    def _resolvent(self, v: Tensor, rho: PerItem, start: Tensor | None) -> Tensor:
        factors = self._factorise()
        rho = rho.reshape(-1, 1) if isinstance(rho, Tensor) else rho
        flat = v.reshape(len(v), -1)
        inner = factors.onto(flat) / (factors.values + rho)
        outer = factors.back(inner)
        return self._signals((flat - outer) / rho if self._wide else outer)

    def _gram_bounds(self) -> tuple[Tensor, Tensor]:
        values = self._factorise().values
        smallest, largest = values[..., 0], values[..., -1]
        full = self.matrix.shape[-2] >= self.matrix.shape[-1]
        return (smallest if full else torch.zeros_like(largest)), largest

    def _map_tensors(self, change: Callable[[Tensor], Tensor]) -> None:
        old, self.matrix = self.matrix.dtype, change(self.matrix)
        self._onto, self._back = Product(self.matrix.mT), Product(self.matrix)
        keeps = self._factors is not None and not is_wider(self.matrix.dtype, old)
        self._factors = self._factors.map(change) if keeps and self._factors is not None else None
        self._source = None

    def _signals(self, flat: Tensor) -> Tensor:
        return flat.reshape(len(flat), *(self.signal_shape or ()))

    def _factorise(self) -> _Factors:
        if self._factors is None and self._source is not None:
            parent, index = self._source
            self._factors = parent._factorise().map(lambda t: t.index_select(0, index))
            self._source = None
        elif self._factors is None:
            self._factors = _factors_of(self.matrix)
        return self._factors


class Gaussian(Dense):
    """``m`` random measurements with independent entries ``N(0, 1/m)``, so that ``E |A x|^2 = |x|^2``.

    Drawn on the CPU in float64 from a generator of its own: the same ``seed`` gives the same matrix on every device,
    in every dtype up to rounding, and leaves torch's global seed alone.

    Parameters
    ----------
    m
        number of measurements of each signal.
    signal_shape
        shape of one signal, as a rule ``G.signal_shape``.
    seed, device, dtype
        of the draw, and where the matrix lives: as the generator.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> gp.operators.Gaussian(32, (1, 8, 8), seed=0)(torch.ones(2, 1, 8, 8)).shape
    torch.Size([2, 32])
    """

    def __init__(
        self,
        m: int,
        signal_shape: int | Sequence[int],
        seed: int = 0,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        m = _validate.whole("m", m)
        generator, self.seed = _validate.seed(seed), int(seed)
        shape = _validate.shape("signal_shape", signal_shape)
        matrix = torch.randn(m, math.prod(shape), generator=generator, dtype=torch.float64, device="cpu")
        super().__init__(matrix.div_(math.sqrt(m)).to(dtype).to(device), shape)

    def __repr__(self) -> str:
        return f"Gaussian({self.matrix.shape[0]}, {self.signal_shape}, seed={self.seed})"


def _factors_of(matrix: Tensor) -> _Factors:
    """Factorise in float64, on the CPU where the device has no float64."""
    exact = (matrix.cpu() if matrix.device.type == "mps" else matrix).double()
    wide = matrix.shape[-2] <= matrix.shape[-1]
    values, basis = torch.linalg.eigh(exact @ exact.mT if wide else exact.mT @ exact)
    rows = (basis.mT @ exact if wide else basis.mT).to(matrix)
    basis = basis.to(matrix).contiguous()
    return _Factors(values.clamp(min=0).to(matrix), basis, rows.contiguous())


# -- packed products ---------------------------------------------------------------------------------------------------


class Product:
    """``x -> x @ matrix``, row by row, with one matrix ``(k, n)`` or one for each row ``(B, k, n)``.

    On a CPU and in float32, products that are large enough use oneDNN with the matrix packed in its own layout, at the first
    of them. With AMD's processors, for which MKL has no kernels of its own, that is 2.1 to 2.6 times as fast. What cannot be
    packed, or must be differentiated, is multiplied as usual; the two differ by rounding.
    """

    def __init__(self, matrix: Tensor) -> None:
        self._matrix = matrix
        self._columns = matrix.shape[-1]
        self._packable = matrix.ndim == 2 and _is_plain(matrix) and can_pack()
        self._packed: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """The product for ``x`` of shape ``(B, k)``."""
        if not self.is_packed_for(x) or (x.requires_grad and torch.is_grad_enabled()):
            return times(x, self._matrix)
        if self._packed is None:
            self._packed = torch.ops.mkldnn._reorder_linear_weight(self._matrix.T.contiguous())
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, None, "none", [], "")
        return product

    def is_packed_for(self, x: Tensor) -> bool:
        """Whether the packed product serves for ``x``: large and plain, and under no transform but autograd."""
        large = self._packable and x.numel() * self._columns >= _WORTH_PACKING
        return large and _is_plain(x) and not _is_transformed(x)

    def __getstate__(self) -> dict[str, object]:
        """What is copied and pickled: the packed matrix comes back at first use."""
        return vars(self) | {"_packed": None}


def times(x: Tensor, matrix: Tensor) -> Tensor:
    """``x @ matrix`` row by row, as torch does it, with one matrix or one for each row."""
    return x @ matrix if matrix.ndim == 2 else (x[:, None] @ matrix)[:, 0]


def _is_plain(x: Tensor) -> bool:
    """Whether it is an ordinary tensor of float32 numbers on the CPU."""
    ordinary = type(x) in (Tensor, torch.nn.Parameter)  # a subclass may do something else in any operation
    return x.dtype is torch.float32 and x.is_cpu and ordinary


def _is_transformed(x: Tensor) -> bool:
    """Whether forward mode, a transform of ``torch.func`` or autocast is at work, none of which the packed product knows."""
    if torch._C._functorch.peek_interpreter_stack() is not None or torch.is_autocast_enabled(x.device.type):
        return True
    # The level is that of all threads: it tells that there are tangents somewhere, not that x has one.
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None  # type: ignore[no-untyped-call]


@lru_cache(maxsize=1)
def can_pack() -> bool:
    """Whether this build of torch has the packed product, and it gives what it should."""
    if not torch.backends.mkldnn.enabled:
        return False
    x, matrix = (torch.tensor(rows, dtype=torch.float32, device="cpu") for rows in ([[1, 2]], [[3, 4], [5, 6]]))
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(matrix)
        given: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        return False
    return given.tolist() == [[11, 17]]
