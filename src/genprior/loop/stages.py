"""A problem with a deviation in two stages: first the range of the generator, then the deviation with it.

From afar a deviation fits whatever z does not, and z is drawn into minima that are its own. From where the generator alone
ends, few steps are left. There, too, it shows how large a deviation is wanted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from genprior.loop.checkpoint import Checkpoint
from genprior.problem import Problem
from genprior.result import Result
from genprior.solvers.deviation_fit import HeldOut, fitted
from genprior.status import Status
from genprior.stopping import Callback, MaxPasses, MaxSteps, StopRule, View

_FIRST = ".range"
"""Added to the name of the checkpoint for the first stage."""


def in_stages(
    problem: Problem,
    stop: StopRule,
    checkpoint: str | Path | Checkpoint | None,
    alone: Callable[[StopRule, Checkpoint | None], Result],
    together: Callable[[Problem, StopRule, Checkpoint | None, Tensor], Result],
    *,
    at_once: bool = False,
) -> Result:
    """The answer with a deviation; passes, seconds and steps of both stages are added up.

    ``alone`` solves the problem without the deviation, ``together`` with it, from given latents. The first stage has a
    checkpoint of its own, beside the other one. Where batches run ``at_once``, a time limit is one on the clock on the wall.
    """
    file = checkpoint if isinstance(checkpoint, Checkpoint | None) else Checkpoint(checkpoint)
    begun = time.monotonic()
    first = alone(_half(stop), None if file is None else replace(file, path=f"{file.path}{_FIRST}"))
    seconds = min(first.seconds, time.monotonic() - begun) if at_once else first.seconds
    weight, x = None, torch.nan_to_num(first.signal)
    with torch.inference_mode(False), torch.no_grad():
        if problem.chooses_weight:
            weight = HeldOut().chosen(problem, x)
            problem = problem.weighted(weight)
        start = problem.latents(torch.nan_to_num(first.z), fitted(problem, x))
    interrupted = Status.INTERRUPTED in first.status
    rest = MaxSteps(0) if interrupted else _rest(stop, first, seconds)
    second = together(problem, rest, None if interrupted else file, start)
    return replace(
        second,
        status=(Status.INTERRUPTED,) * len(second.status) if interrupted else second.status,
        steps=first.steps + second.steps,
        rollbacks=first.rollbacks + second.rollbacks,
        restart=first.restart,
        starts=first.starts,
        minima=first.minima,
        forwards=first.forwards + second.forwards,
        backwards=first.backwards + second.backwards,
        seconds=first.seconds + second.seconds,
        batch_passes=first.batch_passes + second.batch_passes,
        deviation_weight=weight,
    )


def watching(callbacks: tuple[Callback, ...], stage: int) -> tuple[Callback, ...]:
    """Callbacks that see which of the two stages they are in."""
    return tuple(partial(_seen, callback, stage) for callback in callbacks)


def _seen(callback: Callback, stage: int, view: View) -> object:
    return callback(replace(view, stage=stage, stages=2))


def _half(stop: StopRule) -> StopRule:
    """Half of what a limit allows for; all of the steps."""
    _, passes = stop.limits()
    part = stop.share(0.0, 2)
    return part | MaxPasses(int(passes) // 2) if math.isfinite(passes) else part


def _rest(stop: StopRule, first: Result, seconds: float) -> StopRule:
    """What is left of the limits after the first stage, which took so many seconds. Each batch has passes of its own."""
    _, passes = stop.limits()
    part = stop.share(seconds, 1)
    left = max(0, int(passes) - first.batch_passes) if math.isfinite(passes) else 0
    return part | MaxPasses(left) if math.isfinite(passes) else part
