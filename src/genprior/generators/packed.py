"""Large linear layers of a module, packed for the processor: for one run, in which their weights stay."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from genprior._product import Product
from genprior.generators.alias import frozen_alias
from genprior.generators.faster import is_hooked

_SMALLEST = 2**14
"""Weights of a layer; smaller ones gain nothing at any batch that is usual."""


def packed_copy(module: nn.Module) -> nn.Module:
    """The module with its large linear layers packed; itself where there are none. It shares weights and hooks."""
    if not any(_worthwhile(part) for part in module.modules()):
        return module
    double = frozen_alias(module)
    for part in double.modules():
        if _worthwhile(part):
            part.__class__ = _PackedLinear
    return double


def _worthwhile(part: nn.Module) -> bool:
    """Whether a layer is torch's own, as it came, and large."""
    if type(part) is not nn.Linear or "forward" in vars(part) or is_hooked(part):
        return False
    weight = part.weight
    return weight.device.type == "cpu" and weight.dtype is torch.float32 and weight.numel() >= _SMALLEST


class _PackedLinear(nn.Linear):
    """``x W^T + b`` by `Product`, forward and backward; as usual where it must be differentiated in other ways.

    Packed at its first use, and again when the weights were changed since.
    """

    _packed: tuple[Tensor, int, Product, Product] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output."""
        weight = self.weight
        if self._packed is None or self._packed[0] is not weight or self._packed[1] != weight._version:
            self._packed = weight, weight._version, Product(weight.T, self.bias), Product(weight)
        _, _, product, transposed = self._packed
        if x.ndim != 2 or not product.is_packed_for(x):
            return functional.linear(x, weight, self.bias)
        if not (x.requires_grad and torch.is_grad_enabled()):
            return product(x)
        answer: Tensor = _Linear.apply(x, product, transposed)  # type: ignore[attr-defined]
        return answer


class _Linear(torch.autograd.function._SingleLevelFunction):
    """A linear layer whose weights do not ask for gradients.

    The base class is torch's own of ``autograd.Function``, which spares what serves transforms of ``torch.func`` only: they
    never come here.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, product: Product, transposed: Product) -> Tensor:
        """``x W^T + b``."""
        ctx.transposed = transposed
        return product(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """``g W``; differentiable, as it is linear in g."""
        return ctx.transposed(gradient), None, None
