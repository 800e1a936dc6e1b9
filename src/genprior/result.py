"""What a solve returns."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from torch import Tensor

from genprior.assessment import Assessment, Concern, Facts, ResidualSummary, assess
from genprior.history import History
from genprior.losses import Misfit
from genprior.status import Status

_NAMED = 5
"""Most items that a summary names."""
_OPEN = 1e-3
"""Primal residual above which w and G(z) still differ visibly."""


@dataclass(frozen=True)
class Candidate:
    """One of the minima that were found for an item."""

    objective: float
    signal: Tensor
    z: Tensor
    status: Status
    restart: int
    """Which of the item's starts ended there."""


@dataclass(frozen=True, eq=False)
class Minima:
    """Where starts ended that did not win: one entry for each, of any item."""

    item: Tensor
    restart: Tensor
    objective: Tensor
    z: Tensor
    x: Tensor
    status: Tensor


@dataclass(frozen=True)
class Result:
    """The answer for every item, its status, and the history of the run.

    Where the problem has a deviation, ``signal`` is ``G(z) + deviation``; ``in_range`` and ``deviation`` are its two parts.

    ``signal``, ``z``, ``w`` and ``objective`` belong to the best iterate by objective of the feasible point ``G(z)``. So do
    ``primal_residual`` and ``stationarity`` where an item CONVERGED, SETTLED or STALLED; otherwise they are the last ones
    measured. All tensors are detached: a solve is not differentiated through.
    """

    signal: Tensor
    """``G(z)``, or ``G(z) + Psi v`` where the problem has a deviation, shape ``(B, *signal_shape)``."""
    z: Tensor
    """The latents."""
    w: Tensor
    """The split variable; equal to ``signal`` for methods that do not split."""
    objective: Tensor
    """``L(G(z)) + R(G(z)) + H(z)``."""
    primal_residual: Tensor
    """``|w - G(z)| / |w|``."""
    stationarity: Tensor
    """Largest relative residual of the optimality conditions."""
    status: tuple[Status, ...]
    """How each item ended; ``result.advice[0]`` says what to do next."""
    steps: Tensor
    """Iterations made for each item."""
    rollbacks: Tensor
    """Roll-backs of each item to its best iterate, with shorter steps."""
    restart: Tensor
    """Which restart won."""
    forwards: int
    """Batched forward passes through G."""
    backwards: int
    """Batched backward passes through G."""
    seconds: float
    """Seconds of computing; recording, callbacks and checkpoints not counted."""
    history: History
    """Columns over the iterations, per item."""
    plan: str
    """In words: what was computed, and how."""
    reach: Tensor
    """Distance of each latent from the distribution's centre; above 1: outside, where the generator is untrained."""
    improving: Tensor
    """Whether the objective of the item still fell when it was stopped."""
    bound: Tensor
    """Whether a constraint on signal or latent is active at the item's answer."""
    penalty: Tensor
    """The share of the objective that the term on the latent has."""
    unfit: Tensor
    """Whether the loss of the item's data overflows or underflows in this dtype."""
    tolerance: float
    """The primal residual and stationarity at which an item counted as converged."""
    starts: Tensor
    """Starts of each item."""
    minima: Minima
    """Where other starts ended than the ones that won; see :attr:`candidates`."""
    batch_passes: int = 0
    """The most passes, forward and backward, that one batch made: what ``MaxPasses`` limits."""
    fading_dual: bool = False
    """Whether the method's dual step decays, possibly before the primal residual has vanished."""
    residual: Tensor | None = None
    """``|A x - y| / |y|`` at the signal x, ``|f(x) - y| / |y|`` with a NonLinear loss; None where the loss has no residual."""
    misfit: Misfit | None = None
    """``|(A x - y)/sigma|^2`` beside its expectation, where the loss knows the noise: a ``misfit.ratio`` about 1 fits it."""
    deviation: Tensor | None = None
    """The deviation ``Psi v`` from the range, shaped as the signal; None where the problem has none."""
    coefficients: Tensor | None = None
    """The coefficients v of the deviation in its basis."""
    deviation_weight: Tensor | None = None
    """The weight on the deviation that was chosen for each item; None where it was given."""
    parameters: dict[str, Tensor] | None = None
    """By name, what was found for the parameters of :meth:`Generator.with_parameters`, ``(B, *shape)``; else None."""

    @property
    def in_range(self) -> Tensor:
        """``G(z)``: the part of the signal that lies in the range of the generator."""
        return self.signal if self.deviation is None else self.signal - self.deviation

    @property
    def restarts(self) -> int:
        """The most starts that an item had."""
        return int(self.starts.max())

    @property
    def candidates(self) -> tuple[tuple[Candidate, ...], ...]:
        """For each item all distinct minima that were found, the answer first, the others by objective.

        A second one whose objective is nearly the same is another answer that the data allow. Starts that were culled
        on the way are not among them.
        """
        found = [[self._answer(item)] for item in range(len(self.status))]
        for row, item in enumerate(self.minima.item.tolist()):
            found[item].append(self._candidate(row))
        return tuple((first, *sorted(others, key=lambda one: one.objective)) for first, *others in found)

    def _answer(self, item: int) -> Candidate:
        objective, restart = float(self.objective[item]), int(self.restart[item])
        return Candidate(objective, self.signal[item], self.z[item], self.status[item], restart)

    def _candidate(self, row: int) -> Candidate:
        other = self.minima
        status = Status(int(other.status[row]))
        return Candidate(float(other.objective[row]), other.x[row], other.z[row], status, int(other.restart[row]))

    @property
    def gap(self) -> Tensor:
        """Another name of ``primal_residual``."""
        return self.primal_residual

    @property
    def converged(self) -> bool:
        """Whether every item converged."""
        return all(status is Status.CONVERGED for status in self.status)

    @property
    def facts(self) -> tuple[Facts, ...]:
        """The numbers that each item is assessed by."""
        return tuple(self._facts(item) for item in range(len(self.status)))

    @property
    def assessments(self) -> tuple[Assessment, ...]:
        """The assessment of each item, by its own numbers and those of the others."""
        facts = self.facts
        others = ResidualSummary.of(one.residual for one in facts)
        return tuple(assess(one, others) for one in facts)

    @property
    def advice(self) -> tuple[str, ...]:
        """How each item ended, how far its answer can be trusted, and what to try next."""
        return tuple(one.advice for one in self.assessments)

    @property
    def attention(self) -> tuple[int, ...]:
        """The items that need attention, the gravest first."""
        order = list(Concern)
        found = [
            (order.index(one.concern), item) for item, one in enumerate(self.assessments) if one.concern is not None
        ]
        return tuple(item for _, item in sorted(found))

    def summary(self) -> str:
        """A few lines in words; items that need attention first."""
        counts = Counter(status.name for status in self.status)
        ends = ", ".join(f"{number} {name}" for name, number in counts.most_common())
        return (
            f"{len(self.status)} items: {ends}\n"
            f"{self._attention()}"
            f"median objective {self.objective.median().item():.3g}, {self._fit()}"
            f"{self.forwards} forward and {self.backwards} backward passes, {self.seconds:.2f} s\n"
            f"{self.plan}"
        )

    def _attention(self) -> str:
        """Lines about the items that need attention, and one about latents that have left their distribution."""
        items, assessments = self.attention, self.assessments
        lines = [f"item {item}, {assessments[item].concern}: {assessments[item].advice}" for item in items[:_NAMED]]
        if len(items) > _NAMED:
            lines.append(f"and {len(items) - _NAMED} others need attention: result.attention")
        outside = int((self.reach > 1).sum())
        if outside:
            lines.append(f"{outside} of {len(self.status)} latents lie outside the generator's latent distribution")
        return "".join(f"{line}\n" for line in lines)

    def _fit(self) -> str:
        middle = math.nan if self.residual is None else self.residual.median().item()
        residual = f"median relative residual {middle:.3g}, " if math.isfinite(middle) else ""
        if self.misfit is None:
            return residual
        return f"{residual}median misfit {self.misfit.ratio.median().item():.3g} times that of the noise, "

    def _noise(self, item: int) -> float | None:
        """``|noise| / |y|``, as expected."""
        if self.misfit is None or self.residual is None:
            return None
        return float(self.residual[item] / self.misfit.ratio[item].sqrt())

    def __repr__(self) -> str:
        return f"Result({self.summary()})"

    def _facts(self, item: int) -> Facts:
        status, primal_residual = self.status[item], float(self.primal_residual[item])
        return Facts(
            status=status,
            steps=int(self.steps[item]),
            objective=float(self.objective[item]),
            primal_residual=primal_residual,
            rollbacks=int(self.rollbacks[item]),
            restarts=int(self.starts[item]),
            residual=None if self.residual is None else float(self.residual[item]),
            noise=self._noise(item),
            improving=bool(self.improving[item]),
            latent=float(self.reach[item]),
            bound=bool(self.bound[item]),
            penalty=float(self.penalty[item]),
            frozen_dual=self.fading_dual and status is Status.STALLED and primal_residual > _OPEN,
            representable=not bool(self.unfit[item]),
        )
