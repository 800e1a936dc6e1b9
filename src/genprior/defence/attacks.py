"""Attacks on a classifier within an l_inf ball: projected gradient, and two that exploit knowledge of a defence.

Every attack treats each image independently, leaves the caller's classifier unchanged, and returns images in the ball
``|x' - x|_inf <= size`` and in the range of images.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from genprior import _batch, _validate
from genprior.generators import Generator
from genprior.loop.solve import solve
from genprior.losses import EmpiricalRisk
from genprior.problem import Problem
from genprior.solvers import Adam
from genprior.stopping import MaxSteps

Classify = Callable[[Tensor], Tensor]
"""Maps images ``(B, ...)`` to logits ``(B, classes)``, each image independently."""
Purify = Callable[[Tensor], Tensor]
"""Maps images to images of the same shape: a defence."""


class Numbered(ABC):
    """A function of images that also depends on their numbers, such as a defence that draws a start for each.

    A call numbers its images consecutively from the first number; :meth:`after` moves the first number on, so that batches
    give the same result as all images at once.
    """

    @abstractmethod
    def __call__(self, pictures: Tensor) -> Tensor:
        """Apply to images numbered from the first number."""

    @abstractmethod
    def after(self, count: int) -> Numbered:
        """The same function with its first number increased by ``count``."""


@dataclass(frozen=True)
class ProjectedGradientAttack:
    """Projected gradient ascent on the cross-entropy (Madry et al. 2018): sign steps, projected onto the ball and the range.

    Parameters
    ----------
    size
        radius of the l_inf ball around each image.
    step, steps
        length and number of the sign steps.
    random_start
        start at a random point of the ball, uniformly distributed, instead of the image itself.
    keep
        return the ``"last"`` iterate, or for each image the ``"worst"`` one: the one with the largest cross-entropy.
    low, high
        range of images.

    Examples
    --------
    >>> import genprior as gp
    >>> from genprior import samples
    >>> from genprior.defence.attacks import ProjectedGradientAttack, accuracy
    >>> pictures, labels = samples.digits(20)
    >>> classifier = gp.load_classifier("mnist")
    >>> attacked = ProjectedGradientAttack(size=0.2, step=0.01, steps=30)(classifier, pictures, labels)
    >>> accuracy(classifier, pictures, labels) > 0.9, accuracy(classifier, attacked, labels) < 0.2
    (True, True)
    """

    size: float = 0.2
    step: float = 0.01
    steps: int = 30
    random_start: bool = True
    keep: Literal["last", "worst"] = "last"
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        _validate.number("size", self.size, least=0)
        _validate.number("step", self.step, above=0)
        _validate.whole("steps", self.steps, 0)
        _validate.number("high", self.high, above=_validate.number("low", self.low))
        if self.keep not in {"last", "worst"}:
            raise ValueError(f"keep must be 'last' or 'worst', got {self.keep!r}")

    def __call__(
        self,
        classify: Classify,
        pictures: Tensor,
        labels: Tensor,
        *,
        start: Tensor | None = None,
        seed: int = 0,
        batch_size: int = 500,
    ) -> Tensor:
        """The attacked images; ``start``, if given, is first projected onto the ball.

        Up to rounding they do not depend on ``batch_size``, if ``classify`` treats each image independently or is
        :class:`Numbered`, as is a defence by projection in :func:`straight_through`.
        """
        check_labelled(pictures, labels)
        check_range(pictures, self.low, self.high)
        if start is None:
            start = self._start(pictures, seed)
        elif start.shape != pictures.shape:
            raise ValueError(f"start has shape {tuple(start.shape)}, expected {tuple(pictures.shape)}: one per image")
        else:
            start = into_ball(start.detach(), pictures, self.size, self.low, self.high)
        size = _validate.whole("batch_size", batch_size)
        parts = zip(*(_batch.pieces(whole, size) for whole in (start, pictures, labels)), strict=True)
        return torch.cat([self._attacked(_after(classify, size * k), *part) for k, part in enumerate(parts)])

    def _start(self, pictures: Tensor, seed: int) -> Tensor:
        if not self.random_start:
            return pictures.detach().clone()
        noise = 2 * torch.rand(pictures.shape, generator=_validate.seed(seed), dtype=pictures.dtype, device="cpu") - 1
        return into_ball(pictures + self.size * noise.to(pictures.device), pictures, self.size, self.low, self.high)

    def _attacked(self, classify: Classify, x: Tensor, pictures: Tensor, labels: Tensor) -> Tensor:
        worst, highest = x, x.new_full((len(x),), -torch.inf)
        for _ in range(self.steps):
            loss, gradient = _cross_entropy(classify, x, labels)
            worst, highest = _worse(worst, highest, x, loss)
            x = into_ball(x + self.step * gradient.sign(), pictures, self.size, self.low, self.high)
        if self.keep == "last":
            return x
        with torch.no_grad():
            last = nn.functional.cross_entropy(classify(x), labels, reduction="none")
        return _worse(worst, highest, x, last)[0]


def straight_through(classify: Classify, purify: Purify) -> Classify:
    """The defended classifier for an attacker who knows the defence: BPDA (Athalye, Carlini and Wagner 2018).

    The forward pass is ``classify(purify(x))``; the backward pass replaces the defence by the identity, which approximates a
    projection near the range. Give it to :class:`ProjectedGradientAttack` in place of the classifier. If ``purify`` is
    :class:`Numbered`, as is ``Projection(...).purify``, each image is attacked with the start that the defence gives it.
    """
    return _StraightThrough(classify, purify)


@dataclass(frozen=True)
class _StraightThrough(Numbered):
    classify: Classify
    purify: Purify

    def __call__(self, pictures: Tensor) -> Tensor:
        with torch.no_grad():
            shift = self.purify(pictures.detach()) - pictures.detach()
        return self.classify(pictures + shift)

    def after(self, count: int) -> _StraightThrough:
        return replace(self, classify=_after(self.classify, count), purify=_after(self.purify, count))


def _after(function: Callable[[Tensor], Tensor], count: int) -> Callable[[Tensor], Tensor]:
    return function.after(count) if isinstance(function, Numbered) else function


@dataclass(frozen=True)
class LatentAttack:
    """Find a latent whose image is misclassified and near the ball, and return the nearest point of the ball.

    It needs no derivative of the defence. But the point of the ball is often far from the range of ``generator``, and is
    misclassified only if the defence projects it back to ``G(z)``: try several weights and starts, and keep the images that
    the defended classifier gets wrong. For each image the attack minimises with Adam, from the latents ``z0``,

        1/2 |G(z) - P(G(z))|^2 + weight max(0, logit_true - largest other logit + margin)

    where P is the projection onto the ball around the image, and the logits are those of ``G(z)``.

    Parameters
    ----------
    size
        radius of the l_inf ball.
    steps, step_size
        number and size of Adam's steps.
    weight, margin
        of the misclassification term above.
    low, high
        range of images.
    """

    size: float = 0.2
    steps: int = 300
    step_size: float | None = None
    weight: float = 1.0
    margin: float = 2.0
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        _validate.number("size", self.size, least=0)
        _validate.whole("steps", self.steps)
        _validate.number("weight", self.weight, above=0)
        _validate.number("margin", self.margin, least=0)
        _validate.number("high", self.high, above=_validate.number("low", self.low))

    def __call__(
        self, generator: Generator, classify: Classify, pictures: Tensor, labels: Tensor, z0: Tensor
    ) -> Tensor:
        """The attacked images."""
        check_labelled(pictures, labels)
        check_range(pictures, self.low, self.high)

        def attack_loss(x: Tensor, data: Tensor | tuple[Tensor, ...]) -> Tensor:
            outside = x - into_ball(x, data[0], self.size, self.low, self.high)
            hinge = (lead(classify(x), data[1]) + self.margin).clamp_min(0)
            return (0.5 * _batch.square(outside) + self.weight * hinge)[:, None]

        risk = EmpiricalRisk(attack_loss, (pictures, labels), per_item=True, smoothness=1.0)
        found = solve(
            Problem(generator, loss=risk), Adam(self.step_size), stop=MaxSteps(self.steps), z0=z0, progress=False
        )
        return into_ball(found.signal, pictures, self.size, self.low, self.high)


def accuracy(classify: Classify, pictures: Tensor, labels: Tensor, batch_size: int = 500) -> float:
    """Fraction of the images that the classifier gets right."""
    check_labelled(pictures, labels)
    return int((predictions(classify, pictures, batch_size) == labels).sum()) / len(labels)


def predictions(classify: Classify, pictures: Tensor, batch_size: int = 500) -> Tensor:
    """The class with the largest logit, per image."""
    parts = enumerate(_batch.pieces(pictures, batch_size))
    with torch.no_grad():
        return torch.cat([_after(classify, batch_size * k)(part).argmax(dim=1) for k, part in parts])


def lead(logits: Tensor, labels: Tensor) -> Tensor:
    """Logit of the labelled class minus the largest other logit; negative for a misclassified image."""
    right = nn.functional.one_hot(labels, logits.shape[1]).bool()
    return logits[right] - logits.masked_fill(right, -torch.inf).amax(dim=1)


def into_ball(x: Tensor, centre: Tensor, size: float, low: float = 0.0, high: float = 1.0) -> Tensor:
    """The point nearest to ``x`` in the l_inf ball around ``centre`` and in ``[low, high]``."""
    return torch.minimum(torch.maximum(x, centre - size), centre + size).clamp(low, high)


def check_labelled(pictures: Tensor, labels: Tensor) -> None:
    """Check that there is one integer label per image."""
    _validate.batch("pictures", _validate.tensor("pictures", pictures), None)
    if labels.shape != (len(pictures),) or labels.is_floating_point() or labels.is_complex():
        raise ValueError(
            f"labels are {labels.dtype} of shape {tuple(labels.shape)}, expected {len(pictures)} integers: "
            "one class per image"
        )


def check_range(pictures: Tensor, low: float, high: float) -> None:
    """Check that images lie in their range; otherwise no point of the ball might."""
    least, most = float(pictures.min()), float(pictures.max())
    lowest, highest = torch.tensor([low, high], dtype=pictures.dtype).tolist()
    if least < lowest or most > highest:
        raise ValueError(
            f"pictures lie in [{least:g}, {most:g}], expected [{low:g}, {high:g}]: divide bytes by 255, or clamp"
        )


def _cross_entropy(classify: Classify, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy and its gradient per item; the gradient of the sum over items contains those of the items."""
    with torch.enable_grad():
        point = x.detach().requires_grad_()
        loss = nn.functional.cross_entropy(classify(point), labels, reduction="none")
        (gradient,) = torch.autograd.grad(loss.sum(), point)
    return loss.detach(), gradient


def _worse(worst: Tensor, highest: Tensor, x: Tensor, loss: Tensor) -> tuple[Tensor, Tensor]:
    higher = loss > highest
    return torch.where(_batch.spread(higher, x), x, worst), torch.where(higher, loss, highest)
