"""What a solve returns."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from torch import Tensor

from genprior.assessment import Assessment, Company, Concern, Facts, assess
from genprior.history import History
from genprior.status import Status

_NAMED = 5
"""Most items that a summary names."""
_OPEN_GAP = 1e-3


@dataclass(frozen=True)
class Result:
    """The answer for every item, how it ended, and how it got there.

    ``signal``, ``z``, ``w`` and ``objective`` belong to the best iterate by objective of the feasible point ``G(z)``. So do
    ``gap`` and ``stationarity`` where an item CONVERGED, SETTLED or STALLED: they are the evidence. Where it was stopped
    before, they are what the search measured last. All tensors are detached: a solve is not differentiated through.
    """

    signal: Tensor
    """``G(z)``, shape ``(B, *signal_shape)``."""
    z: Tensor
    """The latents."""
    w: Tensor
    """The split variable; equal to ``signal`` for methods that do not split."""
    objective: Tensor
    """``L(G(z)) + R(G(z)) + H(z)``."""
    gap: Tensor
    """``|w - G(z)| / |w|``."""
    stationarity: Tensor
    """Largest relative residual of the optimality conditions."""
    status: tuple[Status, ...]
    """How each item ended; ``result.status[0].advice`` says what to do next."""
    steps: Tensor
    """Iterations made for each item."""
    rollbacks: Tensor
    """How often each item was set back to its best iterate with shorter steps."""
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
    """How far out each latent lies in the generator's latent distribution; above 1: outside, where nothing was trained."""
    improving: Tensor
    """Whether the objective of the item still fell when it was stopped."""
    bound: Tensor
    """Whether a constraint on signal or latent holds the item's answer back."""
    penalty: Tensor
    """The share of the objective that the term on the latent has."""
    unfit: Tensor
    """Whether the loss of the item's data overflows or vanishes in this dtype."""
    tolerance: float
    """The gap and stationarity at which an item counted as converged."""
    restarts: int
    """Starts per item."""
    fading_dual: bool = False
    """Whether the method's dual step fades, and may come to rest before the gap is closed."""
    residual: Tensor | None = None
    """``|A x - y| / |y|`` at ``x = G(z)``, where the loss is a LeastSquares or SquaredDistance; else None."""

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
        """What to make of each item: by its own numbers, and beside the others."""
        facts = self.facts
        company = Company.of(one.residual for one in facts)
        return tuple(assess(one, company) for one in facts)

    @property
    def advice(self) -> tuple[str, ...]:
        """What happened to each item, how far its answer can be trusted, and what to try next."""
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
        """A few lines for people; items that need attention first."""
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
            lines.append(f"{outside} of {len(self.status)} latents lie outside of the generator's latent distribution")
        return "".join(f"{line}\n" for line in lines)

    def _fit(self) -> str:
        middle = math.nan if self.residual is None else self.residual.median().item()
        return f"median relative residual {middle:.3g}, " if math.isfinite(middle) else ""

    def __repr__(self) -> str:
        return f"Result({self.summary()})"

    def _facts(self, item: int) -> Facts:
        status, gap = self.status[item], float(self.gap[item])
        return Facts(
            status=status,
            steps=int(self.steps[item]),
            objective=float(self.objective[item]),
            gap=gap,
            rollbacks=int(self.rollbacks[item]),
            restarts=self.restarts,
            residual=None if self.residual is None else float(self.residual[item]),
            improving=bool(self.improving[item]),
            latent=float(self.reach[item]),
            bound=bool(self.bound[item]),
            penalty=float(self.penalty[item]),
            frozen_dual=self.fading_dual and status is Status.STALLED and gap > _OPEN_GAP,
            representable=not bool(self.unfit[item]),
        )
