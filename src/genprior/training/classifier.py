"""Training of the classifier: cross-entropy on clean images, no augmentation."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from genprior import _batch, _validate
from genprior.models.classifiers import ConvClassifier
from genprior.models.saved import Saved, save_network
from genprior.models.seeded import own_randomness, seeded
from genprior.training.data import ImageSet
from genprior.training.draw import Draw
from genprior.training.task import Devices, Task, set_rate


@dataclass(frozen=True)
class ClassifierSettings:
    """Sizes and duration of a training."""

    width: int = 32
    """Channels of the first convolution; the second has twice as many."""
    hidden: int = 256
    """Width of the dense layer."""
    batch: int = 128
    """Images per step."""
    steps: int = 3300
    """Steps; 469 are one pass through MNIST."""
    rate: float = 2e-3
    """Peak learning rate of AdamW, reached after 30% of the steps."""
    decay: float = 1e-2
    """Weight decay."""

    def __post_init__(self) -> None:
        for name in ("width", "hidden", "batch", "steps"):
            _validate.whole(name, getattr(self, name))
        _validate.number("rate", self.rate, above=0)
        _validate.number("decay", self.decay, least=0)


class ClassifierTask(Task):
    """The training of a classifier, tested on other images."""

    columns = ("loss", "accuracy")

    def __init__(
        self,
        settings: ClassifierSettings,
        images: ImageSet,
        test: ImageSet,
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        if images.labels is None or test.labels is None:
            raise ValueError(f"images must have labels to train a classifier, but {images.name} has none")
        self.settings, self.images, self.test = settings, images, test
        self.steps, self.batch = settings.steps, settings.batch
        self._labels: Tensor = images.labels
        self._test_labels: Tensor = test.labels
        self._shape = {
            "classes": int(images.labels.max()) + 1,
            "width": settings.width,
            "hidden": settings.hidden,
        }
        self.network = seeded(lambda: ConvClassifier(**self._shape), _validate.seed(seed)).to(device)
        self.network.eval()
        self.networks = {"classifier": self.network}
        self.optimisers = {
            "classifier": torch.optim.AdamW(self.network.parameters(), weight_decay=settings.decay, fused=True)
        }

    def identity(self) -> list[object]:
        """Settings and data."""
        return [self.settings, self.images.bytes, self._labels]

    def step(self, number: int, draw: Draw, devices: Devices) -> dict[str, Tensor]:
        """One batch."""
        set_rate(self.optimisers["classifier"], self.settings.rate * _up_and_down(number / self.steps))
        place = draw.index(self.batch, len(self.images))
        labels = self._labels[place].to(draw.device)
        self.network.train()
        with devices.fabric.autocast(), own_randomness(draw.random, draw.device):  # dropout draws
            logits = self.network(self.images.batch(place, draw.device))
            loss = nn.functional.cross_entropy(logits, labels)
        devices.update(loss, self.optimisers.values())
        self.network.eval()
        return {"loss": loss, "accuracy": (logits.argmax(1) == labels).float().mean()}

    def accuracy(self) -> float:
        """Accuracy on the test images."""
        place = next(self.network.parameters()).device
        parts = _batch.pieces(torch.arange(len(self.test)), 500)
        with torch.no_grad():
            guess = [self.network(self.test.batch(part, place)).argmax(1).cpu() for part in parts]
        return float((torch.cat(guess) == self._test_labels).double().mean())

    def finish(self, folder: Path, facts: dict[str, Any]) -> list[Path]:
        """Save the classifier."""
        facts = facts | {
            "data": self.images.name,
            "data_licence": self.images.licence,
            "training": dataclasses.asdict(self.settings),
            "test_accuracy": self.accuracy(),
            "test_size": len(self.test),
        }
        path = folder / "classifier.safetensors"
        save_network(path, Saved("conv-classifier", self._shape, self.network, facts))
        return [path]


def _up_and_down(share: float, peak: float = 0.3) -> float:
    """A triangle: up to one at ``peak``, then down to zero."""
    return 0.04 + 0.96 * (share / peak if share < peak else (1 - share) / (1 - peak))
