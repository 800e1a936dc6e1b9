"""The mean over samples of a user's convex loss."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior.losses.base import Loss

_POWER_STEPS = 20


class EmpiricalRisk(Loss):
    """``L(w) = 1/n sum_i l(w, sample_i)``: the mean over samples of a convex loss.

    Parameters
    ----------
    loss
        function of ``(w, samples)`` with ``w`` of shape ``(B, *signal_shape)`` and the samples as given, which returns
        the losses ``(B, n)``. It must be differentiable in ``w`` and must treat items independently.
    samples
        a tensor, or a tuple of tensors (inputs and labels, say), shared by all items; with ``per_item=True`` the
        first axis of each is the batch.
    smoothness, strong_convexity
        constants of L if known. The smoothness is otherwise estimated where it is needed, by
        power iteration on the Hessian.

    Examples
    --------
    Logistic regression whose weights lie in the range of a generator:

    >>> import torch, genprior as gp
    >>> inputs, labels = torch.randn(50, 8), torch.randn(50).sign()
    >>> risk = gp.EmpiricalRisk(lambda w, s: torch.nn.functional.softplus(-s[1] * (w @ s[0].T)), (inputs, labels))
    >>> risk(torch.zeros(2, 8))
    tensor([0.6931, 0.6931])
    """

    def __init__(
        self,
        loss: Callable[[Tensor, Tensor | tuple[Tensor, ...]], Tensor],
        samples: Tensor | tuple[Tensor, ...],
        *,
        per_item: bool = False,
        smoothness: float | None = None,
        strong_convexity: float = 0.0,
    ) -> None:
        if not callable(loss):
            raise TypeError(f"loss must be a function of (w, samples), got {type(loss).__name__}")
        self.loss = loss
        self.samples = samples
        parts = (samples,) if isinstance(samples, Tensor) else tuple(samples)
        if not parts:
            raise ValueError("samples are an empty tuple: give the tensor of samples, or a tuple of tensors")
        for part in parts:
            if not isinstance(part, Tensor):
                raise TypeError(f"samples must be a tensor or a tuple of tensors, got {type(part).__name__}")
            if part.is_floating_point():
                _validate.tensor("samples", part)
            if part.ndim == 0 or part.shape[0] == 0:
                raise ValueError(f"samples are empty, shape {tuple(part.shape)}: give at least one")
        if per_item and len({len(part) for part in parts}) > 1:
            raise ValueError(f"samples have {[len(part) for part in parts]} items, expected as many in each part")
        self.per_item = per_item
        self.batch = parts[0].shape[0] if per_item else None
        self.smoothness = None if smoothness is None else _validate.number("smoothness", smoothness, above=0)
        self.strong_convexity = _validate.number("strong_convexity", strong_convexity, least=0)
        if self.smoothness is not None and self.strong_convexity > self.smoothness:
            raise ValueError(
                f"strong_convexity {strong_convexity} is above smoothness {smoothness}, expected at most that: exchanged?"
            )

    def evaluate(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """The mean loss per item; the gradient differentiates again, so there is no residual to share."""
        value = self._mean(w)
        return value, value

    def gradient(self, w: Tensor, residual: Tensor) -> Tensor:
        """The mean gradient per item."""
        with torch.enable_grad():
            point = w.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self._mean(point).sum(), point)
        return gradient

    def curvature(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """The given constants, or the largest Hessian eigenvalue by power iteration, with a margin of 10%.

        At ``w`` and at 0, whichever is larger: losses that saturate, as the logistic one, are flat far from zero.
        """
        mu = _batch.column(self.strong_convexity, w)
        if self.smoothness is not None:
            return mu, _batch.column(self.smoothness, w)
        here, zero = self._hessian_norm(w), self._hessian_norm(torch.zeros_like(w))
        largest = torch.where(zero.isfinite(), torch.maximum(here, zero), here)  # a logarithm has none at 0
        return mu, torch.maximum(mu, 1.1 * largest)

    def rows(self, index: Tensor) -> EmpiricalRisk:
        """The loss of the selected items."""
        if not self.per_item:
            return self
        pick = self.samples[index] if isinstance(self.samples, Tensor) else tuple(part[index] for part in self.samples)
        mu, nu = self.strong_convexity, self.smoothness
        return EmpiricalRisk(self.loss, pick, per_item=True, smoothness=nu, strong_convexity=mu)

    def check(self, signal_shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
        """The user's function must give ``(B, n)`` for signals of this shape."""
        count = self.batch or 2
        w = torch.zeros(count, *signal_shape, device=device, dtype=dtype)
        try:
            values = self.loss(w, self.samples)
        except Exception as problem:
            raise ValueError(
                f"loss failed on w of shape {tuple(w.shape)} ({type(problem).__name__}: {problem}): it is called as "
                "loss(w, samples) with the samples as given, and must give one value per item and sample"
            ) from problem
        if not isinstance(values, Tensor) or values.ndim != 2 or values.shape[0] != count:
            given = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(
                f"loss gave {given} for {count} signals, expected ({count}, n): one value per item and sample"
            )
        if values.dtype != dtype:
            raise TypeError(
                f"loss gave {values.dtype} for signals in {dtype}, the generator's: samples of another dtype? use "
                f"samples.to({dtype})"
            )

    def __repr__(self) -> str:
        parts = (self.samples,) if isinstance(self.samples, Tensor) else self.samples
        sizes = ", ".join(str(tuple(part.shape)) for part in parts)
        name = getattr(self.loss, "__name__", type(self.loss).__name__)
        return f"EmpiricalRisk({name}, samples {sizes})"

    def _mean(self, w: Tensor) -> Tensor:
        return self.loss(w, self.samples).mean(dim=1)

    def _hessian_norm(self, w: Tensor) -> Tensor:
        direction = torch.ones_like(w) + torch.linspace(0, 1, w[0].numel(), device=w.device, dtype=w.dtype).view_as(
            w[0]
        )
        largest = w.new_zeros(w.shape[0])
        with torch.enable_grad():
            point = w.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self._mean(point).sum(), point, create_graph=True)
            for _ in range(_POWER_STEPS):
                direction = direction / _batch.spread(_batch.above_zero(_batch.norm(direction)), direction)
                if not gradient.requires_grad:
                    break
                (direction,) = torch.autograd.grad(gradient, point, direction, retain_graph=True)
                largest = _batch.norm(direction)
        return largest.detach()
