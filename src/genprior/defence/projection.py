"""Defence of a classifier by projection: replace each image by the nearest one that the generator can make, then classify.

It removes much of an attack that does not take it into account. It is not a proven defence: an attacker who knows the
generator can find images that are misclassified after projection too (:mod:`genprior.defence.attacks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

from genprior import _batch, _validate
from genprior.defence.attacks import Classify, Numbered, check_range
from genprior.generators import Generator
from genprior.loop.solve import solve
from genprior.loop.starts import starts
from genprior.losses import SquaredDistance
from genprior.problem import Problem
from genprior.result import Result
from genprior.solvers import ADMM, Adam, Auto, Choice, GradientDescent, duals, penalties, z_steps
from genprior.stopping import Callback, MaxSteps
from genprior.terms import LInf

Norm = Literal["linf", "l2"]
GAMMA = 1e-5
"""Weight of the squared l2 distance that is added to the l_inf one, to make the problem strongly convex in w."""


@dataclass(frozen=True)
class Projection:
    """For each image, the nearest image in the range of a generator.

    In ``"linf"``, the norm that bounds the attack, it minimises ``gamma |w - y|_2^2 + |w - y|_inf`` over ``w = G(z)``
    (the paper's experiments); in ``"l2"``, ``|w - y|_2^2`` (Samangouei et al. 2018).

    Parameters
    ----------
    generator
        G.
    norm
        ``"linf"`` or ``"l2"``.
    solver
        by default :func:`default_solver` of the norm.
    steps
        iterations.
    restarts
        starts per image; the worse ones are dropped during the run.
    gamma
        as above.
    batch_size
        images in memory at once.
    seed
        seed of the starts; the start of an image depends only on the seed and the image's number.

    Examples
    --------
    >>> import genprior as gp
    >>> from genprior import samples
    >>> from genprior.defence.projection import Projection
    >>> pictures, _ = samples.digits(2)
    >>> found = Projection(gp.load_generator("mnist"), steps=5)(pictures)
    >>> found.signal.shape
    torch.Size([2, 1, 28, 28])
    """

    generator: Generator
    norm: Norm = "linf"
    solver: Choice | None = None
    steps: int = 300
    restarts: int = 1
    gamma: float = GAMMA
    batch_size: int = 250
    seed: int = 0

    def __post_init__(self) -> None:
        if self.norm not in {"linf", "l2"}:
            raise ValueError(f"norm must be 'linf' or 'l2', got {self.norm!r}")
        for name in ("steps", "restarts", "batch_size"):
            _validate.whole(name, getattr(self, name))
        _validate.number("gamma", self.gamma, least=0)
        _validate.seed(self.seed)

    def problem(self, pictures: Tensor) -> Problem:
        """What is minimised."""
        if self.norm == "l2":
            return Problem(self.generator, loss=SquaredDistance(pictures, 1.0))
        loss = SquaredDistance(pictures, self.gamma) if self.gamma else None
        return Problem(self.generator, loss=loss, on_signal=LInf().around(pictures))

    def __call__(
        self,
        pictures: Tensor,
        *,
        z0: Tensor | None = None,
        callbacks: Sequence[Callback] = (),
        progress: bool | None = False,
    ) -> Result:
        """Project, from ``z0`` or from ``starts`` for the numbers 0, 1, ...; ``result.signal`` has the images."""
        return solve(
            self.problem(pictures),
            default_solver(self.norm) if self.solver is None else self.solver,
            stop=MaxSteps(self.steps),
            z0=self.starts(range(len(pictures))) if z0 is None else z0,
            restarts=self.restarts,
            batch_size=self.batch_size,
            seed=self.seed,
            callbacks=callbacks,
            progress=progress,
        )

    def starts(self, numbers: Sequence[int]) -> Tensor:
        """The starts of the images with these numbers, ``(B, restarts, *latent_shape)``."""
        return starts(self.generator, self.seed, numbers, self.restarts)

    @property
    def purify(self) -> Purifier:
        """The projection as a function from images to images, for attacks that know the defence."""
        return Purifier(self)


@dataclass(frozen=True)
class Purifier(Numbered):
    """The projection as a function from images, numbered from ``first``, to images, with the starts of the defence."""

    projection: Projection
    first: int = 0
    _drawn: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Starts by number of images, because an attack uses the same ones in every step."""

    def __call__(self, pictures: Tensor) -> Tensor:
        """The projections."""
        count = len(pictures)
        if count not in self._drawn:
            self._drawn[count] = self.projection.starts(range(self.first, self.first + count))
        return self.projection(pictures, z0=self._drawn[count]).signal

    def after(self, count: int) -> Purifier:
        """The same function with its first number increased by ``count``."""
        return replace(self, first=self.first + count)


def default_solver(norm: Norm) -> Choice:
    """Exact ADMM with z steps by Adam for l_inf, Adam for l2."""
    if norm == "l2":
        return Adam(0.1)
    return ADMM(z_step=z_steps.Adam(0.2), dual=duals.Constant(0.1), penalty=penalties.Constant(1.0))


def named_solver(name: str, norm: Norm) -> Choice:
    """``admm`` (exact w step, Adam in z), ``auto``, ``adam`` or ``gd``."""
    if name == "admm":
        return default_solver("linf")
    if name == "auto":
        return Auto()
    if name == "adam":
        return Adam(0.1)
    if name == "gd":
        return GradientDescent(0.02 if norm == "l2" else 10.0)
    raise ValueError(f"solver must be admm, auto, adam or gd, got {name!r}")


@dataclass(frozen=True)
class Defended:
    """Images and their classes before and after projection; one entry per image."""

    pictures: Tensor
    """The projections, in the range of the generator."""
    before: Tensor
    """Class of the given image."""
    before_confidence: Tensor
    """The classifier's probability for this class."""
    after: Tensor
    """Class of the projection."""
    after_confidence: Tensor
    distance: Tensor
    """``|G(z) - image|_inf``; far above the size of any attack, it means that the projection failed, or that the image is
    unlike those of the generator."""
    result: Result

    @property
    def changed(self) -> Tensor:
        """Where the projection changed the class: a sign of an attack, or of a failed projection."""
        return self.before != self.after


def defend(
    classify: Classify,
    projection: Projection,
    pictures: Tensor,
    *,
    numbers: Sequence[int] | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = False,
) -> Defended:
    """Project images onto the range of the generator, and classify them before and after.

    Their values must lie in the range that the generator declares, if it declares one. ``numbers`` of the images determine
    their starts; by default 0, 1, ... ``callbacks`` watch the projection.
    """
    _validate.batch("pictures", pictures, projection.generator.signal_shape)
    if projection.generator.signal_range is not None:
        check_range(pictures, *projection.generator.signal_range)
    before = _probabilities(classify, pictures, projection.batch_size)
    z0 = None if numbers is None else projection.starts(numbers)
    result = projection(pictures, z0=z0, callbacks=callbacks, progress=progress)
    after = _probabilities(classify, result.signal, projection.batch_size)
    return Defended(
        pictures=result.signal,
        before=before.argmax(1),
        before_confidence=before.amax(1),
        after=after.argmax(1),
        after_confidence=after.amax(1),
        distance=_batch.flat(result.signal - pictures).abs().amax(1),
        result=result,
    )


def _probabilities(classify: Classify, pictures: Tensor, batch_size: int) -> Tensor:
    numbers = [*classify.parameters(), *classify.buffers()] if isinstance(classify, nn.Module) else []
    dtype = next((number.dtype for number in numbers if number.is_floating_point()), pictures.dtype)
    with torch.no_grad():
        return torch.cat([classify(part.to(dtype)).softmax(dim=1) for part in _batch.pieces(pictures, batch_size)])
