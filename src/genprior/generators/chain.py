"""A chain of torch's own layers, run and pulled back layer by layer: autograd's bookkeeping costs more than a small layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as torch_module

from genprior._product import is_ordinary, is_transformed
from genprior.generators.alias import version_of
from genprior.generators.packed import PackedLinear

WayBack = Callable[[Tensor], Tensor]
"""``v -> DG(z)^T v``, or the same for one layer."""
Link = Callable[[Tensor], tuple[Tensor, WayBack]]
"""A layer: its output, and the way back through it."""

_aten = torch.ops.aten
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Chain:
    """An ``nn.Sequential``, nested or not, of linear layers, activations and changes of shape.

    It gives what autograd gives on the same layers, but for its bookkeeping: in the passes of an MLP from 20 over 400 to 784
    numbers that is a quarter of the time. Which layers there are, and their settings, is read when the chain is made; their
    weights are read at every pass, and on the way back.
    """

    def __init__(self, module: nn.Sequential, links: list[Link]) -> None:
        self._module, self._links = module, links
        own = (getattr(part, name) for part in module.modules() for name in _HOOKS)
        self._hooks: tuple[Any, ...] = (*own, *(getattr(torch_module, f"_global{name}") for name in _HOOKS))

    @classmethod
    def of(cls, module: object) -> Chain | None:
        """The chain that a module is; None where it is something else, or may do more than its layers do."""
        if type(module) is not nn.Sequential:
            return None
        layers = _in_order(module)
        if not all(type(layer) in _LINKS for layer in layers) or not all(map(_is_as_it_came, module.modules())):
            return None
        return cls(module, [_LINKS[type(layer)](layer) for layer in layers])

    def serves(self, z: Tensor) -> bool:
        """Whether nobody else looks on: no graph, no hook, no transform, no search for anomalies."""
        watched = torch.is_grad_enabled() or torch.is_anomaly_enabled() or any(self._hooks)
        return not watched and not is_transformed(z)

    def __call__(self, z: Tensor) -> tuple[Tensor, WayBack]:
        """``G(z)``, and the way back, to be gone once: it frees what it has used."""
        x, ways = z, []
        for link in self._links:
            x, way = link(x)
            ways.append(way)
        version = version_of(x)

        def back(v: Tensor) -> Tensor:
            if len(ways) != len(self._links):
                raise RuntimeError("this way back through the generator was gone already: evaluate it again")
            if v.shape != x.shape:
                raise ValueError(f"v has shape {tuple(v.shape)}, expected that of the signals: {tuple(x.shape)}")
            if version_of(x) != version:
                raise RuntimeError(
                    "signals of the generator were changed in place before they were pulled back: operators, losses and "
                    "callbacks must not write into what they are given"
                )
            v = v.to(x.dtype)
            while ways:
                v = ways.pop()(v)
            return v

        return x, back

    def __reduce__(self) -> tuple[object, tuple[nn.Sequential]]:
        """What is copied and pickled: the module; links and hooks are found anew."""
        return Chain.of, (self._module,)


def _in_order(module: nn.Module) -> list[nn.Module]:
    """The layers, as often as they are run."""
    if type(module) is not nn.Sequential:
        return [module]
    return [layer for part in module for layer in _in_order(part)]


def _is_as_it_came(part: nn.Module) -> bool:
    """Whether a part's forward is that of its class, which nobody has changed, and its numbers are ordinary tensors."""
    kind = type(part)
    numbers = (*part._parameters.values(), getattr(part, "weight", None), getattr(part, "bias", None))
    ordinary = all(number is None or is_ordinary(number) for number in numbers)
    return ordinary and "forward" not in vars(part) and kind.forward is _FORWARDS[kind]


def _linear(layer: nn.Linear) -> Link:
    def link(x: Tensor) -> tuple[Tensor, WayBack]:
        weight = layer.weight
        return functional.linear(x, weight, layer.bias), lambda v: v @ weight

    return link


def _packed_linear(layer: PackedLinear) -> Link:
    plain = _linear(layer)

    def link(x: Tensor) -> tuple[Tensor, WayBack]:
        if x.ndim != 2:
            return plain(x)
        product, transposed = layer.products()
        return product(x), transposed

    return link


def _elu(layer: nn.ELU) -> Link:
    back, alpha = _aten.elu_backward.default, float(layer.alpha)
    return lambda x: (functional.elu(x, alpha), lambda v: back(v, alpha, 1.0, 1.0, False, x))


def _by_output(
    run: Callable[[Tensor], Tensor], back: Callable[[Tensor, Tensor], Tensor]
) -> Callable[[nn.Module], Link]:
    """An activation without settings whose slope is a function of its output."""

    def link(x: Tensor) -> tuple[Tensor, WayBack]:
        y = run(x)
        return y, lambda v: back(v, y)

    return lambda layer: link


def _leaky_relu(layer: nn.LeakyReLU) -> Link:
    back, slope = _aten.leaky_relu_backward.default, float(layer.negative_slope)
    return lambda x: (functional.leaky_relu(x, slope), lambda v: back(v, x, slope, False))


def _softplus(layer: nn.Softplus) -> Link:
    back, beta, threshold = _aten.softplus_backward.default, float(layer.beta), float(layer.threshold)
    return lambda x: (functional.softplus(x, beta, threshold), lambda v: back(v, x, beta, threshold))


def _shape(layer: nn.Module) -> Link:
    def link(x: Tensor) -> tuple[Tensor, WayBack]:
        shape = x.shape
        return layer(x), lambda v: v.reshape(shape)

    return link


_LINKS: dict[type[nn.Module], Callable[[Any], Link]] = {
    nn.Linear: _linear,
    PackedLinear: _packed_linear,
    nn.ELU: _elu,
    nn.ReLU: _by_output(torch.relu, lambda v, y: _aten.threshold_backward.default(v, y, 0.0)),
    nn.LeakyReLU: _leaky_relu,
    nn.Softplus: _softplus,
    nn.Sigmoid: _by_output(torch.sigmoid, _aten.sigmoid_backward.default),
    nn.Tanh: _by_output(torch.tanh, _aten.tanh_backward.default),
    nn.Flatten: _shape,
    nn.Unflatten: _shape,
    nn.Identity: _shape,
}
_KINDS: tuple[type[nn.Module], ...] = (nn.Sequential, *_LINKS)
_FORWARDS = {kind: kind.forward for kind in _KINDS}
