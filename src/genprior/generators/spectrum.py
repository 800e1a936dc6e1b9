"""Singular values of ``DG``, in bounded memory."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from genprior import _batch
from genprior.generators.contract import Generator

MOST_BYTES = 2**30
"""Largest matrix for which :func:`singular_values` is intended."""
_SMALL = 2**22
"""Most entries of a matrix that is decomposed directly, which takes several copies."""
_TOGETHER = 2**23
"""Most entries that are computed in one pass, to bound the memory."""


def jacobian_bytes(generator: Generator) -> int:
    """Memory of one matrix ``DG(z)``."""
    return math.prod(generator.latent_shape) * math.prod(generator.signal_shape) * generator.dtype.itemsize


def singular_values(generator: Generator, z: Tensor) -> Tensor:
    """Those of ``DG(z)`` for one latent ``(1, *latent_shape)``, falling, float64 on the CPU.

    A large matrix is kept once, and its Gram matrix is summed in float64 over parts of the signal: values below 1e-8 of the
    largest are then lost in rounding.
    """
    if math.prod(generator.latent_shape) * math.prod(generator.signal_shape) <= _SMALL:
        values: Tensor = torch.linalg.svdvals(generator.jacobian(z)[0].cpu().double())
        return values
    columns = _columns(generator, z)
    gram = torch.zeros(len(columns), len(columns), dtype=torch.float64)
    width = max(1, _SMALL // len(columns))
    for start in range(0, columns.shape[1], width):
        part = columns[:, start : start + width].double()
        gram += part @ part.mT
    squares: Tensor = torch.linalg.eigvalsh(gram)
    return squares.clamp_min(0).sqrt().flip(0)


def _columns(generator: Generator, z: Tensor) -> Tensor:
    """``DG(z)`` transposed, ``(s, d)``, on the CPU."""
    size, signal = math.prod(generator.latent_shape), math.prod(generator.signal_shape)
    columns = torch.empty(size, signal, dtype=generator.dtype)
    units = torch.eye(size, device=z.device, dtype=z.dtype).reshape(size, *z.shape)
    done = 0
    for part in _batch.pieces(units, max(1, _TOGETHER // signal)):
        columns[done : done + len(part)] = generator.jvp(z, part).flatten(1)
        done += len(part)
    return columns
