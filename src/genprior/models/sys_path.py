"""A user's folder on ``sys.path``, for as long as the code in it is opened and called."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import cloudpickle

_NEIGHBOURS: dict[str, Path] = {}
"""Modules that user code imported from its own folder, and that folder."""
_FILES: dict[Path, dict[Path, None]] = {}
"""The files of all modules that user code imported from a folder."""


@contextmanager
def on_sys_path(folder: Path) -> Iterator[None]:
    """Make the modules of a folder importable inside.

    Two models may each have a ``networks.py``: modules from other folders are hidden meanwhile and restored afterwards,
    for networks that import when called. Of two modules of one name the first is kept.
    """
    others = [name for name, place in _NEIGHBOURS.items() if place != folder and name in sys.modules]
    hidden = {name: sys.modules.pop(name) for name in others}
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        if str(folder) in sys.path:  # the user's code may have removed it
            sys.path.remove(str(folder))
        for name in _new_neighbours(folder, before):
            file = getattr(sys.modules[name], "__dict__", {}).get("__file__")
            if isinstance(file, str):
                _FILES.setdefault(folder, {})[Path(file)] = None
                cloudpickle.register_pickle_by_value(sys.modules[name])  # workers cannot import it by its name
            if _top(name) in hidden:
                del sys.modules[name]
            else:
                _NEIGHBOURS[name] = folder
        sys.modules.update(hidden)


def imported_from(folder: Path) -> list[Path]:
    """The files of the modules that user code imported from its own folder."""
    return [path for path in _FILES.get(folder, ()) if path.is_file()]


def _new_neighbours(folder: Path, before: set[str]) -> list[str]:
    """Modules in the folder itself and their submodules; not, say, in a virtual environment below it."""
    new = [name for name in sys.modules if name not in before]
    fresh = {name for name in new if "." not in name and _lies_in(sys.modules[name], folder)}
    return [name for name in new if _top(name) in fresh or _NEIGHBOURS.get(_top(name)) == folder]


def _top(name: str) -> str:
    return name.partition(".")[0]


def _lies_in(module: ModuleType, folder: Path) -> bool:
    facts = getattr(module, "__dict__", {})  # not an attribute that a module computes on access
    file = facts.get("__file__")
    if isinstance(file, str):
        place = Path(file).resolve()
        return folder in (place.parent, place.parent.parent)
    return any(Path(place).resolve().parent == folder for place in facts.get("__path__", ()))
