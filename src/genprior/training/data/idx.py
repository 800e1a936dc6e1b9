"""The IDX format of MNIST: four bytes of type, the sizes as big-endian integers, then the numbers."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

_UNSIGNED_BYTES = 0x08


def decode(content: bytes, name: str) -> Tensor:
    """The tensor of bytes in an IDX file."""
    if len(content) < 4 or content[:3] != bytes([0, 0, _UNSIGNED_BYTES]):
        raise ValueError(f"{name} is not an IDX file of unsigned bytes: it starts with {content[:4]!r}")
    axes = content[3]
    start = 4 + 4 * axes
    sizes = [int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(axes)]
    if len(content) != start + math.prod(sizes):
        raise ValueError(
            f"{name} has {len(content)} bytes, but its header declares {start + math.prod(sizes)}: it is truncated"
        )
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=start).reshape(sizes).copy())


def encode(tensor: Tensor) -> bytes:
    """The IDX file of a tensor of bytes."""
    sizes = b"".join(int(size).to_bytes(4, "big") for size in tensor.shape)
    return bytes([0, 0, _UNSIGNED_BYTES, tensor.ndim]) + sizes + tensor.contiguous().numpy().tobytes()
