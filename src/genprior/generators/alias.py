"""A frozen alias of a module: eval mode, no parameter gradients, the same memory; the caller's module is not changed."""

from __future__ import annotations

import copy
import hashlib
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def frozen_alias(module: nn.Module) -> nn.Module:
    """A copy of ``module`` in eval mode whose parameters share memory with it and need no gradients.

    Hooks are shared too, so a hook registered on the caller's module, before or after, is called in every pass.
    """
    if not isinstance(module, nn.Module):
        if isinstance(module, type):
            raise TypeError(
                f"module must be a torch.nn.Module, got the class {module.__name__}: call it, {module.__name__}()"
            )
        raise TypeError(f"module must be a torch.nn.Module, got {type(module).__name__}: wrap functions in a Module")
    _refuse_unused_statistics(module)
    try:
        with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of torch about its own parts, when a program is copied
            alias = copy.deepcopy(module, _shared_parts(module))
    except Exception as problem:
        if not any(p.requires_grad for p in module.parameters()) and not _any_training(module):
            return module
        raise TypeError(
            f"module {type(module).__name__} cannot be copied ({problem}): call module.eval().requires_grad_(False) "
            "yourself, then it is used as it is"
        ) from problem
    for part in all_parts(alias):
        part.eval()
        if vars(part).get("_is_full_backward_hook", False) is None:
            # Otherwise torch ignores full hooks that are added to the shared table later.
            vars(part)["_is_full_backward_hook"] = True
        for parameter in part.parameters():
            parameter.requires_grad_(False)
    _refuse_batch_statistics(alias)
    return alias


def _shared_parts(module: nn.Module) -> dict[int, Any]:
    """Memo for deepcopy: the tensors and hook tables that both modules share."""
    memo: dict[int, Any] = {}
    for part in all_parts(module):
        for name, value in vars(part).items():
            if "hooks" in name and isinstance(value, dict):
                memo[id(value)] = value
            elif isinstance(value, Tensor):  # for example the weight that weight_norm computes
                memo[id(value)] = value.detach()
        for parameter in part.parameters(recurse=False):
            shared = parameter.clone() if parameter.is_inference() else parameter.detach()
            memo[id(parameter)] = nn.Parameter(shared, requires_grad=False)
        for buffer in part.buffers(recurse=False):
            memo[id(buffer)] = buffer.clone() if buffer.is_inference() else buffer
    return memo


def all_parts(module: nn.Module) -> list[nn.Module]:
    """The module and all modules in it, also those in plain lists, tuples and dictionaries, which torch ignores."""
    parts: list[nn.Module] = []
    seen: set[int] = set()
    waiting: list[Any] = [module]
    while waiting:
        thing = waiting.pop()
        if not isinstance(thing, nn.Module | list | tuple | dict) or id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, nn.Module):
            parts.append(thing)
            thing = vars(thing)
        waiting.extend(reversed(thing.values() if isinstance(thing, dict) else thing))
    return parts


def _any_training(module: nn.Module) -> bool:
    return any(part.training for part in all_parts(module))


def _refuse_unused_statistics(module: nn.Module) -> None:
    """In train mode with running statistics never filled: eval mode would compute another function than the trained one."""
    for name, part in module.named_modules():
        counted = getattr(part, "num_batches_tracked", None)
        if isinstance(part, _BatchNorm) and part.training and isinstance(counted, Tensor) and int(counted) == 0:
            raise ValueError(
                f"module has a batch-dependent layer in train mode, {name or 'itself'} ({type(part).__name__}), whose "
                "running statistics were never filled: load trained weights, or call module.eval() if they are meant"
            )


def _refuse_batch_statistics(alias: nn.Module) -> None:
    for name, part in alias.named_modules():
        if isinstance(part, _BatchNorm) and (part.training or part.running_mean is None):
            raise ValueError(
                f"module layer {name or 'itself'} ({type(part).__name__}) uses the statistics of the batch even in eval "
                "mode, so items would influence each other: train it with track_running_stats=True, or replace it"
            )


def place_of(module: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Device and dtype of the module's floating-point parameters and buffers (CPU and float32 where it has none)."""
    parts = all_parts(module)
    for members in (nn.Module.parameters, nn.Module.buffers):
        for tensor in (tensor for part in parts for tensor in members(part, recurse=False)):
            if tensor.is_floating_point():
                return tensor.device, tensor.dtype
    return torch.device("cpu"), torch.float32


Places = dict[tuple[int, str], int]
"""The memory address of each of a module's tensors at the last check."""


def places_of(module: nn.Module) -> Places:
    """The addresses of parameters and buffers."""
    return {
        (number, name): tensor.data_ptr() if tensor.layout is torch.strided else id(tensor)
        for number, part in enumerate(all_parts(module))
        for name, tensor in (*part._parameters.items(), *part._buffers.items())
        if tensor is not None and not tensor.is_inference()
    }


def follow(alias: nn.Module, module: nn.Module, last: Places) -> None:
    """Give ``alias`` the tensors that ``module`` was given since the check, ``last``, as by ``p.data = ...``."""
    now = places_of(module)
    if alias is module or now == last:
        return
    if now.keys() != last.keys():
        raise ValueError(
            "parameters or buffers of the module were added, removed or renamed since the generator was made: make a "
            "new gp.Generator(module, ...)"
        )
    parts, originals = all_parts(alias), all_parts(module)
    if place_of(module) != place_of(alias):
        device, dtype = place_of(module)
        raise TypeError(
            f"the module was moved to {device}, {dtype} since the generator was made: make a new gp.Generator"
        )
    for (number, name), place in now.items():
        if last.get((number, name)) in {None, place}:
            continue
        new, old = originals[number], parts[number]
        if name in new._parameters:
            old._parameters[name].data = new._parameters[name].detach()  # type: ignore[union-attr]
        else:
            old._buffers[name] = new._buffers[name]
    last.clear()
    last.update(now)


def contents_of(module: nn.Module) -> str:
    """A digest of a module's contents: parameters, buffers, plain tensors and settings."""
    digest = hashlib.blake2b(digest_size=16)
    for part in all_parts(module):
        digest.update(type(part).__qualname__.encode())
        for name, value in (*vars(part).items(), *part._parameters.items(), *part._buffers.items()):
            if isinstance(value, Tensor):
                digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
                for plain in _strided(value.detach()):
                    digest.update(plain.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
            elif isinstance(value, bool | int | float | str | tuple):
                digest.update(f"{name} {value!r}".encode())
    return digest.hexdigest()


def _strided(tensor: Tensor) -> list[Tensor]:
    """The entries of a tensor, real and strided; of a sparse one, its indices and values."""
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), *_strided(tensor._values())]
    if tensor.layout is not torch.strided:
        return _strided(tensor.to_dense() if tensor.is_mkldnn else tensor.to_sparse())
    return [torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor]
