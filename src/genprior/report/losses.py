"""A plot of the losses of a training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from genprior._files import write_atomically

_WINDOW = 50


def draw_losses(columns: Sequence[str], curve: Tensor, path: Path) -> None:
    """One small plot per loss: every step as a thin line, the running mean as a thick one."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import, needed only here

    figure = Figure(figsize=(3.2 * len(columns), 2.6), layout="constrained")
    axes = figure.subplots(1, len(columns), squeeze=False)[0]
    for place, name, values in zip(axes, columns, curve.T, strict=True):
        steps = torch.arange(1, len(values) + 1)
        place.plot(steps.numpy(), values.numpy(), linewidth=0.4, alpha=0.5)
        place.plot(steps.numpy(), running_mean(values, _WINDOW).numpy(), linewidth=1.4)
        place.set_title(name, fontsize=10)
        place.set_xlabel("step", fontsize=9)
        place.grid(alpha=0.3)
    write_atomically(path, lambda temporary: figure.savefig(temporary, dpi=110, format="png"))


def running_mean(values: Tensor, window: int) -> Tensor:
    """Running mean over the last ``window`` values, NaN ignored."""
    there = torch.isfinite(values)
    sums = torch.where(there, values, 0.0).double().cumsum(0)
    counts = there.double().cumsum(0)
    sums[window:] -= sums[:-window].clone()
    counts[window:] -= counts[:-window].clone()
    return torch.where(there, sums / counts.clamp_min(1), torch.nan)
