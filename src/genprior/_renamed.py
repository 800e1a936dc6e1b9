"""Old public names: they work for one more release, with a warning."""

from __future__ import annotations

import warnings
from typing import TypeVar

T = TypeVar("T")


def renamed(old_name: str, old: T | None, name: str, value: T | None, *, depth: int = 3) -> T | None:
    """The value of an argument that may have been given under its old name."""
    if old is None:
        return value
    if value is not None:
        raise TypeError(f"{old_name} is the old name of {name}: give {name} alone")
    warn_renamed(f"{old_name}=", f"{name}=", depth=depth + 1)
    return old


def warn_renamed(old: str, new: str, *, depth: int = 3) -> None:
    """Say what the name is now."""
    warnings.warn(f"{old} is now {new}; the old name goes with the next release", DeprecationWarning, stacklevel=depth)
