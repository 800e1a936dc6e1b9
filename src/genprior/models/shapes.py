"""The latent shape and signal shape of a third-party network, inferred by trying."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from genprior.generators.alias import place_of

_WHOLE = ("latent_shape",)
_SIZES = ("latent_dim", "latent_size", "latent", "z_dim", "dim_z", "nz", "zdim", "noise_dim", "latent_channels")
_TRIED_WEIGHTS = 4
"""How many leading weights are tried as the first layer, because label embeddings may precede it."""


def find_latent_shape(runnable: nn.Module, original: nn.Module, hint: str = "") -> tuple[tuple[int, ...], Tensor, str]:
    """The latent shape, signals for two latents, and how the shape was found.

    Declared names and the first weights give candidates; the first that ``runnable`` accepts is used.
    ``hint`` ends the error if there is none.
    """
    tried, why = [], ""
    for shape, reason in _candidates(original):
        signals = run_on(runnable, shape)
        if isinstance(signals, Tensor):
            return shape, signals, reason
        tried.append("x".join(map(str, shape)))
        why = why or f"; on {tried[0]} it failed with {signals}"
    found = f" (tried {', '.join(tried[:6])}{why})" if tried else ""
    raise ValueError(
        f"the latent shape of {type(original).__name__} could not be inferred{found}: give it, for "
        f"example `latent_shape=(100,)` for vectors or `latent_shape=(100, 1, 1)` for maps{hint}"
    )


def run_on(
    module: nn.Module, latent_shape: tuple[int, ...], count: int = 2, seconds: float | None = None
) -> Tensor | str:
    """Signals for random latents, or why there are none; raises if the module returns something else.

    With a time limit the latents go through the module two at a time, and there are as many signals as the time allows.
    """
    device, dtype = place_of(module)
    random = torch.Generator().manual_seed(0)
    z = torch.randn(count, *latent_shape, generator=random, dtype=torch.float64, device="cpu").to(device, dtype)
    try:
        with torch.no_grad():
            signals = module(z) if seconds is None else _in_time(module, z, seconds)
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}".partition("\n")[0]
    if not isinstance(signals, Tensor):
        raise ValueError(
            f"the module runs on latents of shape {latent_shape}, but gives {type(signals).__name__}, expected one tensor: "
            f"return the signal, for example {_signal_in(signals)}"
        )
    if signals.ndim < 2 or (len(signals) != count and seconds is None):
        return f"it gave shape {tuple(signals.shape)} for {count} latents"
    return signals


def _in_time(module: nn.Module, z: Tensor, seconds: float) -> Tensor:
    end = time.monotonic() + seconds
    signals = [module(z[:2])]
    for first in range(2, len(z), 2):
        if time.monotonic() >= end:
            break
        signals.append(module(z[first : first + 2]))
    return torch.cat(signals)


def _signal_in(output: object) -> str:
    """The Python expression for the first tensor in an output."""
    if isinstance(output, tuple | list):
        return f"out[{next((place for place, part in enumerate(output) if isinstance(part, Tensor)), 0)}]"
    if isinstance(output, dict):
        return f"out[{next((key for key, part in output.items() if isinstance(part, Tensor)), 'sample')!r}]"
    parts = getattr(output, "__dict__", {})
    return f"out.{next((name for name, part in parts.items() if isinstance(part, Tensor)), 'sample')}"


def _declared(module: nn.Module) -> Iterator[tuple[tuple[int, ...], str]]:
    """Latent shapes that attributes of the module name, and which."""
    for name in _WHOLE + _SIZES:
        value = getattr(module, name, None)
        if isinstance(value, tuple | list) and value and all(isinstance(n, int) for n in value):
            yield tuple(value), f"its attribute {name}"
        elif isinstance(value, int) and not isinstance(value, bool) and value > 0:
            for shape in ((value,), (value, 1, 1)):
                yield shape, f"its attribute {name}"


def _candidates(module: nn.Module) -> Iterator[tuple[tuple[int, ...], str]]:
    """Each shape once, with the first reason for it."""
    seen = set()
    for shape, reason in _suggested(module):
        if shape not in seen:
            seen.add(shape)
            yield shape, reason


def _suggested(module: nn.Module) -> Iterator[tuple[tuple[int, ...], str]]:
    yield from _declared(module)
    weights = [(name, weight) for name, weight in module.named_parameters() if weight.ndim >= 2]
    for weight_name, weight in weights[:_TRIED_WEIGHTS]:
        for size in dict.fromkeys((weight.shape[1], weight.shape[0])):
            for shape in ((int(size),), (int(size), 1, 1)):
                yield shape, f"the weight {weight_name} of shape {tuple(weight.shape)}"
