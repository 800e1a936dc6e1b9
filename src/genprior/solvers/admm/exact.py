"""The exact w step: ``argmin_w L(w) + R(w) + <w, lam> + rho/2 |w - x|^2``, in closed form wherever there is one.

:func:`choose` looks at L and R and picks the first method that applies:

==============================================  ==============================================================
L and R                                         method
==============================================  ==============================================================
``LeastSquares``, orthogonal rows, R = 0        one A^T per step, diagonal inverse, in coordinates of the rows
``LeastSquares``, orthogonal rows, R quadratic  one A and one A^T per step, diagonal inverse
``LeastSquares``, R zero or quadratic           the operator's resolvent (SVD, FFT, or CG)
``SquaredDistance`` or none, any R              one prox of R
``LeastSquares`` with a mask, separable R       one prox of R with a step per coordinate
anything else                                   inner accelerated proximal gradient, with a tolerance
==============================================  ==============================================================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor

from genprior import _batch
from genprior._batch import PerItem
from genprior.losses import LeastSquares, NoLoss, SquaredDistance
from genprior.operators import Identity, Mask
from genprior.operators.base import RowForm
from genprior.problem import Problem
from genprior.solvers.admm.inner import inner_proximal_gradient
from genprior.terms import Around, Scaled, Term, Zero

Memory = dict[str, Tensor]


class Split(NamedTuple):
    """What a w step starts from."""

    w: Tensor
    lam: Tensor
    x: Tensor
    """``G(z+)``."""
    residual: Tensor
    """What the loss keeps of its evaluation at ``x``."""
    rho: Tensor
    sigma: Tensor
    """The dual step that led to ``lam``."""
    scale: Tensor
    """Factor on step lengths after roll-backs."""
    first_rho: PerItem
    """The penalty before any scale: step lengths given by the user belong to it."""


class Stepped(NamedTuple):
    """Where a w step arrived."""

    w: Tensor
    r: Tensor
    """``w - x``."""
    memory: Memory


def arrived(w: Tensor, at: Split, memory: Memory) -> Stepped:
    """For methods that find w itself."""
    return Stepped(w, w - at.x, memory)


class Method(ABC):
    """One way of taking the exact w step."""

    def start(self, problem: Problem, x: Tensor, residual: Tensor) -> Memory:
        """What the method remembers, per item."""
        return {}

    @abstractmethod
    def __call__(self, problem: Problem, at: Split, memory: Memory) -> Stepped:
        """The minimiser and the new memory."""

    @abstractmethod
    def name(self, problem: Problem) -> str:
        """For people."""


def choose(problem: Problem, tolerance: float, max_iterations: int) -> Method:
    """The first method that applies to the problem's L and R."""
    loss, term = problem.loss, problem.on_signal
    if isinstance(loss, LeastSquares):
        if isinstance(term, Zero) and loss.form is not None:
            return OrthogonalRows()
        if term.as_quadratic() is not None:
            return Resolvent() if loss.form is None else QuadraticRows()
        if isinstance(loss.operator, Identity) or (isinstance(loss.operator, Mask) and term.separable):
            return DiagonalProx()
    if isinstance(loss, SquaredDistance | NoLoss):
        return Prox()
    return Inner(tolerance, max_iterations)


def _least_squares(problem: Problem) -> LeastSquares:
    """The loss of a problem for which a method for least squares was chosen."""
    return cast(LeastSquares, problem.loss)


def _prox_of(term: Term) -> str:
    """In words: the term itself, without factors and centres, and how well its prox is found where that is iterative."""
    tolerance = f", iterative, relative gap {term.tolerance:g}" if term.tolerance else ""
    while isinstance(term, Scaled | Around):
        term = term.term
    return f"prox of {type(term).__name__}{tolerance}"


class OrthogonalRows(Method):
    """Least squares with ``A A^T = diag(g)`` and R = 0.

    With ``A x - y`` known from the objective at x::

        p = (eta - (A x - y)) / (g + rho),      w = x + A^T p.

    Here ``lam = -A^T eta``: lam starts at 0, and every dual step adds ``sigma (w - x) = sigma A^T p`` to it.
    """

    def start(self, problem: Problem, x: Tensor, residual: Tensor) -> Memory:
        """Both are zero, as lam is."""
        return {"eta": torch.zeros_like(residual), "p": torch.zeros_like(residual)}

    def __call__(self, problem: Problem, at: Split, memory: Memory) -> Stepped:
        """One application of A^T."""
        form = cast(RowForm, _least_squares(problem).form)
        e = at.residual
        eta = torch.addcmul(memory["eta"], memory["p"], _batch.spread(at.sigma, e), value=-1)
        p = (eta - e).div_(form.gram + _batch.spread(at.rho, e))
        r = form.adjoint(p)
        return Stepped(at.x + r, r, {"eta": eta, "p": p})

    def name(self, problem: Problem) -> str:
        """For people."""
        return f"closed form ({_least_squares(problem).operator.resolvent_method})"


class QuadraticRows(Method):
    """Least squares with ``A A^T = diag(g)`` and ``R = c/2 |w - r|^2``.

    With ``v = (rho x - lam + c r) / (rho + c)``::

        w = v - A^T (A v - y) / (g + rho + c).

    The same as the resolvent of ``A^T y + ...``, but nothing cancels where ``A^T A`` is far above rho.
    """

    def __call__(self, problem: Problem, at: Split, memory: Memory) -> Stepped:
        """One application of A, one of A^T."""
        loss = _least_squares(problem)
        form = cast(RowForm, loss.form)
        c, centre = problem.on_signal.as_quadratic() or (0.0, 0.0)
        total = at.rho + c
        v = _batch.spread(at.rho, at.x) * at.x - at.lam + _batch.spread(c, at.x) * centre
        v = v / _batch.spread(total, v)
        e = form.forward(v) - loss.target
        return arrived(v - form.adjoint(e / (form.gram + _batch.spread(total, e))), at, memory)

    def name(self, problem: Problem) -> str:
        """For people."""
        return f"closed form ({_least_squares(problem).operator.resolvent_method})"


class Resolvent(Method):
    """Least squares and ``R = c/2 |w - r|^2``: ``w = (A^T A + rho + c)^-1 (A^T y - lam + rho x + c r)``."""

    def start(self, problem: Problem, x: Tensor, residual: Tensor) -> Memory:
        """The constant ``A^T y``."""
        return {"backprojection": _least_squares(problem).backprojection()}

    def __call__(self, problem: Problem, at: Split, memory: Memory) -> Stepped:
        """One resolvent, warm-started at the old w where it is iterative."""
        c, centre = problem.on_signal.as_quadratic() or (0.0, 0.0)
        v = memory["backprojection"] - at.lam + _batch.spread(at.rho, at.x) * at.x + _batch.spread(c, at.x) * centre
        return arrived(_least_squares(problem).operator.resolvent(v, at.rho + c, start=at.w), at, memory)

    def name(self, problem: Problem) -> str:
        """For people."""
        return f"closed form ({_least_squares(problem).operator.resolvent_method})"


class Prox(Method):
    """``L = gamma |w - y|^2``, gamma >= 0: ``w = prox_{R/c}((2 gamma y + rho x - lam)/c)`` with ``c = 2 gamma + rho``."""

    def __call__(self, problem: Problem, at: Split, memory: Memory) -> Stepped:
        """One prox of R."""
        loss = problem.loss
        pull = _batch.spread(at.rho, at.x) * at.x - at.lam
        if not isinstance(loss, SquaredDistance):
            return arrived(problem.on_signal.prox(pull / _batch.spread(at.rho, pull), 1 / at.rho), at, memory)
        curvature = 2 * loss.weight + at.rho
        pull = pull + 2 * _batch.spread(loss.weight, pull) * loss.y
        return arrived(problem.on_signal.prox(pull / _batch.spread(curvature, pull), 1 / curvature), at, memory)

    def name(self, problem: Problem) -> str:
        """For people."""
        return f"closed form ({_prox_of(problem.on_signal)})"


class DiagonalProx(Method):
    """Least squares with a diagonal A and separable R: one prox with step ``1/(a_i^2 + rho)`` in coordinate i."""

    def start(self, problem: Problem, x: Tensor, residual: Tensor) -> Memory:
        """The constant ``A^T y``."""
        return {"backprojection": _least_squares(problem).backprojection()}

    def __call__(self, problem: Problem, at: Split, memory: Memory) -> Stepped:
        """One prox of R."""
        loss = _least_squares(problem)
        pull = memory["backprojection"] - at.lam + _batch.spread(at.rho, at.x) * at.x
        if isinstance(loss.operator, Identity):
            return arrived(problem.on_signal.prox(pull / _batch.spread(1 + at.rho, pull), 1 / (1 + at.rho)), at, memory)
        curvature = cast(RowForm, loss.form).gram + _batch.spread(at.rho, pull)
        return arrived(problem.on_signal.prox(pull / curvature, (1 / curvature).expand_as(pull)), at, memory)

    def name(self, problem: Problem) -> str:
        """For people."""
        return f"closed form ({_prox_of(problem.on_signal)}, one step per coordinate)"


@dataclass(frozen=True)
class Inner(Method):
    """Accelerated proximal gradient with backtracking, warm-started at the old w."""

    tolerance: float
    max_iterations: int

    def start(self, problem: Problem, x: Tensor, residual: Tensor) -> Memory:
        """The last inner residual and the smoothness found by backtracking."""
        nu = problem.loss.curvature(x)[1]
        return {"inner_residual": torch.zeros_like(nu), "smoothness": nu}

    def __call__(self, problem: Problem, at: Split, memory: Memory) -> Stepped:
        """As many inner iterations as the tolerance needs."""
        solution = inner_proximal_gradient(
            problem,
            start=at.w,
            lam=at.lam,
            centre=at.x,
            rho=at.rho,
            smoothness=memory["smoothness"],
            tolerance=self.tolerance,
            max_iterations=self.max_iterations,
        )
        found = {"inner_residual": solution.residual, "smoothness": solution.smoothness}
        return arrived(solution.w, at, found)

    def name(self, problem: Problem) -> str:
        """For people."""
        return (
            f"inner proximal gradient (relative residual {self.tolerance:g}, at most {self.max_iterations} iterations)"
        )
