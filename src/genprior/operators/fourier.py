"""Operators that the Fourier transform makes diagonal: circular blur and subsampled Fourier measurements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from genprior import _validate
from genprior._batch import PerItem
from genprior.operators.base import Operator, check_real


class _Circulant(Operator):
    """``A^T A`` is a circular convolution over the last two axes, with eigenvalues ``_energy`` on the rfft2 grid."""

    _size: tuple[int, int]
    _energy: Tensor

    @property
    def resolvent_method(self) -> str:
        """How `resolvent` is computed, in words."""
        return "FFT"

    def _resolvent(self, v: Tensor, rho: PerItem, start: Tensor | None) -> Tensor:
        return _image(_spectrum(v) / (self._energy + rho), self._size)

    def _gram_bounds(self) -> tuple[Tensor, Tensor]:
        energy = self._energy.reshape(self.batch or 1, -1)
        smallest, largest = energy.amin(1), energy.amax(1)
        return (smallest, largest) if self.batch else (smallest[0], largest[0])


class Blur(_Circulant):
    """Circular convolution ``A x = h * x`` of the last two axes, the same for all channels.

    ``kernel`` is a number (the standard deviation of a normalised Gaussian, wrapped around), a tensor ``(h, w)`` with
    its centre at ``(h // 2, w // 2)``, or ``(B, h, w)`` with ``per_item=True``. A number works in ``dtype`` (float32
    unless told) on ``device``, a tensor in its own. ``signal_shape`` is that of one signal and ends in rows and columns.

    With ``K = fft2(h)``: ``A x = ifft2(K fft2(x))``, resolvent ``ifft2(fft2(v) / (|K|^2 + rho))``.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> bool(gp.operators.Blur(2.0, (1, 8, 8))(torch.ones(2, 1, 8, 8)).isclose(torch.tensor(1.0)).all())
    True
    """

    def __init__(
        self,
        kernel: float | Tensor,
        signal_shape: Sequence[int],
        *,
        per_item: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.signal_shape = self.measurement_shape = image_shape(signal_shape)
        self._size = self.signal_shape[-2:]  # type: ignore[assignment]
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
        self._spectrum = over_channels(_spectrum(_periodic(kernel, self._size)), len(self.signal_shape), self.batch)
        self._energy = self._spectrum.abs() ** 2

    def _forward(self, x: Tensor) -> Tensor:
        return _image(_spectrum(x) * self._spectrum, self._size)

    def _adjoint(self, y: Tensor) -> Tensor:
        return _image(_spectrum(y) * self._spectrum.conj(), self._size)

    def _map_tensors(self, change: Callable[[Tensor], Tensor]) -> None:
        self._spectrum = change(self._spectrum)
        self._energy = self._spectrum.abs() ** 2


class SubsampledFourier(_Circulant):
    """``A x = M fft2(x)`` with the unitary transform of the last two axes and a 0/1 mask ``M`` of kept frequencies.

    ``frequencies`` is a whole number (so many at random, the zero frequency always among them), a boolean mask
    ``(H, W)`` in the order of ``torch.fft.fft2`` (with ``centred=True``: zero frequency in the middle), or
    ``(B, H, W)`` with ``per_item=True``. The result is the zero-filled complex spectrum.

    Signals are real, so ``A^T y = Re ifft2(M y)`` and ``A^T A`` is circulant with eigenvalues ``(M(k) + M(-k)) / 2``.

    Parameters
    ----------
    frequencies, per_item, centred
        which are kept, as above.
    signal_shape
        shape of one signal, ending in rows and columns.
    seed
        of the draw, where ``frequencies`` is a number.
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
        signal_shape: Sequence[int],
        seed: int = 0,
        *,
        per_item: bool = False,
        centred: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.signal_shape = self.measurement_shape = image_shape(signal_shape)
        self._size = self.signal_shape[-2:]  # type: ignore[assignment]
        check_real(dtype)
        if isinstance(frequencies, Tensor):
            mask = _check_frequencies(frequencies, self._size, per_item)
            mask = torch.fft.ifftshift(mask, dim=(-2, -1)) if centred else mask
        elif per_item or centred:
            raise ValueError("per_item=True and centred=True need frequencies given as a mask, got a whole number")
        else:
            mask = _random_frequencies(frequencies, self._size, seed)
        mask = mask.detach().to(device=device, dtype=dtype)
        self.batch = len(mask) if per_item else None
        self.device, self.dtype = mask.device, mask.dtype
        self._mask = over_channels(mask, len(self.signal_shape), self.batch)
        opposite = self._mask.flip((-2, -1)).roll((1, 1), (-2, -1))
        self._energy = ((self._mask + opposite) / 2)[..., : self._size[1] // 2 + 1].contiguous()

    def measured(self, y: Tensor) -> Tensor:
        """``y`` with zeros at the frequencies that are not kept."""
        return torch.where(self._mask > 0, y, 0)

    def _forward(self, x: Tensor) -> Tensor:
        spectrum: Tensor = torch.fft.fft2(x, norm="ortho")
        return self._mask * spectrum

    def _adjoint(self, y: Tensor) -> Tensor:
        image: Tensor = torch.fft.ifft2(self._mask * y, norm="ortho")
        return image.real

    def _map_tensors(self, change: Callable[[Tensor], Tensor]) -> None:
        self._mask, self._energy = change(self._mask), change(self._energy)


def image_shape(signal_shape: Sequence[int]) -> tuple[int, ...]:
    """Check a signal shape with at least two axes, the last two being rows and columns."""
    shape = _validate.shape("signal_shape", signal_shape)
    if len(shape) < 2:
        raise ValueError(f"signal_shape must end in rows and columns, such as (1, 28, 28), got {shape}")
    return shape


def over_channels(plane: Tensor, axes: int, batch: int | None) -> Tensor:
    """Insert axes of length 1 so that ``(H, W)`` or ``(B, H, W)`` multiplies signals of ``axes`` axes."""
    return plane if batch is None else plane.reshape(batch, *(1,) * (axes - 2), *plane.shape[-2:])


def _spectrum(x: Tensor) -> Tensor:
    spectrum: Tensor = torch.fft.rfft2(x)
    return spectrum


def _image(spectrum: Tensor, size: tuple[int, int]) -> Tensor:
    image: Tensor = torch.fft.irfft2(spectrum, s=size)
    return image


def _gaussian(sigma: float, size: tuple[int, int]) -> Tensor:
    """Make a wrapped, normalised Gaussian of full size, its centre at ``(H // 2, W // 2)``."""
    columns = [_wrapped(sigma, n) for n in size]
    return columns[0][:, None] * columns[1]


def _wrapped(sigma: float, n: int) -> Tensor:
    sigma = min(max(sigma, 1e-3), 8.0 * n)  # beyond these it is a single pixel, or constant, to the last digit
    reach = math.ceil(8 * sigma / n) + 1
    offsets = torch.arange(n, dtype=torch.float64) - n // 2 + n * torch.arange(-reach, reach + 1)[:, None]
    weights = torch.exp(-(offsets**2) / (2 * sigma**2)).sum(0)
    return weights / weights.sum()


def _periodic(kernel: Tensor, size: tuple[int, int]) -> Tensor:
    """Kernel on the full grid, its centre moved to the origin."""
    h, w = kernel.shape[-2:]
    full = kernel.new_zeros(*kernel.shape[:-2], *size)
    full[..., :h, :w] = kernel
    return full.roll((-(h // 2), -(w // 2)), (-2, -1))


def _check_kernel(kernel: Tensor, size: tuple[int, int], per_item: bool) -> None:
    if kernel.ndim != 2 + per_item or kernel.numel() == 0:
        expected = "(B, h, w)" if per_item else "(h, w), or (B, h, w) with per_item=True"
        raise ValueError(f"kernel has shape {tuple(kernel.shape)}, expected {expected}")
    h, w = kernel.shape[-2:]
    if h > size[0] or w > size[1]:
        raise ValueError(f"kernel of {h} x {w} is larger than the signals of {size[0]} x {size[1]}: crop it")


def _check_frequencies(mask: Tensor, size: tuple[int, int], per_item: bool) -> Tensor:
    expected = ("B", *size) if per_item else size
    if mask.ndim != 2 + per_item or tuple(mask.shape[-2:]) != size:
        raise ValueError(f"frequencies has shape {tuple(mask.shape)}, expected ({', '.join(map(str, expected))})")
    if mask.is_complex() or not bool(((mask == 0) | (mask == 1)).all()):
        raise ValueError("frequencies must be a boolean mask (or 0 and 1 only), got other values")
    if not bool(mask.flatten(-2).any(-1).all()):
        raise ValueError("frequencies keeps nothing (m = 0), expected at least one True in each mask")
    return mask


def _random_frequencies(m: int, size: tuple[int, int], seed: int) -> Tensor:
    m = _validate.whole("frequencies", m)
    total = math.prod(size)
    if m > total:
        raise ValueError(f"frequencies must be at most {total} = {size[0]} x {size[1]}, got {m}")
    generator = _validate.seed(seed)
    mask = torch.zeros(total, dtype=torch.bool, device="cpu")
    mask[0] = True
    mask[1 + torch.randperm(total - 1, generator=generator, device="cpu")[: m - 1]] = True
    return mask.reshape(size)
