"""The function e of ``x = G(z)`` that curvature methods descend, smooth whatever R is, and the rules for its multipliers.

Where R is zero or quadratic it is ``L(x) + R(x)`` itself. Otherwise it is the augmented Lagrangian with w eliminated,

    e(x) = min_w  L(w) + R(w) + <w - x, lam> + rho/2 |w - x|^2,

the Moreau envelope of ``L + R``, shifted by lam: convex and differentiable with the gradient ``-(lam + rho (w - x))``,
whose Lipschitz constant is at most rho, even where R has no gradient. Its minimiser over w is the exact w step. An L that is
not convex stays outside, ``e(x) = L(x) + min_w R(w) + ...``, so that only R is smoothed.
:class:`Multipliers` changes lam and rho; :class:`Subgradients` takes ``L + R`` as it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior.losses.exact_step import Split
from genprior.problem import Point, Problem
from genprior.solvers.admm import penalties
from genprior.solvers.admm.exact import Memory as WMemory
from genprior.solvers.admm.exact import inner_error
from genprior.solvers.admm.w_steps import Exact
from genprior.solvers.base import Multiplier
from genprior.solvers.estimates import curvature_of, hidden_by_rounding, latent_residual
from genprior.terms import Quadratic, Zero

if TYPE_CHECKING:
    from genprior.solvers.trial.engine import M, TrialState

_W_STEP = Exact()


@dataclass(frozen=True)
class Trial:
    """The function of the signal at a trial point: at the last evaluation of G, per item."""

    energy: Tensor
    """``e(G(z))``: without the term on z, without the ridge."""
    f: Tensor
    """Its gradient in the signal."""
    r: Tensor | None
    """``w - G(z)``; None where nothing is split."""
    residual: Tensor
    """What the loss keeps of its evaluation."""
    loss: Tensor

    @property
    def primal_residual(self) -> Tensor:
        """``|w - G(z)|``."""
        return torch.zeros_like(self.energy) if self.r is None else _batch.norm(self.r)


def smooth_value(problem: Problem, x: Tensor, point: Point) -> Trial:
    """``L + R`` itself, with its gradient: where R is zero or quadratic."""
    energy, f = point.loss + problem.on_signal(x), problem.signal_gradient(x, point.residual)
    return Trial(energy, f, None, point.residual, point.loss)


def evaluate(
    problem: Problem, x: Tensor, point: Point, lam: Tensor, rho: Tensor, warm: tuple[Tensor, WMemory] | None
) -> tuple[Trial, Tensor, WMemory]:
    """The augmented Lagrangian at ``x`` with w eliminated, w, and the state of its step; ``warm``: the last two of before."""
    of_w = problem.of_w
    start, memory = (x, _W_STEP.start(of_w, x, point.residual)) if warm is None else warm
    split = Split(start, lam, x, point.residual, rho, rho, torch.ones_like(rho), 1.0)
    w, r, memory = _W_STEP(of_w, split, memory)
    energy = of_w.loss(w) + problem.on_signal(w) + _batch.dot(lam, r) + 0.5 * rho * _batch.square(r)
    f = torch.addcmul(lam, _batch.spread(rho, r), r).neg_()
    if not problem.loss.convex:
        energy, f = energy + point.loss, f + problem.loss.gradient(x, point.residual)
    return Trial(energy, f, r, point.residual, point.loss), w, memory


def method_name(problem: Problem) -> str:
    """The method of the w step, in words."""
    return _W_STEP.name(problem.of_w)


def smoothness(problem: Problem, x: Tensor) -> Tensor:
    """Lipschitz constant of the gradient of L, and of R where it is quadratic, per item."""
    return problem.loss.curvature(x)[1] + Quadratic.of(problem.on_signal).curvature(x)


def curvature(problem: Problem, x: Tensor) -> Tensor:
    """The typical second derivative of a smooth ``L + R`` along signals such as x: the scale of a first Hessian."""
    total = problem.loss.typical_curvature(x) + Quadratic.of(problem.on_signal).curvature(x)
    return torch.where(total > 0, total, 1.0)


# -- sums of squares ---------------------------------------------------------------------------------------------------


def is_sum_of_squares(problem: Problem) -> bool:
    """Whether ``L + R`` is ``1/2 |e|^2`` for a residual e."""
    return problem.loss.sum_of_squares and isinstance(problem.on_signal, Zero)


def not_squares(problem: Problem, method: str) -> ValueError:
    """The error of methods that need a sum of squares."""
    return ValueError(
        f"{method} a loss that is a sum of squares, LeastSquares, SquaredDistance or NonLinear, and on_signal=Zero(), "
        f"got {type(problem.loss).__name__} and {problem.on_signal!r}: use gp.Auto() or an ADMM"
    )


def residual_jacobian(problem: Problem, z: Tensor, x: Tensor) -> Tensor:
    """``M``: the derivative of e in z, ``(B, m, s)``, where ``x = G(z)``."""

    def image(columns: Tensor) -> Tensor:
        return problem.loss.squares_jvp(x, columns.reshape(-1, *x.shape)).flatten(0, 1)

    return problem.generator.jacobian(z, image)


def gauss_newton(problem: Problem, z: Tensor, x: Tensor, rho: Tensor) -> Tensor:
    """``DG^T (second derivative of the function of x, or a bound on it) DG`` at z, ``(B, s, s)``, where ``x = G(z)``."""
    if is_sum_of_squares(problem):
        matrix = residual_jacobian(problem, z, x)
        return matrix.mT @ matrix
    matrix = problem.generator.jacobian(z)
    nu = smoothness(problem, x)
    weight = nu if not problem.needs_splitting else rho if problem.loss.convex else rho + nu
    return weight[:, None, None] * (matrix.mT @ matrix)


# -- multipliers -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SplitState:
    """Dual variable and penalty, where R is neither zero nor quadratic; the penalty itself is ``Common.rho``."""

    lam: Tensor
    memory: WMemory
    """State of the w step."""
    age: Tensor
    """Accepted steps since the last update of the dual."""
    first_rho: Tensor
    first_cotangent: Tensor
    """``|f|`` at the start: the unit of stationarity where L has no gradient."""
    extent: Tensor
    """``|G(z)|`` at the start."""


class SignalPart(ABC):
    """A rule for the function ``e(x)`` of the signal."""

    def start(self, problem: Problem, x: Tensor, point: Point) -> tuple[SplitState | None, Tensor]:
        """Dual variable and penalty at the first signals; here none."""
        return None, torch.zeros_like(point.loss)

    @abstractmethod
    def curvatures(self, problem: Problem, x: Tensor, point: Point, rho: Tensor) -> tuple[Tensor, Tensor]:
        """Of the function at the first signals, per item, with this first penalty.

        The Lipschitz constant of its gradient without the penalty, and its typical second derivative along such signals: the
        scale of a first Hessian.
        """

    @abstractmethod
    def evaluate(
        self, problem: Problem, x: Tensor, point: Point, split: SplitState | None, rho: Tensor, w: Tensor
    ) -> tuple[Trial, Tensor, SplitState | None]:
        """The function at ``x``, w, and the dual with the state of the w step; an inner solver may start from ``w``."""

    def updated(
        self, problem: Problem, s: TrialState[M], accepted: Tensor
    ) -> tuple[TrialState[M], Tensor, Tensor] | None:
        """Update the dual and the penalty where that is due; None: nowhere.

        The state with the new function at the trial point; where the multipliers have changed; the growth of the penalty, by
        which the function's curvature grows.
        """
        return None

    def residuals(self, problem: Problem, s: TrialState[M]) -> tuple[Tensor, Tensor]:
        """Primal residual and stationarity at the last base whose gradient is known; here where nothing is split."""
        e, units = s.evidence, s.units
        in_z = _batch.ratio(latent_residual(problem, e.z, e.gradient, units.smoothness, e.jac_scale), e.jac_scale)
        slope = _batch.ratio(in_z, units.gradient(_batch.norm(s.base.x)) + e.cotangent)
        return torch.zeros_like(slope), e.infinite_if_unknown(problem, slope)

    def multiplier(self, s: TrialState[M]) -> Multiplier | None:
        """The dual variable and the penalty; None: nothing is split."""
        return None


@dataclass(frozen=True)
class Subgradients(SignalPart):
    """``e = L + R`` with one of its subgradients; an indicator counts as its exact penalty."""

    def curvatures(self, problem: Problem, x: Tensor, point: Point, rho: Tensor) -> tuple[Tensor, Tensor]:
        """That of L, for both."""
        nu = curvature_of(problem, x, point.residual)
        return nu, nu

    def evaluate(
        self, problem: Problem, x: Tensor, point: Point, split: SplitState | None, rho: Tensor, w: Tensor
    ) -> tuple[Trial, Tensor, SplitState | None]:
        """Value and subgradient."""
        energy, f = problem.signal_value(x, point.loss), problem.signal_gradient(x, point.residual)
        return Trial(energy, f, None, point.residual, point.loss), x, None


@dataclass(frozen=True)
class Multipliers(SignalPart):
    """The method of multipliers where R is neither zero nor quadratic; otherwise ``e = L + R`` itself, which is smooth.

    ``e(x) = min_w L(w) + R(w) + <w - x, lam> + rho/2 |w - x|^2``: smooth, although R is not. Every ``every`` accepted steps
    ``lam+ = lam + rho (w - x)`` and rho grows by the factor ``growth``: ADMM with a w step after every trial of z.

    Parameters
    ----------
    every, growth
        accepted steps between two updates of the dual, and the growth of rho at each.
    rho
        first penalty; omitted: from the problem's own units.
    spent
        the dual is updated early where the predicted decrease is below this share of ``rho |w - x|^2``.
    together
        primal residual, relative to the signal, below which the penalty no longer grows: a larger one would only shorten
        the steps.
    most_growth
        of the penalty over a run.

    References
    ----------
    Nocedal and Wright, Numerical Optimization, chapter 17.
    """

    every: int = 16
    growth: float = 1.5
    rho: float | None = None
    spent: float = 1e-3
    together: float = 1e-6
    most_growth: float = 1e3

    def __post_init__(self) -> None:
        _validate.whole("every", self.every)
        _validate.number("growth", self.growth, least=1)
        if self.rho is not None:
            _validate.number("rho", self.rho, above=0)
        for name in ("spent", "together"):
            _validate.number(name, getattr(self, name), least=0)
        _validate.number("most_growth", self.most_growth, least=1)

    def start(self, problem: Problem, x: Tensor, point: Point) -> tuple[SplitState | None, Tensor]:
        """No multiplier yet."""
        zero = torch.zeros_like(point.loss)
        if not problem.needs_splitting:
            return None, zero
        rho = penalties.Constant(self.rho).first(problem, x)
        memory = _W_STEP.start(problem.of_w, x, point.residual)
        return SplitState(torch.zeros_like(x), memory, zero, rho, zero, _batch.norm(x)), rho

    def curvatures(self, problem: Problem, x: Tensor, point: Point, rho: Tensor) -> tuple[Tensor, Tensor]:
        """Those of ``L + R``; where R is split off, the envelope has at most the penalty."""
        nu = smoothness(problem, x)
        if problem.needs_splitting and problem.loss.convex:
            return nu, rho
        return nu, rho + curvature(problem, x)

    def evaluate(
        self, problem: Problem, x: Tensor, point: Point, split: SplitState | None, rho: Tensor, w: Tensor
    ) -> tuple[Trial, Tensor, SplitState | None]:
        """One exact w step, where R needs it."""
        if split is None:
            return smooth_value(problem, x, point), x, None
        trial, w, memory = evaluate(problem, x, point, split.lam, rho, (w, split.memory))
        return trial, w, replace(split, memory=memory)

    def updated(
        self, problem: Problem, s: TrialState[M], accepted: Tensor
    ) -> tuple[TrialState[M], Tensor, Tensor] | None:
        """``lam+ = lam + rho (w - x)`` and a larger rho, where it is due."""
        split, r = s.split, s.trial.r
        if split is None or r is None:
            return None
        spent = (s.k > 0) & (-s.search.slope < self.spent * s.rho * _batch.square(r))
        due = accepted & ((split.age + 1 >= self.every) | spent)
        if not bool(due.any()):
            return None
        apart = _batch.norm(r) > self.together * torch.maximum(_batch.norm(s.x), 0.1 * split.extent)
        grows = due & apart & (s.rho < self.most_growth * split.first_rho)
        factor = torch.where(grows, self.growth * torch.ones_like(s.rho), 1.0)
        lam = torch.where(_batch.spread(due, r), split.lam + _batch.spread(s.rho, r) * r, split.lam)
        rho = s.rho * factor
        point = Point(s.objective, s.score, s.trial.residual, s.trial.loss)
        new, w, _ = evaluate(problem, s.x, point, lam, rho, (s.w, split.memory))
        wide = _batch.spread(due, s.x)
        assert new.r is not None, "the envelope has a minimiser of its own"
        trial = replace(
            s.trial,
            energy=torch.where(due, new.energy, s.trial.energy),
            f=torch.where(wide, new.f, s.trial.f),
            r=torch.where(wide, new.r, r),
        )
        common = replace(s.common, rho=rho, w=torch.where(wide, w, s.w))
        if not problem.loss.convex:  # its curvature does not grow
            factor = (rho + s.units.smoothness) / (s.rho + s.units.smoothness)
        return replace(s, common=common, trial=trial, split=replace(split, lam=lam)), due, factor

    def residuals(self, problem: Problem, s: TrialState[M]) -> tuple[Tensor, Tensor]:
        """W is exact for the multiplier ``lam + rho (w - x)``: the primal residual and an inner solver's error remain."""
        split, e, units = s.split, s.evidence, s.units
        if split is None:
            return super().residuals(problem, s)
        nu, size = units.smoothness, torch.maximum(_batch.norm(s.base.x), 0.1 * split.extent)
        in_z = _batch.ratio(latent_residual(problem, e.z, e.gradient, s.rho, e.jac_scale), e.jac_scale)
        error = inner_error(split.memory, nu, s.rho, size, e.cotangent)
        error = error + hidden_by_rounding(s.base.primal_residual, s.rho, size, nu)
        cotangent = torch.where(nu > 0, e.cotangent, torch.maximum(e.cotangent, split.first_cotangent))
        stationarity = _batch.ratio(in_z + error, units.gradient(size) + cotangent)
        return _batch.ratio(s.base.primal_residual, size), e.infinite_if_unknown(problem, stationarity)

    def multiplier(self, s: TrialState[M]) -> Multiplier | None:
        """The dual variable and the penalty."""
        return None if s.split is None else Multiplier(s.split.lam, s.rho)
