"""What a loss may bring: its own exact w step, ``argmin_w L(w) + R(w) + <w, lam> + rho/2 |w - x|^2``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from genprior import _batch
from genprior._batch import PerItem
from genprior.losses.likelihoods import Likelihood
from genprior.operators import Operator
from genprior.operators.base import RowForm
from genprior.terms import Quadratic, Sum, Term
from genprior.terms.base import Wrapped

M = TypeVar("M")


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

    @property
    def rhs(self) -> Tensor:
        """``rho x - lam``: minus the gradient at 0 of what the split adds to ``L + R``."""
        return _batch.spread(self.rho, self.x) * self.x - self.lam


class Stepped(NamedTuple, Generic[M]):
    """Where a w step arrived."""

    w: Tensor
    r: Tensor
    """``w - x``."""
    memory: M


def arrived(w: Tensor, at: Split, memory: M) -> Stepped[M]:
    """For methods that find w itself."""
    return Stepped(w, w - at.x, memory)


class StepWithMemory(ABC, Generic[M]):
    """A way of taking the exact w step that keeps something from one step to the next.

    The memory M is a frozen dataclass whose tensors have one row per item, or None.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """For the plan of a run."""

    @abstractmethod
    def start(self, x: Tensor, residual: Tensor) -> M:
        """The memory before the first step."""

    @abstractmethod
    def advance(self, at: Split, memory: M) -> Stepped[M]:
        """The minimiser and the new memory."""


class ExactStep(StepWithMemory[None]):
    """The exact w step as a pure function: ``argmin_w L(w) + R(w) + rho/2 |w - v|^2``.

    A subclass gives a ``name``, for the plan, and ``__call__``. That is all a loss of your own needs to return from
    :meth:`Loss.exact_step`.
    """

    @abstractmethod
    def __call__(self, v: Tensor, rho: Tensor, start: Tensor) -> Tensor:
        """The minimiser of each item, for ``rho > 0`` of shape ``(B,)``; iterative ones may begin at ``start``."""

    def start(self, x: Tensor, residual: Tensor) -> None:
        """Nothing is kept."""

    def advance(self, at: Split, memory: None) -> Stepped[None]:
        """The minimiser for ``v = x - lam / rho``."""
        w = self(at.x - at.lam / _batch.spread(at.rho, at.x), at.rho, at.w)
        if not isinstance(w, Tensor) or w.shape != at.x.shape:
            given = tuple(w.shape) if isinstance(w, Tensor) else type(w).__name__
            raise ValueError(
                f"the exact step {self.name!r} gave {given} for signals of shape {tuple(at.x.shape)}, expected the same "
                "shape: return w itself, one signal per item"
            )
        return arrived(w, at, None)


# -- closed forms ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowCoordinates:
    """What :class:`OrthogonalRows` keeps: lam and the last step in coordinates of the rows of A."""

    eta: Tensor
    """``lam = -A^T eta``."""
    p: Tensor
    """``w - x = A^T p``."""


@dataclass(frozen=True)
class Backprojection:
    """The constant ``A^T y``."""

    value: Tensor


@dataclass(frozen=True)
class OrthogonalRows(StepWithMemory[RowCoordinates]):
    """Least squares with ``A A^T = diag(g)`` and R = 0.

    With ``A x - y`` known from the objective at x::

        p = (eta - (A x - y)) / (g + rho),      w = x + A^T p.

    Here ``lam = -A^T eta``: lam starts at 0, and every dual step adds ``sigma (w - x) = sigma A^T p`` to it.
    """

    form: RowForm
    method: str

    @property
    def name(self) -> str:
        """For the plan of a run."""
        return f"closed form ({self.method})"

    def start(self, x: Tensor, residual: Tensor) -> RowCoordinates:
        """Both are zero, as lam is."""
        return RowCoordinates(torch.zeros_like(residual), torch.zeros_like(residual))

    def advance(self, at: Split, memory: RowCoordinates) -> Stepped[RowCoordinates]:
        """One application of A^T."""
        e = at.residual
        eta = torch.addcmul(memory.eta, memory.p, _batch.spread(at.sigma, e), value=-1)
        p = (eta - e).div_(self.form.gram + _batch.spread(at.rho, e))
        r = self.form.adjoint(p)
        return Stepped(at.x + r, r, RowCoordinates(eta, p))


@dataclass(frozen=True)
class QuadraticRows(StepWithMemory[None]):
    """Least squares with ``A A^T = diag(g)`` and ``R = c/2 |w - r|^2``.

    With ``v = (rho x - lam + c r) / (rho + c)``::

        w = v - A^T (A v - y) / (g + rho + c).

    The same as the resolvent of ``A^T y + ...``, but nothing cancels where ``A^T A`` is far above rho.
    """

    form: RowForm
    target: Tensor
    """y, in coordinates of the rows."""
    quadratic: Quadratic
    method: str

    @property
    def name(self) -> str:
        """For the plan of a run."""
        return f"closed form ({self.method})"

    def start(self, x: Tensor, residual: Tensor) -> None:
        """Nothing is kept."""

    def advance(self, at: Split, memory: None) -> Stepped[None]:
        """One application of A, one of A^T."""
        total = at.rho + self.quadratic.weight
        v = at.rhs + self.quadratic.linear(at.x)
        v = v / _batch.spread(total, v)
        e = self.form.forward(v) - self.target
        return arrived(v - self.form.adjoint(e / (self.form.gram + _batch.spread(total, e))), at, None)


@dataclass(frozen=True)
class Resolvent(StepWithMemory[Backprojection]):
    """Least squares and ``R = c/2 |w - r|^2``: ``w = (A^T A + rho + c)^-1 (A^T y - lam + rho x + c r)``."""

    operator: Operator
    y: Tensor
    quadratic: Quadratic

    @property
    def name(self) -> str:
        """For the plan of a run."""
        return f"closed form ({self.operator.resolvent_method})"

    def start(self, x: Tensor, residual: Tensor) -> Backprojection:
        """The constant ``A^T y``."""
        return Backprojection(self.operator.adjoint(self.y))

    def advance(self, at: Split, memory: Backprojection) -> Stepped[Backprojection]:
        """One resolvent, warm-started at the old w where it is iterative."""
        rhs = memory.value - at.lam + _batch.spread(at.rho, at.x) * at.x + self.quadratic.linear(at.x)
        return arrived(self.operator.resolvent(rhs, at.rho + self.quadratic.weight, start=at.w), at, memory)


@dataclass(frozen=True)
class Prox(StepWithMemory[None]):
    """``L = c/2 |w - y|^2`` with ``c >= 0``: ``w = prox_{R/(c + rho)}((c y + rho x - lam) / (c + rho))``."""

    term: Term
    loss: Quadratic = Quadratic(0.0, 0.0)  # noqa: RUF009  # a tuple of two numbers

    @property
    def name(self) -> str:
        """For the plan of a run."""
        return f"closed form ({prox_of(self.term)})"

    def start(self, x: Tensor, residual: Tensor) -> None:
        """Nothing is kept."""

    def advance(self, at: Split, memory: None) -> Stepped[None]:
        """One prox of R."""
        curvature = self.loss.weight + at.rho
        rhs = at.rhs + self.loss.linear(at.x)
        return arrived(self.term.prox(rhs / _batch.spread(curvature, rhs), 1 / curvature), at, None)


@dataclass(frozen=True)
class DiagonalProx(StepWithMemory[Backprojection]):
    """Least squares with ``A^T A = diag(g)``: one prox of R with the step ``1/(g_i + rho)`` in coordinate i.

    R must be separable, or g a number.
    """

    term: Term
    operator: Operator
    y: Tensor
    gram: PerItem

    @property
    def name(self) -> str:
        """For the plan of a run."""
        return f"closed form ({prox_of(self.term)}, one step per coordinate)"

    def start(self, x: Tensor, residual: Tensor) -> Backprojection:
        """The constant ``A^T y``."""
        return Backprojection(self.operator.adjoint(self.y))

    def advance(self, at: Split, memory: Backprojection) -> Stepped[Backprojection]:
        """One prox of R."""
        rhs = memory.value - at.lam + _batch.spread(at.rho, at.x) * at.x
        if not isinstance(self.gram, Tensor):
            curvature = self.gram + at.rho
            return arrived(self.term.prox(rhs / _batch.spread(curvature, rhs), 1 / curvature), at, memory)
        curvature = self.gram + _batch.spread(at.rho, rhs)
        return arrived(self.term.prox(rhs / curvature, (1 / curvature).expand_as(rhs)), at, memory)


@dataclass(frozen=True)
class EntrywiseProx(ExactStep):
    """A likelihood of ``a = g w`` with weights ``g >= 0``, entry by entry, with R quadratic or an interval for each entry.

    With ``R = c/2 |w - r|^2`` and ``u = (rho v + c r) / (rho + c)``, ``g w`` is the likelihood's prox at ``g u`` with the step
    ``g^2 / (rho + c)``. The convex function of one variable has its least value on an interval at the point nearest to that.
    """

    likelihood: Likelihood
    y: Tensor
    weights: PerItem
    quadratic: Quadratic
    interval: Term

    name = "closed form (one equation per entry)"

    def __call__(self, v: Tensor, rho: Tensor, start: Tensor) -> Tensor:
        """One prox of the likelihood."""
        total = rho + self.quadratic.weight
        u = (_batch.spread(rho, v) * v + self.quadratic.linear(v)) / _batch.spread(total, v)
        seen = torch.as_tensor(self.weights, dtype=v.dtype, device=v.device).expand_as(v)
        used = torch.where(seen > 0, seen, 1.0)
        w = self.likelihood.prox(used * u, used.square() / _batch.spread(total, v), self.y) / used
        return self.interval.prox(torch.where(seen > 0, w, u), 1.0)


def prox_of(term: Term) -> str:
    """In words: the term itself, without factors and centres, and how well its prox is found where that is iterative."""
    tolerance = f", iterative, relative gap {term.tolerance:g}" if term.tolerance else ""
    return f"prox of {_type_of(term)}{tolerance}"


def _type_of(term: Term) -> str:
    while isinstance(term, Wrapped):
        term = term.term
    return " + ".join(map(_type_of, term.parts)) if isinstance(term, Sum) else type(term).__name__
