"""Options that say which generator a command works with, the same for all commands that take one of a person's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

if TYPE_CHECKING:
    from genprior.jobs.settings import Source

INPUT = tyro.conf.arg(metavar="INPUT...", help_behavior_hint="(required)")
"""How files and folders are shown in the help."""


@dataclass(frozen=True, kw_only=True)
class Prior:
    """The generator, and what is to be told about it."""

    generator: str = "mnist"
    """A bundled name, a file of genprior train, my_model.py:build, a TorchScript file."""
    weights: Path | None = None
    """Weights for my_model.py:build: .safetensors, or .pt with a state dictionary (several: ck.pt:g_ema)."""
    latent_shape: tuple[int, ...] | None = None
    """Shape of one latent, where it is not found out: 100, or 100 1 1."""
    range: tuple[float, float] | Literal["keep"] | None = None
    """Range of the generator's own values, where it is not recognised: -1 1; files are then in [0, 1]. keep: as they are."""
    label: int | None = None
    """Class, for a conditional generator."""

    def source(self, labels: Path | None = None) -> Source:
        """As the library takes it."""
        from genprior.jobs.settings import Source  # noqa: PLC0415 - slow to import

        return Source(
            generator=self.generator,
            weights=None if self.weights is None else str(self.weights),
            latent_shape=self.latent_shape,
            signal_range=self.range,
            label=self.label,
            labels=None if labels is None else str(labels),
        )
