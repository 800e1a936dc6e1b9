"""Operators that the Fourier transform makes diagonal: circular blur and subsampled Fourier measurements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from genprior import _validate
from genprior._axes import axes_of, is_ambiguous, spatial_dims, times
from genprior._batch import PerItem
from genprior.operators.base import Operator, RowForm, check_real
from genprior.operators.gram import GramForm


class _Circulant(Operator):
    """``A^T A`` is a circular convolution along space or time, with eigenvalues ``_energy`` on the grid of ``rfftn``."""

    dims: int
    """How many of the last axes are space or time."""
    _size: tuple[int, ...]
    _energy: Tensor

    def _set_shape(self, signal_shape: int | Sequence[int], dims: int | None, plane: object, per_item: bool) -> None:
        """Set shapes and axes; where the shape does not tell the latter, the axes of a given ``plane`` do."""
        self.signal_shape = self.measurement_shape = shape = _validate.shape("signal_shape", signal_shape)
        if dims is None and is_ambiguous(shape) and isinstance(plane, Tensor) and plane.ndim > per_item:
            dims = plane.ndim - per_item
        self.dims = spatial_dims("the signal", shape, dims)
        self._size = shape[-self.dims :]

    def gram_form(self) -> GramForm | None:
        """``A^T A`` by its eigenvalues."""
        return GramForm(values=self._energy, dims=self.dims)

    def _over_channels(self, plane: Tensor) -> Tensor:
        """Insert axes of length 1 so that one plane, or one per item, multiplies signals."""
        channels = len(self.signal_shape or ()) - self.dims
        return plane if self.batch is None else plane.reshape(self.batch, *(1,) * channels, *plane.shape[-self.dims :])

    def _transform(self, x: Tensor) -> Tensor:
        spectrum: Tensor = torch.fft.rfftn(x, dim=axes_of(self.dims))
        return spectrum

    def _image(self, spectrum: Tensor) -> Tensor:
        image: Tensor = torch.fft.irfftn(spectrum, s=self._size, dim=axes_of(self.dims))
        return image


class Blur(_Circulant):
    """Circular convolution ``A x = h * x`` along the axes of space or time, the same for all channels.

    With ``K = fftn(h)``: ``A x = ifftn(K fftn(x))``, resolvent ``ifftn(fftn(v) / (|K|^2 + rho))``.

    Parameters
    ----------
    kernel
        a number (the standard deviation of a normalised Gaussian, wrapped around); or a tensor with one axis for each
        one of space or time, ``(h, w)`` for images, its centre at ``(h // 2, w // 2)``; or one for each item,
        ``(B, h, w)``, with ``per_item=True``.
    signal_shape
        shape of one signal, channels first.
    dims
        how many of the last axes are space or time; the others are channels. By default as for :class:`Downsample`;
        where two axes may be an image or channels, the axes of a tensor ``kernel`` tell.
    device, dtype
        a number works in ``dtype`` (float32 by default) on ``device``, a tensor in its own.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> bool(gp.operators.Blur(2.0, (1, 8, 8))(torch.ones(2, 1, 8, 8)).isclose(torch.tensor(1.0)).all())
    True
    """

    def __init__(
        self,
        kernel: float | Tensor,
        signal_shape: int | Sequence[int],
        *,
        per_item: bool = False,
        dims: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._set_shape(signal_shape, dims, kernel, per_item)
        check_real(dtype)
        if per_item and not isinstance(kernel, Tensor):
            raise ValueError(f"kernel={kernel!r} with per_item=True: give one kernel per item, a tensor (B, h, w)")
        if isinstance(kernel, Tensor):
            kernel = _validate.tensor("kernel", kernel).detach().to(device=device, dtype=dtype)
            _check_kernel(kernel, self._size, per_item)
        else:
            kernel = _gaussian(_validate.number("kernel (sigma)", kernel, above=0), self._size)
            kernel = kernel.to(device=device, dtype=dtype or torch.float32)
        self.batch = len(kernel) if per_item else None
        self.device, self.dtype = kernel.device, kernel.dtype
        self._spectrum = self._over_channels(self._transform(_periodic(kernel, self._size)))
        self._energy = self._spectrum.abs() ** 2

    def transposed_gram_form(self) -> GramForm | None:
        """As ``A^T A``."""
        return self.gram_form()

    def _forward(self, x: Tensor) -> Tensor:
        return self._image(self._transform(x) * self._spectrum)

    def _adjoint(self, y: Tensor) -> Tensor:
        return self._image(self._transform(y) * self._spectrum.conj())

    def _map_tensors(self, change: Callable[[Tensor], Tensor]) -> None:
        self._spectrum = change(self._spectrum)
        self._energy = self._spectrum.abs() ** 2


class SubsampledFourier(_Circulant):
    """``A x = M fftn(x)``: unitary transform along space or time, and a 0/1 mask ``M`` of kept frequencies.

    ``frequencies`` is a whole number (so many at random, the zero frequency always among them), a boolean mask of the
    axes of space or time, ``(H, W)`` for images, in the order of ``torch.fft.fftn`` (with ``centred=True``: zero frequency
    in the middle), or one for each item, ``(B, H, W)``, with ``per_item=True``. The result is the zero-filled complex
    spectrum.

    Signals are real, so ``A^T y = Re ifftn(M y)`` and ``A^T A`` is circulant with eigenvalues ``(M(k) + M(-k)) / 2``.

    Parameters
    ----------
    frequencies, per_item, centred
        which are kept, as above.
    signal_shape
        shape of one signal, channels first.
    seed
        of the draw, where ``frequencies`` is a number.
    dims
        how many of the last axes are space or time; the others are channels. By default as for :class:`Downsample`;
        where two axes may be an image or channels, the axes of a mask tell.
    device, dtype
        where the operator lives, and the real dtype of its signals: as the generator.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> gp.operators.SubsampledFourier(20, (1, 8, 8), seed=0)(torch.ones(2, 1, 8, 8)).dtype
    torch.complex64
    """

    complex_measurements = True

    def __init__(
        self,
        frequencies: int | Tensor,
        signal_shape: int | Sequence[int],
        seed: int = 0,
        *,
        per_item: bool = False,
        centred: bool = False,
        dims: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._set_shape(signal_shape, dims, frequencies, per_item)
        axes = axes_of(self.dims)
        check_real(dtype)
        if isinstance(frequencies, Tensor):
            mask = _check_frequencies(frequencies, self._size, per_item)
            mask = torch.fft.ifftshift(mask, dim=axes) if centred else mask
        elif per_item or centred:
            raise ValueError("per_item=True and centred=True need frequencies given as a mask, got a whole number")
        else:
            mask = _random_frequencies(frequencies, self._size, seed)
        mask = mask.detach().to(device=device, dtype=dtype)
        self.batch = len(mask) if per_item else None
        self.device, self.dtype = mask.device, mask.dtype
        self._mask, self._whole = self._over_channels(mask), bool(mask.all())
        opposite = self._mask.flip(axes).roll((1,) * self.dims, axes)
        self._energy = ((self._mask + opposite) / 2)[..., : self._size[-1] // 2 + 1].contiguous()

    def measured(self, y: Tensor) -> Tensor:
        """``y`` with zeros at the frequencies that are not kept."""
        return torch.where(self._mask > 0, y, 0)

    def on_complex(self) -> Operator:
        """The same transform."""
        other = self._changed(lambda t: t)
        other.complex_signals, other._bounds = True, None
        return other

    def gram_form(self) -> GramForm | None:
        """``A^T A`` by its eigenvalues on real signals; the identity where every frequency is kept."""
        if self._whole:
            return GramForm(1.0)
        return None if self.complex_signals else super().gram_form()

    def transposed_gram_form(self) -> GramForm | None:
        """``A A^H = M``, for complex signals."""
        if not self.complex_signals:
            return None
        return GramForm(1.0) if self._whole else GramForm(values=self._mask)

    def row_form(self) -> RowForm | None:
        """Itself, for complex signals: ``A A^H = M``."""
        return RowForm(self._forward, self._adjoint, self._mask, _same, _same) if self.complex_signals else None

    @property
    def closed_form(self) -> bool:
        """Always."""
        return True

    @property
    def resolvent_method(self) -> str:
        """The fast Fourier transform."""
        return "FFT"

    def _resolvent(self, v: Tensor, rho: PerItem, start: Tensor | None) -> Tensor:
        if not self.complex_signals:
            return super()._resolvent(v, rho, start)
        axes = axes_of(self.dims)
        solution: Tensor = torch.fft.ifftn(torch.fft.fftn(v, dim=axes) / (self._mask + rho), dim=axes)
        return solution

    def _gram_bounds(self) -> tuple[Tensor, Tensor]:
        if not self.complex_signals:
            return super()._gram_bounds()
        return GramForm(values=self._mask).bounds(self.batch)

    def _forward(self, x: Tensor) -> Tensor:
        spectrum: Tensor = torch.fft.fftn(x, dim=axes_of(self.dims), norm="ortho")
        return self._mask * spectrum

    def _adjoint(self, y: Tensor) -> Tensor:
        image: Tensor = torch.fft.ifftn(self._mask * y, dim=axes_of(self.dims), norm="ortho")
        return image if self.complex_signals else image.real

    def _map_tensors(self, change: Callable[[Tensor], Tensor]) -> None:
        self._mask, self._energy = change(self._mask), change(self._energy)


def _same(y: Tensor) -> Tensor:
    return y


def _gaussian(sigma: float, size: tuple[int, ...]) -> Tensor:
    """Make a wrapped, normalised Gaussian of full size, its centre at ``n // 2`` along every axis."""
    kernel = torch.ones(())
    for n in size:
        kernel = kernel[..., None] * _wrapped(sigma, n)
    return kernel


def _wrapped(sigma: float, n: int) -> Tensor:
    sigma = min(max(sigma, 1e-3), 8.0 * n)  # beyond these it is a single pixel, or constant, to the last digit
    reach = math.ceil(8 * sigma / n) + 1
    offsets = torch.arange(n, dtype=torch.float64) - n // 2 + n * torch.arange(-reach, reach + 1)[:, None]
    weights = torch.exp(-(offsets**2) / (2 * sigma**2)).sum(0)
    return weights / weights.sum()


def _periodic(kernel: Tensor, size: tuple[int, ...]) -> Tensor:
    """Kernel on the full grid, its centre moved to the origin."""
    sides = kernel.shape[-len(size) :]
    missing = [(0, n - side) for n, side in zip(size, sides, strict=True)]
    full = torch.nn.functional.pad(kernel, [count for pair in reversed(missing) for count in pair])
    return full.roll([-(n // 2) for n in sides], axes_of(len(size)))


def _check_kernel(kernel: Tensor, size: tuple[int, ...], per_item: bool) -> None:
    k = len(size)
    if kernel.ndim != k + per_item or kernel.numel() == 0:
        letters = ", ".join({1: "n", 2: "hw", 3: "dhw"}.get(k, "n" * k))
        one = f"({letters},)" if k == 1 else f"({letters})"
        expected = f"(B, {letters})" if per_item else f"{one}, or (B, {letters}) with per_item=True"
        raise ValueError(f"kernel has shape {tuple(kernel.shape)}, expected {expected}, for dims={k}")
    sides = tuple(kernel.shape[-k:])
    if any(side > n for side, n in zip(sides, size, strict=True)):
        raise ValueError(f"kernel of {times(sides)} is larger than the signals of {times(size)}: crop it")


def _check_frequencies(mask: Tensor, size: tuple[int, ...], per_item: bool) -> Tensor:
    k = len(size)
    if mask.ndim != k + per_item or tuple(mask.shape[-k:]) != size:
        expected = f"({', '.join(map(str, ('B', *size)))})" if per_item else size
        raise ValueError(f"frequencies has shape {tuple(mask.shape)}, expected {expected}, for dims={k}")
    if mask.is_complex() or not bool(((mask == 0) | (mask == 1)).all()):
        raise ValueError("frequencies must be a boolean mask (or 0 and 1 only), got other values")
    if not bool(mask.flatten(-k).any(-1).all()):
        raise ValueError("frequencies keeps nothing (m = 0), expected at least one True in each mask")
    return mask


def _random_frequencies(m: int, size: tuple[int, ...], seed: int) -> Tensor:
    m = _validate.whole("frequencies", m)
    total = math.prod(size)
    if m > total:
        product = "" if len(size) == 1 else f" = {times(size)}"
        raise ValueError(f"frequencies must be at most {total}{product}, got {m}")
    generator = _validate.seed(seed)
    mask = torch.zeros(total, dtype=torch.bool, device="cpu")
    mask[0] = True
    mask[1 + torch.randperm(total - 1, generator=generator, device="cpu")[: m - 1]] = True
    return mask.reshape(size)
