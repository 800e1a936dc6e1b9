"""How the run of an item ended."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """How one item's run ended. ``status.advice`` explains it; :attr:`genprior.Result.advice` adds the item's own numbers."""

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
    SETTLED = 10
    FITS_NOISE = 11

    def __str__(self) -> str:
        return self.name

    @property
    def advice(self) -> str:
        """What it means, and what to try."""
        return _ADVICE[self]

    @property
    def good(self) -> bool:
        """Whether the item reached a minimum, its target, or the level of its noise."""
        return self in {Status.CONVERGED, Status.SETTLED, Status.TARGET, Status.FITS_NOISE}


_ADVICE = {
    Status.RUNNING: "still running.",
    Status.CONVERGED: "converged: the optimality conditions hold at the answer.",
    Status.SETTLED: "settled: the objective has stopped falling, and the optimality conditions hold to 1%. Rounding, or a "
    "kink of the generator, prevents more.",
    Status.TARGET: "the target objective was reached.",
    Status.FITS_NOISE: "fits the noise: the answer differs from the measurements by no more than noise does, so a closer fit "
    "would follow the noise.",
    Status.STALLED: "stalled: the objective has stopped falling, but the optimality conditions do not hold, or this solver "
    "cannot verify them (at a kink). Try another solver (gp.Auto() is the default), another start, or a larger patience.",
    Status.MAX_STEPS: "stopped by the limit of steps before convergence.",
    Status.OUT_OF_TIME: "stopped by the limit of time before convergence.",
    Status.OUT_OF_PASSES: "stopped by the limit of passes before convergence.",
    Status.DIVERGED: "diverged: the iterates became non-finite or exploded even with much shorter steps. Try smaller "
    "steps, or a smaller rho.",
    Status.INTERRUPTED: "interrupted: this is the best iterate so far. With checkpoint=, the same call continues from here.",
    Status.CULLED: "culled: other restarts of the item were better.",
}
