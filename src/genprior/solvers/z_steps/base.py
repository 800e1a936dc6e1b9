"""The protocol of z steps: from one point to the next, so that ``curvature/2 |G(z) - v|^2 + H(z)`` falls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from torch import Tensor

from genprior.generators import Evaluation
from genprior.problem import Problem
from genprior.solvers.base import State, Vjp
from genprior.solvers.estimates import lipschitz
from genprior.terms import Term

M = TypeVar("M")
"""The memory of a rule: a tree of tensors with one row per item, or None."""


class ZStep(ABC, Generic[M]):
    """A rule for moving z."""

    @property
    def description(self) -> str:
        """In words, for the plan: by what steps z moves."""
        return f"{type(self).__name__} steps"

    @property
    def follows_penalty(self) -> bool:
        """Whether a step length given by the user must shrink as a penalty grows, because the gradient grows with it."""
        return False

    @abstractmethod
    def start(self, problem: Problem, z: Tensor) -> M:
        """The memory at the start."""

    @abstractmethod
    def advance(self, problem: Problem, state: State, task: Task, memory: M) -> Advance[M]:
        """From the state's point to the next one."""


class FirstOrder(ZStep[M]):
    """A rule that needs the gradient alone: one backward pass, one forward pass."""

    @abstractmethod
    def __call__(self, move: Move, memory: M) -> tuple[Tensor, M]:
        """The new latents and the new memory."""

    def advance(self, problem: Problem, state: State, task: Task, memory: M) -> Advance[M]:
        """Gradient, move, evaluation."""
        vjp = Vjp.of(state, task.cotangent)
        move = Move(
            z=state.z,
            gradient=vjp.gradient,
            term=problem.on_latent,
            curvature=task.curvature,
            kappa=vjp.kappa,
            shrink=task.shrink,
            spread=problem.generator.spread,
        )
        z, memory = self(move, memory)
        return Advance(problem.generator.evaluate(z), vjp, memory)


class Task(NamedTuple):
    """Lower ``curvature/2 |G(z) - v|^2 + H(z)``, or a function of that curvature in the signal, from the state's point."""

    cotangent: Tensor
    """Gradient with respect to the signal there: ``curvature (G(z) - v)``."""
    curvature: Tensor
    shrink: Tensor
    """Per-item factor on explicit step sizes."""


class Advance(NamedTuple, Generic[M]):
    """The result of a z step."""

    at: Evaluation
    vjp: Vjp
    """The gradient at the old point."""
    memory: M
    exact: Tensor | None = None
    """Where that gradient is exact, so that convergence may be judged by it; None: everywhere."""


@dataclass(frozen=True)
class Move:
    """The input of a first-order z step."""

    z: Tensor
    gradient: Tensor
    term: Term
    """H."""
    curvature: Tensor
    """Of the function of the signal, per item."""
    kappa: Tensor
    """Estimate of ``|DG|``, per item."""
    shrink: Tensor
    """Per-item factor on explicit step sizes: roll-backs, and ``2^-k`` in the k-th scale of Algorithm 2."""
    spread: float
    """Typical size of a latent coordinate."""

    @property
    def lipschitz(self) -> Tensor:
        """Estimate of the gradient's Lipschitz constant, per item."""
        return lipschitz(self.curvature, self.kappa)

    @property
    def idle(self) -> Tensor:
        """Where all gradients so far were zero, as in the first iteration of ADMM: no step length is known, z stays."""
        return self.kappa == 0
