"""A user's forward model, tried on samples of the generator before any work: each error says what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from genprior import _batch
from genprior.losses.base import Draw

if TYPE_CHECKING:
    from genprior.losses.nonlinear import NonLinear

_SAMPLES = 4
"""Samples on which a forward model is tried: a derivative that vanishes at all of them vanishes almost everywhere."""
_SAME = 1e-3
"""Relative difference that batched arithmetic may make to the measurements of one item."""
NO_DERIVATIVE = (
    "the square root has no derivative at 0, and torch.where passes on the NaN of the branch that it does not take. Use "
    "x.abs() for (x**2).sqrt(), torch.linalg.vector_norm, or (x + tiny).sqrt()"
)
"""What to do about a derivative that is not finite."""
_AS = "it is called as forward({}) with signals (n, *signal_shape), for any n, and must give one measurement (n, ...) each"


def check_forward(loss: NonLinear, draw: Draw) -> None:
    """Shape, dtype, finite values, a finite derivative that is not zero everywhere, and items on their own."""
    signals = draw(_SAMPLES)
    part = loss.rows(torch.arange(_SAMPLES, device=signals.device) % len(loss.y))
    with torch.enable_grad():
        point = signals.detach().requires_grad_()
        image = _called(part, point)
        _check_values(part, image, signals)
        _check_derivative(image, point, part.y)
    _check_items(part, signals, image.detach())


def _called(loss: NonLinear, signals: Tensor) -> Tensor:
    unknown = () if loss.blocks is None else [block.name for block in loss.blocks[1:]]
    how = _AS.format(", ".join(["signals", *unknown, *["*parameters"] * bool(loss.parameters)]))
    try:
        image = loss.measured(signals)
    except Exception as problem:  # users' code may raise anything
        fix = ""
        if "numpy()" in str(problem):
            fix = "; forward must be written with torch throughout, because its derivative is needed"
        raise ValueError(
            f"forward failed on samples of the generator, of shape {tuple(signals.shape)} ({type(problem).__name__}: "
            f"{problem}): {how}{fix}"
        ) from problem
    if not isinstance(image, Tensor):
        raise TypeError(f"forward gave {type(image).__name__}, expected a torch.Tensor: {how}")
    return image


def _check_values(loss: NonLinear, image: Tensor, signals: Tensor) -> None:
    expected = (len(signals), *loss.y.shape[1:])
    if image.shape != expected:
        raise ValueError(
            f"forward gave shape {tuple(image.shape)} for {len(signals)} signals, expected {expected}, as the items of y have"
            ": correct forward, or y; is y transposed (y.T)?"
        )
    if image.dtype != loss.y.dtype:
        raise TypeError(
            f"forward gave {image.dtype}, but y is {loss.y.dtype}: convert one of them; both must be real or both complex, "
            f"in the precision of the generator ({signals.dtype})"
        )
    finite = torch.isfinite(torch.view_as_real(image) if image.is_complex() else image)
    if not bool(finite.all()):
        raise ValueError(
            f"forward gave {int((~finite).sum())} NaN or infinite measurements of {image.numel()} at samples of the generator"
            ": does it take the logarithm, the square root or the inverse of zero or less? clamp its argument"
        )


def _check_derivative(image: Tensor, point: Tensor, y: Tensor) -> None:
    if not image.requires_grad:
        raise ValueError(
            "forward is not differentiable: its result does not depend on the signals by operations that torch can "
            "differentiate. Does it detach, use numpy, .item(), no_grad, argmax or a comparison?"
        )
    random = torch.Generator().manual_seed(0)
    wide = torch.complex128 if y.is_complex() else torch.float64
    v = torch.randn(image.shape, generator=random, dtype=wide, device="cpu")
    (gradient,) = torch.autograd.grad(image, point, v.to(image), allow_unused=True)
    if gradient is None or not bool((gradient != 0).any()):
        raise ValueError(
            f"the derivative of forward is zero at {len(point)} samples of the generator, so that a search cannot begin: does "
            "it round, compare, take the sign, or saturate everywhere?"
        )
    if not bool(gradient.isfinite().all()):
        raise ValueError(
            f"the derivative of forward is NaN or infinite at samples of the generator, although its values are finite: "
            f"{NO_DERIVATIVE}"
        )


def _check_items(loss: NonLinear, signals: Tensor, image: Tensor) -> None:
    """The measurements of one item must not depend on the others, nor on chance."""
    half = torch.arange(len(signals) // 2, len(signals), device=signals.device)
    part = loss.rows(half)
    with torch.no_grad():
        alone = _called(part, signals[half])
    if alone.shape == image[half].shape:
        apart = _batch.norm(alone - image[half])
        if bool((apart <= _SAME * _batch.norm(image).max()).all()):
            return
    raise ValueError(
        "forward gives an item other measurements when it is called with other items: it must treat each on its own, and "
        "always alike. Does it take a mean or a maximum over the whole batch, has it random numbers, or a module in training "
        "mode (module.eval())?"
    )
