"""How large the experiments are: the paper's sizes as far as two cores allow, and a quick set as a test."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sensing:
    """One generator in the compressive sensing experiment."""

    fractions: tuple[float, ...]
    """Measurements over pixels."""
    main: float
    """The fraction of the figure; also that of the real images."""
    pictures: int
    steps: int
    tuning_pictures: int
    tuning_steps: int


@dataclass(frozen=True)
class Denoising:
    """Images and iterations."""

    pictures: int
    descent_steps: int
    """Gradient descent and Adam."""
    admm_steps: int
    tuning_steps: int
    other_share: float
    """Share of these iterations in cases that the paper does not show, also in tuning."""


@dataclass(frozen=True)
class Defence:
    """Images and iterations."""

    pictures: int
    chunk: int
    """Images of one part."""
    ours_pictures: int
    """For the methods that are not the paper's, and for clean images."""
    control_pictures: int
    """For the paper's solver in the other norm."""
    descent_steps: int
    admm_steps: int
    tuning_pictures: int
    tuning_steps: int
    bpda_pictures: int
    bpda_steps: int
    latent_pictures: int
    latent_steps: int


@dataclass(frozen=True)
class Tuning:
    """The step sizes of gradient descent."""

    steps: tuple[float, ...]
    pictures: int
    iterations: int


@dataclass(frozen=True)
class Plateau:
    """Penalties, conditionings, iterations."""

    penalties: tuple[float, ...]
    conditionings: tuple[float, ...]
    iterations: int
    """At penalty 1; more at a larger one."""
    digits: int
    digit_penalties: tuple[float, ...]
    digit_iterations: int
    dual_iterations: int


@dataclass(frozen=True)
class Size:
    """Everything."""

    name: str
    settings: int
    """Number of settings of each tuned method."""
    digits: Sensing
    faces: Sensing
    denoising: Denoising
    defence: Defence
    digit_tuning: Tuning
    face_tuning: Tuning
    plateau: Plateau


_STEPS = tuple(round(0.001 * 10 ** (k / 3), 6) for k in range(10))

FULL = Size(
    name="full",
    settings=8,
    digits=Sensing((0.1, 0.2, 0.3, 0.4, 0.5, 0.7), 0.5, 20, 300, 10, 60),
    faces=Sensing((0.2, 0.5), 0.5, 10, 200, 5, 40),
    denoising=Denoising(7, 3000, 2000, 200, 0.2),
    defence=Defence(2000, 100, 250, 250, 450, 300, 20, 100, 50, 30, 50, 200),
    digit_tuning=Tuning(_STEPS, 100, 100),
    face_tuning=Tuning(_STEPS[::2], 10, 50),
    plateau=Plateau(
        (1.0, 3.0, 10.0, 30.0, 100.0, 300.0), (1.0, 2.0, 4.0, 8.0, 16.0), 300, 8, (0.3, 1, 3, 10, 30), 600, 2000
    ),
)
QUICK = Size(
    name="quick",
    settings=2,
    digits=Sensing((0.2, 0.5), 0.5, 4, 30, 2, 10),
    faces=Sensing((0.05,), 0.05, 2, 8, 1, 3),
    denoising=Denoising(3, 60, 45, 10, 0.4),
    defence=Defence(20, 10, 10, 10, 50, 35, 4, 12, 2, 2, 4, 20),
    digit_tuning=Tuning(_STEPS[::3], 4, 20),
    face_tuning=Tuning(_STEPS[::4], 1, 4),
    plateau=Plateau((3.0, 10.0, 30.0), (2.0, 4.0, 8.0), 60, 2, (1, 10), 40, 200),
)
SIZES = {size.name: size for size in (FULL, QUICK)}
