"""A digest of everything that determines a run: data, weights, solver, options, user-defined code."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from genprior.generators import Generator
from genprior.generators.alias import all_parts
from genprior.operators import Operator

_DATA = (bool, int, float, complex, str, bytes, tuple, np.ndarray, Tensor)
"""What a function may read from its module, compared by value."""
_MODULE_NAMES = frozenset(vars(nn.Module()))
_CHANGED_BY_RUNS = {"passes"}
"""Attributes of a generator that a run changes."""


def fingerprint(*parts: object) -> str:
    """A digest of everything that determines a run: data, weights, solver, options."""
    digest = hashlib.sha256()
    _feed(digest, parts, ())
    return digest.hexdigest()


def _feed(digest: hashlib._Hash, value: object, inside: tuple[int, ...]) -> None:
    """Add a value with its type and its length, so that no two different trees give the same bytes."""
    content = b"itself" if id(value) in inside else _content(value)
    digest.update(f"{type(value).__qualname__}:{len(content)}:".encode())
    if isinstance(content, bytes):
        digest.update(content)
        return
    for part in content:
        _feed(digest, part, (*inside, id(value)))


@functools.singledispatch
def _content(value: Any) -> bytes | list[Any]:
    """What an object holds: bytes, or parts. In our own classes names with an underscore are caches, not content."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(part.name, getattr(value, part.name)) for part in dataclasses.fields(value)]
    if hasattr(value, "__qualname__"):  # classes and built-in functions
        return f"{value.__module__}.{value.__qualname__}".encode()
    if hasattr(value, "__dict__"):
        return _attributes(value)
    text = repr(value)
    return b"" if " at 0x" in text else text.encode()


def _attributes(value: object) -> list[Any]:
    ours = type(value).__module__.startswith("genprior.")
    return [(k, v) for k, v in vars(value).items() if not (ours and (k.startswith("_") or k in _CHANGED_BY_RUNS))]


@_content.register
def _(value: Generator) -> list[Any]:
    """The preconditioner that it brought along decides about steps; one that is estimated follows from the rest."""
    return [*_attributes(value), ("preconditioner", value.given_preconditioner)]


@_content.register
def _(value: Tensor) -> list[Any]:
    plain = value.detach().resolve_conj().resolve_neg()
    plain = torch.view_as_real(plain) if plain.is_complex() else plain
    content = plain.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return [str(value.dtype), tuple(value.shape), content]


@_content.register
def _(value: np.ndarray) -> list[Any]:
    return [value.dtype.str, value.shape, value.tolist() if value.dtype.hasobject else value.tobytes()]


@_content.register
def _(value: Operator) -> list[Any]:
    """Its action on a fixed signal, and its functions: these distinguish operators whatever their attributes."""
    functions = list(value.parts) or [part for part in vars(value).values() if callable(part)]
    return [functions, value.tolerance, value.max_iterations, *_action(value)]


def _action(operator: Operator) -> list[Tensor]:
    if operator.signal_shape is None:
        return []
    shape = (operator.batch or 1, *operator.signal_shape)
    probe = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64, device="cpu")
    with torch.no_grad():
        image = operator(probe.to(operator.device or "cpu", operator.dtype or torch.float32))
        return [image, operator.adjoint(image)]


@_content.register
def _(value: nn.Module) -> list[Any]:
    """Types, settings and tensors of all layers: ELU and ReLU hold the same weights, but are not the same network."""
    return [(type(part).__qualname__, part.extra_repr(), _settings(part), _numbers(part)) for part in all_parts(value)]


def _settings(module: nn.Module) -> list[tuple[str, object]]:
    """What the class of the module keeps besides parameters, buffers and layers; also plain tensors."""
    plain = (bool, int, float, str, tuple, FunctionType, Tensor)
    return [(k, v) for k, v in vars(module).items() if k not in _MODULE_NAMES and isinstance(v, plain)]


def _numbers(module: nn.Module) -> list[tuple[str, Tensor]]:
    named = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    return [(name, tensor.detach()) for name, tensor in named]


@_content.register
def _(value: FunctionType) -> list[Any]:
    cells = [cell.cell_contents for cell in value.__closure__ or ()]
    names = [name for name in value.__code__.co_names if isinstance(value.__globals__.get(name), _DATA)]
    data = [(name, value.__globals__[name]) for name in names]  # of its module, which it may use
    return [value.__module__, value.__qualname__, value.__code__, value.__defaults__, value.__kwdefaults__, cells, data]


@_content.register
def _(value: CodeType) -> list[Any]:
    return [value.co_code, value.co_names, value.co_consts]


@_content.register
def _(value: functools.partial) -> list[Any]:  # type: ignore[type-arg]
    return [value.func, value.args, value.keywords]


@_content.register
def _(value: MethodType) -> list[Any]:
    return [value.__func__, value.__self__]


@_content.register(list)
@_content.register(tuple)
def _(value: list[Any] | tuple[Any, ...]) -> list[Any]:
    return list(value)


@_content.register
def _(value: dict) -> list[Any]:  # type: ignore[type-arg]
    return list(value.items())


@_content.register(set)
@_content.register(frozenset)
def _(value: set[Any] | frozenset[Any]) -> list[Any]:
    return sorted(value, key=repr)


@_content.register
def _(value: bytes) -> bytes:
    return value
