"""A defence with its setting, digits and classifier, and a record of its accuracy during the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor, nn

from genprior import samples
from genprior.defence.attacks import ProjectedGradientAttack, predictions
from genprior.defence.projection import Norm, Projection
from genprior.lab.reproduce.contest import Setting, network
from genprior.lab.reproduce.methods import ADAM, AUTO, EXACT, EXACT_ADAM, EXACT_L2, GD
from genprior.models.bundled import load_classifier
from genprior.result import Result
from genprior.solvers import Choice
from genprior.status import Status
from genprior.stopping import View
from genprior.training.data import ImageSet, mnist

NORMS: dict[str, Norm] = {GD: "l2", ADAM: "l2", EXACT: "linf", EXACT_ADAM: "linf", AUTO: "linf", EXACT_L2: "l2"}
ATTACK = ProjectedGradientAttack(size=0.2, step=0.01, steps=30)
_BUNDLED = 300
_PRACTICE_FROM = 9000


def steps_of(setting: Setting, key: str) -> int:
    """The paper's iterations, more for descent than for ADMM."""
    size = setting.size.defence
    return size.descent_steps if key in (GD, ADAM) else size.admm_steps


def digits(setting: Setting, count: int, practice: bool = False) -> tuple[Tensor, Tensor]:
    """MNIST's test digits; others for tuning. The bundled ones if they suffice."""
    if setting.size.defence.pictures + setting.size.defence.tuning_pictures <= _BUNDLED:
        images, labels = samples.digits(_BUNDLED)
        part = slice(_BUNDLED - count, _BUNDLED) if practice else slice(0, count)
        return images[part].to(setting.device), labels[part].to(setting.device)
    start = _PRACTICE_FROM if practice else 0
    index = torch.arange(start, start + count)
    test = _test_digits()
    assert test.labels is not None
    return test.batch(index, setting.device), test.labels[index].to(setting.device)


@lru_cache(maxsize=1)
def _test_digits() -> ImageSet:
    return mnist("test")


@lru_cache(maxsize=1)
def classifier(device: str) -> nn.Module:
    """The bundled one, loaded once."""
    return load_classifier("mnist", device=device).eval().requires_grad_(False)


@dataclass(frozen=True)
class Defender:
    """One defence with its chosen setting."""

    setting: Setting
    key: str
    solver: Choice

    @property
    def classify(self) -> nn.Module:
        """The bundled classifier."""
        return classifier(self.setting.device)

    def starts(self, count: int, first: int = 0) -> Tensor:
        """The same starts for all methods: those of an image do not depend on batches or on the number of images."""
        net = network("mnist", self.setting.device)
        return net.sample_latent(self.setting.size.defence.pictures, seed=4000 + self.setting.seed)[
            first : first + count
        ]

    def project(self, images: Tensor, z0: Tensor, callbacks: tuple[Callable[[View], object], ...] = ()) -> Result:
        """Run all iterations for all images."""
        net = network("mnist", self.setting.device)
        net.forget()
        steps = steps_of(self.setting, self.key)
        projection = Projection(net, NORMS[self.key], self.solver, steps, batch_size=len(images))
        result = projection(images, z0=z0, callbacks=callbacks)
        if Status.INTERRUPTED in result.status:
            raise KeyboardInterrupt  # a run cut short must not count as finished
        return result

    def purifier(self, z0: Tensor) -> Callable[[Tensor], Tensor]:
        """The defence as an attacker knows it: images to images, from these starts."""
        return lambda images: self.project(images, z0).signal


@dataclass
class Snapshots:
    """Predictions for the best iterate by objective, at some steps; the solver's clock stops meanwhile."""

    classify: nn.Module
    labels: Tensor
    steps: tuple[int, ...]
    best: Tensor = field(init=False)
    signals: Tensor | None = None
    rows: list[tuple[int, int, float, int]] = field(default_factory=list)
    each: dict[int, Tensor] = field(default_factory=dict)
    """Which images are classified correctly, by step."""

    def __post_init__(self) -> None:
        self.best = torch.full(self.labels.shape, torch.inf, device=self.labels.device)

    def __call__(self, view: View) -> None:
        """Keep the best iterate, and classify it at the given steps."""
        objective, x = view.state.objective, view.state.x
        if self.signals is None:
            self.signals = x.clone()
        better = objective < self.best[view.items]
        items = view.items[better]
        self.best[items], self.signals[items] = objective[better], x[better]
        if view.step in self.steps:
            self.each[view.step] = predictions(self.classify, self.signals) == self.labels
            right = int(self.each[view.step].sum())
            self.rows.append((view.step, view.forwards + view.backwards, view.seconds, right))
