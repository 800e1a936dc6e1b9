"""``genprior check``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.text import Text

from genprior.cli.machine import Machine
from genprior.cli.prior import Prior
from genprior.cli.speech import Output, print_json, status

if TYPE_CHECKING:
    from genprior.tasks.check import Inspection


@dataclass(frozen=True, kw_only=True)
class Check(Machine, Prior):
    """Check a generator of your own: what is wrong and how to fix it, its conditioning and speed, a command to begin with.

    Example:
        genprior check my_model.py:build --weights weights.safetensors
        genprior check generator.pt2
    """

    generator: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="GENERATOR")]
    """my_model.py:build (a function that returns the module), a TorchScript or torch.export file, a bundled name."""
    out: Path | None = None
    """Folder for what the generator makes: samples/ (pictures, or an array where they are none) and samples.png."""
    seed: int = 0
    """Seed of the latents looked at."""

    def run(self) -> None:
        """Do it."""
        from genprior.tasks.check import inspect_generator, write_samples  # noqa: PLC0415 - slow to import

        self.settle()
        source = self.source()
        with status(not self.json) as announce:
            announce("looking at the generator")
            found = inspect_generator(source, device=self.device, seed=self.seed, samples=self.out)
            sheet = None
            if self.out is not None and found.report.ok:
                sheet = write_samples(source, self.out, device=self.device, seed=self.seed)
        if self.json:
            print_json(found.numbers() | ({} if sheet is None else {"samples": str(sheet)}))
        else:
            _say(found, sheet)
        if not found.report.ok:
            failures = found.report.failures
            raise ValueError(f"{len(failures)} of {len(found.report.findings)} laws fail: {failures[0].law}")


def _say(found: Inspection, sheet: Path | None) -> None:
    console = Output()
    console.print(Text(str(found.report)), soft_wrap=True)
    lines = []
    if found.conditioning is not None:
        c = found.conditioning
        lines.append(
            (
                "DG",
                f"largest singular value {c['largest']:.3g}, smallest {c['smallest']:.3g}, condition {c['condition']:.3g}; "
                f"{c['flat_share']:.0%} of the directions hardly change the signal",
            )
        )
    if found.no_conditioning:
        lines.append(("DG", found.no_conditioning))
    if found.speed is not None:
        s = found.speed
        lines.append(
            (
                "passes per second",
                f"one item {s['forward_1']:.0f} forward, {s['both_1']:.0f} forward and backward; "
                f"16 items {s['forward_16']:.0f} and {s['both_16']:.0f}",
            )
        )
    if sheet is not None:
        lines.append(("samples", str(sheet)))
    if found.command:
        lines.append(("try", found.command))
    for name, text in lines:
        console.print(Text.assemble((f"{name}: ", "bold"), text), soft_wrap=True)
