"""A latent of several named blocks, each with a distribution of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from genprior import _validate
from genprior._blocks import Block
from genprior.generators.latents import LatentDistribution

Part = LatentDistribution | tuple[LatentDistribution, int | Sequence[int]]
"""A distribution, alone or with the shape of its block."""


@dataclass(frozen=True, init=False)
class Joint(LatentDistribution):
    """Named blocks, each with a distribution of its own, side by side in a flat latent ``(B, size)``.

    A block is given as a distribution, or as a distribution with a shape. Without a shape the first block takes all
    entries that the others leave, and the others have one entry each.

    The latent holds every block in its own unit, ``(block - centre) / spread``: solvers find all entries of the size of one,
    whatever the units of a parameter are. :meth:`split` gives the blocks as they are meant.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> joint = gp.Joint(z=gp.Normal(), width=gp.Uniform(1, 3), shift=(gp.Normal(0.1), 2))
    >>> {name: tuple(block.shape) for name, block in joint.split(torch.zeros(5, 11)).items()}
    {'z': (5, 8), 'width': (5, 1), 'shift': (5, 2)}
    >>> float(joint.split(torch.zeros(1, 11))["width"])
    2.0
    """

    parts: tuple[tuple[str, LatentDistribution, tuple[int, ...] | None], ...]
    """Name, distribution and shape of each block; None: what the others leave."""

    def __init__(self, **blocks: Part) -> None:
        if not blocks:
            raise ValueError("Joint needs at least one block: gp.Joint(z=G.latent, theta=gp.Normal(0.1))")
        parts = [_part(name, given, first=number == 0) for number, (name, given) in enumerate(blocks.items())]
        object.__setattr__(self, "parts", tuple(parts))

    # -- blocks ------------------------------------------------------------------------------------------------------

    def blocks(self, size: int) -> tuple[Block, ...]:
        """Where the blocks stand in a latent of this size."""
        fixed = sum(math.prod(shape) for _, _, shape in self.parts if shape is not None)
        rest = size - fixed
        if rest < 0 or (rest == 0) != (self.parts[0][2] is not None):
            raise ValueError(
                f"latents of dimension {size} do not fit the blocks {self!r}, which have shapes for {fixed}"
            )
        found: list[Block] = []
        for name, latent, given in self.parts:
            shape = (rest,) if given is None else given
            found.append(Block(name, found[-1].end if found else 0, shape, latent.centre, latent.spread_in(shape)))
        return tuple(found)

    @property
    def size(self) -> int:
        """Entries of the flat latent, where all blocks have shapes."""
        shapes = [shape for _, _, shape in self.parts]
        if None in shapes:
            raise ValueError(
                f"the first block of {self!r} has no shape of its own: give it as a pair, (gp.Normal(), (64,))"
            )
        return sum(math.prod(shape) for shape in shapes if shape is not None)

    def split(self, z: Tensor) -> dict[str, Tensor]:
        """The blocks of latents ``(B, size)`` by name, each ``(B, *shape)`` and in the units of its distribution."""
        return {block.name: block.taken(z) for block in self.blocks(z.shape[1])}

    def joined(self, values: Mapping[str, Tensor]) -> Tensor:
        """The latents ``(B, size)`` whose blocks these are: the inverse of :meth:`split`."""
        names = [name for name, _, _ in self.parts]
        if sorted(values) != sorted(names):
            raise ValueError(f"the blocks are {', '.join(names)}, got {', '.join(values) or 'none'}: give each of them")
        size = sum(values[name][0].numel() for name in names)
        return torch.cat([block.entries(values[block.name]) for block in self.blocks(size)], dim=1)

    # -- the distribution of the flat latent --------------------------------------------------------------------------

    def sample(self, count: int, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
        """Draw ``count`` latents, float64 on the CPU, block by block."""
        if len(shape) != 1:
            raise ValueError(f"the latents of a Joint are flat, (size,), got latent_shape={shape}: give their size")
        blocks = zip(self.parts, self.blocks(shape[0]), strict=True)
        drawn = [block.entries(latent.sample(count, block.shape, random)) for (_, latent, _), block in blocks]
        return torch.cat(drawn, dim=1)

    @property
    def spread(self) -> float:
        """One: every block is in its own unit."""
        return 1.0

    def reach(self, z: Tensor) -> Tensor:
        """That of the block which is farthest out, relative to its own draws, shape ``(B,)``."""
        pairs = zip(self.parts, self.blocks(z.shape[1]), strict=True)
        return torch.stack([latent.reach(block.taken(z)) for (_, latent, _), block in pairs]).amax(dim=0)

    def within(self, z: Tensor) -> Tensor:
        """The latents, those blocks that are farther out than draws go moved towards their centres."""
        pairs = zip(self.parts, self.blocks(z.shape[1]), strict=True)
        return torch.cat([block.entries(latent.within(block.taken(z))) for (_, latent, _), block in pairs], dim=1)

    def __repr__(self) -> str:
        given = (
            f"{name}={latent!r}" if shape is None else f"{name}=({latent!r}, {shape})"
            for name, latent, shape in self.parts
        )
        return f"Joint({', '.join(given)})"


class WithParameters(nn.Module):
    """A generator's module on the block ``z`` of a joint latent; the entries of the parameters are passed on.

    Its signal is flat: ``G(z)``, and behind it the parameters, each in its own unit, as in the latent.
    """

    def __init__(self, module: nn.Module, latent: Joint) -> None:
        super().__init__()
        self.module = module
        self.latent = latent

    def forward(self, latent: Tensor) -> Tensor:
        """``(G(z), parameters)``."""
        z, *_ = self.latent.blocks(latent.shape[1])
        return torch.cat([self.module(z.taken(latent)).flatten(1), latent[:, z.end :]], dim=1)

    def signal_blocks(self, signal_shape: tuple[int, ...]) -> tuple[Block, ...]:
        """Where the signal and the parameters stand in the flat signal."""
        z, *parameters = self.latent.blocks(self.latent.size)
        shift = math.prod(signal_shape) - z.end
        return (Block("signal", 0, signal_shape), *(replace(each, begin=each.begin + shift) for each in parameters))


def _part(name: str, given: Part, *, first: bool) -> tuple[str, LatentDistribution, tuple[int, ...] | None]:
    pair = isinstance(given, tuple) and len(given) == 2
    latent, shape = given if isinstance(given, tuple) and pair else (given, None)
    if not isinstance(latent, LatentDistribution) or isinstance(latent, Joint):
        raise TypeError(
            f"block {name} must be a latent distribution, or a pair of one and a shape, got {given!r}: "
            f"{name}=gp.Normal(0.1) or {name}=(gp.Normal(0.1), (2,))"
        )
    if shape is not None:
        return name, latent, _validate.shape(f"the shape of block {name}", shape)
    return name, latent, None if first else (1,)
