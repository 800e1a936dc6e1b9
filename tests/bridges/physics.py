"""Small stand-ins for deepinv's physics: the same methods, and the faults that real ones have."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SHAPE = (1, 4, 5)


class Masked(nn.Module):
    """As deepinv's Inpainting: a buffer, an adjoint, a closed-form prox, an ``img_size``."""

    img_size = SHAPE

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask)
        self.solver = "lsqr"

    def A(self, x: Tensor) -> Tensor:
        return self.mask * x

    def A_adjoint(self, y: Tensor) -> Tensor:
        return self.mask * y

    def prox_l2(self, z: Tensor, y: Tensor, gamma: float | Tensor) -> Tensor:
        self.solver = "CG"  # deepinv's own remembers the last solver like this
        return (self.mask * y + z / gamma) / (self.mask**2 + 1 / gamma)


class Sloppy(Masked):
    """An iterative prox that stops early."""

    def prox_l2(self, z, y, gamma):
        return super().prox_l2(z, y, gamma) * (1 + 1e-4)


class Wrong(Masked):
    def prox_l2(self, z, y, gamma):
        return super().prox_l2(z, y, 2 * gamma)


class OneNumber(Masked):
    """A prox that takes one gamma for all images."""

    def prox_l2(self, z, y, gamma):
        return super().prox_l2(z, y, float(gamma))


class Broken(Masked):
    """A prox that fails (as that of deepinv's Downsampling without a filter)."""

    def prox_l2(self, z, y, gamma):
        raise TypeError("unsupported operand")


class Strict(Masked):
    """Takes no other dtype than that of its mask."""

    def A(self, x):
        if x.dtype != self.mask.dtype:
            raise TypeError(f"expected {self.mask.dtype}, got {x.dtype}")
        return super().A(x)

    def prox_l2(self, z, y, gamma):
        self.A(z)
        return super().prox_l2(z, y, gamma)


class WrongAdjoint(Masked):
    def A_adjoint(self, y):
        return y


class Affine(Masked):
    def A(self, x):
        return self.mask * x + 1


class Listed(Masked):
    def A(self, x):
        return [x, x]


class Picky(Masked):
    """Refuses to be applied to another number of images than it has masks."""

    def A(self, x):
        if len(x) != len(self.mask):
            raise RuntimeError("sizes differ")
        return super().A(x)


class Spatial(nn.Module):
    """As deepinv's radio and tomography physics: the size without channels, and signals with one channel only."""

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        self.img_size = size
        self.register_buffer("_device_holder", torch.zeros(()))
        self.dtype = torch.float32

    def A(self, x: Tensor) -> Tensor:
        if x.ndim != 4 or x.shape[1] != 1:
            raise ValueError("expected one channel")
        return x[:, 0, ::2] * 2

    def A_adjoint(self, y: Tensor) -> Tensor:
        y = y.type(self.dtype)  # as deepinv's compressed sensing does
        back = y.new_zeros(len(y), 1, *SHAPE[1:])
        back[:, 0, ::2] = 2 * y
        return back


class NonLinear:
    img_size = SHAPE

    def A(self, x):
        return x**2


def masks(items: int = 1, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return (torch.rand(items, *SHAPE, generator=random) < 0.5).to(dtype)
