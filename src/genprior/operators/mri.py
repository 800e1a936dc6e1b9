"""What a scanner measures: coil images, and k-space as files have it, centred and with the sampled lines only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor

from genprior import _validate
from genprior._axes import axes_of
from genprior._batch import PerItem
from genprior.operators.base import Operator, RowForm
from genprior.operators.fourier import SubsampledFourier
from genprior.operators.gram import GramForm


class Coils(Operator):
    """``A x = (S_1 x, ..., S_C x)``: an image as each of C receiver coils sees it, by complex maps of their sensitivity.

    Signals are real, or complex after :class:`Complex`. k-space of all coils is ``Fourier(S.measurement_shape) @ S``: coils
    first, then the transform of each coil image.

    ``A^T A = sum_c |S_c|^2`` is diagonal, so the resolvent is a division; that of undersampled k-space is by CG.

    Parameters
    ----------
    maps
        complex (or real) ``(C, H, W)``, or ``(B, C, H, W)`` with ``per_item=True``; any number of axes after the coils.
    signal_shape
        ``(1, H, W)`` by default, or ``(H, W)``.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> S = gp.operators.Coils(torch.ones(4, 8, 8, dtype=torch.complex64))
    >>> A = gp.operators.Fourier(S.measurement_shape) @ S
    >>> A(torch.ones(2, 1, 8, 8)).shape
    torch.Size([2, 4, 8, 8])
    """

    complex_measurements = True

    def __init__(self, maps: Tensor, signal_shape: Sequence[int] | None = None, *, per_item: bool = False) -> None:
        maps = _validate.tensor("maps", maps, complex_too=True).detach()
        if maps.ndim < 2 + per_item or 0 in maps.shape:
            expected = "(B, C, H, W)" if per_item else "(C, H, W), or (B, C, H, W) with per_item=True"
            raise ValueError(f"maps has shape {tuple(maps.shape)}, expected {expected}")
        size = tuple(maps.shape[1 + per_item :])
        self.signal_shape = (1, *size) if signal_shape is None else _validate.shape("signal_shape", signal_shape)
        if self.signal_shape not in {size, (1, *size)}:
            raise ValueError(
                f"maps has shape {tuple(maps.shape)} for signals of {(1, *size)} or {size}, but signal_shape is "
                f"{self.signal_shape}{_joined(self.signal_shape, size)}"
            )
        self.measurement_shape = tuple(maps.shape[per_item:])
        self.batch = len(maps) if per_item else None
        self._maps = maps.to(maps.dtype.to_complex(), copy=True)
        self.device, self.dtype = maps.device, self._maps.dtype.to_real()

    def gram_form(self) -> GramForm:
        """``sum_c |S_c|^2``."""
        axis = self._maps.ndim - len(self.measurement_shape or ())
        energy = self._maps.abs().square().sum(axis)
        return GramForm(values=energy if self.batch is None else energy.reshape(-1, *(self.signal_shape or ())))

    def on_complex(self) -> Operator:
        """The same maps."""
        return _on_complex(self)

    def _forward(self, x: Tensor) -> Tensor:
        size = self._maps.shape[-len(self.measurement_shape or ()) + 1 :]
        return self._maps * x.reshape(len(x), 1, *size)

    def _adjoint(self, y: Tensor) -> Tensor:
        image = (self._maps.conj() * y).sum(1).reshape(len(y), *(self.signal_shape or ()))
        return image if self.complex_signals else image.real

    def _map_tensors(self, change: Callable[[Tensor], Tensor]) -> None:
        self._maps = change(self._maps)


class Fourier(SubsampledFourier):
    """``A x = M fftn(x)`` as k-space comes from a scanner: unitary; on request centred, and with the kept frequencies only.

    Signals are real; after :class:`Coils` or :class:`Complex` they are complex, and ``A A^H = M``.

    Parameters
    ----------
    signal_shape
        shape of one signal, channels (or coils) first.
    kept
        the frequencies that are measured: a boolean mask of the axes of space, or one that broadcasts against them, ``(1, W)``
        for whole columns of k-space, ``(H, 1)`` for rows. None: all of them. ``(B, H, W)`` with ``per_item=True``.
    centred
        the origin of space and of k-space (and of ``kept``) is in the middle, as in fastMRI's files:
        ``fftshift(fftn(ifftshift(x)))``. By default both are at index 0, as ``torch.fft`` has them.
    packed
        measurements are the kept frequencies only: ``(..., H, L)`` where L whole columns are kept, ``(..., L, W)`` for rows,
        ``(..., m)`` elsewhere. By default zeros stand for the others.
    dims, device, dtype
        as for :class:`SubsampledFourier`.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> columns = torch.zeros(1, 8, dtype=torch.bool)
    >>> columns[:, 2:6] = True
    >>> gp.operators.Fourier((1, 8, 8), columns, centred=True, packed=True)(torch.ones(2, 1, 8, 8)).shape
    torch.Size([2, 1, 8, 4])
    """

    def __init__(
        self,
        signal_shape: int | Sequence[int],
        kept: Tensor | None = None,
        *,
        per_item: bool = False,
        centred: bool = False,
        packed: bool = False,
        dims: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        shape = _validate.shape("signal_shape", signal_shape)
        self._set_shape(shape, dims, kept, per_item)
        mask = torch.ones(self._size, dtype=torch.bool) if kept is None else _wide(kept, self._size, per_item)
        if packed and per_item:
            raise ValueError("packed=True with per_item=True: items may keep different numbers; leave out packed")
        super().__init__(mask, shape, per_item=per_item, centred=centred, dims=self.dims, device=device, dtype=dtype)
        self._centred = centred
        self._packing = _Packing(mask, self.dims, self.device) if packed else None
        if self._packing is not None:
            self.measurement_shape = (*shape[: -self.dims], *self._packing.shape)

    def measured(self, y: Tensor) -> Tensor:
        """``y`` with zeros at the frequencies that are not kept; packed ones are all kept."""
        return y if self._packing is not None else self._arranged(super().measured(self._filled(y)))

    def transposed_gram_form(self) -> GramForm | None:
        """``A A^H = M``, for complex signals."""
        if self._packing is not None and self.complex_signals:
            return GramForm(1.0)
        return super().transposed_gram_form() if not self._centred else None

    def row_form(self) -> RowForm | None:
        """Itself, for complex signals: ``A A^H = M``."""
        if not self.complex_signals:
            return None
        gram = 1.0 if self._packing is not None else self._arranged(self._mask)
        return RowForm(self._forward, self._adjoint, gram, _same, _same)

    def _forward(self, x: Tensor) -> Tensor:
        return self._arranged(super()._forward(_uncentred(x, self.dims) if self._centred else x))

    def _adjoint(self, y: Tensor) -> Tensor:
        image = super()._adjoint(self._filled(y))
        return _centred(image, self.dims) if self._centred else image

    def _resolvent(self, v: Tensor, rho: PerItem, start: Tensor | None) -> Tensor:
        if not self._centred:
            return super()._resolvent(v, rho, start)
        return _centred(super()._resolvent(_uncentred(v, self.dims), rho, start), self.dims)

    def _arranged(self, spectrum: Tensor) -> Tensor:
        """The spectrum in the order of the measurements."""
        if self._centred:
            spectrum = _centred(spectrum, self.dims)
        return spectrum if self._packing is None else self._packing.pack(spectrum)

    def _filled(self, y: Tensor) -> Tensor:
        """Measurements as a whole spectrum."""
        spectrum = y if self._packing is None else self._packing.unpack(y)
        return _uncentred(spectrum, self.dims) if self._centred else spectrum

    def _map_tensors(self, change: Callable[[Tensor], Tensor]) -> None:
        super()._map_tensors(change)
        if self._packing is not None:
            self._packing = self._packing.to(self._mask.device)


class _Packing:
    """Which frequencies are kept, as indices: whole lines along one axis, or single ones."""

    def __init__(self, mask: Tensor, dims: int, device: torch.device | None) -> None:
        self._size = tuple(mask.shape)
        self._axis = next((axis for axis in range(-dims, 0) if _constant_beside(mask, axis)), None)
        line = mask if self._axis is None else mask.movedim(self._axis, 0).reshape(mask.shape[self._axis], -1)[:, 0]
        self._index = line.flatten().nonzero()[:, 0].to(device)
        self.shape: tuple[int, ...] = (len(self._index),)
        if self._axis is not None:
            sides = list(self._size)
            sides[self._axis] = len(self._index)
            self.shape = tuple(sides)

    def pack(self, spectrum: Tensor) -> Tensor:
        """The kept numbers."""
        if self._axis is not None:
            return spectrum.index_select(self._axis, self._index)
        return spectrum.flatten(-len(self._size)).index_select(-1, self._index)

    def unpack(self, y: Tensor) -> Tensor:
        """Zeros elsewhere."""
        lead = y.shape[: -len(self.shape)]
        if self._axis is not None:
            return y.new_zeros(*lead, *self._size).index_copy(self._axis, self._index, y)
        whole = y.new_zeros(*lead, torch.Size(self._size).numel()).index_copy(-1, self._index, y)
        return whole.reshape(*lead, *self._size)

    def to(self, device: torch.device) -> Self:
        """With its indices on another device."""
        other = type(self).__new__(type(self))
        vars(other).update(vars(self), _index=self._index.to(device))
        return other


def _centred(x: Tensor, dims: int) -> Tensor:
    """Index 0 to the middle."""
    return x.roll([n // 2 for n in x.shape[-dims:]], axes_of(dims))


def _uncentred(x: Tensor, dims: int) -> Tensor:
    """The middle to index 0."""
    return x.roll([-(n // 2) for n in x.shape[-dims:]], axes_of(dims))


def _constant_beside(mask: Tensor, axis: int) -> bool:
    """Whether the mask depends on this axis alone."""
    lines = mask.movedim(axis, 0).reshape(mask.shape[axis], -1)
    return bool((lines == lines[:, :1]).all())


def _wide(kept: Tensor, size: tuple[int, ...], per_item: bool) -> Tensor:
    if not isinstance(kept, Tensor):
        raise TypeError(f"kept must be a boolean torch.Tensor, got {type(kept).__name__}: use torch.as_tensor(...)")
    if kept.is_complex() or not bool(((kept == 0) | (kept == 1)).all()):
        raise ValueError("kept must be a boolean mask (or 0 and 1 only), got other values")
    if not bool(kept.any()):
        raise ValueError("kept keeps nothing (m = 0), expected at least one True: is it inverted?")
    lead = tuple(kept.shape[:1]) if per_item else ()
    try:
        return kept.bool().expand(*lead, *size)
    except RuntimeError:
        raise ValueError(
            f"kept has shape {tuple(kept.shape)}, expected a mask of {size}, or one that broadcasts against it such as "
            f"{(1, *size[1:])}: for lines of k-space give the mask of the lines an axis of length 1"
        ) from None


def _joined(shape: tuple[int, ...], size: tuple[int, ...]) -> str:
    if shape == (2, *size):
        return f": for complex images as two channels write Coils(maps) @ Complex({shape})"
    return ": make the maps for these signals"


def _on_complex(operator: Coils) -> Coils:
    other = operator._changed(lambda t: t)
    other.complex_signals = True
    return other


def _same(y: Tensor) -> Tensor:
    return y
