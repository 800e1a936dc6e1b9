"""How the search for an item ended."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """The end of one item's run. ``status.advice`` says what it means; :attr:`genprior.Result.advice` what to do about it."""

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

    def __str__(self) -> str:
        return self.name

    @property
    def advice(self) -> str:
        """What happened."""
        return _ADVICE[self]

    @property
    def good(self) -> bool:
        """Whether the search found what it was looking for: a minimum, or the objective asked for."""
        return self in {Status.CONVERGED, Status.SETTLED, Status.TARGET}


_ADVICE = {
    Status.RUNNING: "still running.",
    Status.CONVERGED: "converged: a minimum, by the optimality conditions at the answer.",
    Status.SETTLED: "settled: the objective has stopped falling, and the optimality conditions hold to a percent. That is as "
    "near as rounding, or a kink of the generator, lets one come.",
    Status.TARGET: "the objective asked for was reached.",
    Status.STALLED: "stalled: the objective has stopped falling where the conditions of a minimum do not hold, or cannot "
    "be decided by this solver (a kink). Try another solver (gp.Auto() is the default), another start, or a larger patience.",
    Status.MAX_STEPS: "stopped by the limit of steps before convergence.",
    Status.OUT_OF_TIME: "stopped by the limit of time before convergence.",
    Status.OUT_OF_PASSES: "stopped by the limit of passes before convergence.",
    Status.DIVERGED: "diverged: still non-finite or exploding after the steps were shortened again and again. Try "
    "smaller steps, or a smaller rho.",
    Status.INTERRUPTED: "interrupted: this is the best so far. With checkpoint=, the same call goes on from here.",
    Status.CULLED: "a restart that was given up in favour of better ones.",
}
