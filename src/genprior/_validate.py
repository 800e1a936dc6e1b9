"""Checks of arguments: each error names the argument, what was given, what was expected, the likely fix."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from numbers import Integral, Real

import torch
from torch import Tensor

from genprior._batch import PerItem


def shape(name: str, value: int | Sequence[int]) -> tuple[int, ...]:
    """Check a shape without the batch axis, for example ``(1, 28, 28)``; a lone integer means one axis."""
    axes = tuple(value) if isinstance(value, Iterable) else (value,)
    if not axes or not all(isinstance(n, Integral) and not isinstance(n, bool) and n > 0 for n in axes):
        raise ValueError(f"{name} must be positive whole numbers without the batch axis, got {value!r}")
    return tuple(int(n) for n in axes)


def whole(name: str, value: int, least: int = 1) -> int:
    """Check a whole number that is at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number, got {value!r} ({type(value).__name__})")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return int(value)


def seed(value: int) -> torch.Generator:
    """A random generator on the CPU from a seed, for draws that are the same on every device."""
    if whole("seed", value, 0) >= 2**63:
        raise ValueError(f"seed must be below 2**63, got {value}")
    return torch.Generator(device="cpu").manual_seed(int(value))


def number(name: str, value: float, *, above: float = -math.inf, least: float = -math.inf) -> float:
    """Check a finite number that is larger than ``above`` and at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r} ({type(value).__name__})")
    if not math.isfinite(value) or value <= above or value < least:
        raise ValueError(f"{name} must be a finite number {_bounds(above, least)}, got {value!r}")
    return float(value)


def per_item(name: str, value: PerItem, *, above: float = -math.inf, least: float = -math.inf) -> PerItem:
    """Check a number, or a tensor of shape ``(B,)`` with one number per item."""
    if not isinstance(value, Tensor):
        return number(name, value, above=above, least=least)
    if value.ndim > 1 or not value.is_floating_point():
        raise ValueError(
            f"{name} must be a number or a floating-point tensor of shape (B,), one per item, "
            f"got {value.dtype} of shape {tuple(value.shape)}"
        )
    if not bool((torch.isfinite(value) & (value > above) & (value >= least)).all()):
        raise ValueError(f"{name} must hold finite numbers {_bounds(above, least)}, got {value.tolist()!r}")
    return value


def tensor(name: str, value: Tensor, *, complex_too: bool = False) -> Tensor:
    """Check a floating-point tensor without NaN or infinity."""
    if not isinstance(value, Tensor):
        several = isinstance(value, list | tuple) and value and all(isinstance(part, Tensor) for part in value)
        fix = f"torch.stack({name.partition(' ')[0]})" if several else "torch.as_tensor(...)"
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}: use {fix}")
    if not (value.is_floating_point() or (complex_too and value.is_complex())):
        raise TypeError(f"{name} must hold floating-point numbers, got {value.dtype}: {_floats(name, value)}")
    if value.is_meta or value.layout != torch.strided:
        layout = "on the meta device" if value.is_meta else f"sparse ({value.layout})"
        raise ValueError(
            f"{name} is {layout}, expected a dense tensor with numbers: use {name}.to_dense() or real data"
        )
    finite = torch.isfinite(value)
    if not bool(finite.all()):
        bad = int((~finite).sum())
        raise ValueError(f"{name} holds {bad} NaN or infinite values of {value.numel()}: remove or mask them first")
    return value


def kept(name: str, value: Tensor) -> Tensor:
    """A copy of the caller's tensor, without its graph: a warning where gradients may be expected."""
    if value.requires_grad:
        warnings.warn(
            f"{name} requires gradients, but a solve is not differentiated through: its result is detached. Give "
            f"{name}.detach() if that is meant",
            stacklevel=4,
        )
    return value.detach().clone()


def batch(name: str, value: Tensor, item_shape: tuple[int, ...] | None, hint: str = "") -> Tensor:
    """Check a batch ``(B, *item_shape)`` with at least one item."""
    if item_shape is not None and tuple(value.shape[1:]) != item_shape:
        expected = ", ".join(["B", *map(str, item_shape)])
        fix = "add the batch axis with [None]" if tuple(value.shape) == item_shape else hint
        raise ValueError(f"{name} has shape {tuple(value.shape)}, expected ({expected}){': ' + fix if fix else ''}")
    if value.ndim < 2:
        raise ValueError(f"{name} has shape {tuple(value.shape)}, expected a batch axis first: use {name}[None]")
    if value.shape[0] == 0:
        raise ValueError(f"{name} is an empty batch, shape {tuple(value.shape)}: give at least one item")
    return value


def same_place(name: str, value: Tensor, device: torch.device, dtype: torch.dtype | None, owner: str) -> Tensor:
    """Check that a tensor lives where ``owner`` lives and, if asked, has its dtype."""
    if value.device != device:
        raise ValueError(f"{name} is on {value.device}, but {owner} is on {device}: use .to({str(device)!r})")
    if dtype is not None and value.dtype != dtype:
        raise TypeError(f"{name} has dtype {value.dtype}, but {owner} works in {dtype}: use .to({dtype})")
    return value


def _floats(name: str, value: Tensor) -> str:
    own = name.partition(" ")[0]
    if value.dtype == torch.uint8:
        return f"for images use {own}.float() / 255, for other numbers {own}.float()"
    if value.is_complex():
        return f"stack the two parts, torch.view_as_real({own}); {own}.float() would drop the imaginary one"
    return f"use {own}.float()"


def _bounds(above: float, least: float) -> str:
    bounds = [f"above {above:g}"] if above > -math.inf else []
    bounds += [f"of at least {least:g}"] if least > -math.inf else []
    return " and ".join(bounds)
