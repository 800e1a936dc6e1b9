"""``genprior train ...``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from rich.text import Text

from genprior import _validate
from genprior.cli.prior import Prior
from genprior.cli.speech import Output
from genprior.cli.training import Flat, GeneratorTraining, Measure, Training
from genprior.generators import Generator
from genprior.models.bundled import find, has_bundled, load_classifier, load_encoder, load_generator
from genprior.models.foreign import origin
from genprior.models.saved import load_network
from genprior.operators.parse import parse_operator
from genprior.training import data
from genprior.training.classifier import ClassifierSettings, ClassifierTask
from genprior.training.data import ImageSet
from genprior.training.image_encoder import ImageEncoderSettings, ImageEncoderTask
from genprior.training.loop import Trained
from genprior.training.quality import measure
from genprior.training.start import parts_of
from genprior.training.start_encoder import GUESSES, StartEncoderSettings, StartEncoderTask
from genprior.training.task import Devices
from genprior.training.wgan import WganSettings

_DIGITS = (1, 28, 28)
"""Images of MNIST and Fashion-MNIST."""


@dataclass(frozen=True, kw_only=True)
class TrainMnist(GeneratorTraining):
    """Train a generator of MNIST digits as a Wasserstein GAN with gradient penalty.

    The data are taken from the cache, or downloaded.

    Example:
        genprior train mnist --out runs/mnist --width 64 --steps 8000
    """

    data: Path | None = None
    """Folder with the four IDX files, raw or gzipped, instead of the cache."""

    def run(self) -> None:
        """Run the command."""
        devices = self.prepare()
        test = data.mnist("test", self.data)
        self.train(devices, data.mnist("train", self.data), _measure(test, 100, judged=True))


@dataclass(frozen=True, kw_only=True)
class TrainFashion(GeneratorTraining):
    """Train a generator of Fashion-MNIST images as a Wasserstein GAN with gradient penalty.

    Example:
        genprior train fashion-mnist --out runs/fashion
    """

    data: Path | None = None
    """Folder with the four IDX files, raw or gzipped, instead of the cache."""

    def run(self) -> None:
        """Run the command."""
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
    """Train a generator of 64 x 64 images on a folder, tar or zip of image files.

    Each image is cropped to its central square and resized; unreadable files are counted and skipped.

    Example:
        genprior train folder --data pictures.zip --out runs/mine --hold-out 500
    """

    data: Path
    """Folder, tar or zip of images."""
    channels: int = 3
    """3 for colour, 1 for grey."""
    hold_out: int = 0
    """Number of images at the end, by name, that are not trained on but measured."""
    limit: int | None = None
    """Read only this many images, the first by name."""
    licence: str = "unknown"
    """Licence of the images, for the model card."""
    weights_licence: str = ""
    """Licence of the weights, for the model card."""
    settings: Annotated[WganSettings, Flat] = field(default_factory=lambda: FACES)

    def run(self) -> None:
        """Run the command."""
        _validate.whole("hold_out", self.hold_out, 0)
        devices = self.prepare()
        everything = self.image_files(self.data, devices, side=64, channels=self.channels, limit=self.limit)
        kept, test = _held_out(dataclasses.replace(everything, licence=self.licence), self.hold_out)
        self.train(devices, kept, _measure(test, 50) if len(test) else None)

    def facts(self, trained: Trained) -> dict[str, Any]:
        """Also the held-out images and the licence of the weights."""
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
    """Number of images at the end, by name, that are not trained on but measured."""
    licence: str = "CelebA agreement: non-commercial research only"
    """Licence of the images, for the model card."""
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
        """Run the command."""
        devices = self.prepare()
        pictures, test = data.mnist("train", self.data), data.mnist("test", self.data)
        self.course(ClassifierTask(self.settings, pictures, test, self.seed, devices.device), devices)


@dataclass(frozen=True, kw_only=True)
class TrainEncoder(Training, Prior):
    """Train an encoder from measurements to latents, whose guesses genprior recover --start and denoise --start try.

    It learns from the generator's own samples, within minutes, and is for this generator and this operator only.

    Example:
        genprior train encoder --generator mnist --operator gaussian:m=78,seed=0 --out runs/encoder
        genprior recover y.npy --operator gaussian:m=78,seed=0 --start runs/encoder/encoder.safetensors --out recovered
    """

    operator: str = "identity"
    """As in genprior recover, such as gaussian:m=392,seed=0; identity, whole images, for genprior denoise."""
    settings: Annotated[StartEncoderSettings, Flat] = field(default_factory=StartEncoderSettings)

    def run(self) -> None:
        """Run the command."""
        devices = self.prepare()
        generator = self.source().open(str(devices.device)).generator
        shape, dtype = generator.signal_shape, generator.dtype
        operator = parse_operator(self.operator, shape, device=generator.device, dtype=dtype)
        facts = {"generator": self.generator, "measured_by": self.operator} | self._licences()
        self.course(StartEncoderTask(self.settings, generator, operator, self.seed, facts), devices)

    def _report(self, files: list[Path], facts: dict[str, Any]) -> None:
        """Also how well the encoder guesses."""
        super()._report(files, facts)
        if not self.json:
            found = facts["quality"][GUESSES]
            share = found["share_that_fits_better_than_the_whole_pool"]
            own, nearest = found["residual_of_the_guess"], found["residual_of_the_nearest_sample"]
            text = (
                f"of {found['fresh_samples']} fresh samples {share:.0%} are fitted better by the guess than by any of "
                f"{found['pool']} samples; median residual {own:.2g}, of the nearest sample {nearest:.2g}"
            )
            Output().print(Text.assemble(("measured ", "bold"), text), soft_wrap=True)

    def _licences(self) -> dict[str, Any]:
        """Those on record for a generator of genprior train; they hold for what learns from its samples."""
        path = origin(self.generator)
        if path is None or path.suffix != ".safetensors":
            return {}
        return _licences_of(load_network(path).facts)


@dataclass(frozen=True, kw_only=True)
class TrainImageEncoder(Training):
    """Train a convolutional encoder for a bundled generator, or one of genprior train, from images to latents.

    Example:
        genprior train image-encoder --generator mnist --out runs/image-encoder
    """

    generator: str = "mnist"
    """Name of a bundled generator, or a path to weights."""
    data: Path | None = None
    """The images that the generator was trained on: a folder with IDX files, or any folder, tar or zip of images."""
    hold_out: int | None = None
    """Number of images at the end that are not trained on; by default as many as in the generator's training."""
    start: str | None = None
    """Bundled name or path of an encoder of the same width to start from."""
    settings: Annotated[ImageEncoderSettings, Flat] = field(default_factory=ImageEncoderSettings)

    def run(self) -> None:
        """Run the command."""
        devices = self.prepare()
        generator = load_generator(self.generator, device=devices.device)
        start = None if self.start is None else load_encoder(self.start)
        recorded = load_network(find(self.generator, "generator")).facts
        facts = _licences_of(recorded)
        pictures = None
        if self.settings.own_samples < 1:
            facts |= self._left_out(recorded)
            everything = self._pictures(generator, str(recorded.get("data")), facts.get("limit"), devices)
            pictures, _ = _held_out(everything, facts.get("hold_out", 0))
        if self.start is not None:
            facts["earlier"] = parts_of(load_network(find(self.start, "encoder")).facts)
        self.course(ImageEncoderTask(self.settings, generator, pictures, self.seed, start, facts), devices)

    def _left_out(self, recorded: dict[str, Any]) -> dict[str, int]:
        """The data that were held out of the generator's training, as recorded in its file; the encoder holds them out too."""
        left: dict[str, int] = {name: int(recorded[name]) for name in ("hold_out", "limit") if name in recorded}
        if self.hold_out is not None:
            left["hold_out"] = _validate.whole("hold_out", self.hold_out, 0)
        return left

    def _pictures(self, generator: Generator, name: str, limit: int | None, devices: Devices) -> ImageSet:
        """The data named in the generator's file, or those given by the user."""
        known = {"mnist": data.mnist, "fashion-mnist": data.fashion_mnist}
        if name in known and generator.signal_shape == _DIGITS:  # a user's folder may have the same name
            return known[name]("train", self.data)
        if self.data is None:
            raise ValueError(
                f"data must be given: the generator was trained on {name!r}; give its folder, tar or zip of images, or "
                "give --own-samples 1"
            )
        channels, _, side = generator.signal_shape
        return self.image_files(self.data, devices, side=side, channels=channels, limit=limit)


def _licences_of(recorded: dict[str, Any]) -> dict[str, Any]:
    return {name: recorded[name] for name in ("data_licence", "weights_licence") if recorded.get(name)}


def _held_out(everything: ImageSet, count: int) -> tuple[ImageSet, ImageSet]:
    """All but the last ``count`` images, and the last ``count``."""
    if count >= len(everything):
        raise ValueError(f"hold_out must be below the number of images, {len(everything)}, got {count}")
    kept = len(everything) - count
    return everything.part(0, kept), everything.part(kept)


def _measure(test: ImageSet, count: int, *, judged: bool = False) -> Measure:
    """Quality on the first ``count`` images, with the bundled classifier if there is one."""

    def figures(generator: Generator) -> dict[str, Any]:
        classifier = None
        if judged and has_bundled("mnist", "classifier"):
            classifier = load_classifier("mnist", device=generator.device)
        pictures = test.batch(torch.arange(min(count, len(test))), generator.device)
        return measure(generator, pictures, classifier)

    return figures
