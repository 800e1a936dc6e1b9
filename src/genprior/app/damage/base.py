"""How a picture is damaged: what is measured of it, the problem that leads back, and the same as code and command."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from genprior.generators import Generator
from genprior.problem import Problem


@dataclass(frozen=True)
class Damaged:
    """A picture after the damage."""

    problem: Problem
    measured: Tensor
    """The measurements, or the changed picture."""
    seen: Tensor
    """What can be shown of them: one image in [0, 1]."""
    note: str = ""
    """A remark for the visitor."""
    judge: Callable[[Tensor], str] | None = None
    """What to say about a recovered picture beside its error."""


class Damage(ABC):
    """One way to damage a picture."""

    @abstractmethod
    def apply(self, truth: Tensor, generator: Generator) -> Damaged:
        """Damage the picture ``(1, channels, h, w)``."""

    @abstractmethod
    def code(self, shape: tuple[int, ...]) -> str:
        """The same in Python: lines that make ``problem`` from ``truth`` and ``G``."""

    @abstractmethod
    def command(self, shape: tuple[int, ...], picture: str) -> list[str]:
        """The same as a command of genprior, for the file ``picture`` before the damage."""

    @abstractmethod
    def words(self, shape: tuple[int, ...]) -> str:
        """The same in a few words."""

    def files(self, damaged: Damaged) -> dict[str, Tensor]:
        """What code and command read beside the picture: masks ``(h, w)`` for .png, arrays for .npy."""
        return {}
