"""Curvature methods with names of their own: compositions of a direction, a search, a continuation and multipliers."""

from __future__ import annotations

from dataclasses import dataclass

from genprior import _validate
from genprior.generators.deviating import Deviating
from genprior.generators.preconditioner import has_matrix
from genprior.problem import Problem
from genprior.solvers import envelope
from genprior.solvers.base import Choice
from genprior.solvers.damping import Damping
from genprior.solvers.envelope import Multipliers, Subgradients
from genprior.solvers.quadratic import SecantModel
from genprior.solvers.trial.elimination import EliminatedDeviation, InRange
from genprior.solvers.trial.engine import TrialMethod
from genprior.solvers.trial.gauss_newton import DampedGaussNewton, DampedState
from genprior.solvers.trial.globalisation import Armijo, Decrease, Ridge, WeakWolfe
from genprior.solvers.trial.secant import NewestPair, Secant


@dataclass(frozen=True)
class QuasiNewton(Choice):
    """BFGS in the latent, on a smooth function whatever R is, one independent problem per item.

    *The function.* ``phi(z) = e(G(z)) + H(z) + c/2 |z - centre|^2``. Where R is zero or quadratic, ``e = L + R``.
    Otherwise e is the augmented Lagrangian with w eliminated exactly (:class:`trial.Multipliers`).

    *The steps.* ``z+ = z - t B^-1 grad phi``, with backtracking (:class:`trial.Armijo`). B comes from BFGS updates and, first,
    the generator's preconditioner ``E[DG^T DG]`` (:class:`trial.Secant`). A rejected trial updates B as well, because its
    gradient has been computed; up to twice the search then takes the new direction instead of shortening the old one. For a
    latent dimension above 1024 the first Hessian is a multiple of the identity by the newest pair (:class:`trial.NewestPair`).

    *The ridge* ``c/2 |z - centre|^2`` towards the latent distribution (:class:`trial.Ridge`) keeps the first iterates where
    the generator was trained, where its curvature is moderate. It fades as the energy falls, and ends at zero.

    One iteration is one trial of the line search: one forward and one backward pass.

    Parameters
    ----------
    ridge
        weight of the ridge at the start, relative to the typical curvature in z; 0: none.
    dual_every, growth
        accepted steps between two updates of the dual, and the growth of rho at each.
    rho
        first penalty; omitted: from the problem's own units. Without effect where R is zero or quadratic.
    memory
        number of curvature pairs kept, the last ones.
    refresh
        accepted steps between two Gauss-Newton matrices ``DG^T (d2e) DG`` that replace B; omitted: never. Each costs a
        Jacobian, s/3 to s/2 iterations. Without effect above a latent dimension of 1024.

    For everything else that can be tuned, compose a ``gp.trial.TrialMethod`` of these parts.

    References
    ----------
    Nocedal and Wright, Numerical Optimization, chapters 6, 7 and 17.
    """

    ridge: float = 3.0
    dual_every: int = 16
    growth: float = 1.5
    rho: float | None = None
    memory: int = 50
    refresh: int | None = None

    def __post_init__(self) -> None:
        _validate.number("ridge", self.ridge, least=0)
        _validate.whole("dual_every", self.dual_every)
        _validate.number("growth", self.growth, least=1)
        if self.rho is not None:
            _validate.number("rho", self.rho, above=0)
        _validate.whole("memory", self.memory)
        if self.refresh is not None:
            _validate.whole("refresh", self.refresh)

    def solver(self, problem: Problem) -> TrialMethod[SecantModel]:
        """The composition."""
        direction = (
            Secant(self.memory, refresh=self.refresh)
            if has_matrix(problem.in_range.generator)
            else Secant(self.memory, first=NewestPair())
        )
        deviates = isinstance(problem.generator, Deviating)
        return TrialMethod(
            InRange(direction) if deviates else direction,
            Armijo(),
            Multipliers(self.dual_every, self.growth, self.rho),
            Ridge(self.ridge),
            EliminatedDeviation() if deviates else None,
        )

    def plan(self, problem: Problem) -> str:
        """In words."""
        first = (
            "the generator's preconditioner" if has_matrix(problem.in_range.generator) else "a multiple of the identity"
        )
        text = f"BFGS steps in z, with {first} as the first Hessian, minimise"
        if problem.needs_splitting:
            eliminated = f"w is eliminated by {envelope.method_name(problem)}."
            return f"{text} the augmented Lagrangian, because R is not smooth; {eliminated}"
        return f"{text} L(G(z)), which is smooth: no splitting is needed."


@dataclass(frozen=True)
class LBFGS(Choice):
    """Limited-memory BFGS, per item: directions, line searches and memories never mix.

    One iteration is one trial of the line search: a backward pass at the trial point, the decision, a forward pass at
    the next trial point. The first Hessian is a multiple of the identity (:class:`trial.NewestPair`); trials are accepted
    under the weak Wolfe conditions (:class:`trial.WeakWolfe`). Where H is not smooth, the direction minimises the quadratic
    model together with H, and only decrease is asked for. R counts with one of its subgradients.

    Parameters
    ----------
    memory
        number of curvature pairs.
    c1, c2
        line search constants, ``0 < c1 < c2 < 1``.
    max_trials
        trials along one direction, after which the memory is cleared.

    References
    ----------
    Nocedal and Wright, Numerical Optimization, section 7.2; Lewis and Overton 2013.
    """

    memory: int = 10
    c1: float = 1e-4
    c2: float = 0.9
    max_trials: int = 20

    def __post_init__(self) -> None:
        _validate.whole("memory", self.memory)
        WeakWolfe(self.c1, self.c2, self.max_trials)

    def solver(self, problem: Problem) -> TrialMethod[SecantModel]:
        """The composition."""
        direction = Secant(self.memory, first=NewestPair(), clear=None)
        return TrialMethod(direction, WeakWolfe(self.c1, self.c2, self.max_trials), Subgradients())

    def plan(self, problem: Problem) -> str:
        """In words."""
        return (
            f"L-BFGS in z minimises L(G(z)): {self.memory} curvature pairs are kept, and the step length meets the weak Wolfe "
            "conditions."
        )


@dataclass(frozen=True)
class LevenbergMarquardt(Choice):
    """Damped Gauss-Newton steps on ``L(G(z)) + H(z)``, for sums of squares with R = 0.

    ``d = argmin 1/2 |e + M d|^2 + mu/2 |d|^2 + H(z + d)`` with, for least squares, ``e = A G(z) - y`` and ``M = A DG(z)``, per
    item. A trial is
    taken when it lowers the objective; the damping mu follows the ratio of gained to predicted decrease. See
    :class:`trial.DampedGaussNewton` for what a step costs.

    Convergence is judged only where Jacobian or gradient are exact: an updated one is approximate.

    Parameters
    ----------
    refresh
        steps for which a Jacobian is kept, unless three in a row gain little.

    References
    ----------
    Nielsen 1999, Damping parameter in Marquardt's method; Broyden 1965.
    """

    refresh: int = 10

    def __post_init__(self) -> None:
        _validate.whole("refresh", self.refresh)

    def solver(self, problem: Problem) -> TrialMethod[DampedState]:
        """The composition; an error where the problem is no sum of squares."""
        if problem.in_range is not problem:
            raise ValueError(
                "LevenbergMarquardt would need a Jacobian column for each coefficient of the deviation: use gp.Auto(), which "
                "eliminates them, or an ADMM"
            )
        if not envelope.is_sum_of_squares(problem):
            raise envelope.not_squares(problem, "LevenbergMarquardt needs")
        return TrialMethod(DampedGaussNewton(Damping(self.refresh)), Decrease(), Subgradients())

    def plan(self, problem: Problem) -> str:
        """In words."""
        return (
            "Levenberg-Marquardt steps in z minimise L(G(z)). The Jacobian is computed by forward mode, kept for "
            f"{self.refresh} steps and corrected by Broyden's updates."
        )
