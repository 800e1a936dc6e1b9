"""A user's own forward model, from a Python file, where jobs otherwise hold an operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import torch
from torch import Tensor

from genprior import _random
from genprior.generators import Generator, Passes
from genprior.models.modules import function_from_python
from genprior.operators import Operator


class ForwardModel(Operator):
    """``forward(signals)`` of the user's file. It measures, like an operator, but it is not linear: there is no adjoint."""

    def __init__(self, text: str, generator: Generator) -> None:
        self.text = text
        self.function: Callable[..., Tensor] = function_from_python(text)
        self.signal_shape = generator.signal_shape
        self.device, self.dtype = generator.device, generator.dtype
        image = self._tried(generator)
        self.measurement_shape = tuple(image.shape[1:])
        self.complex_measurements = image.is_complex()

    def norm(self) -> Tensor:
        """1: there is none, and none is needed."""
        return torch.ones((), device=self.device, dtype=self.dtype)

    def _tried(self, generator: Generator) -> Tensor:
        """The measurements of one sample of the generator; :class:`genprior.NonLinear` checks the rest."""
        generator = generator.counting(Passes())
        with torch.no_grad():
            signal = generator(generator.draw(1, _random.stream("check", 0)))
            try:
                image = self.function(signal)
            except Exception as problem:  # users' code may raise anything
                raise ValueError(
                    f"{self.text} failed on a signal of shape {tuple(signal.shape)} ({type(problem).__name__}: {problem}): it "
                    "is called as forward(signals) with signals (n, *signal_shape), and must give measurements (n, ...)"
                ) from problem
        if not isinstance(image, Tensor) or image.ndim < 2 or len(image) != 1:
            given = f"shape {tuple(image.shape)}" if isinstance(image, Tensor) else type(image).__name__
            raise ValueError(
                f"{self.text} gave {given} for one signal, expected a tensor (1, ...): it gets signals (n, *signal_shape), "
                "and must give one measurement (n, ...) each"
            )
        return image

    def _forward(self, x: Tensor) -> Tensor:
        return self.function(x)

    def _adjoint(self, y: Tensor) -> NoReturn:
        raise TypeError(f"{self.text} is not linear: it has no adjoint")
