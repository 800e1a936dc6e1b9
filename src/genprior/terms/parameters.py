"""Numbers that belong to a term: one for all items, one per item ``(B,)``, or a tensor of the signal's shape."""

from __future__ import annotations

import copy
from collections.abc import Callable
from numbers import Real
from typing import Any, TypeVar

from torch import Tensor

from genprior._batch import PerItem, spread

Owner = TypeVar("Owner")


def one_per_item(name: str, value: PerItem, like: Tensor) -> Tensor:
    """Give a per-item number as a tensor ``(B,)`` of the dtype of ``like``; refuse another number of items."""
    if not isinstance(value, Tensor):
        return like.new_full((like.shape[0],), value)
    _refuse_other_batch(name, value, like)
    if value.ndim > 1:
        raise ValueError(f"{name} has shape {tuple(value.shape)}, expected () or one per item ({like.shape[0]},)")
    return value.to(like).expand(like.shape[0])


def step_per_item(t: PerItem, v: Tensor) -> Tensor:
    """Give the step of a prox as a tensor ``(B,)``."""
    return one_per_item("the step t", _not_negative(t), v)


def step_per_entry(t: PerItem, v: Tensor) -> PerItem:
    """Shape the step of a separable prox so that it broadcasts against ``v``; ``t`` may have the shape of ``v``."""
    t = _not_negative(t)
    if not isinstance(t, Tensor):
        return t
    if t.ndim > 1 and t.shape != v.shape:
        raise ValueError(f"the step t has shape {tuple(t.shape)}, expected (), ({v.shape[0]},) or {tuple(v.shape)}")
    _refuse_other_batch("the step t", t, v)
    return spread(t.to(v), v)


def times(factor: PerItem, t: PerItem) -> PerItem:
    """Multiply a per-item factor with a step: a number, one per item, or one per entry."""
    return spread(factor, t) * t if isinstance(t, Tensor) else factor * t


def replaced(owner: Owner, change: Callable[[str, Any], Any]) -> Owner:
    """Copy a frozen object with every attribute passed through ``change``; the object itself when all stay the same.

    The members of a tuple are passed one by one.
    """

    def renewed(name: str, old: Any) -> Any:
        if not isinstance(old, tuple):
            return change(name, old)
        members = tuple(change(name, part) for part in old)
        return old if all(new is part for new, part in zip(members, old, strict=True)) else members

    changed = {name: new for name, old in vars(owner).items() if (new := renewed(name, old)) is not old}
    if not changed:
        return owner
    twin = copy.copy(owner)
    for name, value in changed.items():
        object.__setattr__(twin, name, value)
    return twin


def keep(owner: object, name: str, value: PerItem) -> None:
    """Set an attribute of a frozen object; a tensor as a copy, for the caller may change theirs."""
    object.__setattr__(owner, name, value.clone() if isinstance(value, Tensor) else value)


def describe(value: PerItem) -> str:
    """Name a parameter in a repr: the number, or dtype and shape of a tensor."""
    if not isinstance(value, Tensor):
        return f"{value:g}"
    return f"<{str(value.dtype).removeprefix('torch.')} tensor {tuple(value.shape)}>"


def _refuse_other_batch(name: str, value: Tensor, like: Tensor) -> None:
    if value.ndim == 1 and value.shape[0] != like.shape[0]:
        raise ValueError(
            f"{name} has {value.shape[0]} numbers, but the batch has {like.shape[0]} items: "
            f"give one number per item, or select the items with term.rows(index)"
        )


def _not_negative(t: PerItem) -> PerItem:
    if isinstance(t, Tensor):
        if t.device.type == "cpu" and bool((t < 0).any()):  # one that is no number spoils its own item alone
            raise ValueError(f"the step t must be at least 0 for every item, got {t.tolist()}")
    elif not isinstance(t, Real):
        raise TypeError(f"the step t must be a number or a tensor, got {type(t).__name__}")
    elif not t >= 0:
        raise ValueError(f"the step t must be a number of at least 0, got {t!r}")
    return t
