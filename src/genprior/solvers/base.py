"""What every solver is: frozen data, a state with one row per item, and a pure step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from genprior import _batch
from genprior.generators import Evaluation
from genprior.problem import Point, Problem
from genprior.solvers.estimates import (
    curvature_of,
    gradient_parts,
    latent_residual,
    lipschitz,
    move_ratio,
    remembered,
    vjp_ratio,
)
from genprior.terms import Zero


@dataclass(frozen=True)
class Units:
    """The scales that make residuals relative: constants of a run, one per item."""

    smoothness: Tensor
    """Lipschitz constant nu of the gradient of L."""
    grad_const: Tensor
    """Norm of the constant part of the gradient of L and a quadratic R: ``|A^T y|`` for least squares."""
    hess_scale: Tensor
    """Norm of the part that grows with the signal, per unit of its norm: ``|A^T A x| / |x|``."""

    @classmethod
    def of(cls, problem: Problem, x: Tensor, smoothness: Tensor) -> Units:
        """Measured at the first signals."""
        return cls(smoothness, *gradient_parts(problem, x, smoothness))

    def gradient(self, size: Tensor) -> Tensor:
        """The larger of the two parts, which cancel at a solution, at signals of this norm."""
        return torch.maximum(self.grad_const, self.hess_scale * size)


@dataclass(frozen=True)
class Evidence:
    """The last exact gradient in z, its point, and the scale of DG there: convergence is judged by it."""

    known: Tensor
    """Whether there is one yet."""
    z: Tensor
    gradient: Tensor
    """``DG(z)^T f``."""
    cotangent: Tensor
    """``|f|``."""
    jac_scale: Tensor
    """Local estimate of ``|DG|``, from the last step alone, so that old steep regions do not loosen the test."""

    @classmethod
    def none(cls, z: Tensor) -> Evidence:
        """Before the first step."""
        zero = z.new_zeros(len(z))
        return cls(zero.bool(), z, torch.zeros_like(z), zero, zero)

    @classmethod
    def at(cls, z: Tensor, vjp: Vjp, jac_scale: Tensor) -> Evidence:
        """From an exact gradient at z."""
        return cls(torch.ones_like(jac_scale, dtype=torch.bool), z, vjp.gradient, vjp.cotangent, jac_scale)

    def where(self, exact: Tensor | None, last: Evidence) -> Evidence:
        """The evidence itself where ``exact`` (None: everywhere), and the last one elsewhere."""
        if exact is None:
            return self
        rows = _batch.spread(exact, self.z)
        return Evidence(
            exact | last.known,
            torch.where(rows, self.z, last.z),
            torch.where(rows, self.gradient, last.gradient),
            torch.where(exact, self.cotangent, last.cotangent),
            torch.where(exact, self.jac_scale, last.jac_scale),
        )

    def infinite_if_unknown(self, problem: Problem, residual: Tensor) -> Tensor:
        """The residual; infinite before the first gradient, and with a term on z also where DG has no estimate yet."""
        unknown = ~self.known
        if not isinstance(problem.on_latent, Zero):
            unknown = unknown | (self.jac_scale == 0)
        return torch.where(unknown, torch.inf, residual)


@dataclass(frozen=True)
class Vjp:
    """One backward pass: the gradient, the norm of the cotangent, and estimates of ``|DG|`` from the two."""

    gradient: Tensor
    cotangent: Tensor
    ratio: Tensor
    """``|gradient| / |cotangent|``, a lower bound of ``|DG|``."""
    kappa: Tensor
    """The running estimate of ``|DG|``, updated by it."""

    @classmethod
    def of(cls, state: State, f: Tensor) -> Vjp:
        """``DG(z)^T f`` at the state's point."""
        return cls.known(state, state.at.vjp(f), _batch.norm(f))

    @classmethod
    def known(cls, state: State, gradient: Tensor, cotangent: Tensor, least: Tensor | None = None) -> Vjp:
        """From a gradient that is known already; ``least`` is another lower bound of ``|DG|``."""
        ratio = vjp_ratio(gradient, cotangent)
        ratio = ratio if least is None else torch.maximum(ratio, least)
        return cls(gradient, cotangent, ratio, remembered(state.common.kappa, ratio))


@dataclass(frozen=True)
class Common:
    """The part of the state that all solvers share, and the only part that the loop reads."""

    at: Evaluation
    """``z``, ``x = G(z)`` and the graph for the next backward pass."""
    w: Tensor
    """The split variable (``x`` itself in methods that do not split)."""
    objective: Tensor
    """``F(G(z), z)``."""
    score: Tensor
    """The best iterate is the one of least score."""
    rho: Tensor
    """Penalty (0 in methods that have none)."""
    scale: Tensor
    """Factor on all step sizes, lowered by the loop after a roll-back."""
    k: Tensor
    """Iterations made."""
    kappa: Tensor
    """Running maximum of free estimates of ``|DG(z)|``, with slow decay."""
    units: Units
    evidence: Evidence

    @classmethod
    def first(cls, problem: Problem, at: Evaluation, point: Point, smoothness: Tensor) -> Common:
        """Before the first step, in methods that do not split."""
        zero = torch.zeros_like(point.objective)
        units = Units.of(problem, at.x, smoothness)
        return cls(
            at, at.x, point.objective, point.score, zero, torch.ones_like(zero), zero, zero, units, Evidence.none(at.z)
        )

    @classmethod
    def start(cls, problem: Problem, z: Tensor) -> tuple[Common, Tensor]:
        """At the start ``z``, and the loss's residual there: one forward pass. For methods that do not split."""
        at = problem.generator.evaluate(z)
        point = problem.evaluate(at.x, at.z)
        return cls.first(problem, at, point, curvature_of(problem, at.x, point.residual)), point.residual

    def step_to(self, problem: Problem, z: Tensor, vjp: Vjp) -> tuple[Common, Tensor]:
        """At the next point ``z``, and the loss's residual there: one forward pass. ``vjp`` was taken at the last point."""
        return self.arrived(problem, problem.generator.evaluate(z), vjp)

    def arrived(self, problem: Problem, at: Evaluation, vjp: Vjp, exact: Tensor | None = None) -> tuple[Common, Tensor]:
        """:meth:`step_to` a point at which G was evaluated; ``exact``: where ``vjp`` may say that the run has converged."""
        point = problem.evaluate(at.x, at.z)
        _, secant = self.moved(at, problem.generator.spread)
        evidence = Evidence.at(self.at.z, vjp, torch.maximum(vjp.ratio, secant)).where(exact, self.evidence)
        return self.next(at, point, torch.maximum(vjp.kappa, secant), evidence), point.residual

    def moved(self, at: Evaluation, spread: float) -> tuple[Tensor, Tensor]:
        """``|G(z+) - G(z)|`` of the step to ``at``, and its ratio to ``|z+ - z|``."""
        length = _batch.norm(at.x - self.at.x)
        return length, move_ratio(length, at.z - self.at.z, spread)

    def next(
        self,
        at: Evaluation,
        point: Point,
        kappa: Tensor,
        evidence: Evidence,
        *,
        w: Tensor | None = None,
        rho: Tensor | None = None,
    ) -> Common:
        """After a step to ``at``."""
        return Common(
            at,
            at.x if w is None else w,
            point.objective,
            point.score,
            self.rho if rho is None else rho,
            self.scale,
            self.k + 1,
            kappa,
            self.units,
            evidence,
        )


@dataclass(frozen=True)
class State:
    """The iterate of each item. Every tensor has one row per item; a step keeps names, shapes and dtypes.

    The loop reads ``common``; solvers add fields of their own.
    """

    common: Common

    @property
    def at(self) -> Evaluation:
        """``z``, ``x = G(z)`` and the graph for the next backward pass."""
        return self.common.at

    @property
    def z(self) -> Tensor:
        """The latents."""
        return self.common.at.z

    @property
    def x(self) -> Tensor:
        """The signals ``G(z)``."""
        return self.common.at.x

    @property
    def w(self) -> Tensor:
        """The split variable, or the signals."""
        return self.common.w

    @property
    def objective(self) -> Tensor:
        """``F(G(z), z)``."""
        return self.common.objective

    @property
    def score(self) -> Tensor:
        """The best iterate is the one of least score."""
        return self.common.score

    @property
    def rho(self) -> Tensor:
        """The penalty."""
        return self.common.rho

    @property
    def scale(self) -> Tensor:
        """Factor on all step sizes."""
        return self.common.scale

    @property
    def k(self) -> Tensor:
        """Iterations made."""
        return self.common.k

    @property
    def units(self) -> Units:
        """The scales that make residuals relative."""
        return self.common.units

    @property
    def evidence(self) -> Evidence:
        """The last exact gradient, by which convergence is judged."""
        return self.common.evidence

    def vjp(self, f: Tensor) -> Vjp:
        """``DG(z)^T f`` at this point, with estimates of ``|DG|``: one backward pass."""
        return Vjp.of(self, f)

    def step_length(self, vjp: Vjp) -> Tensor:
        """``scale / (nu |DG|^2)``, per item: the gradient step for the curvature estimated so far."""
        return self.scale / lipschitz(self.units.smoothness, vjp.kappa)


S = TypeVar("S", bound=State)


def with_scale(state: S, scale: Tensor) -> S:
    """The state with another factor on all step sizes."""
    return replace(state, common=replace(state.common, scale=scale))


class Multiplier(NamedTuple):
    """The dual variable and the penalty of a method that splits w from G(z)."""

    lam: Tensor
    rho: Tensor


class Choice(ABC):
    """What :func:`genprior.solve` takes: a solver, or a rule that chooses one for the problem, once."""

    @abstractmethod
    def solver(self, problem: Problem) -> Solver[Any]:
        """The solver for this problem."""

    def plan(self, problem: Problem) -> str:
        """In words: what is computed for this problem, and how."""
        return f"{type(self).__name__} minimises L(w) + R(w) + H(z) subject to w = G(z)."


class Solver(Choice, Generic[S]):
    """A method, as frozen data. ``step`` is a pure function of (problem, state): the same state gives the same bits."""

    def solver(self, problem: Problem) -> Solver[S]:
        """Itself."""
        return self

    @abstractmethod
    def start(self, problem: Problem, z: Tensor) -> S:
        """The state at ``z`` before the first step (one forward pass)."""

    @abstractmethod
    def step(self, problem: Problem, state: S) -> S:
        """One iteration."""

    def residuals(self, problem: Problem, state: S) -> tuple[Tensor, Tensor]:
        """Relative primal residual ``|w - G(z)| / |w|`` and stationarity, by which convergence is judged; no pass through G.

        Here, for methods that do not split: primal residual 0, and the residual of ``0 in DG^T f + dH(z)`` relative to
        ``jac_scale (unit + |f|)``, with the gradient of the last step. Infinite before the first step.
        """
        e, units = state.evidence, state.units
        residual = latent_residual(problem, e.z, e.gradient, units.smoothness, e.jac_scale)
        unit = units.gradient(_batch.norm(state.x)) + e.cotangent
        slope = _batch.ratio(residual, e.jac_scale * unit)
        return torch.zeros_like(slope), e.infinite_if_unknown(problem, slope)

    def standing(self, state: S) -> Tensor:
        """The value by which divergence is judged, per item: the score, or that of the last accepted point."""
        return state.score

    @property
    def patience(self) -> int:
        """Steps without progress after which, in practice, none is to be expected."""
        return 200

    @property
    def dual_fades(self) -> bool:
        """Whether the dual step decays, possibly before the primal residual has vanished."""
        return False

    def takes_jacobians(self, problem: Problem) -> bool:
        """Whether the method uses forward mode, which torch loads at its first use."""
        return False

    def multiplier(self, problem: Problem, state: S) -> Multiplier | None:
        """The dual variable and the penalty, where R has no gradient and the method splits; else None."""
        return None
