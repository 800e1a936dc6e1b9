"""Damage that changes pixels, with the loss norm that fits it: l1 or l_inf."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from genprior.app import registry
from genprior.app.damage.base import Damage, Damaged
from genprior.defence.attacks import ProjectedGradientAttack, predictions
from genprior.generators import Generator
from genprior.losses import SquaredDistance
from genprior.problem import Problem
from genprior.terms import L1, LInf, Term

_SMOOTH = 0.01
"""Weight of the mean square that is added to the norm, as in ``genprior recover``."""
_NORMS: dict[str, type[Term]] = {"L1": L1, "LInf": LInf}


@dataclass(frozen=True)
class Changed(Damage):
    """A changed image v; the loss is ``|w - v|`` in a norm plus 0.01 times the mean square."""

    level: float = 0.2
    seed: int = 0
    norm: ClassVar[str] = "LInf"

    @abstractmethod
    def change(self, truth: Tensor) -> Tensor:
        """The changed image."""

    @abstractmethod
    def change_code(self) -> list[str]:
        """Equivalent Python: ``changed`` from ``truth``."""

    def apply(self, truth: Tensor, generator: Generator) -> Damaged:
        """Change the image."""
        changed = self.change(truth)
        loss = SquaredDistance(changed, weight=_SMOOTH / changed.numel())
        problem = Problem(generator, loss=loss, on_signal=_NORMS[self.norm]().around(changed))
        return Damaged(problem, changed, changed.clamp(0, 1))

    def code(self, shape: tuple[int, ...]) -> str:
        """Equivalent Python."""
        lines = [
            *self.change_code(),
            f"loss = gp.SquaredDistance(changed, weight={_SMOOTH} / changed.numel())",
            f"problem = gp.Problem(G, loss=loss, on_signal=gp.{self.norm}().around(changed))",
        ]
        return "\n".join(lines)

    def command(self, shape: tuple[int, ...], image: str) -> list[str]:
        """The changed image is a file, so nothing is simulated."""
        return ["denoise", "changed.npy", "--loss", self.norm.lower()]

    def files(self, damaged: Damaged) -> dict[str, Tensor]:
        """The changed image."""
        return {"changed.npy": damaged.measured}


@dataclass(frozen=True)
class SaltAndPepper(Changed):
    """A fraction of the pixels set to black or white."""

    norm: ClassVar[str] = "L1"

    def change(self, truth: Tensor) -> Tensor:
        """Replace pixels."""
        drawn = torch.rand(truth.shape, generator=torch.Generator().manual_seed(self.seed), device="cpu")
        return torch.where(drawn < self.level, (drawn < self.level / 2).float(), truth)

    def change_code(self) -> list[str]:
        """The same in Python."""
        return [
            f"drawn = torch.rand(truth.shape, generator=torch.Generator().manual_seed({self.seed}))",
            f"changed = torch.where(drawn < {self.level!r}, (drawn < {self.level / 2!r}).float(), truth)",
        ]

    def words(self, shape: tuple[int, ...]) -> str:
        """Short description."""
        return f"{self.level:.0%} of the values set to black or white"


@dataclass(frozen=True)
class Signs(Changed):
    """Every pixel moved up or down by the same amount."""

    def change(self, truth: Tensor) -> Tensor:
        """Move every pixel."""
        drawn = torch.rand(truth.shape, generator=torch.Generator().manual_seed(self.seed), device="cpu")
        return truth + self.level * torch.sign(drawn - 0.5)

    def change_code(self) -> list[str]:
        """The same in Python."""
        return [
            f"drawn = torch.rand(truth.shape, generator=torch.Generator().manual_seed({self.seed}))",
            f"changed = truth + {self.level!r} * torch.sign(drawn - 0.5)",
        ]

    def words(self, shape: tuple[int, ...]) -> str:
        """Short description."""
        return f"every value up or down by {self.level:g}"


@dataclass(frozen=True)
class Attacked(Changed):
    """An l_inf projected-gradient attack on the bundled digit classifier."""

    def change(self, truth: Tensor) -> Tensor:
        """Attack the class that the classifier gives the image."""
        classifier = registry.classifier()
        return self._attack(classifier, truth, predictions(classifier, truth), seed=self.seed)

    @property
    def _attack(self) -> ProjectedGradientAttack:
        return ProjectedGradientAttack(size=self.level, step=self.level / 10, steps=30)

    def apply(self, truth: Tensor, generator: Generator) -> Damaged:
        """Change the image and report the classes before and after."""
        plain = super().apply(truth, generator)
        note = f"The classifier reads {_read(truth)} before the attack and {_read(plain.measured)} after."
        return Damaged(plain.problem, plain.measured, plain.seen, note, judge=lambda x: f"read as {_read(x)}")

    def change_code(self) -> list[str]:
        """The same in Python."""
        made = f"attacks.ProjectedGradientAttack(size={self.level!r}, step={self.level / 10!r}, steps=30)"
        return [
            'classifier = gp.load_classifier("mnist")',
            f"attack = {made}",
            f"changed = attack(classifier, truth, attacks.predictions(classifier, truth), seed={self.seed})",
        ]

    def words(self, shape: tuple[int, ...]) -> str:
        """Short description."""
        return f"attacked: each value changed by up to {self.level:g}."


def _read(image: Tensor) -> int:
    return int(predictions(registry.classifier(), image)[0])
