"""Starting from the networks of another run, with its history for the card."""

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
UNKNOWN = {"note": "unknown earlier part: not recorded in the checkpoint that it continues"}
_TOLD = ("command", "seed", "hours", "training")


@dataclass(frozen=True)
class Start:
    """The checkpoint of another run."""

    path: Path
    networks: dict[str, Tensor]
    earlier: list[dict[str, Any]]
    """The earlier runs, the first one first, and this one: the history on the card of a run that continues from here."""


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
        raise ValueError(f"start: {path} cannot be read ({problem}): it is truncated, or not a checkpoint") from problem
    return Start(path, tensors, _earlier(path, json.loads(header.get("meta", "{}"))))


def recorded_threads(folder: Path) -> int | None:
    """The number of threads of the last step in a folder's checkpoint; None where none is on record."""
    path = folder / CHECKPOINT
    try:
        check_head(path)
        with safe_open(path, framework="pt") as file:
            used = json.loads((file.metadata() or {}).get("meta", "{}"))["threads"]
        return int(used[-1])
    except (OSError, SafetensorError, ValueError, TypeError, LookupError):
        return None


def begin(task: Task, start: Start) -> None:
    """Use the networks as initial weights, for example to continue with other settings."""
    try:
        fill_networks(task, start.networks)
    except RuntimeError as problem:
        reason = " ".join(str(problem).split())
        raise ValueError(
            f"start: the networks in {start.path} do not fit the settings of this run ({reason})"
        ) from None


def fill_networks(task: Task, tensors: dict[str, Tensor]) -> None:
    """Load the networks of a checkpoint."""
    for name, network in task.networks.items():
        prefix = f"network.{name}."
        network.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})


def parts_of(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs recorded in a saved network, the last one last."""
    return [*facts.get("earlier", []), {name: facts[name] for name in _TOLD if name in facts} or UNKNOWN]


def _earlier(path: Path, meta: dict[str, Any]) -> list[dict[str, Any]]:
    """The history in the checkpoint; else in the generator saved next to it."""
    if "told" not in meta:
        weights = path.with_name("generator.safetensors")
        ended = path.name == CHECKPOINT and weights.is_file()
        return parts_of(load_network(weights).facts) if ended else [UNKNOWN]
    part = {**(meta["told"] or UNKNOWN), "hours": round(meta["seconds"] / 3600, 2)}
    if meta["step"] < meta["steps"]:
        part["taken"] = f"step {meta['step']} of {meta['steps']}"
    return [*meta["earlier"], part]
