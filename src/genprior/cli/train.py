"""``genprior train ...``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch

from genprior import _validate
from genprior.cli.training import Flat, GeneratorTraining, Measure, Training
from genprior.generators import Generator
from genprior.models.bundled import find, has_bundled, load_classifier, load_encoder, load_generator
from genprior.models.saved import load_network
from genprior.operators import Gaussian
from genprior.training import data
from genprior.training.classifier import ClassifierSettings, ClassifierTask
from genprior.training.data import ImageSet
from genprior.training.encoder import EncoderSettings, EncoderTask
from genprior.training.loop import Trained
from genprior.training.quality import measure
from genprior.training.start import parts_of
from genprior.training.task import Devices
from genprior.training.wgan import WganSettings

_DIGITS = (1, 28, 28)
"""Pictures of MNIST and Fashion-MNIST."""


@dataclass(frozen=True, kw_only=True)
class TrainMnist(GeneratorTraining):
    """Train a generator of MNIST digits as a Wasserstein GAN with gradient penalty.

    The data are looked for in the cache, then fetched.

    Example:
        genprior train mnist --out runs/mnist --width 64 --steps 8000
    """

    data: Path | None = None
    """Folder with the four IDX files, raw or gzipped, instead of the cache."""

    def run(self) -> None:
        """Do it."""
        devices = self.prepare()
        test = data.mnist("test", self.data)
        self.train(devices, data.mnist("train", self.data), _measure(test, 100, judged=True))


@dataclass(frozen=True, kw_only=True)
class TrainFashion(GeneratorTraining):
    """Train a generator of Fashion-MNIST pictures as a Wasserstein GAN with gradient penalty.

    Example:
        genprior train fashion-mnist --out runs/fashion
    """

    data: Path | None = None
    """Folder with the four IDX files, raw or gzipped, instead of the cache."""

    def run(self) -> None:
        """Do it."""
        devices = self.prepare()
        test = data.fashion_mnist("test", self.data)
        self.train(devices, data.fashion_mnist("train", self.data), _measure(test, 100))


FACES = WganSettings(
    network="residual-generator",
    width=24,
    critic_width=32,
    batch=32,
    warm_steps=6000,
    steps=8000,
    variance=0.02,
)


@dataclass(frozen=True, kw_only=True)
class TrainFolder(GeneratorTraining):
    """Train a generator of 64 x 64 pictures on a folder, tar or zip of image files.

    Each is cropped to its central square and resized; broken files are counted and skipped.

    Example:
        genprior train folder --data pictures.zip --out runs/mine --hold-out 500
    """

    data: Path
    """Folder, tar or zip of images."""
    channels: int = 3
    """3 for colour, 1 for grey."""
    hold_out: int = 0
    """Number of pictures at the end, by name, that are not trained on but measured."""
    limit: int | None = None
    """Read only the first so many pictures by name."""
    licence: str = "unknown"
    """Licence of the pictures, for the model card."""
    weights_licence: str = ""
    """Licence of the weights, for the model card."""
    settings: Annotated[WganSettings, Flat] = field(default_factory=lambda: FACES)

    def run(self) -> None:
        """Do it."""
        _validate.whole("hold_out", self.hold_out, 0)
        devices = self.prepare()
        everything = self.image_files(self.data, devices, side=64, channels=self.channels, limit=self.limit)
        kept, test = _held_out(dataclasses.replace(everything, licence=self.licence), self.hold_out)
        self.train(devices, kept, _measure(test, 50) if len(test) else None)

    def facts(self, trained: Trained) -> dict[str, Any]:
        """Also what was left out, and the licence of the weights."""
        more: dict[str, Any] = {"hold_out": self.hold_out, "weights_licence": self.weights_licence}
        return super().facts(trained) | more | ({} if self.limit is None else {"limit": self.limit})


@dataclass(frozen=True, kw_only=True)
class TrainCeleba(TrainFolder):
    """Train a generator of faces on your copy of CelebA (aligned images: a folder, tar or zip).

    CelebA may be used for non-commercial research only, and so may the weights trained on it.

    Example:
        genprior train celeba --data img_align_celeba.zip --out runs/celeba
    """

    hold_out: int = 500
    """Number of pictures at the end, by name, that are not trained on but measured."""
    licence: str = "CelebA agreement: non-commercial research only"
    """Licence of the pictures, for the model card."""
    weights_licence: str = "non-commercial research only, as the data"
    """Licence of the weights, for the model card."""


@dataclass(frozen=True, kw_only=True)
class TrainClassifier(Training):
    """Train a standard convolutional classifier on clean MNIST digits.

    Example:
        genprior train classifier --out runs/classifier
    """

    data: Path | None = None
    """Folder with the four IDX files, raw or gzipped, instead of the cache."""
    settings: Annotated[ClassifierSettings, Flat] = field(default_factory=ClassifierSettings)

    def run(self) -> None:
        """Do it."""
        devices = self.prepare()
        pictures, test = data.mnist("train", self.data), data.mnist("test", self.data)
        self.course(ClassifierTask(self.settings, pictures, test, self.seed, devices.device), devices)


@dataclass(frozen=True, kw_only=True)
class TrainEncoder(Training):
    """Train an encoder for a generator: pictures (or measurements of them) to latents, for warm starts.

    Example:
        genprior train encoder --generator mnist --out runs/encoder
        genprior train encoder --generator mnist --measurements 392 --out runs/encoder-392
    """

    generator: str = "mnist"
    """Name of a bundled generator, or a path to weights."""
    data: Path | None = None
    """The pictures that the generator was trained on: a folder with IDX files, or any folder, tar or zip of images."""
    hold_out: int | None = None
    """Number of pictures at the end that are not trained on; by default as many as the generator's training left out."""
    measurements: int | None = None
    """Encode the back-projection of so many Gaussian measurements instead of the picture."""
    measurements_seed: int = 0
    """Seed of the Gaussian operator."""
    start: str | None = None
    """Name of a bundled encoder or path of one to start from, of the same width."""
    settings: Annotated[EncoderSettings, Flat] = field(default_factory=EncoderSettings)

    def run(self) -> None:
        """Do it."""
        devices = self.prepare()
        generator = load_generator(self.generator, device=devices.device)
        operator = None
        if self.measurements is not None:
            shape, seed = generator.signal_shape, self.measurements_seed
            operator = Gaussian(self.measurements, shape, seed=seed, device=devices.device)
        start = None if self.start is None else load_encoder(self.start)
        told = load_network(find(self.generator, "generator")).facts
        facts = {name: told[name] for name in ("data_licence", "weights_licence") if told.get(name)}
        pictures = None
        if self.settings.own_samples < 1:
            facts |= self._left_out(told)
            everything = self._pictures(generator, str(told.get("data")), facts.get("limit"), devices)
            pictures, _ = _held_out(everything, facts.get("hold_out", 0))
        if self.start is not None:
            facts["earlier"] = parts_of(load_network(find(self.start, "encoder")).facts)
        self.course(EncoderTask(self.settings, generator, pictures, self.seed, operator, start, facts), devices)

    def _left_out(self, told: dict[str, Any]) -> dict[str, int]:
        """What of the data the generator has not seen, as its file tells, and the encoder must not see either."""
        left: dict[str, int] = {name: int(told[name]) for name in ("hold_out", "limit") if name in told}
        if self.hold_out is not None:
            left["hold_out"] = _validate.whole("hold_out", self.hold_out, 0)
        return left

    def _pictures(self, generator: Generator, name: str, limit: int | None, devices: Devices) -> ImageSet:
        """The data that the generator's file names, or those that were given."""
        known = {"mnist": data.mnist, "fashion-mnist": data.fashion_mnist}
        if name in known and generator.signal_shape == _DIGITS:  # a folder of any pictures may have such a name too
            return known[name]("train", self.data)
        if self.data is None:
            raise ValueError(
                f"data must be given: the generator was trained on {name!r}, which has to be a folder, tar or zip of "
                "images; or give --own-samples 1"
            )
        channels, _, side = generator.signal_shape
        return self.image_files(self.data, devices, side=side, channels=channels, limit=limit)


def _held_out(everything: ImageSet, count: int) -> tuple[ImageSet, ImageSet]:
    """All but the last ``count`` pictures, and those."""
    if count >= len(everything):
        raise ValueError(f"hold_out must be below the number of pictures, {len(everything)}, got {count}")
    kept = len(everything) - count
    return everything.part(0, kept), everything.part(kept)


def _measure(test: ImageSet, count: int, *, judged: bool = False) -> Measure:
    """Figures on the first ``count`` pictures; the bundled classifier judges where there is one."""

    def figures(generator: Generator) -> dict[str, Any]:
        classifier = None
        if judged and has_bundled("mnist", "classifier"):
            classifier = load_classifier("mnist", device=generator.device)
        pictures = test.batch(torch.arange(min(count, len(test))), generator.device)
        return measure(generator, pictures, classifier)

    return figures
