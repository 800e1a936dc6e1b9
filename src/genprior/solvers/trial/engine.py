"""The engine: judge the trial, learn from it, take the next direction, try again. One trial is one iteration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple

import torch
from torch import Tensor

from genprior import _batch
from genprior.problem import Problem
from genprior.solvers.base import Common, Evidence, Multiplier, Solver, Vjp
from genprior.solvers.estimates import latent_residual, noise, secant_of
from genprior.solvers.quadratic import OwnTerm
from genprior.solvers.trial.continuation import Continuation, Fall, NoRidge
from genprior.solvers.trial.multipliers import Multipliers, SignalPart
from genprior.solvers.trial.searches import Judgement, Search
from genprior.solvers.trial.state import M, Place, RidgeState, SearchState, SplitState, Trial, TrialState


class Lesson(NamedTuple, Generic[M]):
    """What a trial taught a direction."""

    model: M
    gradient: Tensor
    """At the new base, flat."""
    exact: Tensor
    """Where that gradient was computed just now, and is no model's guess: convergence may be judged by it."""
    jac_scale: Tensor
    """Local estimate of ``|DG|``, for that judgement."""
    taught: Tensor
    """Where the model has changed."""


class Aim(NamedTuple, Generic[M]):
    """A direction from the base."""

    model: M
    direction: Tensor
    slope: Tensor
    """Change of the function that the linear part and H predict."""


class Direction(ABC, Generic[M]):
    """A model of the function ``e(G(z))`` and the direction that follows from it."""

    uses_vjp: bool = True
    """Whether a gradient is taken at every trial: one backward pass."""

    @abstractmethod
    def start(self, problem: Problem, place: Place, common: Common, trial: Trial, curvature: Tensor) -> M:
        """Before the first step; ``curvature`` is that of the function of the signal."""

    @abstractmethod
    def learned(self, problem: Problem, s: TrialState[M], base: Place, judged: Judged) -> Lesson[M]:
        """The model after the trial; ``base`` is the new base, ``s.base`` the old one."""

    @abstractmethod
    def aim(self, problem: Problem, model: M, base: Place, own: OwnTerm, scale: Tensor) -> Aim[M]:
        """The direction from the base with what is known of the rest of the function."""

    def scaled(self, model: M, factor: Tensor) -> M:
        """The model of ``factor`` times the function, per item."""
        return model

    def restarted(self, problem: Problem, model: M, lost: Tensor, s: TrialState[M]) -> M:
        """A model that starts anew for the items that the search has given up."""
        return model

    def takes_jacobians(self) -> bool:
        """Whether forward mode is used, which torch loads at its first use."""
        return False


class Judged(NamedTuple):
    """What became of a trial, for the parts that learn from it."""

    accepted: Tensor
    moved: Tensor
    """Where a multiplier has moved since the base was evaluated: differences over the step are of two functions."""
    fall: Tensor
    """Decrease of the whole function from base to trial."""
    vjp: Vjp | None
    jac_scale: Tensor
    """Local estimate of ``|DG|``: from that gradient, and from how far the step moved the signal."""


@dataclass(frozen=True)
class TrialMethod(Solver[TrialState[M]], Generic[M]):
    """Descend ``phi(z) = e(G(z)) + H(z) + c/2 |z - centre|^2``, one independent problem per item.

    From the last accepted point ("base") a trial is made along a direction, judged, learned from; one iteration is one
    trial: one forward pass, and one backward pass where the direction uses gradients.

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
    """

    direction: Direction[M]
    search: Search
    multipliers: SignalPart = Multipliers()
    continuation: Continuation = NoRidge()

    def __post_init__(self) -> None:
        parts = (
            ("direction", Direction),
            ("search", Search),
            ("multipliers", SignalPart),
            ("continuation", Continuation),
        )
        for name, kind in parts:
            if not isinstance(getattr(self, name), kind):
                raise TypeError(f"{name} must be a {kind.__name__}, got {getattr(self, name)!r}")
        if self.search.needs_gradient and not self.direction.uses_vjp:
            raise ValueError(
                f"search={self.search!r} judges trials by their gradients, but {type(self.direction).__name__} takes none: "
                "use Decrease() or Armijo()"
            )

    @property
    def patience(self) -> int:
        """Less than methods without curvature need: a plateau that still led somewhere had 103 steps at most."""
        return 100

    def start(self, problem: Problem, z: Tensor) -> TrialState[M]:
        """The start is the base, and its own trial: what the first step learns there is its gradient."""
        at = problem.generator.evaluate(z, graph=self.direction.uses_vjp)
        point = problem.evaluate(at.x, at.z)
        begun = self.multipliers.start(problem, at.x, point)
        value = begun.value
        common = replace(Common.first(problem, at, point, begun.smoothness), rho=begun.rho, w=value.w)
        trial = Trial.of(value, point.residual, point.loss)
        flat, zero = _batch.flat(at.z), torch.zeros_like(point.loss)
        base = Place(flat, at.x, value.energy, torch.zeros_like(flat), zero, zero)
        return TrialState(
            common,
            trial=trial,
            base=base,
            search=SearchState.none(flat),
            model=self.direction.start(problem, base, common, trial, begun.curvature),
            ridge=self.continuation.start(problem, begun.curvature, value.energy),
            split=begun.split,
        )

    def step(self, problem: Problem, state: TrialState[M]) -> TrialState[M]:
        """Judge the trial; move the multipliers where that is due; learn; then the next trial."""
        own = self._own(problem, state)
        before, trial = own.added(state.base.energy, state.base.z), own.added(state.trial.energy, _batch.flat(state.z))
        rounding = noise(before.abs() + state.base.energy.abs(), state.base.cotangent, state.base.x)
        decreased = self.search.decreased(state.search, before, trial, rounding) | (state.k == 0)

        s, moved = self._moved(problem, state, decreased)
        vjp = Vjp.of(s, s.trial.f) if self.direction.uses_vjp else None  # the one backward pass
        judgement = self.search.judged(s.search, decreased, self._along(s, own, vjp))
        accepted = judgement.accepted
        base = s.base.where(accepted, self._place(s, vjp))
        lesson = self.direction.learned(
            problem, s, base, Judged(accepted, moved, before - trial, vjp, self._jac_scale(s, vjp))
        )
        base = replace(base, gradient=lesson.gradient)

        s = replace(s, ridge=self._faded(s, base, accepted, moved), split=self._aged(s, vjp, accepted, moved))
        model = lesson.model
        if bool(judgement.lost.any()):
            model = self.direction.restarted(problem, model, judgement.lost, s)
        aim = self.direction.aim(problem, model, base, self._own(problem, s), s.scale)
        search = self._searched(s, judgement, lesson, aim)
        vjp = Vjp.known(s, base.gradient.reshape(s.z.shape), base.cotangent) if vjp is None else vjp
        taken = Vjp(base.gradient.reshape(s.z.shape), base.cotangent, vjp.ratio, vjp.kappa)
        evidence = Evidence.at(base.z.reshape(s.z.shape), taken, lesson.jac_scale).where(lesson.exact, s.evidence)

        z = (base.z + search.length[:, None] * search.direction).reshape(s.z.shape)
        at = problem.generator.evaluate(z, graph=self.direction.uses_vjp)  # the one forward pass
        point = problem.evaluate(at.x, at.z)
        value = self.multipliers.evaluate(problem, at.x, point, s.split, s.rho, s.w)
        _, secant = s.common.moved(at, problem.generator.spread)
        return TrialState(
            s.common.next(at, point, torch.maximum(vjp.kappa, secant), evidence, w=value.w),
            trial=Trial.of(value, point.residual, point.loss),
            base=base,
            search=search,
            model=aim.model,
            ridge=s.ridge,
            split=None if s.split is None else replace(s.split, memory=value.memory),
        )

    # -- the parts of a step -----------------------------------------------------------------------------------------

    @staticmethod
    def _own(problem: Problem, s: TrialState[M]) -> OwnTerm:
        return OwnTerm.of(problem, s.z.shape, None if s.ridge is None else s.ridge.weight)

    def _moved(self, problem: Problem, s: TrialState[M], accepted: Tensor) -> tuple[TrialState[M], Tensor]:
        """The state after a move of the multipliers, and where there was one."""
        moved = self.multipliers.moved(problem, s, accepted)
        if moved is None:
            return s, torch.zeros_like(accepted)
        after = replace(
            s,
            common=replace(s.common, rho=moved.rho, w=moved.value.w),
            trial=Trial.of(moved.value, s.trial.residual, s.trial.loss),
            model=self.direction.scaled(s.model, moved.factor),
            split=moved.split,
        )
        return after, moved.where

    def _along(self, s: TrialState[M], own: OwnTerm, vjp: Vjp | None) -> Tensor | None:
        """The derivative along the direction at the trial point, where the search asks for it and H has one."""
        if vjp is None or not self.search.needs_gradient or not own.is_quadratic:
            return None
        return _batch.dot(_batch.flat(vjp.gradient) + own.gradient(_batch.flat(s.z)), s.search.direction)

    @staticmethod
    def _jac_scale(s: TrialState[M], vjp: Vjp | None) -> Tensor:
        """The last one where the step is too short to tell, and where no gradient was taken."""
        if vjp is None:
            return s.evidence.jac_scale
        z = _batch.flat(s.z)
        secant = secant_of(s.x - s.base.x, z - s.base.z, z)
        return torch.maximum(vjp.ratio, torch.where(secant.isinf(), s.evidence.jac_scale, secant))

    @staticmethod
    def _place(s: TrialState[M], vjp: Vjp | None) -> Place:
        """The trial point as a place; without a gradient where none was taken."""
        gradient, cotangent = (
            (s.base.gradient, _batch.norm(s.trial.f)) if vjp is None else (_batch.flat(vjp.gradient), vjp.cotangent)
        )
        return Place(_batch.flat(s.z), s.x, s.trial.energy, gradient, cotangent, s.trial.gap)

    def _faded(self, s: TrialState[M], base: Place, accepted: Tensor, moved: Tensor) -> RidgeState | None:
        if s.ridge is None:
            return None
        fall = Fall(s.base.energy, base.energy, -s.search.slope, accepted & (s.k > 0), ~moved)
        return self.continuation.next(s.ridge, fall)

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

    def _searched(self, s: TrialState[M], judgement: Judgement, lesson: Lesson[M], aim: Aim[M]) -> SearchState:
        """The next trial: along a new direction, or further along the old one."""
        new, length = self.search.next(s.search, judgement, lesson.taught, s.scale)
        return SearchState(
            direction=torch.where(new[:, None], aim.direction, s.search.direction),
            slope=torch.where(new, aim.slope, s.search.slope),
            length=length,
            low=judgement.low,
            high=judgement.high,
            trials=torch.where(judgement.accepted | judgement.lost, 0.0, s.search.trials + 1),
        )

    # -- what is known about the end ---------------------------------------------------------------------------------

    def standing(self, state: TrialState[M]) -> Tensor:
        """The energy of the base: a trial that went astray is no divergence."""
        return state.base.energy

    def residuals(self, problem: Problem, state: TrialState[M]) -> tuple[Tensor, Tensor]:
        """Primal residual and stationarity at the last base whose gradient is known."""
        e, units = state.evidence, state.units
        constraint = self.multipliers.constraint(problem, state)
        curvature = units.smoothness if constraint is None else state.rho
        in_z = _batch.ratio(latent_residual(problem, e.z, e.gradient, curvature, e.jac_scale), e.jac_scale)
        if constraint is None:
            slope = _batch.ratio(in_z, units.gradient(_batch.norm(state.base.x)) + e.cotangent)
            return torch.zeros_like(slope), e.infinite_if_unknown(problem, slope)
        unit = units.gradient(constraint.size) + constraint.cotangent
        stationarity = _batch.ratio(in_z + constraint.error, unit)
        return constraint.gap, e.infinite_if_unknown(problem, stationarity)

    def plan(self, problem: Problem) -> str:
        """In words: the parts by name."""
        parts = (self.direction, self.search, self.multipliers, self.continuation)
        names = [type(part).__name__ for part in parts]
        return f"trials in z: directions {names[0]}, search {names[1]}, R by {names[2]}, continuation {names[3]}"

    def takes_jacobians(self, problem: Problem) -> bool:
        """As the direction does."""
        return self.direction.takes_jacobians()

    def multiplier(self, problem: Problem, state: TrialState[M]) -> Multiplier | None:
        """The dual variable and the penalty, where R is split off."""
        return self.multipliers.multiplier(state)
