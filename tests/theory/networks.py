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
        return dense(self.linear), nn.Sequential(dense(self.inner), nn.Tanh(), times(self.eps, self.linear.shape[0]))


def times(factor: float, size: int) -> nn.Linear:
    """Multiplication by a number."""
    return dense(factor * torch.eye(size, dtype=torch.float64))


def bent(matrix: Tensor, scale: float) -> nn.Sequential:
    """``tanh(scale B z) / scale``: close to linear for a small scale, of layers that are all known."""
    return nn.Sequential(dense(scale * matrix), nn.Tanh(), times(1 / scale, matrix.shape[0]))


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
