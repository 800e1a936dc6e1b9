"""Small wrappers that adapt a third-party network: one argument, values in [0, 1]."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Labelled(nn.Module):
    """A conditional network ``module(z, label)`` with the class fixed: an integer per item, ``(B,)``."""

    def __init__(self, module: nn.Module, label: int) -> None:
        super().__init__()
        self.module = module
        self.label = label

    def forward(self, z: Tensor) -> Tensor:
        """``module(z, label)``."""
        label = torch.full((len(z),), self.label, dtype=torch.int64, device=z.device)
        signal: Tensor = self.module(z, label)
        return signal


class FromRange(nn.Module):
    """A network with values in ``[low, high]`` as one with values in [0, 1]: ``(module(z) - low) / (high - low)``."""

    def __init__(self, module: nn.Module, low: float, high: float) -> None:
        super().__init__()
        self.module = module
        self.low, self.high = low, high

    def forward(self, z: Tensor) -> Tensor:
        """Mapped values."""
        signal: Tensor = (self.module(z) - self.low) / (self.high - self.low)
        return signal
