"""How an item ended, and what a person can do about it."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """The end of one item's run. ``status.advice`` says what to do next."""

    RUNNING = 0
    CONVERGED = 1
    TARGET = 2
    STALLED = 3
    MAX_STEPS = 4
    OUT_OF_TIME = 5
    OUT_OF_PASSES = 6
    DIVERGED = 7
    INTERRUPTED = 8
    CULLED = 9

    def __str__(self) -> str:
        return self.name

    @property
    def advice(self) -> str:
        """What happened, and what to try."""
        return _ADVICE[self]


_ADVICE = {
    Status.RUNNING: "still running.",
    Status.CONVERGED: "converged: gap and stationarity are below the tolerance. A poor fit here is a poor local "
    "minimum or a signal outside the range of the generator: try restarts=8.",
    Status.TARGET: "the objective asked for was reached.",
    Status.STALLED: "stalled: no progress for `patience` steps. Try restarts=8, gp.Auto(), another rho, or a larger "
    "patience; for a tighter end, float64.",
    Status.MAX_STEPS: "stopped by MaxSteps before convergence: allow more steps, or start again from result.z with z0=.",
    Status.OUT_OF_TIME: "stopped by Seconds before convergence: allow more time, or start again from result.z with z0=.",
    Status.OUT_OF_PASSES: "stopped by MaxPasses before convergence: allow more, or start again from result.z with z0=.",
    Status.DIVERGED: "diverged: still non-finite or exploding after the steps were shortened again and again. Give "
    "smaller steps or a smaller rho, check the scale of the data, or check the generator with gp.checks.",
    Status.INTERRUPTED: "interrupted: this is the best so far. With checkpoint=, the same call goes on from here.",
    Status.CULLED: "a restart that was given up in favour of better ones.",
}
