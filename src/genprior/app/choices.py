"""What a visitor may choose, and what they have chosen so far; becomes a recipe when they press Start."""

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
        """What the slider can show: a browser may send anything."""
        number = float(value) if isinstance(value, int | float) and abs(value) < _HUGE else self.start
        if self.stops:
            return min(self.stops, key=lambda stop: abs(stop - number))
        steps = round((min(max(number, self.low), self.high) - self.low) / self.step)
        return round(min(self.high, self.low + steps * self.step), 9)


@dataclass(frozen=True)
class Kind:
    """One kind of damage, as the page offers it."""

    title: str
    amount: str
    """What the slider sets; empty: there is none."""
    scales: dict[str, Scale]
    """For each generator that it works with."""
    make: Callable[[float, float, Tensor | None], Damage]
    """From amount, noise and painted mask."""
    noisy: bool = True
    """Whether noise may be added to the measurements."""
    hint: str = ""


def _both(low: float, high: float, step: float, start: float) -> dict[str, Scale]:
    return dict.fromkeys(registry.GENERATORS, Scale(low, high, step, start))


KINDS: dict[str, Kind] = {
    "measurements": Kind(
        "Random measurements",
        "Measurements",
        {"mnist": Scale(28, 784, 28, 392), "celeba": Scale(128, 6144, 128, 1536)},
        lambda amount, noise, known: Measurements(m=round(amount), noise=noise),
        hint="Only random sums of the pixels are known, fewer than there are pixels.",
    ),
    "mask": Kind(
        "Painted over",
        "",
        _both(0, 1, 1, 0),
        lambda amount, noise, known: Painted(known=known, noise=noise),
        hint="Paint on the image: what you paint over is lost.",
    ),
    "blur": Kind(
        "Blur",
        "Width in pixels",
        _both(0.5, 5, 0.5, 2),
        lambda amount, noise, known: Blurred(sigma=float(amount), noise=noise),
        hint="A Gaussian blur.",
    ),
    "downsample": Kind(
        "Fewer pixels",
        "Times fewer, each way",
        {"mnist": Scale(2, 14, 1, 4, (2, 4, 7, 14)), "celeba": Scale(2, 16, 1, 4, (2, 4, 8, 16))},
        lambda amount, noise, known: Smaller(factor=round(amount), noise=noise),
        hint="Means over blocks of pixels: super-resolution.",
    ),
    "noise": Kind(
        "Gaussian noise",
        "Standard deviation",
        _both(0, 1, 0.05, 0.3),
        lambda amount, noise, known: Noisy(noise=float(amount)),
        noisy=False,
        hint="At 0 the image stays as it is: for one that is damaged already.",
    ),
    "salt": Kind(
        "Salt and pepper",
        "Share of pixels",
        _both(0.05, 0.6, 0.05, 0.2),
        lambda amount, noise, known: SaltAndPepper(level=float(amount)),
        noisy=False,
        hint="Some pixels turn black or white; recovered in the l1 norm.",
    ),
    "signs": Kind(
        "Sign noise (l_inf)",
        "Level",
        _both(0.05, 0.5, 0.05, 0.2),
        lambda amount, noise, known: Signs(level=float(amount)),
        noisy=False,
        hint="Every pixel moves up or down by the same amount; recovered in the l_inf norm.",
    ),
    "attack": Kind(
        "Attack on a classifier",
        "Largest change",
        {"mnist": Scale(0.05, 0.4, 0.05, 0.2)},
        lambda amount, noise, known: Attacked(level=float(amount)),
        noisy=False,
        hint="Small changes that make a classifier of digits misread the image; recovered in the l_inf norm.",
    ),
}

NOISE = Scale(0, 0.5, 0.01, 0)
DEFAULT_SOLVERS = ("Auto", "ExactADMM", "LBFGS", "Adam")


def seconds_scale(limit: float) -> Scale:
    """Of the time for each solver."""
    return Scale(1, max(1, int(limit)), 1, min(5, max(1, int(limit))))


@dataclass
class Choices:
    """What one visitor has chosen so far."""

    generator: str = "mnist"
    picture: Tensor | None = None
    origin: str | None = None
    kind: str = "measurements"
    amount: float = 392
    noise: float = 0.0
    known: Tensor | None = None
    solvers: list[str] = field(default_factory=lambda: list(DEFAULT_SOLVERS))
    seconds: float = 5.0
    restarts: int = 1

    def take_generator(self, name: str) -> None:
        """Another generator: the picture goes, and a damage that does not work with it."""
        if name == self.generator:
            return
        self.generator, self.picture, self.origin, self.known = name, None, None, None
        self.take_kind(self.kind if name in KINDS[self.kind].scales else "measurements")

    def take_picture(self, picture: Tensor, origin: str | None = None) -> None:
        """Another picture."""
        self.picture, self.origin = picture, origin

    def take_sample(self, number: int) -> None:
        """One of the sample pictures."""
        pictures = registry.sample_pictures(self.generator)
        self.take_picture(pictures[number : number + 1], registry.sample_code(self.generator, number))

    def take_kind(self, kind: str) -> None:
        """Another damage, in its usual amount."""
        self.kind, self.amount = kind, KINDS[kind].scales[self.generator].start

    def take_amount(self, amount: object) -> None:
        """More or less of the damage."""
        self.amount = self.scale.nearest(amount)

    def take_noise(self, noise: object) -> None:
        """More or less noise on the measurements."""
        self.noise = NOISE.nearest(noise)

    def take_seconds(self, seconds: object, limit: float) -> None:
        """Another time for each solver."""
        self.seconds = seconds_scale(limit).nearest(seconds)

    @property
    def kinds(self) -> dict[str, str]:
        """Kinds of damage that the generator's pictures can suffer, with their titles."""
        return {name: kind.title for name, kind in KINDS.items() if self.generator in kind.scales}

    @property
    def scale(self) -> Scale:
        """Of the kind's slider."""
        return KINDS[self.kind].scales[self.generator]

    def damage(self) -> Damage:
        """The damage; an error says what is missing."""
        kind = KINDS[self.kind]
        return kind.make(self.amount, self.noise if kind.noisy else 0.0, self.known)

    def recipe(self, limit: float) -> Recipe:
        """Everything as one value. The solvers share the ``limit`` of seconds for a race."""
        if self.picture is None:
            raise ValueError("there is no image yet: choose one, draw one, or upload one")
        return Recipe(
            generator=self.generator,
            truth=self.picture,
            damage=self.damage(),
            solvers=tuple(name for name in registry.SOLVERS if name in self.solvers),
            seconds=self.fair_seconds(limit),
            restarts=self.restarts,
            origin=self.origin,
        )

    def fair_seconds(self, limit: float) -> float:
        """Seconds per solver: as chosen, or an equal share of the limit where that is less."""
        return max(SECONDS[0], min(float(self.seconds), limit / max(1, len(self.solvers))))
