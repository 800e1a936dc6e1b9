"""The engine: judge the trial, update the model, take the next direction, try again. One trial is one iteration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from genprior import _batch
from genprior.generators import Evaluation
from genprior.problem import Point, Problem
from genprior.solvers.base import Common, Evidence, Multiplier, Solver, State, Vjp
from genprior.solvers.envelope import Multipliers, SignalPart, SplitState, Trial
from genprior.solvers.estimates import rounding_error, secant_of
from genprior.solvers.quadratic import LatentTerm
from genprior.solvers.trial.globalisation import (
    Continuation,
    EnergyChange,
    Judgement,
    NoRidge,
    RidgeState,
    Search,
    SearchState,
)

M = TypeVar("M")
"""The model of a direction: a tree of tensors."""


@dataclass(frozen=True)
class BasePoint:
    """The last accepted point, with the function's values there."""

    z: Tensor
    """Flat, ``(B, s)``."""
    x: Tensor
    energy: Tensor
    gradient: Tensor
    """``DG(z)^T f``, flat: exact, or that of the direction's model."""
    cotangent: Tensor
    """``|f|``."""
    primal_residual: Tensor
    """``|w - G(z)|``."""

    def where(self, accepted: Tensor, other: BasePoint) -> BasePoint:
        """The other point for the items in ``accepted``."""
        take = accepted[:, None]
        return BasePoint(
            torch.where(take, other.z, self.z),
            torch.where(_batch.spread(accepted, self.x), other.x, self.x),
            torch.where(accepted, other.energy, self.energy),
            torch.where(take, other.gradient, self.gradient),
            torch.where(accepted, other.cotangent, self.cotangent),
            torch.where(accepted, other.primal_residual, self.primal_residual),
        )


@dataclass(frozen=True)
class TrialState(State, Generic[M]):
    """The last accepted point, the trial from it, and what each part of the method keeps. ``at`` is the trial point."""

    trial: Trial
    base: BasePoint
    search: SearchState
    model: M
    ridge: RidgeState | None
    split: SplitState | None


class Update(NamedTuple, Generic[M]):
    """A direction's model after a trial."""

    model: M
    gradient: Tensor
    """At the new base, flat."""
    exact: Tensor
    """Where that gradient is exact, not the model's approximation: convergence may be judged by it."""
    jac_scale: Tensor
    """Local estimate of ``|DG|``, which stationarity is relative to."""
    changed: Tensor
    """Where the model has changed, so that another direction is worth a trial."""


class DescentDirection(NamedTuple, Generic[M]):
    """A direction from the base, and the model it comes from."""

    model: M
    direction: Tensor
    slope: Tensor
    """Change of the function that the linear part and H predict."""


class Direction(ABC, Generic[M]):
    """A model of the function ``e(G(z))`` and the direction that follows from it."""

    uses_vjp: bool = True
    """Whether a gradient is taken at every trial: one backward pass."""

    @abstractmethod
    def start(self, problem: Problem, place: BasePoint, common: Common, trial: Trial, curvature: Tensor) -> M:
        """Before the first step; ``curvature`` is that of the function of the signal."""

    @abstractmethod
    def updated(self, problem: Problem, s: TrialState[M], base: BasePoint, outcome: TrialOutcome) -> Update[M]:
        """The model after the trial; ``base`` is the new base, ``s.base`` the old one."""

    @abstractmethod
    def descent(
        self, problem: Problem, model: M, base: BasePoint, own: LatentTerm, scale: Tensor
    ) -> DescentDirection[M]:
        """The direction from the base; ``own`` is the part of the function that needs no model."""

    def scaled(self, model: M, factor: Tensor) -> M:
        """The model of ``factor`` times the function, per item."""
        return model

    def restarted(self, problem: Problem, model: M, lost: Tensor, s: TrialState[M]) -> M:
        """The model, reset for the items in ``lost``, where the search has failed."""
        return model

    def takes_jacobians(self) -> bool:
        """Whether forward mode is used, which torch loads at its first use."""
        return False


class TrialOutcome(NamedTuple):
    """The outcome of a trial, from which a direction updates its model."""

    accepted: Tensor
    moved: Tensor
    """Where a multiplier has changed since the base was evaluated: base and trial are values of different functions."""
    decrease: Tensor
    """Decrease of the whole function from base to trial."""
    vjp: Vjp | None
    jac_scale: Tensor
    """Local estimate of ``|DG|``: from that gradient, and from how far the step moved the signal."""


class Arrival(NamedTuple):
    """A point at which G was evaluated, with the values there."""

    at: Evaluation
    point: Point
    trial: Trial
    w: Tensor
    split: SplitState | None


class Inner(ABC):
    """A rule that moves entries of the latent on which the signal depends linearly, without a pass through G."""

    @abstractmethod
    def arrived(
        self,
        problem: Problem,
        multipliers: SignalPart,
        at: Evaluation,
        nu: Tensor,
        split: SplitState | None,
        rho: Tensor,
        w: Tensor,
    ) -> Arrival:
        """The point ``at`` with these entries moved, where L has the Lipschitz constant ``nu``; no larger value than at it."""


@dataclass(frozen=True)
class TrialMethod(Solver[TrialState[M]], Generic[M]):
    """Descend ``phi(z) = e(G(z)) + H(z) + c/2 |z - centre|^2``, one independent problem per item.

    From the last accepted point ("base") a trial is made along a direction and judged, and the model updated; one iteration is
    one trial: one forward pass, and one backward pass where the direction uses gradients.

    Parameters
    ----------
    direction
        ``Secant`` or ``DampedGaussNewton``: where to go.
    search
        ``Armijo``, ``WeakWolfe`` or ``Decrease``: whether a trial is accepted, how far to try next.
    multipliers
        ``Multipliers`` or ``Subgradients``: how R enters ``e``.
    continuation
        ``Ridge`` or ``NoRidge``: how the ridge c towards the prior fades.
    inner
        ``EliminatedDeviation``: what moves a deviation after each pass, with ``InRange`` around the direction; None: nothing.
    """

    direction: Direction[M]
    search: Search
    multipliers: SignalPart = Multipliers()
    continuation: Continuation = NoRidge()
    inner: Inner | None = None

    def __post_init__(self) -> None:
        parts = (
            ("direction", Direction),
            ("search", Search),
            ("multipliers", SignalPart),
            ("continuation", Continuation),
        )
        for name, expected in parts:
            if not isinstance(getattr(self, name), expected):
                raise TypeError(f"{name} must be a {expected.__name__}, got {getattr(self, name)!r}")
        if self.search.needs_gradient and not self.direction.uses_vjp:
            raise ValueError(
                f"search={self.search!r} judges trials by their gradients, but {type(self.direction).__name__} computes none: "
                "use Decrease() or Armijo()"
            )

    @property
    def patience(self) -> int:
        """Half that of first-order methods: the longest plateau seen before further progress had 103 steps."""
        return 100

    def start(self, problem: Problem, z: Tensor) -> TrialState[M]:
        """The start is both base and trial: the first step computes its gradient."""
        at = problem.generator.evaluate(z, graph=self.direction.uses_vjp)
        point = problem.evaluate(at.x, at.z)
        split, rho = self.multipliers.start(problem, at.x, point)
        smoothness, curvature = self.multipliers.curvatures(problem, at.x, point, rho)
        at, point, trial, w, split = self._arrived(problem, at, smoothness, split, rho, at.x)
        common = replace(Common.first(problem, at, point, smoothness), rho=rho, w=w)
        flat, zero = _batch.flat(at.z), torch.zeros_like(point.loss)
        base = BasePoint(flat, at.x, trial.energy, torch.zeros_like(flat), zero, zero)
        return TrialState(
            common,
            trial=trial,
            base=base,
            search=SearchState.none(flat),
            model=self.direction.start(problem, base, common, trial, curvature),
            ridge=self.continuation.start(problem.in_range, curvature, trial.energy),
            split=split,
        )

    def step(self, problem: Problem, state: TrialState[M]) -> TrialState[M]:
        """Judge the trial; update the multipliers where that is due, and the model; then evaluate the next trial."""
        own = self._own(problem, state)
        before, after = own.added(state.base.energy, state.base.z), own.added(state.trial.energy, _batch.flat(state.z))
        rounding = rounding_error(before.abs() + state.base.energy.abs(), state.base.cotangent, state.base.x)
        decreased = self.search.decreased(state.search, before, after, rounding) | (state.k == 0)

        s, moved = self._moved(problem, state, decreased)
        vjp = Vjp.of(s, s.trial.f) if self.direction.uses_vjp else None  # the one backward pass
        judgement = self.search.judged(s.search, decreased, self._along(s, own, vjp))
        accepted = judgement.accepted
        base = s.base.where(accepted, self._as_base(s, vjp))
        update = self.direction.updated(
            problem, s, base, TrialOutcome(accepted, moved, before - after, vjp, self._jac_scale(s, vjp))
        )
        base = replace(base, gradient=update.gradient)

        s = replace(s, ridge=self._faded(s, base, accepted, moved), split=self._aged(s, vjp, accepted, moved))
        model = update.model
        if bool(judgement.lost.any()):
            model = self.direction.restarted(problem, model, judgement.lost, s)
        descent = self.direction.descent(problem, model, base, self._own(problem, s), s.scale)
        search = self._searched(s, judgement, update, descent)
        vjp = Vjp.known(s, base.gradient.reshape(s.z.shape), base.cotangent) if vjp is None else vjp
        taken = Vjp(base.gradient.reshape(s.z.shape), base.cotangent, vjp.ratio, vjp.kappa)
        evidence = Evidence.at(base.z.reshape(s.z.shape), taken, update.jac_scale).where(update.exact, s.evidence)

        z = (base.z + search.length[:, None] * search.direction).reshape(s.z.shape)
        at = problem.generator.evaluate(z, graph=self.direction.uses_vjp)  # the one forward pass
        at, point, trial, w, split = self._arrived(problem, at, s.units.smoothness, s.split, s.rho, s.w)
        _, secant = s.common.moved(at, problem.generator.spread)
        return TrialState(
            s.common.next(at, point, torch.maximum(vjp.kappa, secant), evidence, w=w),
            trial=trial,
            base=base,
            search=search,
            model=descent.model,
            ridge=s.ridge,
            split=split,
        )

    # -- the parts of a step -----------------------------------------------------------------------------------------

    def _arrived(
        self, problem: Problem, at: Evaluation, nu: Tensor, split: SplitState | None, rho: Tensor, w: Tensor
    ) -> Arrival:
        """The values at ``at``, where the inner rule may have moved a part of the latent."""
        if self.inner is not None:
            return self.inner.arrived(problem, self.multipliers, at, nu, split, rho, w)
        point = problem.evaluate(at.x, at.z)
        return Arrival(at, point, *self.multipliers.evaluate(problem, at.x, point, split, rho, w))

    @staticmethod
    def _own(problem: Problem, s: TrialState[M]) -> LatentTerm:
        return LatentTerm.of(problem, s.z.shape, None if s.ridge is None else s.ridge.weight)

    def _moved(self, problem: Problem, s: TrialState[M], accepted: Tensor) -> tuple[TrialState[M], Tensor]:
        """The state after an update of the multipliers, and where there was one."""
        moved = self.multipliers.updated(problem, s, accepted)
        if moved is None:
            return s, torch.zeros_like(accepted)
        after, where, growth = moved
        return replace(after, model=self.direction.scaled(s.model, growth)), where

    def _along(self, s: TrialState[M], own: LatentTerm, vjp: Vjp | None) -> Tensor | None:
        """The derivative along the direction at the trial point, where the search asks for it and H has one."""
        if vjp is None or not self.search.needs_gradient or not own.is_quadratic:
            return None
        return _batch.dot(_batch.flat(vjp.gradient) + own.gradient(_batch.flat(s.z)), s.search.direction)

    @staticmethod
    def _jac_scale(s: TrialState[M], vjp: Vjp | None) -> Tensor:
        """The last estimate where the step is lost in rounding, and where no gradient was taken."""
        if vjp is None:
            return s.evidence.jac_scale
        z = _batch.flat(s.z)
        secant = secant_of(s.x - s.base.x, z - s.base.z, z)
        return torch.maximum(vjp.ratio, torch.where(secant.isinf(), s.evidence.jac_scale, secant))

    @staticmethod
    def _as_base(s: TrialState[M], vjp: Vjp | None) -> BasePoint:
        """The trial point as a base; with the old gradient where none was taken."""
        gradient, cotangent = (
            (s.base.gradient, _batch.norm(s.trial.f)) if vjp is None else (_batch.flat(vjp.gradient), vjp.cotangent)
        )
        return BasePoint(_batch.flat(s.z), s.x, s.trial.energy, gradient, cotangent, s.trial.primal_residual)

    def _faded(self, s: TrialState[M], base: BasePoint, accepted: Tensor, moved: Tensor) -> RidgeState | None:
        if s.ridge is None:
            return None
        change = EnergyChange(s.base.energy, base.energy, -s.search.slope, accepted & (s.k > 0), ~moved)
        return self.continuation.next(s.ridge, change)

    @staticmethod
    def _aged(s: TrialState[M], vjp: Vjp | None, accepted: Tensor, moved: Tensor) -> SplitState | None:
        if s.split is None:
            return None
        cotangent = _batch.norm(s.trial.f) if vjp is None else vjp.cotangent
        return replace(
            s.split,
            age=torch.where(moved, 0.0, s.split.age + accepted),
            first_cotangent=torch.where(s.k == 0, cotangent, s.split.first_cotangent),
        )

    def _searched(
        self, s: TrialState[M], judgement: Judgement, update: Update[M], descent: DescentDirection[M]
    ) -> SearchState:
        """The next trial: along a new direction, or further along the old one."""
        new, length = self.search.next(s.search, judgement, update.changed, s.scale)
        return SearchState(
            direction=torch.where(new[:, None], descent.direction, s.search.direction),
            slope=torch.where(new, descent.slope, s.search.slope),
            length=length,
            low=judgement.low,
            high=judgement.high,
            trials=torch.where(judgement.accepted | judgement.lost, 0.0, s.search.trials + 1),
        )

    # -- convergence and divergence ---------------------------------------------------------------------------------

    def standing(self, state: TrialState[M]) -> Tensor:
        """The energy of the base: a rejected trial is no divergence."""
        return state.base.energy

    def residuals(self, problem: Problem, state: TrialState[M]) -> tuple[Tensor, Tensor]:
        """Primal residual and stationarity at the last base whose gradient is known."""
        return self.multipliers.residuals(problem, state)

    def plan(self, problem: Problem) -> str:
        """In words: the parts by name."""
        parts = (self.direction, self.search, self.multipliers, self.continuation)
        names = [type(part).__name__ for part in parts]
        return (
            f"A curvature method in z: its direction comes from {names[0]}, its step length from {names[1]}; {names[2]} "
            f"treats R, and {names[3]} the ridge towards the prior."
        )

    def takes_jacobians(self, problem: Problem) -> bool:
        """As the direction does."""
        return self.direction.takes_jacobians()

    def multiplier(self, problem: Problem, state: TrialState[M]) -> Multiplier | None:
        """The dual variable and the penalty, where R is split off."""
        return self.multipliers.multiplier(state)
