"""A training task: networks, optimisers and a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from genprior.training.draw import Draw


class Task(ABC):
    """A training. Everything that changes lives in ``networks`` and ``optimisers``; a step draws only from its ``Draw``."""

    columns: tuple[str, ...]
    """Names of the losses that a step reports."""
    settings: Any
    """The user's choices, as a dataclass of plain values."""
    steps: int
    batch: int
    networks: dict[str, nn.Module]
    optimisers: dict[str, Optimizer]

    @abstractmethod
    def identity(self) -> list[object]:
        """Everything that determines the run apart from seed and threads: settings and data."""

    @abstractmethod
    def step(self, number: int, draw: Draw, devices: Devices) -> dict[str, Tensor]:
        """Train for one step; return the losses."""

    def save_samples(self, folder: Path, name: str) -> None:  # noqa: B027 - a training without images is fine
        """Save a sheet of samples that shows the progress of the training."""

    @abstractmethod
    def finish(self, folder: Path, facts: dict[str, Any]) -> list[Path]:
        """Save the trained networks with their card; return the files."""


class Devices:
    """The part of lightning-fabric that training needs: placement, precision, and one average over all processes."""

    def __init__(self, device: str = "cpu", count: int = 1, precision: str = "32-true") -> None:
        from lightning_fabric import Fabric  # noqa: PLC0415 - only the extra `train` has it

        accelerator, _, number = device.partition(":")
        if number and count > 1:
            raise ValueError(
                f"devices must be 1 for the one device {device!r}, got {count}: give `device={accelerator}`"
            )
        chosen: int | list[int] = [int(number)] if number and accelerator != "cpu" else count
        self.precision = precision
        self.fabric: Any = Fabric(accelerator=accelerator, devices=chosen, precision=precision)  # type: ignore[arg-type]
        self.fabric.launch()

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        place: torch.device = self.fabric.device
        return place

    @property
    def world(self) -> int:
        """Number of processes."""
        return int(self.fabric.world_size)

    @property
    def rank(self) -> int:
        """Number of this process."""
        return int(self.fabric.global_rank)

    def update(self, loss: Tensor, optimisers: Iterable[Optimizer]) -> None:
        """Backward pass, gradients averaged over all processes, one step of each optimiser.

        Averaged explicitly: wrappers that hook into the backward pass do not support the second derivatives of a gradient
        penalty.
        """
        optimisers = list(optimisers)
        parameters = [p for optimiser in optimisers for group in optimiser.param_groups for p in group["params"]]
        for parameter in parameters:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        if self.world > 1:
            self._average_gradients([parameter.grad for parameter in parameters if parameter.grad is not None])
        for optimiser in optimisers:
            optimiser.step()

    def _average_gradients(self, gradients: list[Tensor]) -> None:
        """One message for all of them."""
        mean = self.fabric.all_reduce(torch.cat([gradient.flatten() for gradient in gradients]), reduce_op="mean")
        start = 0
        for gradient in gradients:
            gradient.copy_(mean[start : start + gradient.numel()].view(gradient.shape))
            start += gradient.numel()

    def average(self, values: Tensor) -> Tensor:
        """The mean over all processes."""
        mean: Tensor = self.fabric.all_reduce(values, reduce_op="mean") if self.world > 1 else values
        return mean


def set_rate(optimiser: Optimizer, rate: float) -> None:
    """Set the learning rate."""
    for group in optimiser.param_groups:
        group["lr"] = rate


def ramp_down(number: int, total: int, flat: float = 0.5, last: float = 0.02) -> float:
    """One for the share ``flat`` of the run, then linearly down to ``last``."""
    left = 1 - number / max(total, 1)
    return min(1.0, last + (1 - last) * left / (1 - flat))
