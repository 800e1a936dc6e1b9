"""What every solver is: frozen data, a state with one row per item, and a pure step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from genprior import _batch
from genprior.generators import Evaluation
from genprior.problem import Point, Problem
from genprior.solvers.estimates import gradient_parts, latent_residual, move_ratio, pull_ratio, remembered
from genprior.terms import Zero


@dataclass(frozen=True)
class State:
    """Where each item stands. Every tensor has one row per item; a step keeps names, shapes and dtypes.

    The loop reads only what is here; solvers add their own fields.
    """

    at: Evaluation
    """``z``, ``x = G(z)`` and the graph for the next backward pass."""
    w: Tensor
    """The split variable (``x`` itself in methods that do not split)."""
    objective: Tensor
    """``F(G(z), z)``."""
    score: Tensor
    """What the best iterate is chosen by."""
    rho: Tensor
    """Penalty (0 in methods that have none)."""
    scale: Tensor
    """Factor on all step sizes, lowered by the loop after a roll-back."""
    k: Tensor
    """Iterations made."""
    nu: Tensor
    """Smoothness of L."""
    fixed: Tensor
    """Length of the part of the gradient of L (and of a quadratic R) that does not change with the signal: ``|A^T y|``."""
    bend: Tensor
    """Length of the other part, for a signal of length 1: ``|A^T A x| / |x|``."""
    kappa: Tensor
    """Running estimate of ``|DG(z)|`` from quantities that the iteration has anyway; forgets slowly."""
    stretch: Tensor
    """The same from the last step alone: the unit of the z residual, so that a steep place long left excuses nothing."""
    moved: Tensor
    """``|G(z+) - G(z)|`` in the last step."""
    judged: Tensor
    """The iteration of the last verdict on convergence, to which ``stretch`` and the fields below belong; 0: none yet."""
    before: Tensor
    """The latents from which the last step started."""
    gradient: Tensor
    """The gradient in z that the last step used, at ``before``."""
    force: Tensor
    """Length of what was pulled back to give it."""

    @property
    def z(self) -> Tensor:
        """The latents."""
        return self.at.z

    @property
    def x(self) -> Tensor:
        """The signals ``G(z)``."""
        return self.at.x

    def unit(self, size: Tensor) -> Tensor:
        """What stationarity is relative to at signals of this length: the parts of a gradient that cancel at a solution."""
        return torch.maximum(self.fixed, self.bend * size)


def opening(problem: Problem, at: Evaluation, point: Point, nu: Tensor) -> dict[str, Any]:
    """The common fields of a state before the first step, in methods that do not split."""
    zero = torch.zeros_like(point.objective)
    fixed, bend = gradient_parts(problem, at.x, nu)
    return {
        "at": at,
        "w": at.x,
        "objective": point.objective,
        "score": point.score,
        "rho": zero,
        "scale": torch.ones_like(zero),
        "k": zero,
        "nu": nu,
        "fixed": fixed,
        "bend": bend,
        "kappa": zero,
        "stretch": zero,
        "moved": zero,
        "judged": zero,
        "before": at.z,
        "gradient": torch.zeros_like(at.z),
        "force": zero,
    }


@dataclass(frozen=True)
class Pull:
    """One backward pass: the gradient, the length of what was pulled back, and what they tell about ``|DG|``."""

    gradient: Tensor
    force: Tensor
    ratio: Tensor
    kappa: Tensor

    @classmethod
    def of(cls, state: State, f: Tensor) -> Pull:
        """``DG(z)^T f`` at the state's point."""
        gradient, force = state.at.pull(f), _batch.norm(f)
        ratio = pull_ratio(gradient, force)
        return cls(gradient, force, ratio, remembered(state.kappa, ratio))


def following(
    s: State, at: Evaluation, point: Point, pull: Pull, spread: float, k: Tensor | None = None
) -> dict[str, Any]:
    """The common fields after a step from ``s`` to ``at`` that used ``pull``; ``k`` where it is known: ``s.k + 1``."""
    k, moved = s.k + 1 if k is None else k, _batch.norm(at.x - s.x)
    secant = move_ratio(moved, at.z - s.z, spread)
    return {
        "at": at,
        "w": at.x,
        "objective": point.objective,
        "score": point.score,
        "rho": s.rho,
        "scale": s.scale,
        "k": k,
        "nu": s.nu,
        "fixed": s.fixed,
        "bend": s.bend,
        "kappa": torch.maximum(pull.kappa, secant),
        "stretch": torch.maximum(pull.ratio, secant),
        "moved": moved,
        "judged": k,
        "before": s.z,
        "gradient": pull.gradient,
        "force": pull.force,
    }


def judged_where(exact: Tensor | None, common: dict[str, Any], old: State) -> dict[str, Any]:
    """``common``, but what convergence is judged by only where it is ``exact``; elsewhere the last verdict holds.

    None: it is exact everywhere.
    """
    if exact is None:
        return common
    held = {}
    for name in ("judged", "before", "gradient", "force", "stretch"):
        new, last = common[name], getattr(old, name)
        held[name] = torch.where(torch.as_tensor(_batch.spread(exact, new)), new, last)
    return common | held


class Multiplier(NamedTuple):
    """The dual variable and the penalty of a method that splits w from G(z)."""

    lam: Tensor
    rho: Tensor


class Solver(ABC):
    """A method, as frozen data. ``step`` is a pure function of (problem, state): the same state gives the same bits."""

    @abstractmethod
    def start(self, problem: Problem, z: Tensor) -> Any:
        """The state at ``z`` before the first step (one forward pass)."""

    @abstractmethod
    def step(self, problem: Problem, state: Any) -> Any:
        """One iteration."""

    def residuals(self, problem: Problem, state: Any) -> tuple[Tensor, Tensor]:
        """Relative gap ``|w - G(z)| / |w|`` and stationarity: what convergence is judged by, at no pass through G.

        Here, for methods that do not split: gap 0, and the residual of ``0 in DG^T f + dH(z)`` relative to
        ``stretch (unit + |f|)``, with the gradient of the last step. Infinite before the first step.
        """
        s: State = state
        residual = latent_residual(problem, s.before, s.gradient, s.nu, s.stretch)
        slope = _batch.ratio(residual, s.stretch * (s.unit(_batch.norm(self.judged_signal(s))) + s.force))
        return torch.zeros_like(slope), unknown_is_infinite(problem, s, slope)

    def judged_signal(self, state: Any) -> Tensor:
        """The signals whose length is the unit of stationarity: the last ones, or the base of methods that try first."""
        x: Tensor = state.x
        return x

    def standing(self, state: Any) -> Tensor:
        """What divergence is judged by, per item: the score, or that of the last accepted point in methods that try first."""
        score: Tensor = state.score
        return score

    @property
    def patience(self) -> int:
        """Steps without progress after which there is, in practice, none to come."""
        return 200

    @property
    def dual_fades(self) -> bool:
        """Whether a dual step falls with the iterations, and may come to rest before the gap is closed."""
        return False

    def takes_jacobians(self, problem: Problem) -> bool:
        """Whether the method uses forward mode, which torch loads at its first use."""
        return False

    def multiplier(self, problem: Problem, state: Any) -> Multiplier | None:
        """The dual variable and the penalty, where R has no gradient and the method splits; else None."""
        return None

    def plan(self, problem: Problem) -> str:
        """In words: what is computed for this problem, and how."""
        return repr(self)


def unknown_is_infinite(problem: Problem, state: State, residual: Tensor) -> Tensor:
    """Before the first verdict there is no gradient to judge by; with a term on z, nor where nothing was pulled or moved."""
    unknown = state.judged == 0
    if not isinstance(problem.on_latent, Zero):
        unknown = unknown | (state.stretch == 0)
    return torch.where(unknown, torch.inf, residual)
