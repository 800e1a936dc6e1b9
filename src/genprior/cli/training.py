"""Options and steps of all ``genprior train ...`` commands."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from rich.console import Console
from rich.text import Text

from genprior import _validate
from genprior._files import make_folder
from genprior._progress import Bar
from genprior.cli.machine import Machine
from genprior.cli.speech import Output, print_json, typed_command
from genprior.cli.threads import Watch
from genprior.generators import Generator
from genprior.models.bundled import load_generator
from genprior.models.saved import add_facts
from genprior.report.losses import draw_losses
from genprior.training import data
from genprior.training.card import write_card
from genprior.training.data import ImageSet
from genprior.training.loop import Schedule, Trained, train
from genprior.training.start import recorded_threads
from genprior.training.task import Devices, Task
from genprior.training.wgan import Wgan, WganSettings

Measure = Callable[[Generator], dict[str, Any]]
Flat = tyro.conf.arg(name="")


@dataclass(frozen=True, kw_only=True)
class Training(Machine):
    """Options and steps of every training."""

    out: Path
    """Folder for checkpoint, loss curve, samples, weights and model card. Give the same folder again to resume."""
    seed: int = 0
    """Seed of initial weights, batches and latents."""
    devices: int = 1
    """Number of devices; each takes a share of the batch."""
    precision: Literal["32-true", "bf16-mixed"] = "32-true"
    """Precision of the passes; bf16-mixed is faster on hardware that supports it."""
    checkpoint_seconds: float = 60.0
    """Time between two checkpoints."""
    checkpoint_steps: int | None = None
    """Steps between two checkpoints, instead of seconds."""
    sheet_steps: int = 500
    """Steps between two sheets of samples."""

    def prepare(self) -> Devices:
        """Detect errors now rather than after hours of training."""
        self.settle()
        _validate.whole("devices", self.devices)
        _check_writable(self.out)
        try:
            return Devices(self.device, self.devices, self.precision)
        except ModuleNotFoundError as problem:
            raise RuntimeError(
                f"training needs the extra 'train' ({problem}): pip install 'genprior[train]', or '.[train]' in a copy of the "
                "repository"
            ) from None

    def image_files(self, path: Path, devices: Devices, *, side: int, channels: int, limit: int | None) -> ImageSet:
        """Read a folder, tar or zip of images; show the progress and report skipped files."""
        with Bar("reading images", None, visible=False if self.json or devices.rank else None) as bar:
            found = data.image_files(
                path,
                side=side,
                channels=channels,
                limit=limit,
                on_read=lambda count: bar.show(count, None, str(count)),
            )
        if found.skipped and not devices.rank:
            message = f"{len(found.skipped)} files could not be read and were skipped, first {found.skipped[0]}"
            Console(stderr=True).print(Text(message), soft_wrap=True)
        return found

    def course(
        self, task: Task, devices: Devices, *, start: Path | None = None, measure: Measure | None = None
    ) -> None:
        """Train, save, then measure, so that an error in measuring cannot lose the weights."""
        schedule = Schedule(self.checkpoint_seconds, self.checkpoint_steps, self.sheet_steps)
        provenance = {"command": typed_command(), "seed": self.seed, "training": asdict(task.settings)}
        fixed = self.threads is not None or devices.world > 1 or devices.device.type != "cpu"
        watch = Watch(fixed=fixed)
        if not fixed:  # a pass of the digits stands for those of the networks
            watch.begin(load_generator("mnist"), recorded_threads(self.out))

        def show(step: int, losses: dict[str, float]) -> None:
            watch.look()
            bar.show(step, task.steps, _losses(losses))

        visible = False if self.json or devices.rank else None
        with Bar("training", task.steps, visible=visible, every=60.0, counts=True, remaining=True) as bar:
            trained = train(
                task,
                self.out,
                seed=self.seed,
                devices=devices,
                schedule=schedule,
                start=start,
                provenance=provenance,
                show=show,
            )
        if devices.rank:
            return
        facts = self.facts(trained)
        task.save_samples(self.out, "samples")
        draw_losses(trained.columns, trained.curve, self.out / "curve.png")
        files = task.finish(self.out, facts)
        if measure is not None:
            with Bar("measuring the quality of the generator", None, visible=False if self.json else None):
                facts["quality"] = measure(load_generator(files[0], device=devices.device))
            add_facts(files[0], {"quality": facts["quality"]})
        self._report(files + [write_card(path) for path in files], facts)

    def facts(self, trained: Trained) -> dict[str, Any]:
        """Facts about the run, for the model card."""
        return {
            "command": typed_command(),
            "seed": self.seed,
            "hours": round(trained.seconds / 3600, 2),
            "device": self.device,
            "precision": self.precision,
            "threads": trained.threads[-1] if trained.threads else torch.get_num_threads(),
            **({"other_threads": list(trained.threads[:-1])} if trained.threads[:-1] else {}),
            "torch": torch.__version__,
            **({"earlier": trained.earlier} if trained.earlier else {}),
        }

    def _report(self, files: list[Path], facts: dict[str, Any]) -> None:
        if self.json:
            print_json({"files": [str(path) for path in files], **facts})
            return
        for path in files:
            Output().print(Text.assemble(("wrote ", "bold"), str(path)), soft_wrap=True)


@dataclass(frozen=True, kw_only=True)
class GeneratorTraining(Training):
    """Options of every training of a generator."""

    start: Path | None = None
    """Folder or checkpoint of an earlier run, finished or not, whose networks are the initial weights."""
    settings: Annotated[WganSettings, Flat] = field(default_factory=WganSettings)

    def train(self, devices: Devices, pictures: ImageSet, measure: Measure | None) -> None:
        """Train on images."""
        task = Wgan(self.settings, pictures, self.seed, devices.device)
        self.course(task, devices, start=self.start, measure=measure)


def _check_writable(folder: Path) -> None:
    make_folder(folder)
    probe = folder / f".writable-{os.getpid()}"
    probe.write_bytes(b"")
    probe.unlink(missing_ok=True)


def _losses(losses: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in losses.items() if not math.isnan(value))
