"""What a visitor can choose, and has chosen so far; it becomes a recipe at Start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from genprior.app import registry
from genprior.app.damage import (
    Attacked,
    Blurred,
    Damage,
    Measurements,
    Noisy,
    Painted,
    SaltAndPepper,
    Signs,
    Smaller,
)
from genprior.app.recipe import SECONDS, Recipe

_HUGE = 1e12


@dataclass(frozen=True)
class Scale:
    """A slider: its ends, its step, where it starts; or a few ``stops`` to choose from."""

    low: float
    high: float
    step: float
    start: float
    stops: tuple[int, ...] = ()

    def nearest(self, value: object) -> float:
        """The nearest value that the slider can show; a browser may send anything."""
        number = float(value) if isinstance(value, int | float) and abs(value) < _HUGE else self.start
        if self.stops:
            return min(self.stops, key=lambda stop: abs(stop - number))
        steps = round((min(max(number, self.low), self.high) - self.low) / self.step)
        return round(min(self.high, self.low + steps * self.step), 9)


@dataclass(frozen=True)
class DamageType:
    """A type of damage, as the page offers it."""

    title: str
    amount: str
    """What the slider sets; empty if there is no slider."""
    scales: dict[str, Scale]
    """One slider for each generator that it works with."""
    make: Callable[[float, float, Tensor | None], Damage]
    """Makes the damage from amount, noise and painted mask."""
    noisy: bool = True
    """Whether noise may be added to the measurements."""
    hint: str = ""


def _both(low: float, high: float, step: float, start: float) -> dict[str, Scale]:
    return dict.fromkeys(registry.GENERATORS, Scale(low, high, step, start))


DAMAGES: dict[str, DamageType] = {
    "measurements": DamageType(
        "Random measurements",
        "Measurements",
        {"mnist": Scale(28, 784, 28, 392), "celeba": Scale(128, 6144, 128, 1536)},
        lambda amount, noise, known: Measurements(m=round(amount), noise=noise),
        hint="Only random weighted sums of the pixels are known, fewer than there are pixels.",
    ),
    "mask": DamageType(
        "Painted over",
        "",
        _both(0, 1, 1, 0),
        lambda amount, noise, known: Painted(known=known, noise=noise),
        hint="Paint on the image: the painted part is lost.",
    ),
    "blur": DamageType(
        "Blur",
        "Width in pixels",
        _both(0.5, 5, 0.5, 2),
        lambda amount, noise, known: Blurred(sigma=float(amount), noise=noise),
        hint="A Gaussian blur.",
    ),
    "downsample": DamageType(
        "Fewer pixels",
        "Reduction of width and height",
        {"mnist": Scale(2, 14, 1, 4, (2, 4, 7, 14)), "celeba": Scale(2, 16, 1, 4, (2, 4, 8, 16))},
        lambda amount, noise, known: Smaller(factor=round(amount), noise=noise),
        hint="Blocks of pixels are averaged; recovery is super-resolution.",
    ),
    "noise": DamageType(
        "Gaussian noise",
        "Standard deviation",
        _both(0, 1, 0.05, 0.3),
        lambda amount, noise, known: Noisy(noise=float(amount)),
        noisy=False,
        hint="At 0 the image stays as it is; use this for an image that is already damaged.",
    ),
    "salt": DamageType(
        "Salt and pepper",
        "Fraction of pixels",
        _both(0.05, 0.6, 0.05, 0.2),
        lambda amount, noise, known: SaltAndPepper(level=float(amount)),
        noisy=False,
        hint="Some pixels turn black or white. The solvers minimise the l1 norm.",
    ),
    "signs": DamageType(
        "Sign noise (l_inf)",
        "Level",
        _both(0.05, 0.5, 0.05, 0.2),
        lambda amount, noise, known: Signs(level=float(amount)),
        noisy=False,
        hint="Every pixel changes by the same amount, up or down. The solvers minimise the l_inf norm.",
    ),
    "attack": DamageType(
        "Attack on a classifier",
        "Largest change",
        {"mnist": Scale(0.05, 0.4, 0.05, 0.2)},
        lambda amount, noise, known: Attacked(level=float(amount)),
        noisy=False,
        hint="Small changes make a digit classifier misread the image. The solvers minimise the l_inf norm.",
    ),
}

NOISE = Scale(0, 0.5, 0.01, 0)
DEFAULT_SOLVERS = ("Auto", "ExactADMM", "LBFGS", "Adam")


def seconds_scale(limit: float) -> Scale:
    """Slider for the time of each solver."""
    return Scale(1, max(1, int(limit)), 1, min(5, max(1, int(limit))))


@dataclass
class Choices:
    """What one visitor has chosen so far."""

    generator: str = "mnist"
    image: Tensor | None = None
    origin: str | None = None
    damage_type: str = "measurements"
    amount: float = 392
    noise: float = 0.0
    known: Tensor | None = None
    solvers: list[str] = field(default_factory=lambda: list(DEFAULT_SOLVERS))
    seconds: float = 5.0
    restarts: int = 1

    def take_generator(self, name: str) -> None:
        """Change the generator; drops the image, and the damage if it does not work with it."""
        if name == self.generator:
            return
        self.generator, self.image, self.origin, self.known = name, None, None, None
        self.take_damage(self.damage_type if name in DAMAGES[self.damage_type].scales else "measurements")

    def take_image(self, image: Tensor, origin: str | None = None) -> None:
        """Change the image."""
        self.image, self.origin = image, origin

    def take_sample(self, number: int) -> None:
        """Choose a sample image."""
        images = registry.sample_images(self.generator)
        self.take_image(images[number : number + 1], registry.sample_code(self.generator, number))

    def take_damage(self, name: str) -> None:
        """Change the type of damage, with its default amount."""
        self.damage_type, self.amount = name, DAMAGES[name].scales[self.generator].start

    def take_amount(self, amount: object) -> None:
        """Change the amount of damage."""
        self.amount = self.scale.nearest(amount)

    def take_noise(self, noise: object) -> None:
        """Change the noise on the measurements."""
        self.noise = NOISE.nearest(noise)

    def take_seconds(self, seconds: object, limit: float) -> None:
        """Change the time for each solver."""
        self.seconds = seconds_scale(limit).nearest(seconds)

    @property
    def damage_types(self) -> dict[str, str]:
        """Types of damage that work with the generator, with their titles."""
        return {name: one.title for name, one in DAMAGES.items() if self.generator in one.scales}

    @property
    def scale(self) -> Scale:
        """Scale of the amount slider."""
        return DAMAGES[self.damage_type].scales[self.generator]

    def damage(self) -> Damage:
        """The chosen damage; raises if something is missing."""
        chosen = DAMAGES[self.damage_type]
        return chosen.make(self.amount, self.noise if chosen.noisy else 0.0, self.known)

    def recipe(self, limit: float) -> Recipe:
        """All choices as one value. The solvers share the race's ``limit`` of seconds."""
        if self.image is None:
            raise ValueError("there is no image yet: choose a sample, draw a digit, or upload an image")
        return Recipe(
            generator=self.generator,
            truth=self.image,
            damage=self.damage(),
            solvers=tuple(name for name in registry.SOLVERS if name in self.solvers),
            seconds=self.fair_seconds(limit),
            restarts=self.restarts,
            origin=self.origin,
        )

    def fair_seconds(self, limit: float) -> float:
        """Seconds per solver: as chosen, or an equal share of the limit where that is less."""
        return max(SECONDS[0], min(float(self.seconds), limit / max(1, len(self.solvers))))
