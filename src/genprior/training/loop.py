"""The training loop: draws, checkpoints, exact resume, progress, sheets. Tasks contain only what happens in one step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.optim import Optimizer

from genprior import _validate
from genprior._files import write_text
from genprior.checkpoint import Checkpoint, fingerprint
from genprior.training.draw import Draw
from genprior.training.task import Devices, Task

CHECKPOINT = "training.checkpoint"
CURVE = "curve.csv"


@dataclass(frozen=True)
class Schedule:
    """How often a run is stored and shown."""

    checkpoint_seconds: float = 60.0
    checkpoint_steps: int | None = None
    """Steps between two checkpoints, instead of seconds."""
    sheet_steps: int = 500

    def __post_init__(self) -> None:
        _validate.whole("sheet_steps", self.sheet_steps)


@dataclass(frozen=True)
class Trained:
    """A finished run."""

    curve: Tensor
    """``(steps, columns)``: the losses of every step, NaN where a column has none."""
    columns: tuple[str, ...]
    seconds: float
    """Of all its parts together, if it was interrupted."""


def train(
    task: Task,
    folder: Path,
    *,
    seed: int,
    devices: Devices,
    schedule: Schedule | None = None,
    start: Path | None = None,
    show: Callable[[int, dict[str, float]], object] = lambda step, losses: None,
) -> Trained:
    """Run a task to its end in ``folder``, from its checkpoint if there is one, else from the networks of another run.

    Killed at any moment and called again in the same way, it goes on where the last checkpoint was written and ends with
    the same bits (on the CPU with the same number of threads).
    """
    schedule = schedule or Schedule()
    if task.batch % devices.world:
        raise ValueError(f"batch must be divisible by the number of devices, got {task.batch} and {devices.world}")
    folder.mkdir(parents=True, exist_ok=True)
    if devices.rank == 0:
        for stale in folder.glob(f".{CHECKPOINT}.*.part"):  # of a run that was killed while writing
            stale.unlink(missing_ok=True)
    file = Checkpoint(folder / CHECKPOINT, schedule.checkpoint_seconds, schedule.checkpoint_steps)
    run = fingerprint(seed, devices.precision, start is not None, *task.identity())
    curve = torch.full((task.steps, len(task.columns)), math.nan)
    read = file.read(run)
    if read is None and start is not None:
        start_from(task, start)
    done, spent = _resume(task, curve, read)
    started = time.monotonic()
    for step in range(done, task.steps):
        losses = task.step(step, Draw.at(seed, step, devices.device, devices.rank, devices.world), devices)
        row = torch.stack([losses.get(name, torch.tensor(math.nan)).detach().float().cpu() for name in task.columns])
        curve[step] = devices.average(row)
        _check_finite(step, task.columns, losses, curve[step], file)
        if devices.rank:
            continue
        show(step + 1, dict(zip(task.columns, curve[step].tolist(), strict=True)))
        seconds = spent + time.monotonic() - started
        if file.due(step + 1) or step + 1 == task.steps:
            file.write(_stored(task, curve[: step + 1]), {"run": run, "step": step + 1, "seconds": seconds})
            write_curve(folder / CURVE, task.columns, curve[: step + 1])
        if (step + 1) % schedule.sheet_steps == 0:
            task.picture(folder, "samples")
    if devices.rank == 0:
        write_curve(folder / CURVE, task.columns, curve)
    return Trained(curve, task.columns, spent + time.monotonic() - started)


def _check_finite(
    step: int, columns: tuple[str, ...], losses: dict[str, Tensor], row: Tensor, file: Checkpoint
) -> None:
    """Stop before a checkpoint is overwritten by a run that has gone astray."""
    broken = [
        name for name, value in zip(columns, row.tolist(), strict=True) if name in losses and not math.isfinite(value)
    ]
    if broken:
        raise RuntimeError(
            f"step {step + 1}: {', '.join(broken)} is not finite: lower the rate, or give another seed and folder; "
            f"{file.path} holds the last good state"
        )


def start_from(task: Task, folder: Path) -> None:
    """Take the networks of another run as first weights, for example to go on with other settings."""
    path = folder / CHECKPOINT if folder.is_dir() else folder
    if not path.is_file():
        raise FileNotFoundError(f"start: there is no {path}: give the folder of a run of genprior train")
    try:
        tensors = load_file(path)
    except SafetensorError as problem:
        raise ValueError(f"start: {path} cannot be read ({problem}): it is truncated or something else") from problem
    try:
        _fill_networks(task, tensors)
    except RuntimeError as problem:
        reason = " ".join(str(problem).split())
        raise ValueError(f"start: the networks in {path} do not fit the settings of this run ({reason})") from None


def write_curve(path: Path, columns: tuple[str, ...], curve: Tensor) -> None:
    """The losses as CSV, one line per step, empty where there is none."""
    lines = [",".join(("step", *columns))]
    for step, row in enumerate(curve.tolist(), start=1):
        lines.append(",".join([str(step), *("" if math.isnan(value) else repr(value) for value in row)]))
    write_text(path, "\n".join(lines) + "\n")


def _stored(task: Task, curve: Tensor) -> dict[str, Tensor]:
    tensors = {"curve": curve}
    for name, network in task.networks.items():
        tensors |= {f"network.{name}.{key}": value for key, value in network.state_dict().items()}
    for name, optimiser in task.optimisers.items():
        for number, state in optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{name}.{number}.{key}": value for key, value in state.items()}
    return tensors


def _resume(task: Task, curve: Tensor, read: tuple[dict[str, Tensor], dict[str, Any]] | None) -> tuple[int, float]:
    """Put a checkpoint back in place; give the steps done and the seconds spent."""
    if read is None:
        return 0, 0.0
    tensors, meta = read
    done = int(meta["step"])
    curve[:done] = tensors["curve"]
    _fill_networks(task, tensors)
    for name, optimiser in task.optimisers.items():
        prefix = f"optimiser.{name}."
        _restore(optimiser, {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
    return done, float(meta["seconds"])


def _fill_networks(task: Task, tensors: dict[str, Tensor]) -> None:
    for name, network in task.networks.items():
        prefix = f"network.{name}."
        network.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})


def _restore(optimiser: Optimizer, stored: dict[str, Tensor]) -> None:
    """Fill an optimiser's state in the memory layout of its parameters, which fused steps rely on."""
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    for key, value in stored.items():
        number, _, name = key.partition(".")
        parameter = parameters[int(number)]
        layout = parameter if value.shape == parameter.shape else value
        like = torch.empty_like(layout, dtype=value.dtype, device=parameter.device)
        optimiser.state[parameter][name] = like.copy_(value)
