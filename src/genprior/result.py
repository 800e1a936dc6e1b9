"""What a solve returns."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from torch import Tensor

from genprior.history import History
from genprior.status import Status


@dataclass(frozen=True)
class Result:
    """The answer for every item, how it ended, and how it got there.

    ``signal``, ``z``, ``w`` and ``objective`` belong to the best iterate by objective of the feasible point ``G(z)``;
    ``gap`` and ``stationarity`` to the last one: they are the evidence for ``status``.
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
    """``|w - G(z)| / |w|`` at the end."""
    stationarity: Tensor
    """Largest relative residual of the optimality conditions at the end."""
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
    residual: Tensor | None = None
    """``|A x - y| / |y|`` at ``x = G(z)``, where the objective is a LeastSquares or SquaredDistance alone; else None."""

    @property
    def converged(self) -> bool:
        """Whether every item converged."""
        return all(status is Status.CONVERGED for status in self.status)

    @property
    def advice(self) -> tuple[str, ...]:
        """What happened to each item and what to try next."""
        return tuple(self._advice(item) for item in range(len(self.status)))

    def summary(self) -> str:
        """A few lines for people."""
        counts = Counter(status.name for status in self.status)
        ends = ", ".join(f"{number} {name}" for name, number in counts.most_common())
        return (
            f"{len(self.status)} items: {ends}\n"
            f"median objective {self.objective.median().item():.3g}, {self._fit()}"
            f"{self.forwards} forward and {self.backwards} backward passes, {self.seconds:.2f} s\n"
            f"{self.plan}"
        )

    def _fit(self) -> str:
        middle = math.nan if self.residual is None else self.residual.median().item()
        return f"median relative residual {middle:.3g}, " if math.isfinite(middle) else ""

    def __repr__(self) -> str:
        return f"Result({self.summary()})"

    def _advice(self, item: int) -> str:
        status = self.status[item]
        text = status.advice
        if float(self.objective[item]) == math.inf and status is not Status.DIVERGED:
            text = (
                f"{status.name}, and no iterate satisfied the constraint: G(z) never lay in the set of on_signal, or z in "
                "that of on_latent. Check its bounds against what the generator makes; more steps help only if it can "
                "reach the set."
            )
        rollbacks, gap = int(self.rollbacks[item]), float(self.gap[item])
        if rollbacks:
            text += f" The steps of this item were shortened {rollbacks} times."
        if status is Status.STALLED and gap > 1e-3 and "dual Paper" in self.plan:
            text += (
                f" w and G(z) still differ by {min(gap, 1.0):.1%}: the dual step has become too small to close the gap "
                "(dual frozen, gap plateau). Try dual=gp.duals.Constant(), or a larger rho."
            )
        return text
