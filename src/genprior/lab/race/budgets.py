"""How many images and how much time a problem gets, by its generator: a pass takes from 1 ms to 0.3 s an image."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """Images and seconds."""

    images: int
    tuning_images: int
    first_look: float
    """Seconds for every setting of a baseline."""
    second_look: float
    """For the best of them, and then for more starts."""
    seconds: float
    """For Auto and for every baseline."""
    other_seconds: float
    """For the ADMM presets and the methods as published."""
    thinning: int = 1
    """Every so manieth setting of a grid is tried."""
    starts: tuple[int, ...] = (1, 4, 16)
    """Numbers of starts among which every baseline has its choice; fewer where 16 take gigabytes, or seconds for a pass."""


_FEW = (1, 4)
FULL = {
    "mnist": Budget(20, 10, 0.4, 2.5, 8.0, 3.0),
    "celeba": Budget(10, 5, 1.0, 3.0, 12.0, 5.0, 2),
    "faces": Budget(10, 5, 0.6, 2.5, 15.0, 4.0, 2),
    "glitches": Budget(4, 2, 2.0, 5.0, 20.0, 5.0, 3, _FEW),
    "ecg": Budget(4, 2, 0.8, 3.0, 10.0, 4.0, 2, _FEW),
    "terrain": Budget(2, 1, 2.5, 6.0, 30.0, 6.0, 4, _FEW),
    "decoder": Budget(8, 4, 0.6, 2.5, 10.0, 4.0, 2),
    "flow": Budget(8, 4, 0.6, 2.5, 10.0, 4.0, 2),
}
QUICK = {
    "mnist": Budget(8, 4, 0.1, 0.25, 0.8, 0.3, starts=_FEW),
    "celeba": Budget(2, 2, 0.2, 0.4, 1.5, 0.5, starts=_FEW),
    "faces": Budget(4, 2, 0.2, 0.4, 1.5, 0.5, starts=_FEW),
    "glitches": Budget(2, 1, 0.4, 0.8, 4.0, 1.5, starts=_FEW),
    "ecg": Budget(2, 1, 0.2, 0.4, 2.0, 0.8, starts=_FEW),
    "terrain": Budget(1, 1, 0.8, 1.5, 6.0, 2.0, starts=_FEW),
    "decoder": Budget(4, 2, 0.1, 0.25, 1.0, 0.3, starts=_FEW),
    "flow": Budget(4, 2, 0.1, 0.25, 1.0, 0.3, starts=_FEW),
}
