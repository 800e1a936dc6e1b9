"""A user's own network from a file: Python code or TorchScript."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import torch
from torch import nn

from genprior.files.guard import Unreadable
from genprior.generators.contract import Generator
from genprior.models.archive import check_records
from genprior.models.scripted import check_script
from genprior.models.sys_path import on_sys_path
from genprior.models.weights import refuse_pickled_code

SCRIPT_ENDINGS = (".pt", ".pth", ".ts", ".jit", ".pt2")


def is_python(text: str) -> bool:
    """``file.py:function`` or ``package.module:function``; a path with a drive letter is neither."""
    place, colon, name = text.rpartition(":")
    return bool(colon) and name.isidentifier() and (place.endswith(".py") or place.replace(".", "").isidentifier())


def build_from_python(spec: str) -> Any:
    """Call the function that ``my_model.py:build`` names, without arguments, and return its result.

    A name of a module object returns that module.
    """
    place = spec.rpartition(":")[0]
    with on_sys_path(_folder(place)):
        return _built(_import(place, spec), spec)


def function_from_python(spec: str) -> Callable[..., Any]:
    """The function that ``my_physics.py:forward`` names: imported, not called."""
    place, _, name = spec.rpartition(":")
    if not is_python(spec):
        raise ValueError(
            f"{spec!r} names no function: write my_physics.py:forward, where forward(signals) gives the measurements"
        )
    with on_sys_path(_folder(place)):
        source = _import(place, spec)
    found = getattr(source, name, None)
    if not callable(found) or isinstance(found, type):
        raise ValueError(f"{place} has no function {name!r}: give one of {_functions(source)}")
    function: Callable[..., Any] = found
    return function


def _functions(source: ModuleType) -> str:
    there = [key for key, value in vars(source).items() if callable(value) and not key.startswith("_")]
    return ", ".join(there) or "(it defines none)"


def source_file(spec: str) -> Path | None:
    """The file of the code that ``my_model.py:build`` or ``package.module:build`` names; None if there is none."""
    place = spec.rpartition(":")[0]
    if place.endswith(".py"):
        return Path(place)
    with on_sys_path(_folder(place)):
        origin = getattr(_import(place, spec), "__file__", None)
    return None if origin is None else Path(origin)


def load_program(path: Path) -> nn.Module:
    """Read a TorchScript file; for anything else the error says what to do instead."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    _check_program(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecation warnings of torch that the user cannot act on
            return _scripted(path)
    except Unreadable:
        raise
    except Exception as problem:
        reason = str(problem).partition("\n")[0]
        raise ValueError(f"{path} cannot be read ({reason}): it is damaged, or made by a newer torch") from problem


def _check_program(path: Path) -> None:
    """Raise unless the content, whatever the ending, is a valid TorchScript file."""
    with path.open("rb") as file:
        if file.read(4) == b"PK\x03\x04":
            check_records(file, path)
    try:
        with zipfile.ZipFile(path) as archive:
            names, broken = archive.namelist(), archive.testzip()
    except Exception as problem:  # zipfile raises many types
        raise ValueError(
            f"{path} is not a TorchScript file ({problem}): for weights, give the Python function "
            "that builds the module as the generator, my_model.py:build, and the file as weights"
        ) from None
    if broken is not None:  # torch aborts the process on some damaged files
        raise ValueError(f"{path} is damaged ({broken} does not fit its checksum): get the file again")
    if any(name.endswith("/archive_format") for name in names):
        raise Unreadable(
            f"{path} is a torch.export file, which can run any code when torch opens it, so it is refused. If you trust it, "
            f"open it yourself: write 'import torch', then 'def build(): return torch.export.load({str(path)!r}).module()' "
            "into my_model.py, and give my_model.py:build"
        )
    if any("/code/" in name for name in names) and any(name.endswith("/constants.pkl") for name in names):
        return
    refuse_pickled_code(path)
    raise ValueError(
        f"{path} holds weights only, no network: give the Python function that builds the module as the generator, "
        f"my_model.py:build, and this file as weights"
    )


def _scripted(path: Path) -> nn.Module:
    check_script(path)
    module: nn.Module = torch.jit.load(path, map_location="cpu")  # type: ignore[no-untyped-call]
    return module


def _built(source: ModuleType, spec: str) -> Any:
    place, _, name = spec.rpartition(":")
    build = getattr(source, name, None)
    if isinstance(build, nn.Module | Generator):
        return build
    if not callable(build):
        raise ValueError(f"{place} has no function {name!r}: give one of {_functions(source)}")
    needed = _needed(build)
    if needed:
        raise ValueError(
            f"{spec} needs the arguments {', '.join(needed)}: give them defaults, or write a function without arguments "
            "that returns the module"
        )
    built = _guarded(build, spec, f"{name}()")
    if built is None:
        raise ValueError(f"{spec} returned None, expected a torch.nn.Module: is a return missing in {name}?")
    return built


def _import(place: str, spec: str) -> ModuleType:
    if not place.endswith(".py"):
        imported: ModuleType = _guarded(lambda: importlib.import_module(place), spec, f"import {place}")
        return imported
    path = Path(place)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path} (from {spec!r})")
    name = f"genprior_user_{path.stem}_{zlib.crc32(str(path.resolve()).encode()):08x}"
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise ValueError(f"{path} cannot be imported as Python code")
    module = importlib.util.module_from_spec(found)
    loader = found.loader
    sys.modules[name] = module  # dataclasses, for example, look up their module
    cloudpickle.register_pickle_by_value(module)  # workers cannot import it by this name
    _guarded(lambda: loader.exec_module(module), spec, str(path))
    return module


def _folder(place: str) -> Path:
    """The folder to import from: that of the file, or for a package the working folder, as with ``python -m``."""
    return Path(place).resolve().parent if place.endswith(".py") else Path.cwd()


def _guarded(call: Callable[[], Any], spec: str, what: str) -> Any:
    """Report whatever user code raised, with its line."""
    try:
        return call()
    except Exception as problem:
        if isinstance(problem, ModuleNotFoundError) and f"{what}.".startswith(f"import {problem.name}."):
            raise ValueError(
                f"there is no Python module {what.removeprefix('import ')!r} (from {spec!r}): give a file, "
                "my_model.py:build"
            ) from None
        last = traceback.extract_tb(problem.__traceback__)[-1]
        named = (
            isinstance(problem, SyntaxError) and problem.filename is not None
        )  # a syntax error names the line itself
        where = "" if named else f" ({Path(last.filename).name}, line {last.lineno})"
        raise ValueError(f"{what} failed with {type(problem).__name__}: {problem}{where}") from problem


def _needed(build: Callable[..., Any]) -> list[str]:
    """Arguments without a default."""
    try:
        parameters = inspect.signature(build).parameters.values()
    except (TypeError, ValueError):
        return []
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in parameters if p.kind in plain and p.default is inspect.Parameter.empty]
