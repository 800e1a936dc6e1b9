"""A term for each of several blocks of a flat latent."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from genprior import _batch
from genprior._batch import PerItem
from genprior._blocks import Block
from genprior.terms.base import Term, Zero
from genprior.terms.parameters import step_per_entry


@dataclass(frozen=True, eq=False, repr=False)
class Blocks(Term):
    """``f(z) = sum_k f_k(centre_k + unit_k z_k)`` for consecutive blocks ``z_k`` of a flat latent ``(B, size)``.

    Everything falls apart into the blocks: with ``x = centre + unit z``,
    ``prox_{t f}(z) = (prox_{t unit^2 f_k}(x) - centre) / unit`` in each of them.
    """

    parts: tuple[Term, ...]
    blocks: tuple[Block, ...]

    @property
    def separable(self) -> bool:
        """Whether all parts are."""
        return all(part.separable for part in self.parts)

    @property
    def is_indicator(self) -> bool:
        """Whether all parts that are not zero are, and there is one."""
        used = [part for part in self.parts if not isinstance(part, Zero)]
        return bool(used) and all(part.is_indicator for part in used)

    @property
    def constraint(self) -> Term | None:
        """The parts' constraints; None where no part has one."""
        found = [part.constraint for part in self.parts]
        if all(part is None for part in found):
            return None
        return self._of([Zero() if part is None else part for part in found])

    @property
    def finite(self) -> Term:
        """The parts' finite parts."""
        found = [part.finite for part in self.parts]
        return Zero() if all(isinstance(part, Zero) for part in found) else self._of(found)

    @property
    def tolerance(self) -> float:
        """The largest of the parts'."""
        return max(part.tolerance for part in self.parts)

    def __call__(self, x: Tensor) -> Tensor:
        """The sum of the parts' values."""
        return self._each(x, lambda part, value: part(value)).sum(dim=0)

    def prox(self, v: Tensor, t: PerItem) -> Tensor:
        """Block by block, each with its own step."""
        t = step_per_entry(t, v)
        proximal: list[Tensor] = []
        for part, block in zip(self.parts, self.blocks, strict=True):
            if isinstance(part, Zero):
                proximal.append(v[:, block.begin : block.end])
                continue
            proximal.append(block.entries(part.prox(block.taken(v), _step(t, block, len(v)))))
        return torch.cat(proximal, dim=1)

    def subgradient(self, x: Tensor) -> Tensor:
        """``unit_k`` times a subgradient of each part."""
        slopes = [
            block.unit * _batch.flat(part.subgradient(block.taken(x)))
            for part, block in zip(self.parts, self.blocks, strict=True)
        ]
        return torch.cat(slopes, dim=1)

    def violation(self, x: Tensor) -> Tensor:
        """Distance to the product of the domains, in the units of the latent."""
        distances = [part.violation(b.taken(x)) / b.unit for part, b in zip(self.parts, self.blocks, strict=True)]
        return _batch.norm(torch.stack(distances, dim=1))

    def feasible(self, x: Tensor, rounding_scale: PerItem = 0.0) -> Tensor:
        """Whether each block lies in the domain of its part."""
        pairs = zip(self.parts, self.blocks, strict=True)
        each = [part.feasible(block.taken(x), _rounding(rounding_scale, block)) for part, block in pairs]
        return torch.stack(each).all(dim=0)

    def start_score(self, x: Tensor) -> Tensor:
        """The sum of theirs."""
        return self._each(x, lambda part, value: part.start_score(value)).sum(dim=0)

    def as_quadratic(self) -> tuple[PerItem, PerItem] | None:
        """Where all parts are the same quadratic in the units of the latent."""
        found = [_quadratic(part, block) for part, block in zip(self.parts, self.blocks, strict=True)]
        first = found[0]
        same = first is not None and all(one is not None and _close(one, first) for one in found)
        return first if same else None

    def check(self, name: str, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
        """Check each part against the shape of its block."""
        if shape != (self.blocks[-1].end,):
            raise ValueError(f"{name} is for flat latents of dimension {self.blocks[-1].end}, got latents {shape}")
        for part, block in zip(self.parts, self.blocks, strict=True):
            part.check(f"block {block.name} of {name}", block.shape, device, dtype)

    def _each(self, x: Tensor, value: Callable[[Term, Tensor], Tensor]) -> Tensor:
        pairs = zip(self.parts, self.blocks, strict=True)
        return torch.stack([value(part, block.taken(x)) for part, block in pairs])

    def _of(self, parts: list[Term]) -> Term:
        return Blocks(tuple(parts), self.blocks)

    def __repr__(self) -> str:
        named = (f"{block.name}: {part!r}" for part, block in zip(self.parts, self.blocks, strict=True))
        return f"Blocks({', '.join(named)})"


def by_block(terms: Mapping[str, Term], blocks: tuple[Block, ...]) -> Term:
    """A term for each of the blocks named; Zero for the others."""
    names = [block.name for block in blocks]
    unknown = [name for name in terms if name not in names]
    if unknown:
        raise ValueError(f"there is no block {unknown[0]!r} in the latent: its blocks are {', '.join(names)}")
    for name, term in terms.items():
        if not isinstance(term, Term):
            raise TypeError(f"the term of block {name!r} must be a genprior Term, got {type(term).__name__}")
    parts = tuple(terms.get(name, Zero()) for name in names)
    return Zero() if all(isinstance(part, Zero) for part in parts) else Blocks(parts, blocks)


def _step(t: PerItem, block: Block, items: int) -> PerItem:
    """The step for a block, in its own units."""
    if not isinstance(t, Tensor) or t.ndim == 0:
        return t * block.unit**2
    if t.shape[1] == 1:  # one per item, as spread for flat latents
        return t[:, 0] * block.unit**2
    return t[:, block.begin : block.end].reshape(items, *block.shape) * block.unit**2


def _rounding(scale: PerItem, block: Block) -> PerItem:
    """The size of rounded numbers, for a block in its own units."""
    if not isinstance(scale, Tensor) or scale.ndim < 2:
        return scale
    return block.unit * scale[:, block.begin : block.end].reshape(len(scale), *block.shape)


def _close(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return all(math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-12) for a, b in zip(one, other, strict=True))


def _quadratic(part: Term, block: Block) -> tuple[float, float] | None:
    """``c/2 |z - centre|^2`` in the units of the latent, for numbers."""
    weight, centre = part.as_quadratic() or (None, 0.0)
    if weight is None or isinstance(weight, Tensor) or isinstance(centre, Tensor):
        return None
    return (0.0, 0.0) if weight == 0 else (weight * block.unit**2, (centre - block.centre) / block.unit)
