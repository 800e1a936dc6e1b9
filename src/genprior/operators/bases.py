"""Orthonormal bases in which signals, or deviations from a generator's range, are sparse: cosines and wavelets.

A basis maps coefficients to signals of the same shape, ``x = Psi v``; its adjoint gives the coefficients of a signal.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from genprior import _validate
from genprior._axes import axes_of, spatial_dims
from genprior._batch import PerItem
from genprior.operators.base import Operator, RowForm, check_real
from genprior.operators.gram import GramForm

_LARGEST_MATRIX = 512
"""Longest axis that is transformed by a matrix: for longer ones the fast transform is faster."""
_MOST_MOMENTS = 10
"""Largest number of a Daubechies wavelet: beyond, the roots that its filter is made of lose digits."""


class Basis(Operator):
    """An orthonormal basis, ``Psi^T Psi = Psi Psi^T = I``: coefficients to signals."""

    dims: int
    """How many of the last axes are space or time; the others are channels, each transformed on its own."""

    def _set(
        self, signal_shape: int | Sequence[int], dims: int | None, device: torch.device | str | None, dtype: torch.dtype
    ) -> None:
        self.signal_shape = self.measurement_shape = shape = _validate.shape("signal_shape", signal_shape)
        self.dims = spatial_dims("the signal", shape, dims)
        check_real(dtype)
        self.device, self.dtype = torch.empty(0, device=device).device, dtype

    @property
    def resolvent_method(self) -> str:
        """How `resolvent` is computed, in words."""
        return "orthonormal basis"

    def gram_form(self) -> GramForm:
        """The identity."""
        return GramForm(1.0)

    def transposed_gram_form(self) -> GramForm:
        """The identity."""
        return GramForm(1.0)

    def row_form(self) -> RowForm:
        """Itself."""
        return RowForm(self._forward, self._adjoint, 1.0, lambda y: y, lambda y: y)

    def _resolvent(self, v: Tensor, rho: PerItem, start: Tensor | None) -> Tensor:
        return v / (1 + rho)

    def _forward(self, x: Tensor) -> Tensor:
        return self._synthesis(x)

    def _adjoint(self, y: Tensor) -> Tensor:
        return self._analysis(y)

    @abstractmethod
    def _synthesis(self, v: Tensor) -> Tensor:
        """``Psi v``."""

    @abstractmethod
    def _analysis(self, x: Tensor) -> Tensor:
        """``Psi^T x``."""


class DCT(Basis):
    """Cosines: the orthonormal discrete cosine transform of type II along space or time, for each channel.

    ``DCT(shape).adjoint(x)`` are the coefficients of ``x``, and ``DCT(shape)(v)`` is the signal with the coefficients ``v``.

    Parameters
    ----------
    signal_shape
        shape of one signal, channels first.
    dims
        how many of the last axes are space or time; by default as for :class:`Downsample`.
    device, dtype
        where the basis lives: as the generator.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> Psi = gp.operators.DCT((1, 4, 4))
    >>> Psi.adjoint(torch.ones(1, 1, 4, 4)).flatten().round(decimals=3).abs().unique()
    tensor([0., 4.])
    """

    def __init__(
        self,
        signal_shape: int | Sequence[int],
        *,
        dims: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._set(signal_shape, dims, device, dtype)
        self._make()

    def _make(self) -> None:
        sizes = {n for n in (self.signal_shape or ())[-self.dims :] if n <= _LARGEST_MATRIX}
        self._matrices = {n: _cosines(n).to(device=self.device, dtype=self.dtype) for n in sizes}

    def _analysis(self, x: Tensor) -> Tensor:
        for axis in axes_of(self.dims):
            x = _along(axis, x, self._analysis_of_lines)
        return x

    def _synthesis(self, v: Tensor) -> Tensor:
        for axis in axes_of(self.dims):
            v = _along(axis, v, self._synthesis_of_lines)
        return v

    def _analysis_of_lines(self, x: Tensor) -> Tensor:
        matrix = self._matrices.get(x.shape[-1])
        return _fast_cosines(x) if matrix is None else x @ matrix.mT

    def _synthesis_of_lines(self, v: Tensor) -> Tensor:
        matrix = self._matrices.get(v.shape[-1])
        return _fast_inverse(v) if matrix is None else v @ matrix

    def _map_tensors(self, change: Callable[[Tensor], Tensor]) -> None:
        like = change(torch.empty(0, device=self.device, dtype=self.dtype))
        self._matrices = {n: _cosines(n).to(like) for n in self._matrices}

    def __repr__(self) -> str:
        return f"DCT({self.signal_shape})"


class Wavelet(Basis):
    """Orthonormal wavelets along space or time, for each channel, with periodic boundaries.

    In every level each axis of the coarse part is split into a coarse and a fine half, as long as its length is even and no
    shorter than the filter: sides that are no power of two take fewer levels, and an odd one none. The coarse part stands
    in front.

    Parameters
    ----------
    signal_shape
        shape of one signal, channels first.
    name
        ``"haar"``, or ``"db2"`` to ``"db10"``: Daubechies' wavelets with so many vanishing moments.
    levels
        number of levels; by default as many as there can be.
    dims
        how many of the last axes are space or time; by default as for :class:`Downsample`.
    device, dtype
        where the basis lives: as the generator.

    References
    ----------
    Daubechies 1988, Orthonormal bases of compactly supported wavelets; Mallat 1989.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> Psi = gp.operators.Wavelet((1, 8, 8), "haar")
    >>> int((Psi.adjoint(torch.ones(1, 1, 8, 8)).abs() > 1e-5).sum())
    1
    """

    def __init__(
        self,
        signal_shape: int | Sequence[int],
        name: str = "db4",
        levels: int | None = None,
        *,
        dims: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._set(signal_shape, dims, device, dtype)
        self.name, self._low = name, daubechies(name)
        self.levels = _levels(self.signal_shape[-self.dims :], len(self._low)) if self.signal_shape else []
        if levels is not None:
            self.levels = self.levels[: _validate.whole("levels", levels)]
        if not self.levels:
            raise ValueError(
                f"signals of shape {self.signal_shape} cannot be split by {name!r}: no axis of space or time has an even "
                f"length of at least {len(self._low)}; use a shorter wavelet such as 'haar', or DCT"
            )
        self._make(torch.empty(0, device=device, dtype=dtype))

    def _make(self, like: Tensor) -> None:
        low = torch.tensor(self._low, dtype=torch.float64)
        sizes = {size[axis] for size, axes in self.levels for axis in axes}
        small = {n for n in sizes if n <= _LARGEST_MATRIX}
        self._matrices = {n: _split(torch.eye(n, dtype=torch.float64), low).mT.contiguous().to(like) for n in small}
        self._filter = low.to(like)

    def _analysis(self, x: Tensor) -> Tensor:
        x = x.clone()
        for size, axes in self.levels:
            corner = _corner(x, size)
            part = corner
            for axis in axes:
                part = _along(axis, part, self._split_lines)
            corner.copy_(part)
        return x

    def _synthesis(self, v: Tensor) -> Tensor:
        v = v.clone()
        for size, axes in reversed(self.levels):
            corner = _corner(v, size)
            part = corner
            for axis in axes:
                part = _along(axis, part, self._join_lines)
            corner.copy_(part)
        return v

    def _split_lines(self, x: Tensor) -> Tensor:
        matrix = self._matrices.get(x.shape[-1])
        return _split(x, self._filter) if matrix is None else x @ matrix.mT

    def _join_lines(self, v: Tensor) -> Tensor:
        matrix = self._matrices.get(v.shape[-1])
        return _joined(v, self._filter) if matrix is None else v @ matrix

    def _map_tensors(self, change: Callable[[Tensor], Tensor]) -> None:
        self._make(change(self._filter)[:0])

    def __repr__(self) -> str:
        return f"Wavelet({self.signal_shape}, {self.name!r}, levels={len(self.levels)})"


def parse_basis(
    text: str, signal_shape: tuple[int, ...], *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Operator | None:
    """The basis that a word such as ``"dct"``, ``"wavelet"``, ``"haar"`` or ``"db2"`` names; None for ``"identity"``.

    Examples
    --------
    >>> from genprior.operators.bases import parse_basis
    >>> parse_basis("haar", (1, 28, 28))
    Wavelet((1, 28, 28), 'haar', levels=2)
    """
    if text == "identity":
        return None
    if text == "dct":
        return DCT(signal_shape, device=device, dtype=dtype)
    if text != "wavelet" and re.fullmatch(r"haar|db\d+", text) is None:
        raise ValueError(f"there is no basis {text!r}: give identity, dct, wavelet, haar, or db2 to db{_MOST_MOMENTS}")
    return Wavelet(signal_shape, "db4" if text == "wavelet" else text, device=device, dtype=dtype)


# -- cosines -----------------------------------------------------------------------------------------------------------


def _cosines(n: int) -> Tensor:
    """The matrix of the transform of length n."""
    k, j = torch.arange(n, dtype=torch.float64)[:, None], torch.arange(n, dtype=torch.float64)
    matrix = torch.cos(math.pi / n * k * (j + 0.5)) * math.sqrt(2 / n)
    matrix[0] /= math.sqrt(2)
    return matrix


def _fast_cosines(x: Tensor) -> Tensor:
    """Along the last axis, by the Fourier transform of the even entries followed by the odd ones backwards."""
    n = x.shape[-1]
    spectrum = torch.fft.fft(torch.cat([x[..., ::2], x[..., 1::2].flip(-1)], dim=-1))
    turned: Tensor = (spectrum * _quarter_turns(n, x)).real * math.sqrt(2 / n)
    return torch.cat([turned[..., :1] / math.sqrt(2), turned[..., 1:]], dim=-1)


def _fast_inverse(v: Tensor) -> Tensor:
    """The inverse of :func:`_fast_cosines`: an orthonormal map, whose transpose it is."""
    n = v.shape[-1]
    v = torch.cat([v[..., :1] * math.sqrt(2), v[..., 1:]], dim=-1) * math.sqrt(n / 2)
    backwards = torch.cat([torch.zeros_like(v[..., :1]), v[..., 1:].flip(-1)], dim=-1)
    signal = torch.fft.ifft(torch.complex(v, -backwards) * _quarter_turns(n, v).conj()).real
    x = torch.empty_like(v)
    x[..., ::2], x[..., 1::2] = signal[..., : (n + 1) // 2], signal[..., (n + 1) // 2 :].flip(-1)
    return x


def _quarter_turns(n: int, like: Tensor) -> Tensor:
    angle = -math.pi / (2 * n) * torch.arange(n, device=like.device, dtype=like.dtype)
    return torch.polar(torch.ones_like(angle), angle)


# -- wavelets ----------------------------------------------------------------------------------------------------------


def daubechies(name: str) -> list[float]:
    """The low-pass filter of ``"haar"`` or ``"db2"`` to ``"db10"``, of norm one, by spectral factorisation.

    The filter's polynomial is ``(1 + z)^p q(z)``, where ``|q|^2`` is the polynomial ``sum_k C(p-1+k, k) y^k`` in
    ``y = (2 - z - 1/z)/4``; q takes the roots within the unit circle.
    """
    match = re.fullmatch(r"haar|db(\d+)", name) if isinstance(name, str) else None
    moments = 0 if match is None else int(match.group(1) or 1)
    if not 1 <= moments <= _MOST_MOMENTS:
        raise ValueError(f"there is no wavelet {name!r}: give 'haar', or 'db2' to 'db{_MOST_MOMENTS}'")
    ys = np.roots([math.comb(moments - 1 + k, k) for k in reversed(range(moments))])
    roots = [root for y in ys for root in np.roots([1, 4 * y - 2, 1]) if abs(root) < 1]
    polynomial = np.real(np.poly([-1.0] * moments + roots))
    return [float(value) for value in polynomial * math.sqrt(2) / polynomial.sum()]


def _levels(size: tuple[int, ...], taps: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """For every level the size of the part that is split, and its axes that are, counted from the end."""
    levels = []
    while axes := tuple(k - len(size) for k, n in enumerate(size) if n % 2 == 0 and n >= taps):
        levels.append((size, axes))
        size = tuple(n // 2 if k - len(size) in axes else n for k, n in enumerate(size))
    return levels


def _split(x: Tensor, low: Tensor) -> Tensor:
    """One level along the last axis: the coarse half, then the fine half."""
    n = x.shape[-1]
    begin = torch.arange(0, n, 2, device=x.device)
    windows = x[..., (begin[:, None] + torch.arange(len(low), device=x.device)) % n]
    return torch.cat([windows @ low, windows @ _high(low)], dim=-1)


def _joined(v: Tensor, low: Tensor) -> Tensor:
    """The inverse, and transpose, of :func:`_split`: even and odd entries each from every second tap."""
    half = v.shape[-1] // 2
    begin = torch.arange(half, device=v.device)
    order = (begin[:, None] - torch.arange(len(low) // 2, device=v.device)) % half
    coarse, fine = v[..., :half][..., order], v[..., half:][..., order]
    high = _high(low)
    entries = [coarse @ low[phase::2] + fine @ high[phase::2] for phase in (0, 1)]
    return torch.stack(entries, dim=-1).flatten(-2)


def _high(low: Tensor) -> Tensor:
    """The high-pass filter: the low-pass one backwards, with alternating signs."""
    signs = torch.ones_like(low)
    signs[1::2] = -1
    return low.flip(0) * signs


# -- axes --------------------------------------------------------------------------------------------------------------


def _along(axis: int, x: Tensor, transform: Callable[[Tensor], Tensor]) -> Tensor:
    """The transform of the last axis, applied to another one."""
    return transform(x) if axis == -1 else transform(x.transpose(axis, -1)).transpose(axis, -1)


def _corner(x: Tensor, size: tuple[int, ...]) -> Tensor:
    """The first entries of the last axes."""
    for axis, n in zip(axes_of(len(size)), size, strict=True):
        x = x.narrow(axis, 0, n)
    return x
