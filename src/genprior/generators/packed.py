"""Large linear layers of a module, packed for the processor: for one run, in which their weights stay."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from genprior._product import Product, can_pack
from genprior.generators.alias import frozen_alias
from genprior.generators.faster import is_hooked

_SMALLEST = 2**14
"""Weights of a layer; smaller ones gain nothing at any batch that is usual."""


def packed_copy(module: nn.Module) -> nn.Module:
    """The module with its large linear layers packed, in a double that shares weights and hooks; itself where none are.

    Only modules that are made of torch's own parts and ours alone: what a person's class keeps between two passes (noise drawn
    at the first one, say) would be another one in the double.
    """
    if not can_pack() or not all(_is_known(part) for part in module.modules()):
        return module
    if not any(_worthwhile(part) for part in module.modules()):
        return module
    double = frozen_alias(module)
    if double is module:  # it cannot be copied, and it is the person's own
        return module
    for part in double.modules():
        if _worthwhile(part):
            part.__class__ = PackedLinear
    return double


def _is_known(part: nn.Module) -> bool:
    return type(part).__module__.startswith(("torch.nn.", "genprior."))


def _worthwhile(part: nn.Module) -> bool:
    """Whether a layer is torch's own, as it came, and large."""
    if type(part) is not nn.Linear or "forward" in vars(part) or is_hooked(part):
        return False
    weight = part._parameters.get("weight")
    return (
        "bias" in part._parameters
        and weight is not None
        and weight.is_cpu
        and weight.dtype is torch.float32
        and weight.numel() >= _SMALLEST
    )


class PackedLinear(nn.Linear):
    """``x W^T + b`` by `Product`, forward and backward; as usual where it must be differentiated in other ways.

    Packed at its first use, and again when the weights were changed or replaced since.
    """

    _packed: tuple[Tensor, int, Tensor | None, Product, Product] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output."""
        weight, bias = self.weight, self.bias
        product, transposed = self.products()
        variable = weight.requires_grad or (bias is not None and bias.requires_grad)  # put in place by somebody
        if x.ndim != 2 or variable or not product.is_packed_for(x):
            return functional.linear(x, weight, bias)
        if not (x.requires_grad and torch.is_grad_enabled()):
            return product(x)
        answer: Tensor = _Linear.apply(x, product, transposed)  # type: ignore[attr-defined]
        return answer

    def products(self) -> tuple[Product, Product]:
        """The products of the passes: forward with the bias, backward."""
        own, known = self._parameters, self._packed  # not by attribute, which takes longer than the rest
        weight, bias = own["weight"], own["bias"]
        assert weight is not None, "a linear layer has weights"
        if known is None or known[0] is not weight or known[1] != weight._version or known[2] is not bias:
            known = weight, weight._version, bias, Product(weight.detach().T, bias), Product(weight.detach())
            self._packed = known
        return known[3], known[4]


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
