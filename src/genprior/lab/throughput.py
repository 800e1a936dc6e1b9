"""The speed of training a generator, and the effect of each optimisation."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch

from genprior import _validate
from genprior.training.data import ImageSet
from genprior.training.draw import Draw
from genprior.training.task import Devices
from genprior.training.wgan import Wgan, WganSettings

_STEP = 100  # past the first steps, which train the critic longer


@dataclass(frozen=True)
class Variant:
    """One way of training the same generator."""

    name: str
    threads: int
    critic_width: int
    channels_last: bool
    fused: bool
    batch: int


@dataclass(frozen=True)
class Throughput:
    """The speed of a variant; medians of interleaved repeats."""

    variant: Variant
    step_seconds: float
    """One generator step of WGAN-GP with its critic steps and its anchor."""
    pictures_per_second: float
    speedup: float
    """Over the first variant, in images per second, median of ratios measured side by side."""


def variants(threads: int) -> list[Variant]:
    """From the plainest variant to that of ``genprior train mnist``, one change at a time."""
    return [
        Variant("plain: critic as wide as the generator", 1, 64, False, False, 64),
        Variant(f"{threads} threads", threads, 64, False, False, 64),
        Variant("channels last", threads, 64, True, False, 64),
        Variant("fused Adam", threads, 64, True, True, 64),
        Variant("critic half as wide: the default", threads, 32, True, True, 64),
        Variant("batch of 128", threads, 32, True, True, 128),
    ]


def measure_throughput(repeats: int = 5, *, width: int = 64, threads: int | None = None) -> list[Throughput]:
    """Time steps of all variants in turns."""
    _validate.whole("repeats", repeats)
    usual = torch.get_num_threads()
    chosen = variants(usual if threads is None else _validate.whole("threads", threads))
    tasks = [_task(variant, width) for variant in chosen]
    devices = Devices("cpu")
    try:
        for variant, task in zip(chosen, tasks, strict=True):
            _seconds(variant, task, devices, 0)
        times = [
            [_seconds(variant, task, devices, k) for variant, task in zip(chosen, tasks, strict=True)]
            for k in range(1, repeats + 1)
        ]
    finally:
        torch.set_num_threads(usual)
    return [_summary(chosen, [row[0] for row in times], [row[i] for row in times], i) for i in range(len(chosen))]


def _task(variant: Variant, width: int) -> Wgan:
    random = torch.Generator().manual_seed(0)
    noise = ImageSet("noise", torch.randint(256, (512, 1, 28, 28), generator=random, dtype=torch.uint8))
    settings = WganSettings(width=width, critic_width=variant.critic_width * width // 64 or 1, batch=variant.batch)
    layout = torch.channels_last if variant.channels_last else torch.contiguous_format
    return Wgan(settings, noise, seed=0, layout=layout, fused=variant.fused)


def _seconds(variant: Variant, task: Wgan, devices: Devices, k: int) -> float:
    torch.set_num_threads(variant.threads)
    number = task.settings.warm_steps + _STEP + k
    draw = Draw.at(0, number, torch.device("cpu"))
    start = time.perf_counter()
    task.step(number, draw, devices)
    return time.perf_counter() - start


def _summary(chosen: list[Variant], first: list[float], own: list[float], place: int) -> Throughput:
    variant, plain = chosen[place], chosen[0]
    ratios = [variant.batch / mine / (plain.batch / other) for mine, other in zip(own, first, strict=True)]
    seconds = statistics.median(own)
    return Throughput(variant, seconds, variant.batch / seconds, statistics.median(ratios))
