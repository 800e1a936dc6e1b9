"""A slow minimiser that knows values alone: an oracle for answers that were found in another way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from genprior import _batch

_ROUNDS = 2000
_GROW, _SHRINK = 1.5, 0.9
"""About one success in five keeps the width: 1.5 * 0.9^4 = 0.98."""


def minimised(g: Callable[[Tensor], Tensor], points: Sequence[Tensor], seed: int = 0) -> Tensor:
    """The minimiser of g per item, by random search from the worst of ``points``, which must span g's domain.

    Moves go in random directions, along single coordinates, and along the chords between the points, which stay in a convex
    domain even where it is flat. Each item has its own width, which adapts to its success.
    """
    random = torch.Generator().manual_seed(seed)
    values = torch.stack([g(point) for point in points]).nan_to_num(nan=-torch.inf, posinf=-torch.inf)
    worst = values.argmax(dim=0)
    items = torch.arange(len(worst))
    here = torch.stack(list(points))[worst, items].clone()
    value = g(here)
    width = torch.stack([_batch.norm(point - here) for point in points]).amax(dim=0).clamp_min(1e-3)
    for round_ in range(_ROUNDS):
        move = _move(round_, here, points, random)
        there = here + _batch.spread(width, here) * move
        other = g(there)
        better = other < value
        here = torch.where(_batch.spread(better, here), there, here)
        value = torch.where(better, other, value)
        width = width * torch.where(better, _GROW, _SHRINK ** (1 / 2))
        width = width.clamp_min(1e-9 * (1 + _batch.norm(here)))
    return here


def _move(round_: int, here: Tensor, points: Sequence[Tensor], random: torch.Generator) -> Tensor:
    """A direction of about unit length per item."""
    noise = torch.randn(here.shape, generator=random, dtype=torch.float64).to(here)
    if round_ % 3 == 0:
        return noise / _batch.spread(_batch.norm(noise), noise)
    if round_ % 3 == 1:
        flat = _batch.flat(noise)
        kept = flat.abs() == flat.abs().amax(dim=1, keepdim=True)
        return (flat.sign() * kept).reshape(here.shape)
    one, other = (points[int(k)] for k in torch.randint(len(points), (2,), generator=random))
    chord = other - one
    return chord / _batch.spread(_batch.norm(chord).clamp_min(1e-12), chord)
