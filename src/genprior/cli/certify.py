"""``genprior certify``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from genprior._progress import Bar
from genprior.cli.machine import Machine
from genprior.cli.prior import Prior
from genprior.cli.speech import Output, as_json, print_json

if TYPE_CHECKING:
    from genprior.generators import Generator
    from genprior.operators import Operator

_STAGES = 11


@dataclass(frozen=True, kw_only=True)
class Certify(Machine, Prior):
    """Examine a generator: its constants on a ball, Proposition 1, and whether Theorem 1 applies.

    Every number is marked as proved or sampled. The exit code is 0 if the examination ran, whatever its result.

    Example:
        genprior certify --generator mnist --operator gaussian --m 392 --radius 10 --out certificate
        genprior certify --generator my_model.py:build --weights weights.safetensors --json
    """

    operator: str | None = None
    """The measurement operator, as in genprior recover (gaussian:m=392, downsample:4, ...); by default the identity."""
    m: int | None = None
    """Number of measurements, for an operator given by its name alone."""
    radius: float | None = None
    """Radius of the ball of latents; by default that of the generator's latent distribution, or 10."""
    points: int | None = None
    """Random points at which all singular values of the Jacobian are computed; 16, or 6 for large generators."""
    moves: int | None = None
    """Steps that move some of these points towards the worst case; 8, or 4 for large generators."""
    steps: int = 200
    """Iterations of the run whose rate is measured."""
    out: Path | None = None
    """Folder for certificate.html and certificate.json."""
    seed: int = 0
    """Seed of points, problem and start."""
    json: bool = False
    """Print one JSON document instead of the page."""

    def run(self) -> None:
        """Run the command."""
        from genprior._files import make_folder, write_text  # noqa: PLC0415
        from genprior.theory.certificate_page import examination_numbers, show_examination, write_page  # noqa: PLC0415
        from genprior.theory.examination import examine  # noqa: PLC0415
        from genprior.theory.generator_constants import default_radius  # noqa: PLC0415

        self.settle()
        opened = self.source().open(self.device)
        generator = opened.generator
        self.choose_threads(generator)
        text = self._operator_text()
        operator = None if text is None else self._parsed(text, generator)
        if self.out is not None:
            make_folder(self.out)
        with Bar("certifying", _STAGES, visible=False if self.json else None) as bar:
            found = examine(
                generator,
                self.generator,
                operator=operator,
                radius=default_radius(generator) if self.radius is None else self.radius,
                points=self.points,
                moves=self.moves,
                steps=self.steps,
                seed=self.seed,
                announce=bar.stage,
            )
        numbers = examination_numbers(found)
        if self.out is not None:
            write_page(found, self.out / "certificate.html", seed=self.seed)
            write_text(self.out / "certificate.json", as_json(numbers))
        if self.json:
            print_json(numbers)
            return
        console = Output()
        show_examination(found, console)
        for note in opened.notes:
            console.print(f"note: {note}", soft_wrap=True, markup=False, highlight=False)
        if self.out is not None:
            console.print(f"page: {self.out / 'certificate.html'}", soft_wrap=True, markup=False, highlight=False)

    def _operator_text(self) -> str | None:
        if self.m is None:
            return self.operator
        if self.operator is None:
            raise ValueError(f"m is {self.m}, but no operator was given: add --operator gaussian")
        if ":" in self.operator:
            raise ValueError(
                f"operator {self.operator!r} already has options: write m into it, or give only its name and --m"
            )
        return f"{self.operator}:m={self.m}"

    def _parsed(self, text: str, generator: Generator) -> Operator:
        from genprior.operators.parse import parse_operator  # noqa: PLC0415

        return parse_operator(text, generator.signal_shape, device=generator.device, dtype=generator.dtype)
