"""Damage by a linear operator: measurements ``y = A x``, with or without noise."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from genprior import _validate
from genprior.app.damage.base import Damage, Damaged
from genprior.generators import Generator
from genprior.jobs.posed import simulate
from genprior.losses import LeastSquares
from genprior.operators import Mask, Operator
from genprior.operators.parse import describe, parse_operator
from genprior.problem import Problem
from genprior.report.sheets import stretched

LARGEST_DENSE = 2**21
"""Largest size of a Gaussian matrix, in entries (8 MB); larger ones are replaced by random Hadamard rows."""


@dataclass(frozen=True)
class Linear(Damage):
    """Measurements ``y = A x + noise`` (no noise on masked entries); the loss is ``1/2 |A w - y|^2``."""

    noise: float = 0.0
    """Standard deviation of the noise on the measurements."""
    seed: int = 0

    def __post_init__(self) -> None:
        _validate.number("noise", self.noise, least=0)
        _validate.whole("seed", self.seed, 0)

    def operator(self, shape: tuple[int, ...]) -> Operator:
        """``A`` for signals of this shape, parsed as on the command line."""
        return parse_operator(self.operator_words(shape), shape)

    @abstractmethod
    def operator_code(self, shape: tuple[int, ...]) -> str:
        """``A`` in Python."""

    @abstractmethod
    def operator_words(self, shape: tuple[int, ...]) -> str:
        """``A`` on the command line."""

    def seen(self, y: Tensor, operator: Operator) -> Tensor:
        """An image of the measurements."""
        return y

    def apply(self, truth: Tensor, generator: Generator) -> Damaged:
        """Simulate the measurements."""
        operator = self.operator(generator.signal_shape)
        y = simulate(operator, truth, self.noise, self.seed, [0])
        problem = Problem(generator, loss=LeastSquares(operator, y))
        return Damaged(problem, y, self.seen(y, operator).clamp(0, 1))

    def code(self, shape: tuple[int, ...]) -> str:
        """Equivalent Python."""
        noisy = f"simulate(A, truth, noise={self.noise!r}, seed={self.seed}, numbers=[0])"
        lines = [f"A = {self.operator_code(shape)}", f"y = {noisy if self.noise else 'A(truth)'}"]
        return "\n".join([*lines, "problem = gp.Problem(G, loss=gp.LeastSquares(A, y))"])

    def command(self, shape: tuple[int, ...], image: str) -> list[str]:
        """Equivalent command."""
        noise = ["--noise", f"{self.noise:g}"] if self.noise else []
        return ["recover", image, "--operator", self.operator_words(shape), "--simulate", *noise]

    def _with_noise(self, words: str) -> str:
        return f"{words}, noise {self.noise:g}" if self.noise else words


@dataclass(frozen=True)
class Measurements(Linear):
    """Random measurements, fewer than there are pixels."""

    m: int = 392

    def _structured(self, shape: tuple[int, ...]) -> bool:
        """Whether to use a randomised Hadamard matrix, because a Gaussian one would be too large."""
        return self.m * math.prod(shape) > LARGEST_DENSE

    def operator_code(self, shape: tuple[int, ...]) -> str:
        """``A`` in Python."""
        name = "SubsampledHadamard" if self._structured(shape) else "Gaussian"
        return f"gp.operators.{name}({self.m}, G.signal_shape, seed={self.seed})"

    def operator_words(self, shape: tuple[int, ...]) -> str:
        """``A`` on the command line."""
        return describe("hadamard" if self._structured(shape) else "gaussian", m=self.m, seed=self.seed)

    def seen(self, y: Tensor, operator: Operator) -> Tensor:
        """``A^T y``, stretched to [0, 1]."""
        return stretched(operator.adjoint(y))

    def words(self, shape: tuple[int, ...]) -> str:
        """Which matrix, how many rows."""
        name = "random Hadamard" if self._structured(shape) else "Gaussian"
        return self._with_noise(f"{self.m} {name} measurements of {math.prod(shape)} values")


@dataclass(frozen=True)
class Painted(Linear):
    """Part of the image is painted over and lost."""

    known: Tensor | None = None
    """Mask ``(h, w)``: True where the image is known."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.known is None:
            raise ValueError("there is no mask: paint over a part of the image")

    def operator(self, shape: tuple[int, ...]) -> Operator:
        """The mask."""
        assert self.known is not None
        return Mask(self.known, shape)

    def operator_code(self, shape: tuple[int, ...]) -> str:
        """``A`` in Python; reads ``mask.png`` in the working folder."""
        return 'gp.operators.Mask(torch.from_numpy(np.asarray(Image.open("mask.png")) > 0), G.signal_shape)'

    def operator_words(self, shape: tuple[int, ...]) -> str:
        """``A`` on the command line; reads ``mask.png`` in the working folder."""
        return describe("mask", file="mask.png")

    def files(self, damaged: Damaged) -> dict[str, Tensor]:
        """The mask."""
        assert self.known is not None
        return {"mask.png": self.known}

    def seen(self, y: Tensor, operator: Operator) -> Tensor:
        """The image with the lost part in grey."""
        assert self.known is not None
        return torch.where(self.known, y, 0.5)

    def words(self, shape: tuple[int, ...]) -> str:
        """Short description."""
        assert self.known is not None
        return self._with_noise(f"{1 - self.known.float().mean().item():.0%} painted over")


@dataclass(frozen=True)
class Blurred(Linear):
    """A Gaussian blur."""

    sigma: float = 2.0

    def operator_code(self, shape: tuple[int, ...]) -> str:
        """``A`` in Python."""
        return f"gp.operators.Blur({self.sigma!r}, G.signal_shape)"

    def operator_words(self, shape: tuple[int, ...]) -> str:
        """``A`` on the command line."""
        return describe("blur", sigma=self.sigma)

    def words(self, shape: tuple[int, ...]) -> str:
        """Short description."""
        return self._with_noise(f"blur of {self.sigma:g} pixels")


@dataclass(frozen=True)
class Smaller(Linear):
    """A smaller image, by averaging blocks of pixels."""

    factor: int = 4

    def operator_code(self, shape: tuple[int, ...]) -> str:
        """``A`` in Python."""
        return f"gp.operators.Downsample({self.factor}, G.signal_shape)"

    def operator_words(self, shape: tuple[int, ...]) -> str:
        """``A`` on the command line."""
        return describe("downsample", factor=self.factor)

    def seen(self, y: Tensor, operator: Operator) -> Tensor:
        """The small image, enlarged."""
        return functional.interpolate(y, scale_factor=self.factor, mode="nearest")

    def words(self, shape: tuple[int, ...]) -> str:
        """Short description."""
        return self._with_noise(f"width and height reduced {self.factor} times")


@dataclass(frozen=True)
class Noisy(Linear):
    """Gaussian noise on the image itself; with noise 0 the image is projected onto the range of G."""

    noise: float = 0.3

    def operator_code(self, shape: tuple[int, ...]) -> str:
        """``A`` in Python."""
        return "gp.operators.Identity(G.signal_shape)"

    def operator_words(self, shape: tuple[int, ...]) -> str:
        """``A`` on the command line."""
        return describe("identity")

    def words(self, shape: tuple[int, ...]) -> str:
        """Short description."""
        return f"Gaussian noise of standard deviation {self.noise:g}" if self.noise else "no damage: the image as it is"
