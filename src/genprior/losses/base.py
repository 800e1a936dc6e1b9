"""What a smooth loss is, and the one that is zero."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from genprior._blocks import Block
from genprior.losses.exact_step import Prox, StepWithMemory
from genprior.losses.noise import Misfit
from genprior.operators import Operator
from genprior.terms import Term

Draw = Callable[[int], Tensor]
"""So many signals of a generator."""


class Loss(ABC):
    """A smooth loss, evaluated for each item of a batch. The theory is for convex ones with Lipschitz gradient."""

    batch: int | None = None
    convex: bool = True
    """Whether L is convex. One that is not stays at ``G(z)`` where methods split ``w = G(z)``: only R goes with w."""
    sum_of_squares: bool = False
    """Whether L is ``1/2 |e|^2`` for the residual e of :meth:`squares`: Gauss-Newton methods ask for it."""

    @abstractmethod
    def evaluate(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """Value per item, and what :meth:`gradient` needs besides ``w``."""

    @abstractmethod
    def gradient(self, w: Tensor, residual: Tensor) -> Tensor:
        """Gradient at ``w``, given the residual that :meth:`evaluate` returned for the same ``w``."""

    @abstractmethod
    def curvature(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """``(mu, nu)`` per item: strong convexity and smoothness constants (at ``w`` where they are only local)."""

    def typical_curvature(self, w: Tensor) -> Tensor:
        """The second derivative along signals such as w, per item: the scale of a first Hessian. By default nu."""
        return self.curvature(w)[1]

    def squares(self, w: Tensor, residual: Tensor) -> Tensor:
        """``e`` with ``L = 1/2 |e|^2``, as real numbers ``(B, m)``, given the residual that :meth:`evaluate` returned."""
        raise TypeError(f"{type(self).__name__} is no sum of squares: it has no residual")

    def squares_jvp(self, w: Tensor, tangents: Tensor) -> Tensor:
        """``De(w) v`` for a stack of tangents ``(n, B, *signal_shape)``: ``(n, B, m)``."""
        raise TypeError(f"{type(self).__name__} is no sum of squares: it has no residual")

    @abstractmethod
    def rows(self, index: Tensor) -> Loss:
        """The loss of the selected items."""

    def of_blocks(self, blocks: tuple[Block, ...]) -> Loss:
        """The loss for the flat signals of a generator with parameters; only :class:`NonLinear` knows them."""
        raise TypeError(
            f"the generator has parameters, but the loss is a {type(self).__name__}, which does not know them: give "
            f"gp.NonLinear(forward, y), with forward(signals, {', '.join(block.name for block in blocks[1:])})"
        )

    def check_samples(self, draw: Draw) -> None:
        """Raise a clear error if the loss cannot work at samples of the generator: ``draw(n)`` gives n of its signals."""
        return

    @abstractmethod
    def check(self, signal_shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
        """Raise a clear error if signals of this shape, device and dtype do not fit."""

    def bound(self, signal_shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Loss:
        """The loss for signals of this shape, device and dtype; itself where it knows them anyway."""
        return self

    def exact_step(self, term: Term) -> StepWithMemory[Any] | None:
        """The exact w step for this loss and R, ``argmin_w L(w) + R(w) + rho/2 |w - v|^2``, where it is known; else None.

        With None an inner proximal gradient method finds the minimiser from :meth:`evaluate`, :meth:`gradient` and
        :meth:`curvature`. A loss of your own returns a subclass of :class:`genprior.losses.ExactStep`, for the terms that
        it knows. It is asked anew for every step, so the object may hold the loss and the term and should cost nothing.
        """
        return None

    def __call__(self, w: Tensor) -> Tensor:
        """Value per item."""
        return self.evaluate(w)[0]

    def start_scores(self, signals: Tensor, items: int) -> Tensor:
        """``(items, N)``: how far each of N signals is from the data of each item, by which its starts are chosen.

        The lower the better; by default the loss itself.
        """
        if self.batch is None:
            return self(signals).expand(items, -1)
        return torch.stack([self(signal.expand(items, *signal.shape)) for signal in signals], dim=1)

    def misfit(self, w: Tensor) -> Misfit | None:
        """How far w is from the measurements in units of their noise, beside the expectation; None: no noise is known."""
        return None

    def observed(self) -> tuple[Operator, Tensor] | None:
        """Operator and measurements of the items, from which a trained encoder guesses; None where there are none."""
        return None

    def relative_residual(self, value: Tensor) -> Tensor | None:
        """``|A w - y| / |y|`` per item from the loss's value, where the loss is the square of a residual; else None."""
        return None

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class NoLoss(Loss):
    """``L = 0``: the problem is all in R and H."""

    def evaluate(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """Zero per item."""
        zero = w.new_zeros(w.shape[0])
        return zero, zero

    def gradient(self, w: Tensor, residual: Tensor) -> Tensor:
        """Zero."""
        return torch.zeros_like(w)

    def curvature(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """No curvature."""
        zero = w.new_zeros(w.shape[0])
        return zero, zero

    def rows(self, index: Tensor) -> Loss:
        """Itself."""
        return self

    def check(self, signal_shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
        """Everything fits."""

    def exact_step(self, term: Term) -> Prox:
        """One prox of R."""
        return Prox(term)
