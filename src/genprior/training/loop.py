"""The training loop: draws, checkpoints, exact resume, progress, sheets. Tasks contain only what happens in one step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from genprior import _validate
from genprior._files import add_folder, write_text
from genprior._fingerprint import fingerprint
from genprior._journal import Record
from genprior.loop.checkpoint import Checkpoint
from genprior.training.draw import Draw
from genprior.training.start import CHECKPOINT, begin, fill_networks, read_start
from genprior.training.task import Devices, Task

CURVE = "curve.csv"


@dataclass(frozen=True)
class Schedule:
    """How often a run is saved and shown."""

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
    """Total over all parts of an interrupted run."""
    earlier: list[dict[str, Any]]
    """The runs that this one continues, the first one first."""
    threads: tuple[int, ...] = ()
    """All numbers of threads with which steps were made, that of the last step last."""


def train(
    task: Task,
    folder: Path,
    *,
    seed: int,
    devices: Devices,
    schedule: Schedule | None = None,
    start: Path | None = None,
    provenance: dict[str, Any] | None = None,
    show: Callable[[int, dict[str, float]], object] = lambda step, losses: None,
) -> Trained:
    """Run a task to its end in ``folder``, from its checkpoint if there is one, else from the networks of another run.

    If it is killed at any moment and called again with the same arguments, it resumes from the last checkpoint and ends with
    the same bits (on the CPU with the same number of threads). ``start`` must hold the same networks.
    ``provenance`` (command, seed, settings, as plain values) is stored in the checkpoints, for the card of later runs.
    """
    schedule = schedule or Schedule()
    if task.batch % devices.world:
        raise ValueError(f"batch must be divisible by the number of devices, got {task.batch} and {devices.world}")
    add_folder(folder)
    if devices.rank == 0:
        for stale in folder.glob(f".{CHECKPOINT}.*.part"):  # left by a run that was killed while writing
            stale.unlink(missing_ok=True)
    file = Checkpoint(folder / CHECKPOINT, schedule.checkpoint_seconds, schedule.checkpoint_steps)
    first = None if start is None else read_start(start)
    run = fingerprint(seed, devices.precision, first is not None and first.networks, *task.identity())
    curve = torch.full((task.steps, len(task.columns)), math.nan)
    read = file.read(run)
    if read is None and first is not None:
        begin(task, first)
    earlier = [] if first is None else first.earlier
    done, spent = _resume(task, curve, read)
    used: list[int] = [] if read is None else list(read.meta.get("threads", []))
    started = time.monotonic()
    for step in range(done, task.steps):
        losses = task.step(step, Draw.at(seed, step, devices.device, devices.rank, devices.world), devices)
        used = [*(number for number in used if number != torch.get_num_threads()), torch.get_num_threads()]
        row = torch.stack([losses.get(name, torch.tensor(math.nan)).detach().float().cpu() for name in task.columns])
        curve[step] = devices.average(row)
        _check_finite(step, task.columns, losses, curve[step], file)
        if devices.rank:
            continue
        show(step + 1, dict(zip(task.columns, curve[step].tolist(), strict=True)))
        seconds = spent + time.monotonic() - started
        if file.due(step + 1) or step + 1 == task.steps:
            state = _state(task)
            _check_sound(step, state, file)
            meta = {
                "step": step + 1,
                "steps": task.steps,
                "seconds": seconds,
                "threads": used,
                "told": provenance or {},
                "earlier": earlier,
            }
            file.write(run, meta, {"curve": curve[: step + 1], **state})
            write_curve(folder / CURVE, task.columns, curve[: step + 1])
        if (step + 1) % schedule.sheet_steps == 0:
            task.save_samples(folder, "samples")
    if devices.rank == 0:
        write_curve(folder / CURVE, task.columns, curve)
    return Trained(curve, task.columns, spent + time.monotonic() - started, earlier, tuple(used))


def _check_finite(
    step: int, columns: tuple[str, ...], losses: dict[str, Tensor], row: Tensor, file: Checkpoint
) -> None:
    """Stop before a diverged run overwrites its checkpoint."""
    broken = [
        name for name, value in zip(columns, row.tolist(), strict=True) if name in losses and not math.isfinite(value)
    ]
    if broken:
        raise _astray(step, ", ".join(broken), file)


def _check_sound(step: int, state: dict[str, Tensor], file: Checkpoint) -> None:
    """The losses of a step precede its update, so the values to be saved are checked too."""
    broken = next((name for name, value in state.items() if not bool(torch.isfinite(value).all())), None)
    if broken is not None:
        raise _astray(step, f"after its update, {broken}", file)


def _astray(step: int, what: str, file: Checkpoint) -> RuntimeError:
    kept = f"; {file.path} holds the last good state" if Path(file.path).is_file() else ""
    return RuntimeError(f"step {step + 1}: {what} is not finite: lower the rate, or give another seed and folder{kept}")


def write_curve(path: Path, columns: tuple[str, ...], curve: Tensor) -> None:
    """The losses as CSV, one line per step, empty where there is none."""
    lines = [",".join(("step", *columns))]
    for step, row in enumerate(curve.tolist(), start=1):
        lines.append(",".join([str(step), *("" if math.isnan(value) else repr(value) for value in row)]))
    write_text(path, "\n".join(lines) + "\n")


def _state(task: Task) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name, network in task.networks.items():
        tensors |= {f"network.{name}.{key}": value for key, value in network.state_dict().items()}
    for name, optimiser in task.optimisers.items():
        for number, state in optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{name}.{number}.{key}": value for key, value in state.items()}
    return tensors


def _resume(task: Task, curve: Tensor, record: Record | None) -> tuple[int, float]:
    """Restore a checkpoint; return the steps done and the seconds spent."""
    if record is None:
        return 0, 0.0
    tensors, meta = record.tensors, record.meta
    done = int(meta["step"])
    curve[:done] = tensors["curve"]
    fill_networks(task, tensors)
    for name, optimiser in task.optimisers.items():
        prefix = f"optimiser.{name}."
        _restore(optimiser, {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
    return done, float(meta["seconds"])


def _restore(optimiser: Optimizer, stored: dict[str, Tensor]) -> None:
    """Fill an optimiser's state in the memory layout of its parameters, which fused optimisers rely on."""
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    for key, value in stored.items():
        number, _, name = key.partition(".")
        parameter = parameters[int(number)]
        layout = parameter if value.shape == parameter.shape else value
        like = torch.empty_like(layout, dtype=value.dtype, device=parameter.device)
        optimiser.state[parameter][name] = like.copy_(value)
