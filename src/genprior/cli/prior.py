"""Options for the generator, shared by all commands that accept a user's own."""

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
    """The generator and facts about it that cannot be detected."""

    generator: str = "mnist"
    """A bundled name, a file written by genprior train, my_model.py:build, or a TorchScript file."""
    weights: Path | None = None
    """Weights for my_model.py:build: .safetensors, or .pt with a state dictionary (several: ck.pt:g_ema)."""
    latent_shape: tuple[int, ...] | None = None
    """Shape of one latent, if it is not detected: 100, or 100 1 1."""
    range: tuple[float, float] | Literal["keep"] | None = None
    """Range of the module's values, if it is not detected, such as -1 1; files are then in [0, 1]. keep: do not rescale."""
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
