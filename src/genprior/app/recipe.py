"""A visitor's choices as one value, as a command and as a Python script."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

import torch
from torch import Tensor

from genprior import _validate
from genprior.app import registry
from genprior.app.damage import Attacked, Damage, Damaged, Linear, Painted

SECONDS = (0.1, 600.0)
MOST_RESTARTS = 16
PATIENCE = 10**9
"""Steps without progress after which a solver stops: practically never, because its time is limited."""


@dataclass(frozen=True)
class Recipe:
    """An image, its damage, the solvers that race, and their time."""

    generator: str
    truth: Tensor
    """The image before the damage, ``(1, *signal_shape)``."""
    damage: Damage
    solvers: tuple[str, ...]
    seconds: float = 5.0
    """For each solver."""
    restarts: int = 1
    seed: int = 0
    origin: str | None = None
    """A Python expression for the image; None: it is read from ``input.png``."""

    def __post_init__(self) -> None:
        if self.generator not in registry.GENERATORS:
            raise ValueError(f"generator must be one of {', '.join(registry.GENERATORS)}, got {self.generator!r}")
        unknown = [name for name in self.solvers if name not in registry.SOLVERS]
        if unknown or len(set(self.solvers)) < len(self.solvers):
            raise ValueError(f"solvers must be different names among {', '.join(registry.SOLVERS)}, got {self.solvers}")
        if not self.solvers:
            raise ValueError("no solver is chosen: choose at least one")
        _validate.number("seconds", self.seconds, least=SECONDS[0])
        if _validate.whole("restarts", self.restarts) > MOST_RESTARTS:
            raise ValueError(f"restarts must be at most {MOST_RESTARTS}, got {self.restarts}")
        _validate.whole("seed", self.seed, 0)

    def damaged(self) -> Damaged:
        """Damage the image; the first call for a generator loads it."""
        generator = registry.generator(self.generator)
        _validate.batch("truth", self.truth, generator.signal_shape)
        return self.damage.apply(self.truth, generator)

    @property
    def image_file(self) -> str:
        """The input file: a PNG if eight bits hold the image exactly, otherwise an array."""
        levels = self.truth * 255
        return "input.png" if bool(torch.isclose(levels, levels.round(), atol=1e-3).all()) else "input.npy"

    def command(self, solver: str | None = None, seconds: float | None = None) -> str:
        """The command that does the same with one of the solvers, in its time or another."""
        solver = self.solvers[0] if solver is None else solver
        seconds = self.seconds if seconds is None else seconds
        words = ["genprior", *self.damage.command(self.truth.shape[1:], self.image_file)]
        words += ["--generator", self.generator, "--solver", registry.SOLVERS[solver].name]
        words += ["--restarts", str(self.restarts)]
        words += [
            "--time",
            f"{seconds:g}",
            "--patience",
            str(PATIENCE),
            "--settle-after",
            "0",
            "--seed",
            str(self.seed),
        ]
        return shlex.join([*words, "--out", "recovered"])

    def script(self, solver: str | None = None, seconds: float | None = None) -> str:
        """A Python script that does the same with one of the solvers, in its time or another."""
        solver = self.solvers[0] if solver is None else solver
        seconds = self.seconds if seconds is None else seconds
        parts = [self._imports(), self._image(), self._damage(), self._solve(solver, seconds)]
        parts = [self._needs(), *parts] if self._files else parts
        return "\n\n".join("\n".join(part) for part in parts) + "\n"

    @property
    def _files(self) -> list[str]:
        """What the script reads."""
        image = ["input.png"] if self.origin is None else []
        return [*image, "mask.png"] if isinstance(self.damage, Painted) else image

    def _needs(self) -> list[str]:
        return [f"# Run this in a folder with {' and '.join(self._files)}, which result.zip has."]

    def _imports(self) -> list[str]:
        lines = ["import numpy as np"] if self._files else []
        lines += ["import torch"]
        lines += ["from PIL import Image"] if self._files else []
        lines += ["", "import genprior as gp"]
        lines += ["from genprior import samples"] if (self.origin or "").startswith("samples") else []
        lines += ["from genprior.defence import attacks"] if isinstance(self.damage, Attacked) else []
        noisy = isinstance(self.damage, Linear) and self.damage.noise
        lines += ["from genprior.jobs.posed import simulate"] if noisy else []
        return lines

    def _image(self) -> list[str]:
        lines = [f'G = gp.load_generator("{self.generator}")']
        if self.origin is not None:
            return [*lines, f"truth = {self.origin}"]
        return [
            *lines,
            'pixels = torch.from_numpy(np.array(Image.open("input.png"))).float() / 255',
            "truth = pixels.reshape(*G.signal_shape[1:], G.signal_shape[0]).permute(2, 0, 1)[None]",
        ]

    def _damage(self) -> list[str]:
        return self.damage.code(self.truth.shape[1:]).splitlines()

    def _solve(self, solver: str, seconds: float) -> list[str]:
        return [
            "result = gp.solve(",
            "    problem,",
            f"    gp.{solver}(),",
            f"    stop=gp.Seconds({seconds!r}),",
            f"    restarts={self.restarts},",
            f"    seed={self.seed},",
            f"    patience={PATIENCE},",
            ")",
            "print(result.summary())",
            "print(result.advice[0])",
            'print(f"error {float((result.signal - truth).norm() / truth.norm()):.3g}")',
        ]
