"""Products with a matrix that stays: packed once for the processor, then more than twice as fast as a plain product."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.autograd import forward_ad

_WORTH_PACKING = 2**20
"""Multiplications of one product; below it, a plain product is as fast or faster."""


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
