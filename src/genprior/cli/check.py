"""``genprior check``."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.text import Text

from genprior import _validate
from genprior._progress import Bar
from genprior.cli.flags import as_flags
from genprior.cli.machine import Machine
from genprior.cli.prior import Prior
from genprior.cli.speech import Output, print_json

if TYPE_CHECKING:
    from genprior.jobs.check import Inspection

_EVERY = 10.0
"""Seconds between two lines of progress if there is no terminal."""
_LEAST = 1e-3


@dataclass(frozen=True, kw_only=True)
class Check(Machine, Prior):
    """Check your own generator: errors and how to fix them, conditioning, speed, a first command.

    Example:
        genprior check my_model.py:build --weights weights.safetensors
        genprior check generator.pt --time 300
    """

    generator: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="GENERATOR")]
    """my_model.py:build (a function that returns the module), a TorchScript file, a bundled name."""
    out: Path | None = None
    """Folder for samples of the generator: samples/ (images, or an array for other signals) and samples.png."""
    time: float = 60.0
    """Time limit in seconds: for a slow generator, checks examine less or are reported as not run."""
    seed: int = 0
    """Seed of the latents."""

    def run(self) -> None:
        """Run the command."""
        from genprior.jobs.check import STAGES, inspect_generator, write_samples  # noqa: PLC0415 - slow to import

        self.settle()
        self.choose_threads()
        source, begun = self.source(), time.monotonic()
        _validate.number("time", self.time, above=0)
        with Bar("checks", len(STAGES), visible=False if self.json else None, every=_EVERY, counts=True) as bar:
            found = inspect_generator(
                source,
                device=self.device,
                seed=self.seed,
                samples=self.out,
                seconds=self.time,
                announce=lambda stage: bar.show(STAGES.index(stage), len(STAGES), stage),
            )
            sheet = None
            if self.out is not None and found.generator is not None and not found.report.failures:
                bar.show(len(STAGES), len(STAGES), "samples")
                left = max(_LEAST, self.time - (time.monotonic() - begun))
                sheet = write_samples(found.generator, self.out, seed=self.seed, seconds=left)
        if self.json:
            print_json(found.numbers() | ({} if sheet is None else {"samples": str(sheet)}))
        else:
            _say(found, sheet)
        failures = found.report.failures
        if failures:
            raise ValueError(f"{len(failures)} of {len(found.report.findings)} checks fail: {failures[0].law}")


def _passes(speed: dict[str, float]) -> str:
    words = {
        "forward_1": "one item {} forward",
        "both_1": "one item {} forward and backward",
        "forward_16": "16 items {} forward",
        "both_16": "16 items {} forward and backward",
    }
    done = "; ".join(text.format(f"{speed[name]:.3g}") for name, text in words.items() if name in speed)
    if not done:
        return "not run: no time is left"
    return done if len(speed) == len(words) else f"{done}; the others not run: no time is left"


def _say(found: Inspection, sheet: Path | None) -> None:
    console = Output()
    console.print(Text(as_flags(str(found.report))), soft_wrap=True)
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
        lines.append(("passes per second", _passes(found.speed)))
    if sheet is not None:
        lines.append(("samples", str(sheet)))
    if found.command:
        lines.append(("try", found.command))
    for name, text in lines:
        console.print(Text.assemble((f"{name}: ", "bold"), text), soft_wrap=True)
