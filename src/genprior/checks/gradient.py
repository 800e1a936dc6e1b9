"""The gradient of a generator against differences, in float64 wherever the module can be cast."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from genprior import _batch
from genprior.checks.budget import Budget
from genprior.checks.report import Finding
from genprior.generators import Generator
from genprior.generators.alias import all_parts

LAW = "gradient equals differences"
_DIRECTIONS = 3
_AGREEING = 0.75
"""Share of the directions that must agree: a kink may lie on the way of a few."""
_SLOWER = 2.0
"""Float64 passes over float32 passes, in time."""


@dataclass(frozen=True)
class _Precision:
    """Where the differences are taken: their widths, in units of the latents' spread, and the relative error allowed."""

    generator: Generator
    widths: tuple[float, ...]
    limit: float
    words: str


def gradient_finding(generator: Generator, z: Tensor, seed: int, budget: Budget, item: float) -> Finding:
    """``<v, G(z + hd) - G(z)> / h`` and the same to the other side, against ``<DG^T v, d>``, for several z and d.

    In float64 differences are so narrow that hardly any lies across a kink (ReLU), and rounding does not spoil them; of
    both sides, their mean, and all widths the best counts. A wrong gradient agrees with none of them, nor does one of a
    staircase that was given a slope of its own: its differences are zero.
    """
    count, directions = len(z), _DIRECTIONS
    cost = _SLOWER * item * (2 + directions)  # one latent: forward and backward, then two forward for each direction
    if budget.fits(cost, count) < count:
        directions, cost = 1, _SLOWER * item * 3
        count = budget.fits(cost, count)
    kept = z[: max(1, count)]
    return budget.within(LAW, lambda: _compared(generator, kept, seed, directions, budget), cost * len(kept))


def _compared(generator: Generator, z: Tensor, seed: int, directions: int, budget: Budget) -> Finding:
    at = _precise(generator, z)
    z = z.to(at.generator.dtype)
    random = torch.Generator().manual_seed(seed)
    where = at.generator.evaluate(z)
    v = _normal(where.x, random)
    pulled = where.vjp(v)
    if not bool(pulled.any()):
        advice = "rounding, a comparison or argmax inside? without a slope there is nothing to follow"
        return Finding(LAW, False, "the gradient is zero, but signals differ between latents", advice)
    aims = [_normal(z, random) for _ in range(directions)]
    errors = torch.full((directions, len(z)), torch.inf, dtype=torch.float64)
    for width in at.widths:
        h = width * generator.spread
        best = [_error(at.generator, (z, where.x), v, _batch.dot(pulled, d), h * d, h) for d in aims]
        errors = torch.minimum(errors, torch.stack(best).double().cpu())
        if float((errors <= at.limit).double().mean()) >= _AGREEING or budget.left == 0:
            break
    return _judged(errors, at)


def _judged(errors: Tensor, at: _Precision) -> Finding:
    agree, total = int((errors <= at.limit).sum()), errors.numel()
    measured = (
        f"{agree} of {total} directions agree to {at.limit:.0e}, median error {float(errors.median()):.2e}, {at.words}"
    )
    advice = (
        "a custom backward, a detach, or a step with a gradient of its own inside? the solvers would follow it astray"
    )
    return Finding(LAW, agree >= _AGREEING * total, measured, advice)


def _error(generator: Generator, at: tuple[Tensor, Tensor], v: Tensor, slope: Tensor, step: Tensor, h: float) -> Tensor:
    """The least relative error of the differences to both sides and of their mean, for each latent."""
    z, x = at
    with torch.no_grad():
        ahead, behind = generator(z + step) - x, x - generator(z - step)
    sides = [_batch.dot(v, change) / h for change in (ahead, behind, (ahead + behind) / 2)]
    errors = [_batch.ratio((side - slope).abs(), torch.maximum(side.abs(), slope.abs())) for side in sides]
    return torch.stack(errors).nan_to_num(nan=torch.inf).amin(dim=0)


def _precise(generator: Generator, z: Tensor) -> _Precision:
    """The generator in float64; as it is, with wider differences, where it cannot be cast."""
    narrow = (1e-5, 1e-4, 1e-6, 1e-3)
    if generator.dtype == torch.float64:
        return _Precision(generator, narrow, 1e-3, "float64")
    try:
        return _Precision(_in_float64(generator, z), narrow, 1e-3, "float64")
    except Exception as problem:  # foreign code: whatever it raises, there is another way
        why = f"{generator.dtype} only, for it cannot be cast to float64: {str(problem).partition(chr(10))[0]}"
        return _Precision(generator, (1e-2, 1e-3, 1e-4, 1e-1), 0.02, why)


def _in_float64(generator: Generator, z: Tensor) -> Generator:
    with torch.inference_mode(False):
        module = copy.deepcopy(generator.module)
        for part in all_parts(module):
            part.double()
    other = generator.with_module(module)
    other.dtype = torch.float64
    with torch.no_grad():
        expected, x = generator(z[:1]).double(), other(z[:1].double())
    apart = float((x - expected).abs().max())
    if not apart <= 0.01 * float(expected.abs().max()):
        raise ValueError(f"its signals then differ by {apart:.2e}")
    return other


def _normal(like: Tensor, random: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=random, dtype=torch.float64, device="cpu").to(like)
