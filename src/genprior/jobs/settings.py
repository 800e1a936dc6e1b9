"""Settings of jobs, as plain values, validated before any work."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from torch import nn

from genprior import _validate
from genprior.defence.projection import Norm, Projection, named_solver
from genprior.files.remote import shown
from genprior.generators import Generator
from genprior.models.foreign import Opened, open_with_notes
from genprior.models.foreign_classifiers import open_classifier
from genprior.models.ranges import Range
from genprior.solvers.registry import solver_named

LOSSES = ("l2", "l1", "linf")
DEFAULT_STEPS = 1000
_UNLIMITED = 10**9


@dataclass(frozen=True, kw_only=True)
class Source:
    """A generator: the arguments of :func:`genprior.models.foreign.open_generator`."""

    generator: str = "mnist"
    weights: str | None = None
    latent_shape: tuple[int, ...] | None = None
    signal_range: Range | None = None
    label: int | None = None
    """Class for every item."""
    labels: str | None = None
    """A .npy file with one class per item."""

    def __post_init__(self) -> None:
        if self.label is not None and self.labels is not None:
            raise ValueError(
                "`label` and `labels` were both given: give one class for all items, or a file with one class per item"
            )

    def open(self, device: str = "cpu", seconds: float | None = None) -> Opened:
        """The generator, with notes on what was detected, from fewer samples if ``seconds`` are short."""
        return open_with_notes(
            self.generator,
            self.weights,
            latent_shape=self.latent_shape,
            signal_range=self.signal_range,
            label=self.label,
            device=device,
            seconds=seconds,
        )


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """A classifier: the arguments of :func:`genprior.models.foreign_classifiers.open_classifier`."""

    classifier: str = "mnist"
    weights: str | None = None

    def open(self, signal_shape: tuple[int, ...], device: str = "cpu") -> nn.Module:
        """The module, of signals of this shape."""
        return open_classifier(self.classifier, self.weights, signal_shape=signal_shape, device=device)


@dataclass(frozen=True, kw_only=True)
class Defence:
    """A defence by projection: inputs, networks, how they are projected, outputs."""

    inputs: tuple[str, ...]
    out: Path
    source: Source = field(default_factory=Source)
    classifier: Classifier = field(default_factory=Classifier)
    labels: Path | None = None
    """A .npy file with the true class of every image."""
    norm: Norm = "linf"
    solver: str = "admm"
    """``admm``, ``auto``, ``adam`` or ``gd``."""
    steps: int = 300
    restarts: int = 4
    batch_size: int = 100
    seed: int = 0
    device: str = "cpu"
    resize: bool = False
    skip: bool = False
    pictures: int = 24
    """Largest number of items shown in the report."""

    def __post_init__(self) -> None:
        named_solver(self.solver, self.norm)
        for name in ("steps", "restarts", "batch_size"):
            _validate.whole(name, getattr(self, name))
        _validate.whole("pictures", self.pictures, 0)
        _validate.seed(self.seed)

    @property
    def time(self) -> None:
        """None: the steps are the limit."""
        return

    def projection(self, generator: Generator) -> Projection:
        """What is done with each image."""
        return Projection(
            generator,
            self.norm,
            named_solver(self.solver, self.norm),
            self.steps,
            restarts=self.restarts,
            batch_size=self.batch_size,
            seed=self.seed,
        )


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """A recovery job: inputs, measurements, solver, outputs.

    ``time`` is for the whole job: the time left is shared among the batches left. Without it, ``steps`` (by default
    1000) limit every batch.
    """

    inputs: tuple[str, ...]
    out: Path
    source: Source = field(default_factory=Source)
    operator: str = "identity"
    forward: str | None = None
    """Python code in place of an operator, ``my_physics.py:forward``: measurements that are not linear."""
    simulate: bool = False
    """Inputs are whole signals: simulate their measurements, and report the true error."""
    noise: float = 0.0
    """Standard deviation of the noise added in a simulation; 0 with a ``noise_level``: that."""
    noise_level: float | None = None
    """Standard deviation of the noise of the measurements, by which the generator's latent distribution is weighed; None: not
    known, and estimated afterwards where the measurements are many enough."""
    compare: bool = False
    """Whether lasso and total variation, without a generator, are given the same measurements."""
    loss: str = "l2"
    box: tuple[float, float] | None = None
    latent_ball: float | None = None
    deviation: float | str | None = None
    """Weight of a deviation from the generator's range, or "auto"; None: no deviation, or with a basis "auto"."""
    basis: str | None = None
    """In which the deviation is sparse; None: the identity."""
    solver: str = "auto"
    restarts: int | None = None
    """Starts per item; None: as many as pay."""
    start: str | None = None
    """A file of ``genprior train encoder``, whose guess is one more candidate for the start of each item."""
    time: float | None = None
    steps: int | None = None
    patience: int | None = None
    """Steps without progress after which an item counts as stalled and stops."""
    settle_after: int = 20
    """As for :func:`genprior.solve`."""
    batch_size: int = 64
    seed: int = 0
    device: str = "cpu"
    resize: bool = False
    skip: bool = False
    pictures: int = 16
    """Largest number of items shown in the report."""

    def __post_init__(self) -> None:
        _validate.number("noise", self.noise, least=0)
        if self.noise and not self.simulate:
            raise ValueError("`noise` is only used in simulations: add `simulate=True`, or leave it out")
        self._check_loss()
        _check_forward(self.forward, self.operator, self.loss, self.start)
        if self.compare and self.forward is not None:
            raise ValueError("`compare` needs a linear operator, got a `forward` model: leave one of them out")
        if self.latent_ball is not None:
            _validate.number("latent_ball", self.latent_ball, above=0)
        self._check_deviation()
        if self.time is not None:
            _validate.number("time", self.time, above=0)
        if self.steps is not None:
            _validate.whole("steps", self.steps)
        if self.patience is not None:
            _validate.whole("patience", self.patience)
        _validate.whole("settle_after", self.settle_after, 0)
        solver_named(self.solver)
        if self.restarts is not None:
            _validate.whole("restarts", self.restarts)
        _check_start(self.start, self.source, self.restarts)
        _validate.whole("batch_size", self.batch_size)
        _validate.whole("pictures", self.pictures, 0)
        _validate.seed(self.seed)

    def _check_loss(self) -> None:
        """The loss, and what works only with l2."""
        if self.loss not in LOSSES:
            raise ValueError(f"loss must be one of {', '.join(LOSSES)}, got {self.loss!r}")
        if self.noise_level is not None:
            _validate.number("noise_level", self.noise_level, above=0)
            if self.loss != "l2":
                raise ValueError(
                    f"noise_level works only with the loss l2, got {self.loss!r}: it is that of normal noise"
                )
        if self.box is not None and not self.box[0] < self.box[1]:
            raise ValueError(f"box must be a lower and an upper bound, got {self.box[0]:g} and {self.box[1]:g}")
        if self.box is not None and self.loss != "l2":
            raise ValueError(f"box works only with the loss l2, got {self.loss!r}: both would be terms on the signal")
        if self.compare and self.loss != "l2":
            raise ValueError(
                f"`compare` works only with the loss l2, got {self.loss!r}: both methods are fitted by least squares"
            )

    @property
    def simulated_noise(self) -> float:
        """Standard deviation of the noise that a simulation adds."""
        return self.noise or self.noise_level or 0.0

    @property
    def known_noise(self) -> float:
        """The noise of the measurements, where it is known: given, or simulated; else 0."""
        return self.simulated_noise if self.simulate else self.noise_level or 0.0

    def _check_deviation(self) -> None:
        weight = self.weight_of_deviation
        if isinstance(weight, str):
            if weight != "auto":
                raise ValueError(f"deviation must be a weight above 0, or auto, got {weight!r}")
            if self.loss != "l2":
                raise ValueError(f"deviation=auto works only with the loss l2, got {self.loss!r}: give its weight")
        elif weight is not None:
            _validate.number("deviation", weight, above=0)

    @property
    def weight_of_deviation(self) -> float | str | None:
        """A number, or "auto"; None: there is no deviation."""
        return "auto" if self.deviation is None and self.basis is not None else self.deviation

    @property
    def most_steps(self) -> int:
        """Largest number of steps per batch."""
        return self.steps or (DEFAULT_STEPS if self.time is None else _UNLIMITED)

    @classmethod
    def of(cls, asked: dict[str, Any], **more: Any) -> Recovery:
        """The inverse of :meth:`asked`; ``more`` is what that leaves out, such as ``out``. Other values are left aside."""
        source = {field.name: asked[field.name] for field in fields(Source)}
        source |= {name: tuple(value) for name, value in source.items() if isinstance(value, list)}
        own = {field.name: asked[field.name] for field in fields(cls) if field.name in asked} | more
        own |= {name: tuple(value) for name, value in own.items() if isinstance(value, list)}
        if own.get("box") is not None:
            own["box"] = tuple(map(float, own["box"]))
        return cls(source=Source(**source), **own)

    def asked(self) -> dict[str, Any]:
        """Everything that determines the outcome, as plain values; not the device or the size of the report.

        An infinite bound is the text ``"inf"``, because JSON has no infinity.
        """
        plain = asdict(self)
        if self.box is not None:
            plain["box"] = [bound if math.isfinite(bound) else str(float(bound)) for bound in self.box]
        for name in ("out", "device", "pictures"):
            del plain[name]
        return {**plain.pop("source"), **plain, "inputs": [shown(given) for given in self.inputs]}


def _check_forward(forward: str | None, operator: str, loss: str, start: str | None) -> None:
    """A forward model stands in place of the operator, and has its own loss."""
    if forward is None:
        return
    if operator != "identity":
        raise ValueError(
            "`operator` and `forward` were both given: give one of them; forward may apply the operator itself"
        )
    if loss != "l2":
        raise ValueError(f"`forward` goes with the loss l2, got {loss!r}, which compares whole images")
    if start is not None:
        raise ValueError(
            "`start` and `forward` were both given, but an encoder is trained for an operator: leave one out"
        )


def _check_start(start: str | None, source: Source, restarts: int | None) -> None:
    """An encoder is made for one module, and that of a conditional generator is another one for each class."""
    if start is not None and source.labels is not None:
        raise ValueError(
            "`start` and `labels` were both given, but an encoder is made for one class: solve the classes one by one, "
            "each with `label` and an encoder of its own, or leave out `start`"
        )
    if start is not None and restarts == 1:
        raise ValueError(
            "`start` adds a candidate behind the nearest sample, and `restarts=1` leaves no room for it: leave `restarts` out "
            "or give at least 2"
        )
