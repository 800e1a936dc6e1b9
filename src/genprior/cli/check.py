"""``genprior check``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console
from rich.text import Text

from genprior.cli.speech import check_device, print_json, status

if TYPE_CHECKING:
    from genprior.tasks.check import Inspection


@dataclass(frozen=True, kw_only=True)
class Check:
    """Check a generator of your own: what is wrong and how to fix it, its conditioning and speed, a command to begin with.

    Example:
        genprior check my_model.py:build --weights weights.safetensors
        genprior check generator.pt2
    """

    generator: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="GENERATOR")]
    """my_model.py:build (a function that returns the module), a TorchScript or torch.export file, a bundled name."""
    weights: Path | None = None
    """Weights for my_model.py:build: .safetensors, or .pt with a state dictionary (several: ck.pt:g_ema)."""
    latent_shape: tuple[int, ...] | None = None
    """Shape of one latent, where it is not found out: 100, or 100 1 1."""
    range: tuple[float, float] | Literal["keep"] | None = None
    """Range of the generator's own values, where it is not recognised: -1 1. keep: leave them as they are."""
    label: int | None = None
    """Class, for a conditional generator."""
    out: Path | None = None
    """Folder for what the generator makes: samples/ (pictures, or an array where they are none) and samples.png."""
    seed: int = 0
    """Seed of the latents looked at."""
    device: str = "cpu"
    """Device for torch, for example cpu, cuda or mps."""
    json: bool = False
    """Print one JSON document instead of text."""

    def run(self) -> None:
        """Do it."""
        from genprior.tasks.check import inspect_generator, write_samples  # noqa: PLC0415 - slow to import
        from genprior.tasks.settings import Source  # noqa: PLC0415

        check_device(self.device)
        source = Source(
            generator=self.generator,
            weights=None if self.weights is None else str(self.weights),
            latent_shape=self.latent_shape,
            signal_range=self.range,
            label=self.label,
        )
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
    console = Console()
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
