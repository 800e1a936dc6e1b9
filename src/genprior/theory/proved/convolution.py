"""Upper bounds on the norm of a (transposed) convolution on its actual grid, that are proved and not estimated.

A transposed convolution is the adjoint of a convolution and has the same norm, so both are described by the convolution
from the large grid to the small one, ``y[p] = sum_a K_a x[s p + d a - o]`` with stride s, dilation d, padding o, zero outside
the large grid.

Two routes, both in float64 and up to a stated slack for round-off:

- *Gram*: the smaller Gram matrix is assembled exactly from products of kernel taps. A small one gives all eigenvalues. For a
  larger one Lanczos proposes a number c, and a Cholesky factorisation of ``c I - Gram`` proves that no eigenvalue exceeds it.
- *Fourier*: the convolution is a compression of the one on a torus without wrap-around, whose norm is the largest over all
  frequencies of the norm of a small matrix, its polyphase symbol. Never smaller than the truth, close to it on large grids.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from genprior import _batch
from genprior.theory.proved.spectrum import (
    EIGENVALUES,
    SLACK,
    Bound,
    largest_by_gram,
    smallest_by_gram,
    smallest_by_values,
)

_CHOLESKY = 6400
"""Largest Gram matrix that is factorised."""
_PLACES = 100
_CHUNK = 16
_NUMBERS = 2**23
"""Most numbers in the symbols that are in memory at once, 128 MB."""

Convolution = nn.Conv1d | nn.Conv2d | nn.ConvTranspose1d | nn.ConvTranspose2d


@dataclass(frozen=True)
class Grid:
    """The convolution from the large to the small grid, two-dimensional, one group.

    ``kernel`` is ``(small channels, large channels, kh, kw)``.
    """

    kernel: Tensor
    small: tuple[int, int]
    large: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    @property
    def widths(self) -> tuple[int, int]:
        """Numbers on the small and on the large grid."""
        return self.kernel.shape[0] * math.prod(self.small), self.kernel.shape[1] * math.prod(self.large)

    def offset(self, tap: tuple[int, int]) -> tuple[int, int]:
        """Offset of the tap on the large grid, relative to ``s p``."""
        rows, columns = (d * a - o for d, a, o in zip(self.dilation, tap, self.padding, strict=True))
        return rows, columns


def grids(layer: Convolution, inside: tuple[int, ...], outside: tuple[int, ...]) -> list[Grid]:
    """One grid per group; ``inside`` and ``outside`` are the shapes ``(channels, *axes)`` of one item."""
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        raise NotImplementedError(f"padding {layer.padding_mode!r}, {layer.padding!r}")
    turned = isinstance(layer, nn.ConvTranspose1d | nn.ConvTranspose2d)
    small, large = (inside, outside) if turned else (outside, inside)
    weight = layer.weight.detach().double()
    # A transposed layer keeps (in, out / groups, ...), which is (small, large / groups, ...) here, as in a plain one.
    flat = weight.ndim == 3
    parts = (weight[:, :, None] if flat else weight).chunk(layer.groups)

    def pair(values: tuple[int, ...], filler: int) -> tuple[int, int]:
        return (filler, int(values[0])) if flat else (int(values[0]), int(values[1]))

    shape = pair(small[1:], 1), pair(large[1:], 1), pair(tuple(layer.stride), 1)
    rest = pair(tuple(layer.padding), 0), pair(tuple(layer.dilation), 1)
    return [Grid(part, *shape, *rest) for part in parts]


def norm_bound(parts: list[Grid], *, transposed: bool) -> Bound:
    """The norm of a convolution: the largest over its groups. The floor is that of the map from its own input."""
    bounds = [_one_group(grid, "small" if transposed else "large") for grid in parts]
    top = max(bounds, key=lambda bound: bound.value)
    known = [bound.floor for bound in bounds if bound.floor is not None]
    decided = 0.0 in known or len(known) == len(bounds)
    return Bound(top.value, top.method, min(known) if decided else None, not decided and any(b.lost for b in bounds))


def _one_group(grid: Grid, source: str) -> Bound:
    if grid.kernel[0, 0].numel() == 1 and set(grid.stride) == {1} and set(grid.padding) == {0}:
        return _pointwise(grid.kernel[:, :, 0, 0] if source == "large" else grid.kernel[:, :, 0, 0].T)
    fourier = Bound(math.sqrt(fourier_bound(grid)) * (1 + SLACK), "Fourier symbol")
    side = "small" if grid.widths[0] <= grid.widths[1] else "large"
    if not _worth_factorising(grid):
        return fourier
    matrix = gram(grid, side)
    proved = largest_by_gram(matrix) or fourier
    narrows = side != source and grid.widths[0] != grid.widths[1]
    floor = 0.0 if narrows else smallest_by_gram(matrix, proved.value)
    best = proved if proved.value < fourier.value else fourier
    return Bound(best.value, best.method, floor, floor is None)


def _worth_factorising(grid: Grid) -> bool:
    """Small, or larger with few places: on many places the Fourier bound is close, and costs next to nothing."""
    size = min(grid.widths)
    return size <= EIGENVALUES or (size <= _CHOLESKY and min(math.prod(grid.small), math.prod(grid.large)) <= _PLACES)


def _taps(grid: Grid) -> Iterator[tuple[int, int]]:
    rows, columns = grid.kernel.shape[2:]
    return itertools.product(range(rows), range(columns))


def _pointwise(matrix: Tensor) -> Bound:
    """A 1 x 1 kernel applies one matrix at every place."""
    values = torch.linalg.svdvals(matrix)
    floor = smallest_by_values(matrix, values)
    return Bound(float(values[0]) * (1 + SLACK), "singular values", floor, floor is None)


def gram(grid: Grid, side: str) -> Tensor:
    """``A A^T`` ("small") or ``A^T A`` ("large"), assembled from products of taps."""
    kernel = grid.kernel if side == "small" else grid.kernel.transpose(0, 1)
    taps = list(_taps(grid))
    size = grid.small if side == "small" else grid.large
    channels, places = kernel.shape[0], math.prod(size)
    blocks = kernel.new_zeros(places, places, channels, channels)
    for a, b in itertools.product(taps, taps):
        here, there = _meetings(grid, a, b, side)
        if len(here):
            product = kernel[:, :, a[0], a[1]] @ kernel[:, :, b[0], b[1]].T
            blocks[here, there] += product
    return blocks.permute(0, 2, 1, 3).reshape(places * channels, places * channels)


def _meetings(grid: Grid, a: tuple[int, int], b: tuple[int, int], side: str) -> tuple[Tensor, Tensor]:
    """Pairs of places that tap a and tap b connect: through a common place of the large grid, or of the small one."""
    axes = [_axis_meetings(grid, a, b, side, axis) for axis in (0, 1)]
    width = (grid.small if side == "small" else grid.large)[1]
    here, there = (axes[0][k][:, None] * width + axes[1][k][None, :] for k in (0, 1))
    return here.flatten(), there.flatten()


def _axis_meetings(grid: Grid, a: tuple[int, int], b: tuple[int, int], side: str, axis: int) -> tuple[Tensor, Tensor]:
    s, first, second = grid.stride[axis], grid.offset(a)[axis], grid.offset(b)[axis]
    p = torch.arange(grid.small[axis], device="cpu")
    if side == "large":  # p is the common place: q = s p + first, q' = s p + second
        here, there = s * p + first, s * p + second
        fits = (here >= 0) & (here < grid.large[axis]) & (there >= 0) & (there < grid.large[axis])
        return here[fits], there[fits]
    if (first - second) % s:
        return p[:0], p[:0]
    there, common = p + (first - second) // s, s * p + first
    fits = (there >= 0) & (there < grid.small[axis]) & (common >= 0) & (common < grid.large[axis])
    return p[fits], there[fits]


def fourier_bound(grid: Grid) -> float:
    """The largest eigenvalue of ``M(w) M(w)^*`` over the frequencies w of the torus, M the polyphase symbol.

    A few of these matrices are in memory at a time: all are made once for a limit on their eigenvalues, and those with the
    largest limits once more for the eigenvalues themselves.
    """
    frequencies, size = _frequencies(grid), _chunk(grid)
    limits = torch.cat([_limits(_symbol_grams(grid, part)) for part in _batch.pieces(frequencies, size)])
    best = 0.0
    for chosen in _batch.pieces(limits.argsort(descending=True), size):
        if float(limits[chosen[0]]) <= best:
            break
        grams = _symbol_grams(grid, frequencies[chosen])
        best = max(best, float(torch.linalg.eigvalsh(grams)[:, -1].max()))
    return best


def _limits(grams: Tensor) -> Tensor:
    """``(tr G^4)^(1/4)``, never below the largest eigenvalue."""
    limits: Tensor = torch.linalg.matrix_norm(grams @ grams).sqrt()
    return limits


def _frequencies(grid: Grid) -> Tensor:
    """Of the torus; the kernel is real, so half of them are enough."""
    high, wide = (_period(grid, axis) for axis in (0, 1))
    rows = torch.arange(high, dtype=torch.float64, device="cpu") / high
    columns = torch.arange(wide // 2 + 1, dtype=torch.float64, device="cpu") / wide
    return torch.cartesian_prod(rows, columns)


def _chunk(grid: Grid) -> int:
    """How many symbols are in memory at once."""
    small, large = grid.kernel.shape[:2]
    return max(1, min(_CHUNK, _NUMBERS // (small * large * math.prod(grid.stride))))


def _period(grid: Grid, axis: int) -> int:
    """Length of the torus over the small grid on which nothing wraps around."""
    reach = grid.dilation[axis] * (grid.kernel.shape[2 + axis] - 1)
    low = min(0, -grid.padding[axis])
    high = max(grid.large[axis] - 1, grid.stride[axis] * (grid.small[axis] - 1) + reach - grid.padding[axis])
    return max(grid.small[axis], math.ceil((high - low + 1) / grid.stride[axis]))


def _symbol_grams(grid: Grid, frequencies: Tensor) -> Tensor:
    small, large = grid.kernel.shape[:2]
    phases = math.prod(grid.stride)
    symbol = torch.zeros(len(frequencies), phases, small, large, dtype=torch.complex128, device="cpu")
    for tap in _taps(grid):
        rows, columns = grid.offset(tap)
        angle = (
            2
            * math.pi
            * (frequencies[:, 0] * (rows // grid.stride[0]) + frequencies[:, 1] * (columns // grid.stride[1]))
        )
        wave = torch.polar(torch.ones_like(angle), angle)
        phase = (rows % grid.stride[0]) * grid.stride[1] + columns % grid.stride[1]
        symbol[:, phase] += wave[:, None, None] * grid.kernel[:, :, tap[0], tap[1]]
    matrix = symbol.permute(0, 2, 1, 3).reshape(len(frequencies), small, phases * large)
    return matrix @ matrix.mH if small <= phases * large else matrix.mH @ matrix
