"""Modules for the tests of the theory."""

import torch
from torch import Tensor, nn


class Mild(nn.Module):
    """``B z + eps tanh(C z)``: injective where eps is small, with known constants."""

    def __init__(self, linear: Tensor, inner: Tensor, eps: float) -> None:
        super().__init__()
        self.register_buffer("linear", linear)
        self.register_buffer("inner", inner)
        self.eps = eps

    def forward(self, z: Tensor) -> Tensor:
        return z @ self.linear.T + self.eps * (z @ self.inner.T).tanh()

    def branches(self) -> tuple[nn.Module, nn.Module]:
        return dense(self.linear), nn.Sequential(dense(self.inner), nn.Tanh(), Times(self.eps, self.linear.shape[0]))


class Times(nn.Linear):
    """Multiplication by a number."""

    def __init__(self, factor: float, size: int) -> None:
        super().__init__(size, size, bias=False)
        self.double()
        self.weight.data = self.weight.data.new_zeros(size, size).fill_diagonal_(factor)


def dense(matrix: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """The layer with this matrix."""
    layer = nn.Linear(matrix.shape[1], matrix.shape[0], bias=bias is not None, dtype=matrix.dtype)
    layer.weight.data = matrix.clone()
    if bias is not None:
        layer.bias.data = bias.clone()
    return layer


class Parabola(nn.Module):
    """``z -> (z, |z|^2 / 2)``, with ``nu_G = 1`` everywhere and ``kappa^2 = 1 + r^2`` on the ball of radius r."""

    def forward(self, z: Tensor) -> Tensor:
        return torch.cat([z, 0.5 * z.square().sum(dim=1, keepdim=True)], dim=1)
