"""Random measurements without a matrix: rows of a randomised Walsh-Hadamard transform."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from genprior import _validate
from genprior._batch import PerItem
from genprior.operators.base import Operator, RowForm, check_real, orthogonal_rows_resolvent, unrotated
from genprior.operators.gram import GramForm

LARGEST_FACTOR_BITS = 5


class SubsampledHadamard(Operator):
    """``m`` random rows of a random orthogonal matrix ``Q``, scaled: ``A = sqrt(d / m) R Q``, in ``O(d log d)``.

    One round permutes the signal, changes signs at random and applies an orthonormal Walsh-Hadamard transform to each
    block, where the blocks are the binary digits of d (784 = 512 + 256 + 16). ``Q`` is one round when d is a power of
    two, else two, so that the blocks mix. ``A A^T = (d / m) I`` for every d, and ``E |A x|^2 = |x|^2`` as for
    `Gaussian`; memory is a few numbers for each signal value.

    Parameters
    ----------
    m
        number of measurements, at most d.
    signal_shape
        shape of one signal, of d values.
    seed, device, dtype
        of the draw, and where the operator lives: as the generator.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> gp.operators.SubsampledHadamard(32, (1, 8, 8), seed=0)(torch.ones(2, 1, 8, 8)).shape
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
        self.signal_shape = _validate.shape("signal_shape", signal_shape)
        d = math.prod(self.signal_shape)
        m = _validate.whole("m", m)
        if m > d:
            raise ValueError(f"m must be at most {d}, the number of signal values, got {m}: Gaussian allows more")
        generator, self.seed = _validate.seed(seed), int(seed)
        check_real(dtype)
        self.measurement_shape = (m,)
        self.device, self.dtype = torch.empty(0, device=device).device, dtype
        self._gram = d / m
        self._blocks = [2**bit for bit in reversed(range(d.bit_length())) if d >> bit & 1]
        rounds = 1 if len(self._blocks) == 1 else 2
        orders = [torch.randperm(d, generator=generator, device="cpu") for _ in range(rounds)]
        signs = [torch.randint(0, 2, (d,), generator=generator, device="cpu") * 2 - 1 for _ in range(rounds)]
        self._orders = [order.to(device) for order in orders]
        self._inverses = [order.argsort().to(device) for order in orders]
        self._signs = [sign.to(device=device, dtype=dtype) for sign in signs]
        self._kept = torch.randperm(d, generator=generator, device="cpu")[:m].sort().values.to(device)
        self._factors = {n: [f.to(device=device, dtype=dtype) for f in _small_factors(n)] for n in self._blocks}

    @property
    def resolvent_method(self) -> str:
        """How `resolvent` is computed, in words."""
        return "orthogonal rows"

    def gram_form(self) -> GramForm | None:
        """The identity, where all rows are kept."""
        return GramForm(1.0) if self._gram == 1 else None

    def row_form(self) -> RowForm:
        """Itself, with ``gram = d / m``."""
        return RowForm(self._forward, self._adjoint, self._gram, unrotated, unrotated)

    def _forward(self, x: Tensor) -> Tensor:
        x = x.reshape(len(x), -1)
        for order, signs in zip(self._orders, self._signs, strict=True):
            x = self._transform(x.index_select(1, order) * signs)
        return x.index_select(1, self._kept) * math.sqrt(self._gram)

    def _adjoint(self, y: Tensor) -> Tensor:
        x = y.new_zeros(len(y), len(self._orders[0]))
        x = x.index_copy(1, self._kept, y * math.sqrt(self._gram))
        for inverse, signs in zip(reversed(self._inverses), reversed(self._signs), strict=True):
            x = (self._transform(x) * signs).index_select(1, inverse)
        return x.reshape(len(y), *(self.signal_shape or ()))

    def _resolvent(self, v: Tensor, rho: PerItem, start: Tensor | None) -> Tensor:
        return orthogonal_rows_resolvent(self, self._gram, v, rho)

    def _gram_bounds(self) -> tuple[Tensor, Tensor]:
        largest = torch.tensor(self._gram, device=self.device, dtype=self.dtype)
        return (largest if self._gram == 1 else torch.zeros_like(largest)), largest

    def _map_tensors(self, change: Callable[[Tensor], Tensor]) -> None:
        self._kept = change(self._kept)
        self._orders = [change(order) for order in self._orders]
        self._inverses = [change(inverse) for inverse in self._inverses]
        self._signs = [change(signs) for signs in self._signs]
        self._factors = {n: [factor.to(self._signs[0]) for factor in _small_factors(n)] for n in self._blocks}

    def _transform(self, x: Tensor) -> Tensor:
        """Block-diagonal orthonormal Walsh-Hadamard transform, symmetric and its own inverse."""
        parts = [
            _walsh_hadamard(part, self._factors[part.shape[1]]) for part in x.split_with_sizes(self._blocks, dim=1)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def __repr__(self) -> str:
        return f"SubsampledHadamard({len(self._kept)}, {self.signal_shape}, seed={self.seed})"


def _walsh_hadamard(x: Tensor, factors: list[Tensor]) -> Tensor:
    """Apply ``H1 (x) H2 (x) ...`` to the second axis.

    Each product takes the first of the remaining axes and puts the result last, so that after all of them the axes
    stand in their first order: a few products with small matrices, no copies in between.
    """
    shape = x.shape
    for factor in factors:
        x = x.reshape(shape[0], len(factor), -1).mT @ factor
    return x.reshape(shape)


def _small_factors(n: int) -> list[Tensor]:
    """Orthonormal Hadamard matrices of at most 32 rows whose Kronecker product is the one of ``n`` rows."""
    bits = n.bit_length() - 1
    count = max(1, math.ceil(bits / LARGEST_FACTOR_BITS))
    sizes = [bits // count + (i < bits % count) for i in range(count)]
    return [_hadamard(bits) for bits in sizes]


def _hadamard(bits: int) -> Tensor:
    matrix = torch.ones(1, 1, dtype=torch.float64)
    two = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64) / math.sqrt(2)
    for _ in range(bits):
        matrix = torch.kron(matrix, two)
    return matrix
