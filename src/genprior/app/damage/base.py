"""Damage to an image: the measurements, the inverse problem, and the equivalent code and command."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from genprior.generators import Generator
from genprior.problem import Problem


@dataclass(frozen=True)
class Damaged:
    """An image after the damage."""

    problem: Problem
    measured: Tensor
    """The measurements, or the changed image."""
    seen: Tensor
    """What can be shown of them: one image in [0, 1]."""
    note: str = ""
    """A remark for the visitor."""
    judge: Callable[[Tensor], str] | None = None
    """Gives a remark about a recovered image, shown beside its error."""


class Damage(ABC):
    """A type of damage."""

    @abstractmethod
    def apply(self, truth: Tensor, generator: Generator) -> Damaged:
        """Damage the image ``(1, channels, h, w)``."""

    @abstractmethod
    def code(self, shape: tuple[int, ...]) -> str:
        """Equivalent Python: lines that make ``problem`` from ``truth`` and ``G``."""

    @abstractmethod
    def command(self, shape: tuple[int, ...], image: str) -> list[str]:
        """Equivalent genprior command for ``image``, the file of the undamaged image."""

    @abstractmethod
    def words(self, shape: tuple[int, ...]) -> str:
        """Short description."""

    def files(self, damaged: Damaged) -> dict[str, Tensor]:
        """Other inputs of code and command: masks ``(h, w)`` for .png, arrays for .npy."""
        return {}
