"""The distance between measurements and any differentiable function of the signal."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior._blocks import Block
from genprior.generators.derivatives import OnlyGradients, pushed
from genprior.losses.base import Draw, Loss
from genprior.losses.forward_check import NO_DERIVATIVE, check_forward
from genprior.losses.likelihoods import Likelihood
from genprior.losses.noise import Misfit, noise_level, selected

Forward = Callable[..., Tensor]
"""Signals ``(n, *signal_shape)``, and what else belongs to each item, to measurements ``(n, ...)``."""

_POWER_STEPS = 8
"""Of the power iteration for nu, each with two calls of f and one backward pass; nu is an estimate at one point anyway."""
_MARGIN = 1.1
"""On that nu."""
_AT_ONCE = 2**22
"""Most values of the signals that are measured together, to bound the memory."""


class NonLinear(Loss):
    """``L(w) = 1/2 |(f(w) - y) / sigma|^2`` for any differentiable f: phase retrieval, saturation, a simulator.

    Such a loss is not convex: a search finds a minimum near its start, and ``CONVERGED`` says that it is one, not that it is
    the lowest. :func:`genprior.solve` therefore compares many samples of the generator with y before it starts.

    One iteration of a method that needs gradients costs one call of f and one backward pass through it.

    Parameters
    ----------
    forward
        f, a function or a ``torch.nn.Module``: signals ``(n, *signal_shape)`` to measurements ``(n, ...)``, each item on
        its own. It is called with other numbers of items than y has: f is asked for the measurements of the generator's
        samples, from which starts are chosen. Of a generator with parameters (:meth:`Generator.with_parameters`), it gets the
        signals and each parameter: ``forward(signals, width)``.
    y
        measurements, ``(B, ...)``, real or complex.
    parameters
        tensors ``(B, ...)`` with what f needs to know of each item (masks, exposures), given to f after the signals:
        ``forward(signals, *parameters)``, the same items in the same order.
    noise
        standard deviation of the noise: a number, or a tensor of the shape of one item's measurements, of y, or
        ``(B, 1, ..., 1)``. Of complex measurements it is that of the real and of the imaginary part. Omitted: not known, 1.
        A :class:`genprior.losses.Likelihood` of ``f(w)``, such as ``PoissonLikelihood()``, takes the place of the square.

    When a :class:`Problem` is made, f and its derivative are tried on four samples of the generator; that pass is not counted.

    Examples
    --------
    Phase retrieval: the signs of the measurements are lost.

    >>> import torch, genprior as gp
    >>> G = gp.load_generator("mnist")
    >>> A = gp.operators.Gaussian(200, G.signal_shape, seed=0)
    >>> y = A(G(G.sample_latent(2, seed=1))).abs().detach()
    >>> problem = gp.Problem(G, loss=gp.NonLinear(lambda x: A(x).abs(), y))
    >>> gp.solve(problem, stop=gp.MaxSteps(3)).signal.shape
    torch.Size([2, 1, 28, 28])
    """

    convex = False
    blocks: tuple[Block, ...] | None = None
    """Of flat signals that hold a signal and parameters; None: signals are signals."""

    def __init__(
        self,
        forward: Forward,
        y: Tensor,
        *,
        parameters: Tensor | Sequence[Tensor] = (),
        noise: float | Tensor | Likelihood | None = None,
    ) -> None:
        if not callable(forward):
            raise TypeError(
                f"forward must be a function of signals that gives measurements, got {type(forward).__name__}"
            )
        _validate.batch("y", _validate.tensor("y", y, complex_too=True), None)
        self.forward = forward
        self.y = _validate.kept("y", y)  # the caller may change theirs
        self.batch = len(y)
        self.parameters = _checked_parameters(parameters, len(y))
        self.likelihood = noise.checked(self.y) if isinstance(noise, Likelihood) else None
        self.noise = None if noise is None or isinstance(noise, Likelihood) else noise_level(noise, self.y)
        self.sum_of_squares = self.likelihood is None

    def __call__(self, w: Tensor) -> Tensor:
        """Value per item: one call of f."""
        with torch.no_grad():
            return self._value(self.measured(w))

    def evaluate(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """The value and the gradient: one call of f and one backward pass, for both."""
        with torch.enable_grad():
            point = w.detach().requires_grad_()
            image = self.measured(point)
        a = image.detach()
        (gradient,) = torch.autograd.grad(image, point, self._slope(a))
        if bool(a.isfinite().all()) and not bool(gradient.isfinite().all()):
            warnings.warn(
                f"the derivative of forward is NaN or infinite at a signal of the search: {NO_DERIVATIVE}", stacklevel=2
            )
        return self._value(a), gradient

    def gradient(self, w: Tensor, residual: Tensor) -> Tensor:
        """``Df(w)^T (f(w) - y) / sigma^2``, which :meth:`evaluate` has computed."""
        return residual

    def measured(self, w: Tensor) -> Tensor:
        """``f(w)``."""
        if len(w) != self.batch:
            raise ValueError(f"{len(w)} signals were given for {self.batch} items of y: give one signal per item")
        return self._called(w, self.parameters)

    # -- curvature: that of the Gauss-Newton matrix De^T De, not of the Hessian, which may be negative ----------------------

    def curvature(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """0, and the largest eigenvalue of ``De^T De`` at w, for ``e = (f(w) - y) / sigma``, with a margin of 10%."""
        count = w[0].numel()
        direction = (1 + torch.linspace(0, 1, count, device=w.device, dtype=w.dtype)).view_as(w[0]).expand_as(w)
        with torch.enable_grad():
            point = w.detach().requires_grad_()
            image = self.measured(point)
        weight = self._weight(image.detach())
        largest = w.new_zeros(len(w))
        for _ in range(_POWER_STEPS):
            change = weight * self._change(w, direction)
            (direction,) = torch.autograd.grad(image, point, change, retain_graph=True)
            largest = _batch.norm(direction)
        return torch.zeros_like(largest), _MARGIN * torch.nan_to_num(largest)

    def typical_curvature(self, w: Tensor) -> Tensor:
        """``|De(w) w|^2 / |w|^2``; nu where that vanishes."""
        change = self._change(w, w)
        typical = _batch.dot(self._weight(self.measured(w).detach()) * change, change)
        return torch.where((typical > 0) & typical.isfinite(), typical, self.curvature(w)[1])

    def squares(self, w: Tensor, residual: Tensor) -> Tensor:
        """``(f(w) - y) / sigma``: one call of f."""
        with torch.no_grad():
            return _batch.flat(self._residual(self.measured(w)))

    def squares_jvp(self, w: Tensor, tangents: Tensor) -> Tensor:
        """``Df(w) v / sigma``, by forward mode, or by a second derivative where f has no forward mode."""
        try:
            return pushed(lambda x: _batch.flat(self._residual(self.measured(x))), w, tangents)
        except OnlyGradients as problem:
            raise OnlyGradients(problem.why, "forward") from problem

    # -- what searches and results ask for -----------------------------------------------------------------------------

    def start_scores(self, signals: Tensor, items: int) -> Tensor:
        """The loss, with one measurement of every signal where the items share f."""
        shared = None if self.parameters else self._of_pool(signals)
        scores = []
        for item in range(items):
            one = self.rows(torch.tensor([item], device=self.y.device))
            scores.append(one._value(one._of_pool(signals) if shared is None else shared))
        return torch.stack(scores)

    def relative_residual(self, value: Tensor) -> Tensor | None:
        """``|f(w) - y| / |y|`` per item from the loss's value, both in units of the noise."""
        if self.likelihood is not None:
            return None
        return (2 * value).sqrt() / _batch.norm(self.y if self.noise is None else self.y / self.noise)

    def misfit(self, w: Tensor) -> Misfit | None:
        """``|(f(w) - y) / sigma|^2``, and how many numbers were measured; None without a noise level."""
        numbers = w.new_full((len(w),), float(_batch.flat(self.y)[0].numel()))
        with torch.no_grad():
            a = self.measured(w)
        if self.likelihood is not None:
            value = _batch.flat(self.likelihood.misfit(a, self.y)).sum(dim=1)
            return Misfit(value, self.likelihood.expected * numbers)
        return None if self.noise is None else Misfit(_batch.square(self._residual(a)), numbers)

    def rows(self, index: Tensor) -> NonLinear:
        """The loss of the selected items."""
        part = copy.copy(self)
        part.y, part.batch = self.y[index], len(index)
        part.parameters = tuple(each[index] for each in self.parameters)
        part.noise = selected(self.noise, index) if isinstance(self.noise, Tensor) else self.noise
        part.likelihood = None if self.likelihood is None else self.likelihood.rows(index)
        return part

    def of_blocks(self, blocks: tuple[Block, ...]) -> NonLinear:
        """The loss of flat signals that hold a signal and parameters: ``forward(signals, *unknown, *parameters)``."""
        part = self.rows(torch.arange(len(self.y), device=self.y.device))
        part.blocks = blocks
        return part

    def check(self, signal_shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
        """The measurements must live where the generator does."""
        real = self.y.real if self.y.is_complex() else self.y
        _validate.same_place("y", real, device, dtype, "the generator")
        for number, each in enumerate(self.parameters):
            _validate.same_place(f"parameters[{number}]", each, device, None, "the generator")

    def check_samples(self, draw: Draw) -> None:
        """F must be finite and differentiable at samples of the generator, and must treat items on their own."""
        check_forward(self, draw)

    def __repr__(self) -> str:
        name = getattr(self.forward, "__name__", type(self.forward).__name__)
        return f"NonLinear({name}, y {tuple(self.y.shape)})"

    # -- the function of the measurements -------------------------------------------------------------------------------

    def _residual(self, a: Tensor) -> Tensor:
        """``e = (a - y) / sigma``."""
        return a - self.y if self.noise is None else (a - self.y) / self.noise

    def _value(self, a: Tensor) -> Tensor:
        if self.likelihood is None:
            return 0.5 * _batch.square(self._residual(a))
        return _batch.flat(self.likelihood.value(a, self.y)).sum(dim=1)

    def _slope(self, a: Tensor) -> Tensor:
        if self.likelihood is not None:
            return self.likelihood.slope(a, self.y)
        e = self._residual(a)
        return e if self.noise is None else e / self.noise

    def _weight(self, a: Tensor) -> Tensor | float:
        """The second derivative in each measurement."""
        if self.likelihood is not None:
            return self.likelihood.curvature(a, self.y)
        return 1.0 if self.noise is None else 1 / self.noise / self.noise

    # -- calls of f -----------------------------------------------------------------------------------------------------

    def _called(self, signals: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        unknown = (signals,) if self.blocks is None else (block.taken(signals) for block in self.blocks)
        return self.forward(*unknown, *parameters)

    def _of_pool(self, signals: Tensor) -> Tensor:
        """``f`` of signals that all belong to the same item, a bounded number at a time."""
        size = max(1, _AT_ONCE // signals[0].numel())
        with torch.no_grad():
            return torch.cat(
                [
                    self._called(part, tuple(each.expand(len(part), *each.shape[1:]) for each in self.parameters))
                    for part in _batch.pieces(signals, size)
                ]
            )

    def _change(self, w: Tensor, direction: Tensor) -> Tensor:
        """``Df(w) u`` for the unit vectors u along the direction, by differences of f: no second derivative is needed."""
        u = direction / _batch.spread(_batch.above_zero(_batch.norm(direction)), direction)
        size = _batch.norm(w)
        size = torch.where(size > 0, size, math.sqrt(w[0].numel()))
        step = torch.finfo(w.dtype).eps ** (1 / 3) * size
        move = _batch.spread(step, w) * u
        with torch.no_grad():
            change = self.measured(w + move) - self.measured(w - move)
        quotient: Tensor = change / _batch.spread(2 * step, change)
        return quotient


def _checked_parameters(parameters: Tensor | Sequence[Tensor], items: int) -> tuple[Tensor, ...]:
    given = (parameters,) if isinstance(parameters, Tensor) else tuple(parameters)
    for number, each in enumerate(given):
        if not isinstance(each, Tensor):
            raise TypeError(
                f"parameters[{number}] must be a tensor with one row per item, got {type(each).__name__}: what all items "
                "share belongs into forward itself"
            )
        if each.ndim == 0 or len(each) != items:
            raise ValueError(
                f"parameters[{number}] has shape {tuple(each.shape)} for {items} items in y, expected ({items}, ...): one row "
                "per item"
            )
    return tuple(_validate.kept(f"parameters[{number}]", each) for number, each in enumerate(given))
