"""Weights of a person's own module: safetensors, or what ``torch.save(module.state_dict())`` wrote. No pickled code."""

from __future__ import annotations

import io
import pickle
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

_NESTS = ("state_dict", "model_state_dict", "params_ema", "g_ema", "generator", "netG", "model", "params")
_WRAPPER = "module."
_ENDINGS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")


def load_weights(module: nn.Module, path: Path) -> None:
    """Fill a module from a file; every name and shape must fit."""
    tensors = read_weights(path)
    expected = module.state_dict()
    if not set(expected) & set(tensors) and all(name.startswith(_WRAPPER) for name in tensors):
        tensors = {name.removeprefix(_WRAPPER): tensor for name, tensor in tensors.items()}
    _check_fit(expected, tensors, path)
    module.load_state_dict(tensors)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Names and tensors in a file."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path} (weights)")
    if path.suffix.lower() not in _ENDINGS:
        raise ValueError(f"weights must be one of {', '.join(_ENDINGS)}, got {path}: save module.state_dict() as one")
    if path.suffix.lower() == ".safetensors":
        try:
            return load_file(path)
        except (SafetensorError, OSError, ValueError) as problem:
            raise ValueError(f"{path} cannot be read as safetensors ({problem}): truncated or something else") from None
    return _state_dict(refuse_pickled_code(path), path)


def refuse_pickled_code(path: Path, content: bytes | None = None) -> Any:
    """Read what torch.save wrote if it is plain data; a file with pickled code is refused, explained."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path if content is None else io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as problem:
        unsafe = "WeightsUnpickler" in str(problem) or "Unsupported" in str(problem) or "GLOBAL" in str(problem)
        if not unsafe:
            raise ValueError(f"{path} cannot be read: it is damaged, or not a file of torch.save") from None
        raise ValueError(
            f"{path} holds pickled Python code (a whole module, not only its numbers), which could do anything when it "
            "is opened: refused. Where you trust it, load it yourself once and save the numbers: "
            "torch.save(module.state_dict(), 'weights.pt'), or safetensors.torch.save_file(module.state_dict(), ...)"
        ) from None
    except Exception as problem:
        reason = str(problem).partition("\n")[0]
        raise ValueError(f"{path} cannot be read ({reason}): it is damaged, or not a file of torch.save") from None


def _state_dict(content: Any, path: Path) -> dict[str, Tensor]:
    """The names and tensors, which training scripts like to put one level deeper."""
    if _is_state_dict(content):
        return dict(content)
    if isinstance(content, dict):
        nested = {str(key): value for key, value in content.items() if _is_state_dict(value)}
        found = [key for key in _NESTS if key in nested] or list(nested)
        if len(nested) == 1 or (found and found[0] in _NESTS):
            return dict(nested[found[0]])
        if nested:
            raise ValueError(f"{path} holds several sets of weights ({', '.join(nested)}): save the one that is meant")
    raise ValueError(
        f"{path} holds {type(content).__name__}, expected names and tensors: torch.save(module.state_dict(), ...)"
    )


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
