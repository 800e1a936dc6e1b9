"""``genprior train ...``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from rich.console import Console
from rich.text import Text

from genprior import _validate
from genprior.cli.speech import check_device, print_json, typed_command
from genprior.networks.bundled import load_classifier, load_encoder, load_generator
from genprior.networks.saved import load_network
from genprior.operators import Gaussian
from genprior.report.losses import draw_losses
from genprior.training import data
from genprior.training.card import write_card
from genprior.training.classifier import ClassifierSettings, ClassifierTask
from genprior.training.data import Pictures
from genprior.training.encoder import EncoderSettings, EncoderTask
from genprior.training.loop import Bar, Schedule, Trained, start_from, train
from genprior.training.task import Devices, Task
from genprior.training.wgan import Wgan, WganSettings


@dataclass(frozen=True, kw_only=True)
class _Train:
    """What all trainings have in common."""

    out: Path
    """Folder for checkpoint, loss curve, samples, weights and card. Give the same folder again to go on."""
    seed: int = 0
    """Seed of first weights, batches and latents."""
    device: str = "cpu"
    """Device for torch: cpu, cuda, cuda:1, mps."""
    devices: int = 1
    """Number of devices; each takes a share of the batch."""
    precision: Literal["32-true", "bf16-mixed"] = "32-true"
    """Of the passes; bf16-mixed pays on hardware that has it."""
    threads: int | None = None
    """Threads for torch; its own choice by default."""
    checkpoint_seconds: float = 60.0
    """Time between two checkpoints."""
    checkpoint_steps: int | None = None
    """Steps between two checkpoints, instead of seconds."""
    sheet_steps: int = 500
    """Steps between two sheets of samples."""
    json: bool = False
    """Print one JSON document instead of text."""

    def _run(self, make: Callable[[Devices], Task], quality: Callable[[Task], dict[str, Any]] | None = None) -> None:
        check_device(self.device)
        _validate.whole("devices", self.devices)
        _writable(self.out)
        if self.threads is not None:
            torch.set_num_threads(_validate.whole("threads", self.threads))
        devices = _devices(self.device, self.devices, self.precision)
        task = make(devices)
        schedule = Schedule(self.checkpoint_seconds, self.checkpoint_steps, self.sheet_steps)
        with Bar(task.steps, quiet=self.json or devices.rank > 0) as bar:
            trained = train(task, self.out, seed=self.seed, devices=devices, schedule=schedule, show=bar)
        if devices.rank == 0:
            self._finish(task, trained, quality)

    def _facts(self, trained: Trained) -> dict[str, Any]:
        return {
            "command": typed_command(),
            "seed": self.seed,
            "hours": round(trained.seconds / 3600, 2),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        }

    def _finish(self, task: Task, trained: Trained, quality: Callable[[Task], dict[str, Any]] | None) -> None:
        facts = self._facts(trained)
        task.picture(self.out, "samples")
        draw_losses(trained, self.out / "curve.png")
        if quality is not None:
            facts["quality"] = quality(task)
        files = task.finish(self.out, facts)
        files += [write_card(path) for path in files]
        if self.json:
            print_json({"files": [str(path) for path in files], **facts})
            return
        for path in files:
            Console().print(Text.assemble(("wrote ", "bold"), str(path)), soft_wrap=True)


def _devices(device: str, count: int, precision: str) -> Devices:
    try:
        return Devices(device, count, precision)
    except ModuleNotFoundError as problem:
        raise RuntimeError(f"training needs the extra 'train' ({problem}): pip install 'genprior[train]'") from None


def _writable(folder: Path) -> None:
    """Find out now, not after hours, whether the folder can be written."""
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / ".writable"
    probe.write_bytes(b"")
    probe.unlink()


Flat = tyro.conf.arg(name="")


@dataclass(frozen=True, kw_only=True)
class _TrainGenerator(_Train):
    """What all trainings of generators have in common."""

    start: Path | None = None
    """Folder of an earlier run whose networks are the first weights, to go on with other settings."""
    settings: Annotated[WganSettings, Flat] = field(default_factory=WganSettings)

    def _train(self, pictures: Pictures, quality: Callable[[Wgan], dict[str, Any]] | None) -> None:
        def make(devices: Devices) -> Wgan:
            task = Wgan(self.settings, pictures, self.seed, devices.device)
            if self.start is not None:
                start_from(task, self.start)
            return task

        measure = None if quality is None else (lambda task: quality(task) if isinstance(task, Wgan) else {})
        self._run(make, measure)

    def _facts(self, trained: Trained) -> dict[str, Any]:
        """Also what the earlier run was, as far as its folder tells."""
        facts = super()._facts(trained)
        weights = None if self.start is None else self.start / "generator.safetensors"
        if weights is None or not weights.is_file():
            return facts
        before = load_network(weights).facts
        told = {name: before[name] for name in ("command", "seed", "hours", "training") if name in before}
        return facts | {"earlier": [*before.get("earlier", []), told]}


@dataclass(frozen=True, kw_only=True)
class TrainMnist(_TrainGenerator):
    """Train a generator of MNIST digits as a Wasserstein GAN with gradient penalty.

    The data are looked for in the cache, then fetched. Example:

        genprior train mnist --out runs/mnist --width 64 --steps 8000
    """

    data: Path | None = None
    """Folder with the four IDX files, raw or gzipped, instead of the cache."""

    def run(self) -> None:
        """Do it."""
        test = data.mnist("test", self.data)
        self._train(data.mnist("train", self.data), lambda task: _judged(task, test))


@dataclass(frozen=True, kw_only=True)
class TrainFashion(_TrainGenerator):
    """Train a generator of Fashion-MNIST pictures as a Wasserstein GAN with gradient penalty.

    Example:
        genprior train fashion-mnist --out runs/fashion
    """

    data: Path | None = None
    """Folder with the four IDX files, raw or gzipped, instead of the cache."""

    def run(self) -> None:
        """Do it."""
        test = data.fashion_mnist("test", self.data)
        self._train(data.fashion_mnist("train", self.data), lambda task: _covered(task, test, 100))


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
class TrainFolder(_TrainGenerator):
    """Train a generator of 64 x 64 pictures on a folder, tar or zip of image files.

    Each is cropped to its central square and resized; broken files are counted and skipped. Example:

        genprior train folder --data pictures.zip --out runs/mine --hold-out 500
    """

    data: Path
    """Folder, tar or zip of images."""
    channels: int = 3
    """3 for colour, 1 for grey."""
    hold_out: int = 0
    """Number of pictures at the end, by name, that are not trained on but measured."""
    limit: int | None = None
    """Read at most so many pictures."""
    licence: str = "unknown"
    """Licence of the pictures, for the model card."""
    settings: Annotated[WganSettings, Flat] = field(default_factory=lambda: FACES)

    def run(self) -> None:
        """Do it."""
        everything = data.image_files(self.data, side=64, channels=self.channels, limit=self.limit)
        everything = dataclasses.replace(everything, licence=self.licence)
        if everything.skipped:
            message = (
                f"{len(everything.skipped)} files could not be read and were skipped, first {everything.skipped[0]}"
            )
            Console(stderr=True).print(Text(message), soft_wrap=True)
        _validate.whole("hold_out", self.hold_out, 0)
        if self.hold_out >= len(everything):
            raise ValueError(f"hold_out must be below the number of pictures, {len(everything)}, got {self.hold_out}")
        kept = len(everything) - self.hold_out
        pictures, test = everything.part(0, kept), everything.part(kept)
        self._train(pictures, (lambda task: _covered(task, test, 50)) if len(test) else None)


@dataclass(frozen=True, kw_only=True)
class TrainCeleba(TrainFolder):
    """Train a generator of faces on your copy of CelebA (aligned images: a folder, tar or zip).

    CelebA may be used for non-commercial research only, and so may the weights trained on it. Example:

        genprior train celeba --data img_align_celeba.zip --out runs/celeba
    """

    hold_out: int = 500
    """Number of pictures at the end, by name, that are not trained on but measured."""
    licence: str = "CelebA agreement: non-commercial research only"
    """Licence of the pictures, for the model card."""


@dataclass(frozen=True, kw_only=True)
class TrainClassifier(_Train):
    """Train a standard convolutional classifier on clean MNIST digits.

    Example:
        genprior train classifier --out runs/classifier
    """

    data: Path | None = None
    """Folder with the four IDX files, raw or gzipped, instead of the cache."""
    settings: Annotated[ClassifierSettings, Flat] = field(default_factory=ClassifierSettings)

    def run(self) -> None:
        """Do it."""
        pictures, test = data.mnist("train", self.data), data.mnist("test", self.data)
        self._run(lambda devices: ClassifierTask(self.settings, pictures, test, self.seed, devices.device))


@dataclass(frozen=True, kw_only=True)
class TrainEncoder(_Train):
    """Train an encoder for a generator: pictures (or measurements of them) to latents, for warm starts.

    Example:
        genprior train encoder --generator mnist --out runs/encoder
        genprior train encoder --generator mnist --measurements 392 --out runs/encoder-392
    """

    generator: str = "mnist"
    """Name of a bundled generator, or a path to weights."""
    data: Path | None = None
    """Folder with the IDX files for a generator of digits, or any folder, tar or zip of images; MNIST is found by itself."""
    measurements: int | None = None
    """Encode the back-projection of so many Gaussian measurements instead of the picture."""
    measurements_seed: int = 0
    """Seed of the Gaussian operator."""
    start: str | None = None
    """Name of a bundled encoder or path of one to start from, of the same width."""
    settings: Annotated[EncoderSettings, Flat] = field(default_factory=EncoderSettings)

    def run(self) -> None:
        """Do it."""
        self._run(self._task)

    def _task(self, devices: Devices) -> EncoderTask:
        generator = load_generator(self.generator, device=devices.device)
        operator = None
        if self.measurements is not None:
            shape, seed = generator.signal_shape, self.measurements_seed
            operator = Gaussian(self.measurements, shape, seed=seed, device=devices.device)
        start = None if self.start is None else load_encoder(self.start)
        return EncoderTask(self.settings, generator, self._pictures(generator.signal_shape), self.seed, operator, start)

    def _pictures(self, shape: tuple[int, ...]) -> Pictures | None:
        if self.settings.own_samples == 1:
            return None
        if shape == (1, 28, 28) and self.generator != "fashion-mnist":
            return data.mnist("train", self.data)
        if self.generator == "fashion-mnist":
            return data.fashion_mnist("train", self.data)
        if self.data is None:
            raise ValueError(
                "data must be given for this generator: a folder, tar or zip of images, or --own-samples 1"
            )
        return data.image_files(self.data, side=shape[-1], channels=shape[0])


def _judged(task: Wgan, test: Pictures) -> dict[str, Any]:
    from genprior.training.quality import judge  # noqa: PLC0415

    figures = _covered(task, test, 100)
    try:
        classifier = load_classifier("mnist", device=task.pictures.bytes.device)
    except ValueError:  # not bundled (yet): the figure is left out
        return figures
    return figures | {"judged": dataclasses.asdict(judge(task.wrapped(), classifier))}


def _covered(task: Wgan, test: Pictures, count: int) -> dict[str, Any]:
    from genprior.training.quality import cover  # noqa: PLC0415

    generator = task.wrapped()
    figures, _ = cover(generator, test.batch(torch.arange(min(count, len(test))), generator.device))
    return {"coverage": dataclasses.asdict(figures)}
