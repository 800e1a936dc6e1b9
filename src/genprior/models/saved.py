"""Networks in files: safetensors with half-precision weights, the settings of the network, its facts and a checksum."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from genprior._files import write_atomically
from genprior.files.limits import check_head
from genprior.models.classifiers import ConvClassifier
from genprior.models.encoders import Encoder
from genprior.models.generators import ConvGenerator, ResidualGenerator
from genprior.models.start_encoder import StartEncoder

_FORMAT = "genprior-network-1"
_EXTRA = "extra/"
"""Prefix of extra tensors in a file; names of weights have no slash."""

GENERATORS: dict[str, Callable[..., nn.Module]] = {
    "conv-generator": ConvGenerator,
    "residual-generator": ResidualGenerator,
}
CLASSIFIERS: dict[str, Callable[..., nn.Module]] = {"conv-classifier": ConvClassifier}
ENCODERS: dict[str, Callable[..., nn.Module]] = {"encoder": Encoder}
START_ENCODERS: dict[str, Callable[..., nn.Module]] = {"start-encoder": StartEncoder}
_NETWORKS = GENERATORS | CLASSIFIERS | ENCODERS | START_ENCODERS


@dataclass(frozen=True)
class Saved:
    """A network, its type and settings, and facts about it."""

    kind: str
    settings: dict[str, Any]
    module: nn.Module
    facts: dict[str, Any] = field(default_factory=dict)
    """Further facts: latent distribution, range of the signal, data, seed, measured quality."""
    extras: dict[str, Tensor] = field(default_factory=dict)
    """Further tensors, such as a generator's preconditioner; stored in float32."""
    stored: torch.dtype = torch.float16
    """How the weights are stored."""


def build(kind: str, settings: dict[str, Any]) -> nn.Module:
    """A network of this type with initial weights."""
    if kind not in _NETWORKS:
        raise ValueError(f"there is no network {kind!r}: give one of {', '.join(_NETWORKS)}")
    try:
        return _NETWORKS[kind](**settings)
    except TypeError as problem:
        reason = str(problem).partition("\n")[0]
        raise ValueError(f"settings of {kind} do not fit it: {reason}") from problem


def save_network(path: str | Path, saved: Saved, dtype: torch.dtype | None = None) -> None:
    """Write a network atomically; weights are rounded to ``dtype``, by default ``saved.stored``."""
    dtype = saved.stored if dtype is None else dtype
    rounded = {name: tensor.detach().cpu().contiguous().to(dtype) for name, tensor in saved.module.state_dict().items()}
    broken = [name for name, tensor in rounded.items() if not bool(torch.isfinite(tensor).all())]
    if broken:
        raise ValueError(f"{', '.join(broken)} would hold NaN or infinity as {dtype}: the network is not worth saving")
    rounded |= {_EXTRA + name: tensor.detach().cpu().contiguous().float() for name, tensor in saved.extras.items()}
    text = json.dumps({"kind": saved.kind, "settings": saved.settings, "facts": saved.facts}, sort_keys=True)
    header = {"format": _FORMAT, "network": text, "sha256": _digest(rounded, text)}
    write_atomically(Path(path), lambda temporary: temporary.write_bytes(save(rounded, metadata=header)))


def add_facts(path: str | Path, facts: dict[str, Any]) -> None:
    """Rewrite a network file with more facts; its weights are unchanged."""
    saved = load_network(path)
    save_network(path, replace(saved, facts=saved.facts | facts))


def add_extras(path: str | Path, extras: dict[str, Tensor]) -> None:
    """Rewrite a network file with more tensors; its weights are unchanged."""
    saved = load_network(path)
    save_network(path, replace(saved, extras=saved.extras | extras))


def load_network(path: str | Path, device: torch.device | str = "cpu") -> Saved:
    """Read a network and verify its checksum; float32 in memory, eval mode, no parameter gradients."""
    path = Path(path)
    tensors, header = _read(path)
    if header.get("format") != _FORMAT:
        raise ValueError(
            f"{path} is not a network saved by genprior (its header lacks {_FORMAT!r}): for weights of your own module, "
            "load them into it and wrap it with gp.Generator(module, latent_shape, signal_shape)"
        )
    if header.get("sha256") != _digest(tensors, header.get("network", "")):
        raise ValueError(f"{path} is damaged or was changed: its numbers do not fit its checksum; get the file again")
    description = _description(header.get("network", ""), path)
    extras = {name.removeprefix(_EXTRA): tensors.pop(name) for name in list(tensors) if name.startswith(_EXTRA)}
    _check_shapes(description, tensors, path)
    module = build(description["kind"], description["settings"])
    module.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    module.to(device).eval().requires_grad_(False)
    stored = next((tensor.dtype for tensor in tensors.values()), torch.float16)
    return Saved(description["kind"], description["settings"], module, description["facts"], extras, stored)


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    check_head(path)
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as problem:
        raise ValueError(
            f"{path} cannot be read as safetensors ({problem}): it is truncated, or has another format"
        ) from problem


def _description(text: str, path: Path) -> dict[str, Any]:
    try:
        description: dict[str, Any] = json.loads(text)
        kinds = {name: type(description[name]) for name in ("kind", "settings", "facts")}
    except (ValueError, TypeError, KeyError, RecursionError):
        kinds = {}
    if kinds != {"kind": str, "settings": dict, "facts": dict}:
        raise ValueError(f"{path} does not say which network it holds: get the file again")
    return description


def _check_shapes(description: dict[str, Any], tensors: dict[str, Tensor], path: Path) -> None:
    """Raise if settings do not fit the weights, before a network of that size is built."""
    try:
        with torch.device("meta"):
            expected = {
                name: tuple(tensor.shape)
                for name, tensor in build(description["kind"], description["settings"]).state_dict().items()
            }
    except (RuntimeError, OverflowError, MemoryError) as problem:
        raise ValueError(f"{path}: its settings are invalid ({str(problem).partition(chr(10))[0]})") from None
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if expected != found:
        name = next(name for name in [*expected, *found] if expected.get(name) != found.get(name))
        raise ValueError(
            f"{path}: {name} has shape {found.get(name)}, but a network with its settings expects {expected.get(name)}: "
            "the latent or width in the file does not fit the weights"
        )


def _digest(tensors: dict[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}:".encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
