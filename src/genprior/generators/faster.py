"""A faster module that computes the same: BatchNorm folded into the layer before, channels last."""

from __future__ import annotations

import copy
from collections import Counter
from functools import reduce

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

_EQUAL = 1e-4
"""Largest relative difference between the two modules' signals in float32; rounding is far below."""


def quick_copy(module: nn.Module, latents: Tensor) -> tuple[nn.Module, tuple[str, ...]]:
    """A copy of an eval-mode module and what was done to it; each change is kept only if signals at ``latents`` stay equal."""
    quick, remarks = module, []
    folded, count = fold_batch_norms(module)
    if count and _equal(folded, module, latents):
        quick = folded
        remarks.append(f"{count} BatchNorm layer{'s' * (count > 1)} folded into the layers before")
    laid_out = _channels_last(quick)
    if laid_out is not None and _equal(laid_out, module, latents):
        quick = laid_out
        remarks.append("channels last in memory")
    return quick, tuple(remarks)


def fold_batch_norms(module: nn.Module) -> tuple[nn.Module, int]:
    """A copy in which every BatchNorm that follows a linear or convolution layer directly is part of it, and their number.

    The copy's graph is found by tracing; a module that cannot be traced, because its Python depends on data, is
    returned unchanged, and a BatchNorm that acts on another axis than the layer before it stays.
    """
    if not any(isinstance(part, _BatchNorm) for part in module.modules()):
        return module, 0
    try:
        traced = fx.symbolic_trace(copy.deepcopy(module))
    except Exception:
        return module, 0
    calls = Counter(node.target for node in traced.graph.nodes if node.op == "call_module")
    pairs = [node for node in traced.graph.nodes if _is_pair(traced, node, calls)]
    count = sum(_fold(traced, node) for node in pairs)
    traced.recompile()
    return traced.eval().requires_grad_(False), count


def _fold(traced: fx.GraphModule, node: fx.Node) -> bool:
    """Put a BatchNorm into the layer before it, if torch can."""
    before = node.args[0]
    assert isinstance(before, fx.Node)
    try:
        fused = _fused(_part(traced, before), _part(traced, node))
    except Exception:
        return False
    _replace(traced, str(before.target), fused)
    node.replace_all_uses_with(before)
    traced.graph.erase_node(node)
    return True


def _channels_last(module: nn.Module) -> nn.Module | None:
    """A copy with this layout; None where no layer has channels, or the module cannot be copied."""
    if not any(parameter.ndim == 4 for parameter in module.parameters()):
        return None
    try:
        copied: nn.Module = copy.deepcopy(module).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    except Exception:
        return None
    return copied


def _is_pair(traced: fx.GraphModule, node: fx.Node, calls: Counter[object]) -> bool:
    """A BatchNorm that is the only consumer of a layer into which it can be folded."""
    if node.op != "call_module" or not isinstance(_part(traced, node), _BatchNorm) or not node.args:
        return False
    before = node.args[0]
    if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) > 1:
        return False
    alone = calls[before.target] == 1 and calls[node.target] == 1
    layer = _part(traced, before)
    grouped = isinstance(layer, _ConvTransposeNd) and layer.groups > 1
    return alone and isinstance(layer, nn.Linear | _ConvNd) and not grouped and not is_hooked(layer)


def is_hooked(layer: nn.Module) -> bool:
    """Whether a layer has hooks or parametrizations (weight norm is one): it must then stay as it is."""
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks)
    return any(hooks) or hasattr(layer, "parametrizations")


def _fused(layer: nn.Module, norm: nn.Module) -> nn.Module:
    assert isinstance(norm, _BatchNorm)
    if isinstance(layer, nn.Linear):
        if norm.weight is None:  # torch's function needs tensors
            norm = copy.deepcopy(norm)
            norm.weight, norm.bias = (nn.Parameter(f(norm.running_mean)) for f in (torch.ones_like, torch.zeros_like))
        return fuse_linear_bn_eval(layer, norm)
    return fuse_conv_bn_eval(layer, norm, transpose=isinstance(layer, _ConvTransposeNd))  # type: ignore[type-var]


def _part(traced: fx.GraphModule, node: fx.Node) -> nn.Module:
    return traced.get_submodule(str(node.target))


def _replace(traced: fx.GraphModule, name: str, layer: nn.Module) -> None:
    *path, last = name.split(".")
    setattr(reduce(getattr, path, traced), last, layer)


def _equal(one: nn.Module, other: nn.Module, latents: Tensor) -> bool:
    with torch.no_grad():
        y = other(latents)
        try:
            x = one(latents)
        except Exception:  # a change that fails is not made
            return False
    return x.shape == y.shape and bool((x - y).abs().max() <= _EQUAL * y.abs().max().clamp_min(1e-30))
