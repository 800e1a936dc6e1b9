"""Operators that act on each value alone: the identity and masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from genprior import _validate
from genprior.operators.base import Operator, RowForm, check_real, unrotated
from genprior.operators.gram import GramForm


class Identity(Operator):
    """``A x = x``, for denoising, on signals of shape ``signal_shape``.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> gp.operators.Identity((1, 8, 8))(torch.ones(2, 1, 8, 8)).shape
    torch.Size([2, 1, 8, 8])
    """

    def __init__(self, signal_shape: int | Sequence[int]) -> None:
        self.signal_shape = _validate.shape("signal_shape", signal_shape)
        self.measurement_shape = self.signal_shape

    @property
    def T(self) -> Identity:
        """Itself."""
        return self

    def gram_form(self) -> GramForm:
        """The identity."""
        return GramForm(1.0)

    def row_form(self) -> RowForm:
        """Itself, with ``gram = 1``."""
        return RowForm(unrotated, unrotated, 1.0, unrotated, unrotated)

    def _forward(self, x: Tensor) -> Tensor:
        return x.clone()  # noise added to A(x) in place must not change x

    def _adjoint(self, y: Tensor) -> Tensor:
        return y.clone()


class Mask(Operator):
    """``A x = mask * x``: known values kept, the others zero (or weighted, for a mask of weights >= 0).

    The result is the zero-filled signal, so that masks with different counts can share a batch. ``mask`` has the shape
    of one signal, or one that broadcasts against ``signal_shape`` where that is given, such as (28, 28) against
    (1, 28, 28). With ``per_item=True`` its first axis is the batch. A boolean or whole-number mask works in ``dtype``
    (float32 by default), a mask of weights in its own.

    Resolvent: ``v / (mask^2 + rho)``.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> gp.operators.Mask(torch.tensor([True, False]), signal_shape=(1, 2))(torch.ones(1, 1, 2))
    tensor([[[1., 0.]]])
    """

    def __init__(
        self,
        mask: Tensor,
        signal_shape: int | Sequence[int] | None = None,
        *,
        per_item: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        weights = _weights(mask, dtype)
        if per_item and weights.ndim < 2:
            raise ValueError(f"mask with per_item=True needs the batch axis first, got shape {tuple(mask.shape)}")
        item = tuple(weights.shape[per_item:])
        self.signal_shape = _validate.shape("signal_shape", item if signal_shape is None else signal_shape)
        self.measurement_shape = self.signal_shape
        self.batch = len(weights) if per_item else None
        self.device, self.dtype = weights.device, weights.dtype
        self._weights = _broadcast(weights, item, self.signal_shape, self.batch)
        _refuse_empty(self._weights, self.batch)

    @property
    def T(self) -> Mask:
        """Itself."""
        return self

    def gram_form(self) -> GramForm:
        """``diag(mask^2)``."""
        return GramForm(values=self._weights**2)

    def row_form(self) -> RowForm:
        """Itself, with ``gram = mask^2``."""
        return RowForm(self._forward, self._adjoint, self._weights**2, unrotated, unrotated)

    def measured(self, y: Tensor) -> Tensor:
        """``y`` with zeros where the mask is zero."""
        return torch.where(self._weights > 0, y, 0)

    def _forward(self, x: Tensor) -> Tensor:
        return self._weights * x

    def _adjoint(self, y: Tensor) -> Tensor:
        return self._weights * y

    def _map_tensors(self, change: Callable[[Tensor], Tensor]) -> None:
        self._weights = change(self._weights)


def _weights(mask: Tensor, dtype: torch.dtype | None) -> Tensor:
    check_real(dtype)
    if not isinstance(mask, Tensor):
        raise TypeError(f"mask must be a torch.Tensor, got {type(mask).__name__}: use torch.as_tensor(...)")
    if mask.is_complex():
        raise TypeError(f"mask must hold booleans, 0/1, or weights of at least 0, got {mask.dtype}")
    if not mask.is_floating_point():
        if int(mask.max() if mask.numel() else 0) > 1:
            raise ValueError(
                f"mask of {mask.dtype} has values up to {int(mask.max())}, expected 0 and 1: use mask > 0, or floating-point "
                "weights"
            )
        mask = mask.to(dtype or torch.float32)
    weights = _validate.tensor("mask", mask).detach().to(dtype or mask.dtype, copy=True)
    if bool((weights < 0).any()):
        raise ValueError(f"mask must hold weights of at least 0, got {float(weights.min()):g}")
    return weights


def _broadcast(weights: Tensor, item: tuple[int, ...], shape: tuple[int, ...], batch: int | None) -> Tensor:
    lead = () if batch is None else (batch,)
    try:
        wide = weights.reshape(*lead, *(1,) * (len(shape) - len(item)), *item)
        return wide.expand(*lead, *shape).contiguous()
    except RuntimeError:
        hint = "" if lead else ": for one mask per item use per_item=True"
        raise ValueError(f"mask has shape {item} per signal, which does not fit signal_shape {shape}{hint}") from None


def _refuse_empty(weights: Tensor, batch: int | None) -> None:
    kept = weights.reshape(batch or 1, -1).amax(1) > 0
    if not bool(kept.all()):
        which = "" if batch is None else f" for items {(~kept).nonzero().flatten().tolist()}"
        raise ValueError(f"mask keeps nothing{which} (m = 0), expected at least one value above 0: is it inverted?")
