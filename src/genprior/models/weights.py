"""Weights of a user's own module: safetensors, or what ``torch.save(module.state_dict())`` wrote. No pickled code."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from genprior.files.arrays import ARRAY_ENDINGS
from genprior.files.guard import Unreadable
from genprior.files.limits import check_head
from genprior.files.named import split_key
from genprior.models.archive import check_saved

_SAVED = (b"PK\x03\x04", b"\x80")
"""First bytes of files of torch.save: an archive, or in old ones a pickle."""
_WRAPPER = "module."
"""The prefix that torch.nn.DataParallel adds to every name."""


def load_weights(module: nn.Module, path: Path) -> None:
    """Fill a module from a file; every name and shape must fit.

    Training scripts often store the weights one level deeper, with optimisers and other networks: the set that fits is
    used. If several fit, such as the last ones and their average, the path must name one: ``checkpoint.pt:g_ema``.
    """
    expected = module.state_dict()
    file, key = split_key(path)
    sets = {name: _unwrapped(tensors) for name, tensors in read_weights(file).items()}
    if key is not None and key not in sets:
        raise ValueError(f"{file} has no set of weights {key!r}: give one of {', '.join(map(repr, sets))}")
    found = sets if key is None else {key: sets[key]}
    fitting = {name: tensors for name, tensors in found.items() if _shapes(tensors) == _shapes(expected)}
    if len(fitting) > 1:
        raise ValueError(
            f"{file} holds {len(fitting)} sets of weights that fit ({', '.join(fitting)}): name one, for example "
            f"`weights={file}:{_smoothed(fitting)}`"
        )
    nearest = max((fitting or found).values(), key=lambda tensors: len(set(tensors) & set(expected)))
    fill(module, nearest, file)


def fill(module: nn.Module, weights: dict[str, Tensor], path: Path) -> None:
    """Fill a module with weights that were read from a file; every name and shape must fit."""
    _check_fit(module.state_dict(), weights, path)
    module.load_state_dict(weights)


def read_weights(path: Path) -> dict[str, dict[str, Tensor]]:
    """The sets of names and tensors in a file; most have one, with an empty name."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path} (weights)")
    if path.suffix.lower() != ".safetensors":
        _check_start(path)
        return _state_dicts(refuse_pickled_code(path), path)
    check_head(path)
    try:
        return {"": load_file(path)}
    except (SafetensorError, OSError, ValueError) as problem:
        raise ValueError(f"{path} cannot be read as safetensors ({problem}): truncated, or another format") from None


def _check_start(path: Path) -> None:
    """Raise if the first bytes show that torch.save did not write the file."""
    with path.open("rb") as file:
        start = file.read(4)
    if path.suffix.lower() in ARRAY_ENDINGS or not start.startswith(_SAVED):
        raise Unreadable(
            f"{path} cannot be read as weights, because torch.save did not write it: give .safetensors, or .pt of "
            "torch.save(module.state_dict(), ...)"
        )


def refuse_pickled_code(path: Path) -> Any:
    """Read what torch.save wrote if it is plain data; a file with pickled code raises an error that explains why."""
    check_saved(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as problem:
        unsafe = "WeightsUnpickler" in str(problem) or "Unsupported" in str(problem) or "GLOBAL" in str(problem)
        if not unsafe:
            raise Unreadable(f"{path} cannot be read: it is damaged, or not a file of torch.save") from None
        raise Unreadable(
            f"{path} holds pickled Python code (a whole module, not only its weights), which could do anything when it "
            "is opened: refused. If you trust it, load it yourself once and save the weights: "
            "torch.save(module.state_dict(), 'weights.pt'), or safetensors.torch.save_file(module.state_dict(), ...)"
        ) from None
    except Exception as problem:
        reason = str(problem).partition("\n")[0]
        raise Unreadable(f"{path} cannot be read ({reason}): it is damaged, or not a file of torch.save") from None


def _state_dicts(content: Any, path: Path) -> dict[str, dict[str, Tensor]]:
    if _is_state_dict(content):
        return {"": dict(content)}
    nested = content.items() if isinstance(content, dict) else ()
    found = {str(key): dict(value) for key, value in nested if _is_state_dict(value)}
    if not found:
        raise ValueError(
            f"{path} holds {type(content).__name__}, expected names and tensors: torch.save(module.state_dict(), ...)"
        )
    return found


def _smoothed(names: Iterable[str]) -> str:
    """The set whose name says that it is averaged over the training: it gives better images."""
    names = list(names)
    return next((name for name in names if "ema" in name.lower()), names[0])


def _unwrapped(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    wrapped = all(name.startswith(_WRAPPER) for name in tensors)
    return {name.removeprefix(_WRAPPER): tensor for name, tensor in tensors.items()} if wrapped else tensors


def _shapes(tensors: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _is_state_dict(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(isinstance(part, Tensor) for part in value.values())


def _check_fit(expected: dict[str, Tensor], found: dict[str, Tensor], path: Path) -> None:
    missing, extra = [n for n in expected if n not in found], [n for n in found if n not in expected]
    if missing or extra:
        parts = [f"it lacks {_some(missing)}"] if missing else []
        parts += [f"it has {_some(extra)}, which the module does not"] if extra else []
        raise ValueError(f"{path} does not fit the module: {'; '.join(parts)}: is it for another architecture?")
    for name, tensor in expected.items():
        if tensor.shape != found[name].shape:
            raise ValueError(
                f"{path} does not fit the module: {name} is {tuple(found[name].shape)} in the file, "
                f"{tuple(tensor.shape)} in the module: check its widths"
            )
        if found[name].is_floating_point() and not bool(torch.isfinite(found[name]).all()):
            raise ValueError(f"{path}: {name} holds NaN or infinity: the training diverged, or the file is damaged")


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
