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
"""Share of the directions that must agree: a few may cross a kink."""
_SLOWER = 2.0
"""Cost of a float64 pass relative to a float32 pass."""


@dataclass(frozen=True)
class _Precision:
    """The widths of the differences, in units of the latents' standard deviation, and the relative error allowed."""

    generator: Generator
    widths: tuple[float, ...]
    limit: float
    words: str


def gradient_finding(generator: Generator, z: Tensor, seed: int, budget: Budget, item: float) -> Finding:
    """``<v, G(z + hd) - G(z)> / h`` and the same to the other side, against ``<DG^T v, d>``, for several z and d.

    In float64 the differences can be so narrow that few cross a kink (ReLU) and rounding is still negligible. The best of
    both sides, their mean, and all widths counts. A wrong gradient agrees with none of them; neither does a surrogate
    gradient of a step function, whose differences are zero.
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
        advice = "does the module round, compare or use argmax? without a gradient the solvers cannot move"
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
        "does the module have a custom backward, a detach or a surrogate gradient? the solvers need the true gradient"
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
    """The generator in float64; unchanged, with wider differences, if it cannot be cast."""
    narrow = (1e-5, 1e-4, 1e-6, 1e-3)
    if generator.dtype == torch.float64:
        return _Precision(generator, narrow, 1e-3, "float64")
    try:
        return _Precision(_in_float64(generator, z), narrow, 1e-3, "float64")
    except Exception as problem:  # third-party code may raise anything; its own dtype still works
        why = f"{generator.dtype} only, because it cannot be cast to float64: {str(problem).partition(chr(10))[0]}"
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
