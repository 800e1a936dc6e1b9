"""The problems of the race. The truth lies in the range of the generator, so that errors against it are meaningful."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from genprior.generators import Generator
from genprior.losses import LeastSquares
from genprior.operators import Blur, Downsample, Gaussian, Mask, Operator, SubsampledHadamard
from genprior.problem import Problem
from genprior.terms import L1, LInf

_SIGN_NOISE = 0.2
_SALT_AND_PEPPER = 0.2
_BLUR = 2.0
_BLUR_NOISE = 0.01
_MISSING = 0.5
ERRORS = (0.05, 0.01)
"""Loose and tight target for exact data: relative error."""
EXCESSES = (1.2, 1.02)
"""For noisy data: objective over the best one found for the image."""


@dataclass(frozen=True)
class Entry:
    """One problem of the race: its description and construction."""

    key: str
    title: str
    generator: str
    """Name of the generator, as :func:`genprior.lab.race.sources.open_generator` knows it."""
    noisy: bool
    """Judged by the objective, not by the error."""
    make: Callable[[Generator, Tensor, torch.Generator], Problem]
    """Makes the problem from the truth, with its own random numbers."""
    determined: bool = True
    """Whether the data determine the answer, so that every image can be solved: the signal to within the loose target, or the
    lowest objective, where that counts."""

    @property
    def enough(self) -> float:
        """The error at which nothing is left to be measured; none where the objective counts."""
        return -math.inf if self.noisy else ERRORS[1]


@dataclass(frozen=True)
class Instance:
    """An entry with its data."""

    entry: Entry
    problem: Problem
    truth: Tensor
    starts: Tensor


def _measured(operator: Operator, truth: Tensor, generator: Generator, noise: Tensor | float = 0.0) -> Problem:
    return Problem(generator, loss=LeastSquares(operator, operator(truth) + noise))


def _gaussian(m: int) -> Callable[[Generator, Tensor, torch.Generator], Problem]:
    def make(generator: Generator, truth: Tensor, random: torch.Generator) -> Problem:
        operator = Gaussian(m, generator.signal_shape, seed=0, device=generator.device)
        return _measured(operator, truth, generator)

    return make


def _sign_noise(generator: Generator, truth: Tensor, random: torch.Generator) -> Problem:
    signs = torch.sign(torch.rand(truth.shape, generator=random, device="cpu") - 0.5).to(truth)
    return Problem(generator, on_signal=LInf().around(truth + _SIGN_NOISE * signs))


def _salt_and_pepper(generator: Generator, truth: Tensor, random: torch.Generator) -> Problem:
    level = torch.rand(truth.shape, generator=random, device="cpu").to(truth)
    low, high = generator.signal_range or (0.0, 1.0)
    damaged = torch.where(level < _SALT_AND_PEPPER / 2, low, torch.where(level > 1 - _SALT_AND_PEPPER / 2, high, truth))
    return Problem(generator, on_signal=L1().around(damaged))


def _blurred(generator: Generator, truth: Tensor, random: torch.Generator) -> Problem:
    operator = Blur(_BLUR, generator.signal_shape, device=generator.device)
    noise = _BLUR_NOISE * torch.randn(truth.shape, generator=random, device="cpu").to(truth)
    return _measured(operator, truth, generator, noise)


def _half_missing(generator: Generator, truth: Tensor, random: torch.Generator) -> Problem:
    known = (torch.rand(generator.signal_shape, generator=random, device="cpu") >= _MISSING).to(truth)
    return _measured(Mask(known), truth, generator)


def _structured(share: float, noise: float = 0.0) -> Callable[[Generator, Tensor, torch.Generator], Problem]:
    """``m`` is this share of the signal size; the noise is relative to the size of an image's measurements."""

    def make(generator: Generator, truth: Tensor, random: torch.Generator) -> Problem:
        m = round(share * truth[0].numel())
        operator = SubsampledHadamard(m, generator.signal_shape, seed=0, device=generator.device)
        y = operator(truth)
        size = noise * y.norm(dim=1, keepdim=True) / math.sqrt(m)
        return Problem(
            generator,
            loss=LeastSquares(operator, y + size * torch.randn(y.shape, generator=random, device="cpu").to(y)),
        )

    return make


def _small(generator: Generator, truth: Tensor, random: torch.Generator) -> Problem:
    return _measured(Downsample(4, generator.signal_shape), truth, generator)


ENTRIES = (
    Entry("a", "Gaussian, m = 392", "mnist", False, _gaussian(392)),
    Entry("b", "Gaussian, m = 156", "mnist", False, _gaussian(156)),
    Entry("c", "l_inf denoising, sign noise 0.2", "mnist", True, _sign_noise),
    Entry("d", "l1 denoising, salt and pepper 20%", "mnist", True, _salt_and_pepper),
    Entry("e", "deblurring, sigma 2, noise 0.01", "mnist", True, _blurred),
    Entry("f", "inpainting, half missing", "mnist", False, _half_missing),
    Entry("g", "structured random, m = 50%", "celeba", False, _structured(0.5)),
    Entry("h", "4x super-resolution", "celeba", False, _small),
    Entry("i", "third-party faces, m = 50%", "faces", False, _structured(0.5)),
    Entry("j", "glitches, m = 50%", "glitches", False, _structured(0.5)),
    Entry("k", "ECG, m = 50%, noise 5%", "ecg", True, _structured(0.5, 0.05), determined=False),
    Entry("l", "terrain, m = 25%, noise 10%", "terrain", True, _structured(0.25, 0.1), determined=False),
    Entry("m", "decoder of 2048 latents, m = 50%", "decoder", False, _structured(0.5)),
    Entry("n", "flow in 6 steps, m = 50%", "flow", False, _structured(0.5)),
)
EIGHT = "abcdefgh"
"""Those on the bundled generators."""


def instance(entry: Entry, generator: Generator, count: int, seed: int) -> Instance:
    """The entry's problem for ``count`` images; another seed gives other images, noise and starts."""
    with torch.no_grad():
        truth = generator(generator.sample_latent(count, seed=1000 + seed))
    random = torch.Generator().manual_seed(2000 + seed)
    problem = entry.make(generator, truth, random)
    return Instance(entry, problem, truth, generator.sample_latent(count, seed=3000 + seed))
