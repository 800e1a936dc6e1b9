"""The distance between measurements and any differentiable function of the signal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior.generators.derivatives import OnlyGradients, pushed
from genprior.losses.base import Draw, Loss
from genprior.losses.forward_check import check_forward

Forward = Callable[..., Tensor]
"""Signals ``(B, *signal_shape)``, and what else belongs to each item, to measurements ``(B, ...)``."""

_POWER_STEPS = 12
"""Of the power iteration for nu: with the margin, its error is below that of taking nu at one point."""
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
        samples, from which starts are chosen.
    y
        measurements, ``(B, ...)``, real or complex.
    parameters
        tensors ``(B, ...)`` with what f needs to know of each item (masks, exposures): ``forward(signals, *parameters)``. It
        then gets the parameters of the same items as the signals, in the same order.
    noise
        standard deviation of the noise: a number, or a tensor with one per measurement, of the shape of y or of one item
        of y (of the real and of the imaginary part, where y is complex). Omitted: 1.

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
    sum_of_squares = True

    def __init__(
        self,
        forward: Forward,
        y: Tensor,
        *,
        parameters: Tensor | Sequence[Tensor] = (),
        noise: float | Tensor | None = None,
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
        self.noise = _checked_noise(noise, y)

    def __call__(self, w: Tensor) -> Tensor:
        """Value per item: one call of f."""
        with torch.no_grad():
            return 0.5 * _batch.square(self._residual(w))

    def evaluate(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """The value and the gradient: one call of f and one backward pass, for both."""
        with torch.enable_grad():
            point = w.detach().requires_grad_()
            value = 0.5 * _batch.square(self._residual(point))
            (gradient,) = torch.autograd.grad(value.sum(), point)
        return value.detach(), gradient

    def gradient(self, w: Tensor, residual: Tensor) -> Tensor:
        """``Df(w)^T (f(w) - y) / sigma^2``, which :meth:`evaluate` has computed."""
        return residual

    def curvature(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """0, and the largest eigenvalue of ``De^T De`` at w, for ``e = (f(w) - y) / sigma``, with a margin of 10%.

        That of the Gauss-Newton matrix, not of the Hessian: a lower one than where L bends down does not help a search.
        """
        count = w[0].numel()
        direction = (1 + torch.linspace(0, 1, count, device=w.device, dtype=w.dtype)).view_as(w[0]).expand_as(w)
        with torch.enable_grad():
            point = w.detach().requires_grad_()
            e = self._residual(point)
        largest = w.new_zeros(len(w))
        for _ in range(_POWER_STEPS):
            (direction,) = torch.autograd.grad(e, point, self._change(w, direction).view_as(e), retain_graph=True)
            largest = _batch.norm(direction)
        return torch.zeros_like(largest), _MARGIN * torch.nan_to_num(largest)

    def typical_curvature(self, w: Tensor) -> Tensor:
        """``|De(w) w|^2 / |w|^2``; nu where that vanishes."""
        typical = _batch.square(self._change(w, w))
        return torch.where((typical > 0) & typical.isfinite(), typical, self.curvature(w)[1])

    def squares(self, w: Tensor, residual: Tensor) -> Tensor:
        """``(f(w) - y) / sigma``: one call of f."""
        with torch.no_grad():
            return _batch.flat(self._residual(w))

    def squares_jvp(self, w: Tensor, tangents: Tensor) -> Tensor:
        """``Df(w) v / sigma``, by forward mode, or by a second derivative where f has no forward mode."""
        try:
            return pushed(lambda x: _batch.flat(self._residual(x)), w, tangents)
        except OnlyGradients as problem:
            raise OnlyGradients(problem.why, "forward") from problem

    def rows(self, index: Tensor) -> NonLinear:
        """The loss of the selected items."""
        part = NonLinear.__new__(NonLinear)
        part.forward, part.y, part.batch = self.forward, self.y[index], len(index)
        part.parameters = tuple(each[index] for each in self.parameters)
        part.noise = self.noise[index] if isinstance(self.noise, Tensor) and len(self.noise) > 1 else self.noise
        return part

    def check(self, signal_shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
        """The measurements must live where the generator does."""
        real = self.y.real if self.y.is_complex() else self.y
        _validate.same_place("y", real, device, dtype, "the generator")
        for number, each in enumerate(self.parameters):
            _validate.same_place(f"parameters[{number}]", each, device, None, "the generator")
        if isinstance(self.noise, Tensor):
            _validate.same_place("noise", self.noise, device, dtype, "the generator")

    def check_samples(self, draw: Draw) -> None:
        """F must be finite and differentiable at samples of the generator, and must treat items on their own."""
        check_forward(self, draw)

    def start_scores(self, signals: Tensor, items: int) -> Tensor:
        """The loss, with one measurement of every signal where the items share f."""
        shared = self._measured(signals) if not self.parameters else None
        scores = []
        for item in range(items):
            one = self.rows(torch.tensor([item], device=self.y.device))
            seen = one._measured(signals) if shared is None else shared
            scores.append(0.5 * _batch.square(_over(seen - one.y, one.noise)))
        return torch.stack(scores)

    def relative_residual(self, value: Tensor) -> Tensor:
        """``|f(w) - y| / |y|`` per item from the loss's value, both in units of the noise."""
        return (2 * value).sqrt() / _batch.norm(_over(self.y, self.noise))

    def __repr__(self) -> str:
        name = getattr(self.forward, "__name__", type(self.forward).__name__)
        return f"NonLinear({name}, y {tuple(self.y.shape)})"

    def _residual(self, w: Tensor) -> Tensor:
        """``e = (f(w) - y) / sigma``."""
        if len(w) != self.batch:
            raise ValueError(f"{len(w)} signals were given for {self.batch} items of y: give one signal per item")
        return _over(self.forward(w, *self.parameters) - self.y, self.noise)

    def _change(self, w: Tensor, direction: Tensor) -> Tensor:
        """``De(w) u`` for the unit vectors u along the direction, by differences of f: no second derivative is needed."""
        u = direction / _batch.spread(_batch.above_zero(_batch.norm(direction)), direction)
        size = _batch.norm(w)
        size = torch.where(size > 0, size, math.sqrt(w[0].numel()))
        step = _batch.spread(torch.finfo(w.dtype).eps ** (1 / 3) * size, w)
        with torch.no_grad():
            ahead, behind = self._residual(w + step * u), self._residual(w - step * u)
        return (ahead - behind) / (2 * _batch.spread(step.flatten(), ahead))

    def _measured(self, signals: Tensor) -> Tensor:
        """``f`` of signals that all belong to the same item, a bounded number at a time."""
        size = max(1, _AT_ONCE // signals[0].numel())
        with torch.no_grad():
            return torch.cat(
                [
                    self.forward(part, *(each.expand(len(part), *each.shape[1:]) for each in self.parameters))
                    for part in _batch.pieces(signals, size)
                ]
            )


def _over(e: Tensor, noise: float | Tensor | None) -> Tensor:
    return e if noise is None else e / noise


def _checked_parameters(parameters: Tensor | Sequence[Tensor], items: int) -> tuple[Tensor, ...]:
    given = (parameters,) if isinstance(parameters, Tensor) else tuple(parameters)
    for number, each in enumerate(given):
        if not isinstance(each, Tensor):
            raise TypeError(
                f"parameters[{number}] must be a tensor with one row per item, got {type(each).__name__}: what all items share "
                "belongs into forward itself"
            )
        if each.ndim == 0 or len(each) != items:
            raise ValueError(
                f"parameters[{number}] has shape {tuple(each.shape)} for {items} items in y, expected ({items}, ...): one row "
                "per item"
            )
    return tuple(_validate.kept(f"parameters[{number}]", each) for number, each in enumerate(given))


def _checked_noise(noise: float | Tensor | None, y: Tensor) -> float | Tensor | None:
    """A number, or ``(1, ...)`` for all items, or one for each number of y."""
    if noise is None or not isinstance(noise, Tensor):
        return None if noise is None else _validate.number("noise", noise, above=0)
    _validate.tensor("noise", noise)
    if noise.ndim == 0:
        return _validate.number("noise", float(noise), above=0)
    if noise.shape not in (y.shape, y.shape[1:]):
        raise ValueError(
            f"noise has shape {tuple(noise.shape)}, expected a number, {tuple(y.shape[1:])} or {tuple(y.shape)}: one per "
            "measurement"
        )
    if not bool((noise > 0).all()):
        raise ValueError(
            f"noise must be above zero, got {float(noise.min()):g}: measurements without noise have no weight"
        )
    kept = _validate.kept("noise", noise)
    return kept if noise.shape == y.shape else kept[None]
