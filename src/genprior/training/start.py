"""Where a run begins if not from nothing: the networks of another run, and what came before them, for the card."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from genprior.files.limits import check_head
from genprior.models.saved import load_network
from genprior.training.task import Task

CHECKPOINT = "training.checkpoint"
UNKNOWN = {"note": "unknown earlier part: the checkpoint that it went on from does not tell"}
_TOLD = ("command", "seed", "hours", "training")


@dataclass(frozen=True)
class Start:
    """What was read from the checkpoint of another run."""

    path: Path
    networks: dict[str, Tensor]
    earlier: list[dict[str, Any]]
    """Its parts, the first one first, and itself: what the card of a run that goes on from here tells of them."""


def read_start(folder: Path) -> Start:
    """Read the checkpoint in the folder of a run, or a checkpoint file."""
    path = folder / CHECKPOINT if folder.is_dir() else folder
    if not path.is_file():
        raise FileNotFoundError(f"start: there is no {path}: give the folder of a run of genprior train")
    check_head(path)
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in sorted(file.keys()) if name.startswith("network.")}
    except SafetensorError as problem:
        raise ValueError(f"start: {path} cannot be read ({problem}): it is truncated or something else") from problem
    return Start(path, tensors, _earlier(path, json.loads(header.get("meta", "{}"))))


def begin(task: Task, start: Start) -> None:
    """Take the networks as first weights, for example to go on with other settings."""
    try:
        fill_networks(task, start.networks)
    except RuntimeError as problem:
        reason = " ".join(str(problem).split())
        raise ValueError(
            f"start: the networks in {start.path} do not fit the settings of this run ({reason})"
        ) from None


def fill_networks(task: Task, tensors: dict[str, Tensor]) -> None:
    """Put the networks of a checkpoint in place."""
    for name, network in task.networks.items():
        prefix = f"network.{name}."
        network.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})


def parts_of(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """The parts that a saved network tells of itself, the last one last."""
    return [*facts.get("earlier", []), {name: facts[name] for name in _TOLD if name in facts} or UNKNOWN]


def _earlier(path: Path, meta: dict[str, Any]) -> list[dict[str, Any]]:
    """As the checkpoint tells; one that does not may lie beside the generator that its run ended with."""
    if "told" not in meta:
        weights = path.with_name("generator.safetensors")
        ended = path.name == CHECKPOINT and weights.is_file()
        return parts_of(load_network(weights).facts) if ended else [UNKNOWN]
    part = {**(meta["told"] or UNKNOWN), "hours": round(meta["seconds"] / 3600, 2)}
    if meta["step"] < meta["steps"]:
        part["taken"] = f"step {meta['step']} of {meta['steps']}"
    return [*meta["earlier"], part]
