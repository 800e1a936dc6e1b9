"""The rules of the loop: what counts as progress, as settled, as diverged. Frozen, with the reason for every number."""

from __future__ import annotations

from dataclasses import dataclass, field

from genprior import _validate
from genprior.stopping import StopRule


@dataclass(frozen=True)
class Progress:
    """When an item has made progress, and when one without progress has settled.

    Parameters
    ----------
    objective
        share by which the best objective must fall.
    residual
        share by which the larger one of primal residual and stationarity must fall.
    clearly
        share by which the best objective must fall for an item to count as still improving.
    closed, near
        primal residual and stationarity at which an item without progress is at a minimum: SETTLED, not STALLED.
    """

    objective: float = 1e-3
    residual: float = 0.05
    clearly: float = 1e-2
    closed: float = 1e-3
    near: float = 1e-2


@dataclass(frozen=True)
class Divergence:
    """When an item counts as diverged, and its roll-backs.

    Parameters
    ----------
    explosion
        largest score above the best one, in scales of the objective: no converging run exceeds it.
    shrink
        factor on all steps of an item at each roll-back to its best iterate.
    most_rollbacks
        roll-backs after which the item ends as DIVERGED: by then its steps are shorter by ``shrink ** most_rollbacks``, 2e-4.
    """

    explosion: float = 1e4
    shrink: float = 0.25
    most_rollbacks: int = 6


@dataclass(frozen=True)
class Proof:
    """How convergence is proved at the answer.

    Parameters
    ----------
    again
        after a proof that failed, the next one waits for this share of the steps made: proofs cost passes.
    subgradient_tolerance
        most tolerance for subgradient methods: where a single entry decides, as for l_inf, subgradients may be small far
        from a minimum.
    """

    again: float = 0.25
    subgradient_tolerance: float = 1e-6


@dataclass(frozen=True)
class Options:
    """The options of :func:`genprior.solve` that the loop reads at every step."""

    stop: StopRule
    tolerance: float
    patience: int
    restarts: int = 1
    cull_after: int = 25
    check_every: int = 10
    progress: Progress = field(default_factory=Progress)
    divergence: Divergence = field(default_factory=Divergence)
    proof: Proof = field(default_factory=Proof)

    def __post_init__(self) -> None:
        for name in ("patience", "restarts", "cull_after", "check_every"):
            _validate.whole(name, getattr(self, name))
        _validate.number("tolerance", self.tolerance, least=0)
