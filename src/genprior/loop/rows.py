"""Bookkeeping of the rows that are running: best iterate, progress, roll-back, proof, retirement. All of it per row.

What counts as progress, as settled and as diverged are frozen values, with the reason for every number.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Generic

import torch
from torch import Tensor

from genprior import _batch, _tree
from genprior.problem import Point, Problem
from genprior.solvers.base import S, Solver, State, with_scale
from genprior.solvers.optimality import optimality
from genprior.status import Status

_SAME = 64.0
"""Scores that differ by less than so many units of rounding count as equal."""


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
class Best:
    """The best iterate so far, by score."""

    score: Tensor
    objective: Tensor
    z: Tensor
    x: Tensor
    w: Tensor

    @classmethod
    def of(cls, state: State) -> Best:
        """The iterate of ``state``."""
        return cls(state.score, state.objective, state.z, state.x, state.w)

    def updated(self, state: State, *, forbids: bool) -> Best:
        """With the items of ``state`` that are better; ``forbids``: R may be infinite, and scores differ from objectives."""
        better = self._improved_by(state, forbids=forbids)
        if better.is_cpu:  # reading the mask costs nothing here, and mostly spares the copies
            if better.all():
                return Best.of(state)
            if not better.any():
                return self
        score = torch.where(better, state.score, self.score)
        return Best(
            score=score,
            objective=torch.where(better, state.objective, self.objective) if forbids else score,
            z=_where(better, state.z, self.z),
            x=_where(better, state.x, self.x),
            w=_where(better, state.w, self.w),
        )

    def _improved_by(self, state: State, *, forbids: bool) -> Tensor:
        """Where the new iterate is better: feasible ones come before infeasible ones, then the lower score."""
        lower = state.score < self.score
        if not forbids:
            return lower & (state.score > -torch.inf)
        feasible = _finite(state.objective)
        return torch.where(feasible == _finite(self.objective), lower, feasible)

    def replaced(self, where: Tensor, state: State) -> Best:
        """With the items of ``state`` for the items in ``where``."""
        new = Best.of(state)
        return Best(*(_where(where, getattr(new, f.name), getattr(self, f.name)) for f in fields(self)))


@dataclass(frozen=True)
class Marks:
    """The step at which an item last made progress, and its score and residual then."""

    score: Tensor
    residual: Tensor
    step: Tensor
    lowered: Tensor
    """The step at which its score last made progress."""
    level: Tensor
    """The best score when it last fell clearly."""
    fell: Tensor
    """The step at which it did."""

    def updated(self, best: Tensor, residual: Tensor, step: int, rule: Progress) -> Marks:
        """Progress is a best score, or a residual, that is lower by the shares that the rule asks for."""
        better_score = best < self.score - rule.objective * self.score.abs()
        better_score |= best > self.score  # a best score rises only when the first feasible iterate replaces others
        better_score |= _finite(best) & ~_finite(self.score)
        better_residual = residual < (1 - rule.residual) * self.residual
        fell = ~(best >= self.level - rule.clearly * self.level.abs()) | (best > self.level)
        return Marks(
            torch.where(better_score, best, self.score),
            torch.where(better_residual, residual, self.residual),
            torch.where(better_score | better_residual, step, self.step),
            torch.where(better_score, step, self.lowered),
            torch.where(fell, best, self.level),
            torch.where(fell, step, self.fell),
        )


@dataclass(frozen=True)
class Rows(Generic[S]):
    """The rows that are running. Every tensor below has one entry per row, so selecting rows is one operation."""

    index: Tensor
    """Number of the row in its batch: item times restarts plus restart."""
    state: S
    best: Best
    marks: Marks
    primal_residual: Tensor
    """``|w - G(z)| / |w|`` when last measured."""
    stationarity: Tensor
    """Largest relative residual of the optimality conditions when last measured."""
    size: Tensor
    """Scale of the objective: the larger of its scores at the start and at the zero signal."""
    extent: Tensor
    """``|G(z)|`` at the start."""
    unfit: Tensor
    """Whether the loss of the data cannot be represented in the dtype: it overflows, or underflows."""
    proof_due: Tensor
    """The step before which convergence is not checked again, after a proof that failed."""
    rollbacks: Tensor

    @classmethod
    def open(cls, problem: Problem, solver: Solver[S], z: Tensor) -> Rows[S]:
        """All rows at their starts (one forward pass)."""
        state = solver.start(problem, z)
        zero = torch.zeros_like(state.score)
        nothing, begun = torch.zeros_like(state.x), torch.zeros_like(zero, dtype=torch.long)
        natural = problem.evaluate(nothing, state.z)
        usual = natural.score.abs()
        size = torch.maximum(state.score.abs(), torch.where(usual.isfinite(), usual, zero))
        return cls(
            index=torch.arange(len(z), device=z.device),
            state=state,
            best=replace(Best.of(state), score=torch.where(state.score.isfinite(), state.score, torch.inf)),
            marks=Marks(state.score, torch.full_like(zero, torch.inf), begun, begun, state.score, begun),
            primal_residual=zero,
            stationarity=torch.full_like(zero, torch.inf),
            size=size,
            extent=_batch.norm(state.x),
            unfit=_unfit(problem, nothing, natural, state.x),
            proof_due=begun,
            rollbacks=begun,
        )

    def __len__(self) -> int:
        return len(self.index)

    def advanced(self, problem: Problem, solver: Solver[S]) -> Rows[S]:
        """One step, and the best iterate."""
        state = solver.step(problem, self.state)
        best = self.best.updated(state, forbids=problem.forbids_points)
        return Rows(  # in full: dataclasses.replace takes several times as long, and this is every step
            self.index,
            state,
            best,
            self.marks,
            self.primal_residual,
            self.stationarity,
            self.size,
            self.extent,
            self.unfit,
            self.proof_due,
            self.rollbacks,
        )

    def measured(self, problem: Problem, solver: Solver[S], step: int, rule: Progress) -> Rows[S]:
        """With new residuals and progress marks."""
        primal_residual, stationarity = solver.residuals(problem, self.state)
        marks = self.marks.updated(self.best.score, torch.maximum(primal_residual, stationarity), step, rule)
        return replace(self, primal_residual=primal_residual, stationarity=stationarity, marks=marks)

    def broken(self, solver: Solver[S], rule: Divergence) -> Tensor:
        """Rows whose iterate is not finite or has exploded. Rows that were never feasible do not count."""
        score = solver.standing(self.state)
        outside = (score == torch.inf) & (self.best.score == torch.inf) & _finite(_batch.norm(self.state.x))
        finite = (outside | _finite(score)) & _finite(self.primal_residual) & ~self.stationarity.isnan()
        return ~finite | (score > self.best.score + rule.explosion * self.size)

    def rolled_back(self, problem: Problem, solver: Solver[S], broken: Tensor, step: int, rule: Divergence) -> Rows[S]:
        """The broken rows start again, with new patience, from their best iterate with shorter steps; others stay."""
        index = broken.nonzero()[:, 0]
        fresh = solver.start(problem.rows(index), self.best.z[index])
        fresh = with_scale(fresh, self.state.scale[index] * rule.shrink)
        return replace(
            self,
            state=_tree.put(self.state, index, fresh),
            marks=replace(
                self.marks,
                step=torch.where(broken, step, self.marks.step),
                lowered=torch.where(broken, step, self.marks.lowered),
            ),
            rollbacks=self.rollbacks + broken.to(self.rollbacks.dtype),
        )

    def within(self, tolerance: float) -> Tensor:
        """Primal residual and stationarity, as last measured, both within the tolerance."""
        return (self.primal_residual <= tolerance) & (self.stationarity <= tolerance)

    def proved(
        self, problem: Problem, solver: Solver[S], asked: Tensor, tolerance: float, step: int, rule: Proof
    ) -> tuple[Rows[S], Tensor]:
        """The optimality conditions at what would be returned, for the rows in ``asked``; and where they hold.

        Where the last iterate is as good as the best one up to rounding, it is returned: scores resolve points only to
        the square root of what gradients do.
        """
        index = asked.nonzero()[:, 0]
        part, problem = _tree.take(self, index), problem.rows(index)
        same = part.state.score <= part.best.score + _SAME * torch.finfo(part.size.dtype).eps * part.best.score.abs()
        same &= _finite(part.state.objective) | ~_finite(part.best.objective)
        best = part.best.replaced(same, part.state)
        multiplier = solver.multiplier(problem, part.state)
        if multiplier is None and problem.needs_splitting:
            tolerance = min(tolerance, rule.subgradient_tolerance)
        primal_residual, stationarity = optimality(problem, best.z, part.extent, multiplier)
        primal_residual = torch.maximum(primal_residual, part.primal_residual)
        holds = (primal_residual <= tolerance) & (stationarity <= tolerance) & _finite(best.objective) & ~part.unfit
        wait = torch.where(holds, part.proof_due, step + 1 + int(rule.again * step))
        judged = replace(
            self,  # but for the state, whose graph serves the next step
            best=_tree.put(self.best, index, best),
            primal_residual=self.primal_residual.index_copy(0, index, primal_residual),
            stationarity=self.stationarity.index_copy(0, index, stationarity),
            proof_due=self.proof_due.index_copy(0, index, wait),
        )
        return judged, torch.zeros_like(asked).index_copy(0, index, holds)

    def settled(self, rule: Progress) -> Tensor:
        """Near enough to a minimum to count as SETTLED, for an item that no longer improves."""
        near = (self.primal_residual <= rule.closed) & (self.stationarity <= rule.near)
        return near & _finite(self.best.objective) & ~self.unfit

    def stalled(self, step: int, patience: int) -> Tensor:
        """No progress for ``patience`` steps."""
        return step - self.marks.step >= patience

    def at_rest(self, step: int, settle_after: int, rule: Progress) -> Tensor:
        """Near a minimum, and no progress of the objective for ``settle_after`` steps; 0 of them: never."""
        if settle_after == 0:
            return torch.zeros_like(self.unfit)
        return self.settled(rule) & (step - self.marks.lowered >= settle_after)


@dataclass(frozen=True)
class Outcome:
    """How each row or item ended."""

    z: Tensor
    x: Tensor
    w: Tensor
    score: Tensor
    objective: Tensor
    primal_residual: Tensor
    stationarity: Tensor
    status: Tensor
    steps: Tensor
    rollbacks: Tensor
    fell: Tensor
    """The step at which the best score last fell clearly."""
    unfit: Tensor

    @classmethod
    def of(cls, rows: Rows[S], status: Tensor, step: int) -> Outcome:
        """The rows at their best iterates."""
        best = rows.best
        steps = torch.full_like(rows.index, step)
        return cls(
            best.z,
            best.x,
            best.w,
            best.score,
            best.objective,
            rows.primal_residual,
            rows.stationarity,
            status,
            steps,
            rows.rollbacks,
            rows.marks.fell,
            rows.unfit,
        )

    @classmethod
    def pending(cls, rows: Rows[S]) -> Outcome:
        """Places for all rows of a batch, filled as they retire."""
        blank = cls.of(rows, torch.full_like(rows.index, int(Status.RUNNING)), 0)
        return replace(blank, score=torch.full_like(blank.score, torch.inf))


def _unfit(problem: Problem, nothing: Tensor, natural: Point, x: Tensor) -> Tensor:
    """Where the loss overflows both at zero and at the start, or is lost in underflow although it has a gradient."""
    slope = _batch.norm(problem.loss.gradient(nothing, natural.residual))
    first, limits = problem.loss(x), torch.finfo(x.dtype)
    over = ~_finite(natural.loss) & ~_finite(first) & _finite(_batch.norm(x))
    under = (torch.maximum(natural.loss.abs(), first.abs()) < limits.tiny / limits.eps) & (slope > 0)
    return over | under


def _finite(values: Tensor) -> Tensor:
    """``isfinite`` in half as many operations."""
    return values.abs() < torch.inf


def _where(mask: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(_batch.spread(mask, new), new, old)
