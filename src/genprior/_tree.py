"""Row-wise operations on whole states: nested dataclasses and dictionaries whose leaves are tensors ``(B, ...)`` or None.

Because every leaf has one row per item, selecting items, replacing items and storing a state are written once, here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from genprior.generators.derivatives import Evaluation

T = TypeVar("T")


def take(tree: T, index: Tensor) -> T:
    """The rows at ``index``."""
    return cast(T, _map(tree, lambda leaf: leaf[index], lambda leaf: leaf.rows(index)))


def put(tree: T, index: Tensor, other: T) -> T:
    """A copy of ``tree`` in which the rows at ``index`` are those of ``other``."""
    replacement = iter(_leaves(other))
    merged = _map(
        tree,
        lambda leaf: leaf.index_copy(0, index, next(replacement)),
        lambda leaf: leaf.put(index, next(replacement)),
    )
    return cast(T, merged)


def pack(tree: object, prefix: str) -> dict[str, Tensor]:
    """Flatten to named tensors, in an order that :func:`unpack` relies on."""
    packed: dict[str, Tensor] = {}
    for number, leaf in enumerate(_leaves(tree)):
        if isinstance(leaf, Evaluation):
            packed |= {f"{prefix}.{number}.{name}": part for name, part in leaf.tensors().items()}
        else:
            packed[f"{prefix}.{number}"] = leaf
    return packed


def unpack(template: T, packed: dict[str, Tensor], prefix: str) -> T:
    """Rebuild what :func:`pack` stored, with the structure, dtypes and device of ``template``."""
    numbers = iter(range(len(_leaves(template))))

    def tensor(leaf: Tensor) -> Tensor:
        return packed[f"{prefix}.{next(numbers)}"].to(leaf, copy=True)  # memory aligned as it was: bits depend on it

    def evaluation(leaf: Evaluation) -> Evaluation:
        start = f"{prefix}.{next(numbers)}."
        return leaf.restored({name: packed[start + name] for name in leaf.tensors()})

    return cast(T, _map(template, tensor, evaluation))


def _map(tree: Any, tensor: Callable[[Tensor], Tensor], evaluation: Callable[[Evaluation], Evaluation]) -> Any:
    if isinstance(tree, Tensor):
        return tensor(tree)
    if isinstance(tree, Evaluation):
        return evaluation(tree)
    if tree is None:
        return None
    if isinstance(tree, dict):
        return {name: _map(part, tensor, evaluation) for name, part in tree.items()}
    parts = {field.name: getattr(tree, field.name) for field in dataclasses.fields(tree)}
    return type(tree)(**{name: _map(part, tensor, evaluation) for name, part in parts.items()})


def _leaves(tree: object) -> list[Any]:
    found: list[Any] = []

    def note(leaf: Any) -> Any:
        found.append(leaf)
        return leaf

    _map(tree, note, note)
    return found


def equal(left: object, right: object) -> bool:
    """Whether two states hold the same bits."""
    a, b = pack(left, ""), pack(right, "")
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
