"""What every solver is: frozen data, a state with one row per item, and a pure step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from genprior.generators import Evaluation
from genprior.problem import Problem


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
    gap: Tensor
    """``|w - G(z)|`` relative to ``|w|``."""
    stationarity: Tensor
    """Largest relative residual of the optimality conditions, measured with the gradient of the last step."""
    rho: Tensor
    """Penalty (0 in methods that have none)."""
    scale: Tensor
    """Factor on all step sizes, lowered by the loop after a roll-back."""

    @property
    def z(self) -> Tensor:
        """The latents."""
        return self.at.z

    @property
    def x(self) -> Tensor:
        """The signals ``G(z)``."""
        return self.at.x


class Solver(ABC):
    """A method, as frozen data. ``step`` is a pure function of (problem, state): the same state gives the same bits."""

    @abstractmethod
    def start(self, problem: Problem, z: Tensor) -> Any:
        """The state at ``z`` before the first step (one forward pass)."""

    @abstractmethod
    def step(self, problem: Problem, state: Any) -> Any:
        """One iteration."""

    def plan(self, problem: Problem) -> str:
        """In words: what is computed for this problem, and how."""
        return repr(self)
