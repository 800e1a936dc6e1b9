"""The training loop: draws, checkpoints, exact resume, progress, sheets. Tasks contain only what happens in one step."""

from __future__ import annotations

import math
import sys
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
    show: Callable[[int, dict[str, float]], object] = lambda step, losses: None,
) -> Trained:
    """Run a task to its end in ``folder``, from its checkpoint if there is one.

    Killed at any moment and called again in the same way, it goes on where the last checkpoint was written and ends with
    the same bits (on the CPU with the same number of threads).
    """
    schedule = schedule or Schedule()
    if task.batch % devices.world:
        raise ValueError(f"batch must be divisible by the number of devices, got {task.batch} and {devices.world}")
    folder.mkdir(parents=True, exist_ok=True)
    file = Checkpoint(folder / CHECKPOINT, schedule.checkpoint_seconds, schedule.checkpoint_steps)
    run = fingerprint(seed, *task.identity())
    curve = torch.full((task.steps, len(task.columns)), math.nan)
    done, spent = _resume(task, curve, file.read(run))
    started = time.monotonic()
    for step in range(done, task.steps):
        losses = task.step(step, Draw.at(seed, step, devices.device, devices.rank, devices.world), devices)
        row = torch.stack([losses.get(name, torch.tensor(math.nan)).detach().float().cpu() for name in task.columns])
        curve[step] = devices.average(row)
        if devices.rank:
            continue
        show(step + 1, dict(zip(task.columns, curve[step].tolist(), strict=True)))
        seconds = spent + time.monotonic() - started
        if file.due(step + 1) or step + 1 == task.steps:
            file.write(_stored(task, curve[: step + 1]), {"run": run, "step": step + 1, "seconds": seconds})
            write_curve(folder / CURVE, task.columns, curve[: step + 1])
        if (step + 1) % schedule.sheet_steps == 0:
            task.picture(folder, "samples")
    return Trained(curve, task.columns, spent + time.monotonic() - started)


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
        like = torch.empty_like(parameter) if value.shape == parameter.shape else torch.empty_like(value)
        optimiser.state[parameter][name] = like.copy_(value)


class Bar:
    """A progress bar with the losses, on a terminal; on anything else a line now and then, or nothing."""

    def __init__(self, total: int, *, quiet: bool = False, every: float = 60.0) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn  # noqa: PLC0415

        self._total, self._quiet, self._every, self._last = total, quiet, every, time.monotonic()
        from rich.console import Console  # noqa: PLC0415

        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("training {task.completed}/{task.total}"),
            BarColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=quiet or not console.is_terminal,
        )
        self._task = self._bar.add_task("training", total=total, note="")

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, step: int, losses: dict[str, float]) -> None:
        """Show a step."""
        note = ", ".join(f"{name} {value:.4g}" for name, value in losses.items() if not math.isnan(value))
        self._bar.update(self._task, completed=step, note=note)
        if self._bar.disable and not self._quiet and time.monotonic() - self._last > self._every:
            self._last = time.monotonic()
            sys.stderr.write(f"step {step}/{self._total}: {note}\n")
