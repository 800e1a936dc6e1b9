"""A generator with a deviation from its range: ``(z, v) -> G(z) + Psi v``, so that both are one latent."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from genprior import _batch, _random
from genprior._blocks import Block
from genprior.generators.contract import Generator
from genprior.generators.latents import LatentDistribution
from genprior.generators.passes import Passes
from genprior.generators.pool import Pool
from genprior.operators import Operator

_SAMPLES = 8
"""Signals of which the unit of the deviation is estimated, in one forward pass."""


@dataclass(frozen=True)
class WithDeviation(LatentDistribution):
    """Flat latents ``(z, v)``: z has a distribution, and the deviation v begins at zero."""

    latent: LatentDistribution
    """That of z."""
    shape: tuple[int, ...]
    """Of z."""

    def sample(self, count: int, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
        """Draw ``count`` latents, float64 on the CPU, without a deviation."""
        z = self.latent.sample(count, self.shape, random).reshape(count, -1)
        return torch.cat([z, z.new_zeros(count, math.prod(shape) - z.shape[1])], dim=1)

    @property
    def spread(self) -> float:
        """That of z: the unit of the deviation is chosen such that it is its own, too."""
        return self.latent.spread_in(self.shape)

    @property
    def centre(self) -> float:
        """That of z."""
        return self.latent.centre

    def reach(self, z: Tensor) -> Tensor:
        """That of z."""
        return self.latent.reach(self._of_range(z))

    def within(self, z: Tensor) -> Tensor:
        """The latents with z moved towards the centre where it is farther out than draws go."""
        near = self.latent.within(self._of_range(z)).reshape(len(z), -1)
        return torch.cat([near, z[:, near.shape[1] :]], dim=1)

    def _of_range(self, z: Tensor) -> Tensor:
        return z[:, : math.prod(self.shape)].reshape(len(z), *self.shape)


class Deviating(Generator):
    """``(z, v) -> G(z) + Psi v`` on flat latents ``(B, s + n)``, where the coefficients of the deviation are ``unit`` times v.

    The unit makes entries of z and of v move the signal alike, so that one step length serves both.

    Parameters
    ----------
    within
        the generator G.
    basis
        the operator Psi, from coefficients to signals; None: the identity.
    """

    def __init__(self, within: Generator, basis: Operator | None) -> None:
        self.within, self.basis = within, basis
        self.size = math.prod(within.latent_shape)
        """Dimension of z."""
        self.coefficient_shape = within.signal_shape if basis is None else _checked(basis, within)
        self.unit = _unit(within, basis)
        super().__init__(
            _Deviating(within, basis, self.size, self.coefficient_shape, self.unit),
            self.size + math.prod(self.coefficient_shape),
            within.signal_shape,
            latent=WithDeviation(within.latent, within.latent_shape),
            signal_range=within.signal_range,
            device=within.device,
            dtype=within.dtype,
        )

    @property
    def blocks(self) -> tuple[Block, Block]:
        """Where z and the coefficients stand in the latent."""
        z = Block("z", 0, self.within.latent_shape)
        return z, Block("deviation", self.size, self.coefficient_shape, unit=self.unit)

    @property
    def basis_norm(self) -> float:
        """``|Psi|``."""
        return 1.0 if self.basis is None else float(self.basis.norm())

    def counting(self, passes: Passes) -> Deviating:
        """The same generator, whose passes are counted and limited by ``passes``."""
        other = super().counting(passes)
        assert isinstance(other, Deviating), "a copy of this one"
        other.within = self.within.counting(passes)
        return other

    def lifted(self, z: Tensor, coefficients: Tensor | None = None) -> Tensor:
        """Latents of G with the coefficients of a deviation, by default zero."""
        if coefficients is None:
            coefficients = z.new_zeros(len(z), *self.coefficient_shape)
        return torch.cat([z.reshape(len(z), -1), self.blocks[1].entries(coefficients)], dim=1)

    def split(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        """``z`` and the coefficients of the deviation."""
        z, coefficients = (block.taken(latent) for block in self.blocks)
        return z, coefficients

    def deviation(self, coefficients: Tensor) -> Tensor:
        """``Psi`` times the coefficients."""
        return coefficients if self.basis is None else self.basis(coefficients)

    def coefficients_gradient(self, f: Tensor) -> Tensor:
        """``Psi^T f``."""
        return f if self.basis is None else self.basis.adjoint(f)

    def draw(self, count: int, random: torch.Generator) -> Tensor:
        """Draw ``count`` latents with the given CPU random generator, without a deviation."""
        return self.lifted(self.within.draw(count, random))

    def pool(self, count: int, seed: int = 0, *, rows: int = 1) -> Pool:
        """The pool of G, without a deviation."""
        pool = self.within.pool(count, seed, rows=rows)
        return Pool(self.lifted(pool.latents), pool.signals)


class _Shared:
    """Holds an operator for a module, whose copies share it."""

    def __init__(self, basis: Operator) -> None:
        self.basis = basis

    def __deepcopy__(self, memo: dict[int, object]) -> _Shared:
        return self


class _Deviating(nn.Module):
    """``G(z) + unit Psi v``."""

    def __init__(
        self, within: Generator, basis: Operator | None, size: int, shape: tuple[int, ...], unit: float
    ) -> None:
        super().__init__()
        self.module = within.original
        self.held = None if basis is None else _Shared(basis)
        self.shapes = (within.latent_shape, shape)
        self.size, self.unit = size, unit

    def forward(self, latent: Tensor) -> Tensor:
        """The signal."""
        z, v = latent[:, : self.size], latent[:, self.size :]
        coefficients = self.unit * v.reshape(len(v), *self.shapes[1])
        x: Tensor = self.module(z.reshape(len(z), *self.shapes[0]))
        return x + (coefficients if self.held is None else self.held.basis(coefficients))


def _checked(basis: Operator, within: Generator) -> tuple[int, ...]:
    """The shape of the basis's coefficients; an error where it does not fit."""
    if not isinstance(basis, Operator):
        raise TypeError(
            f"basis must be an operator from coefficients to signals, such as gp.operators.DCT(G.signal_shape), got "
            f"{type(basis).__name__}"
        )
    if basis.signal_shape is None or basis.measurement_shape is None:
        raise ValueError(
            f"basis {basis!r} does not know its shapes: give it signal_shape=..., that of the coefficients"
        )
    if basis.measurement_shape != within.signal_shape or basis.complex_measurements:
        raise ValueError(
            f"basis gives signals of shape {basis.measurement_shape}{', complex' if basis.complex_measurements else ''}, but "
            f"the generator gives {within.signal_shape}: make it for these, as gp.operators.DCT({within.signal_shape})"
        )
    if basis.batch is not None:
        raise ValueError(f"basis differs from item to item, for {basis.batch} items: give one that all items share")
    basis.check("basis", basis.signal_shape, within.device, within.dtype)
    return basis.signal_shape


def _unit(within: Generator, basis: Operator | None) -> float:
    """How far a unit step in z moves the signal on average, ``|G(z) - mean| / |z - mean|`` of some samples, over ``|Psi|``."""
    z = within.draw(_SAMPLES, _random.stream("deviation", 0))
    with torch.no_grad():
        x = within(z)
    moved, length = _batch.norm(x - x.mean(dim=0)), _batch.norm(z - z.mean(dim=0))
    ratio = float(moved.norm() / length.norm())
    norm = 1.0 if basis is None else float(basis.norm())
    return ratio / norm if math.isfinite(ratio) and ratio > 0 and norm > 0 else 1.0
