"""z steps along the gradient alone.

Each takes ``z``, the gradient ``g`` of the smooth part, and a per-item estimate ``lipschitz`` of that gradient's Lipschitz
constant, and ends with the prox of H: ``z+ = prox_{beta H}(z - beta g)`` or a preconditioned variant.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior.problem import Problem
from genprior.solvers.z_steps.base import FirstOrder, Move
from genprior.terms import Term, Zero


@dataclass(frozen=True)
class Gradient(FirstOrder[None]):
    """``z+ = prox_{beta H}(z - beta g)``.

    ``step_size`` is beta. Without it, beta is the inverse of the running Lipschitz estimate, per item, without extra passes.
    """

    step_size: float | None = None

    def __post_init__(self) -> None:
        _check_step(self.step_size)

    @property
    def description(self) -> str:
        """In words."""
        return f"gradient steps {_length_in_words(self.step_size)}"

    @property
    def follows_penalty(self) -> bool:
        """True when a step was given."""
        return self.step_size is not None

    def start(self, problem: Problem, z: Tensor) -> None:
        """Nothing to remember."""

    def __call__(self, move: Move, memory: None) -> tuple[Tensor, None]:
        """One proximal gradient step."""
        beta = _length(self.step_size, move)
        ahead = torch.addcmul(move.z, _batch.spread(beta, move.z), move.gradient, value=-1)
        return _prox(move.term, ahead, beta), None


@dataclass(frozen=True)
class Momentum(FirstOrder[Tensor]):
    """Heavy ball: ``v+ = m v - beta g``, ``z+ = prox_{beta H}(z + v+)``.

    ``step_size`` is beta, as in :class:`Gradient`; without it beta is ``(1 - m)`` times as long, the stable length for the
    same curvature. ``momentum`` is m, in [0, 1). The velocity is the move after the prox.
    """

    step_size: float | None = None
    momentum: float = 0.9

    def __post_init__(self) -> None:
        _check_step(self.step_size)
        if not 0 <= _validate.number("momentum", self.momentum) < 1:
            raise ValueError(f"momentum must lie in [0, 1), got {self.momentum}")

    @property
    def description(self) -> str:
        """In words."""
        return f"gradient steps with momentum {self.momentum:g}, {_length_in_words(self.step_size)}"

    @property
    def follows_penalty(self) -> bool:
        """True when a step was given."""
        return self.step_size is not None

    def start(self, problem: Problem, z: Tensor) -> Tensor:
        """Velocity zero."""
        return torch.zeros_like(z)

    def __call__(self, move: Move, memory: Tensor) -> tuple[Tensor, Tensor]:
        """One heavy-ball step."""
        beta = _length(self.step_size, move)
        if self.step_size is None:
            beta = (1 - self.momentum) * beta
        velocity = self.momentum * memory - _batch.spread(beta, move.z) * move.gradient
        z = _prox(move.term, move.z + velocity, beta)
        return z, z - move.z


_SMALL = 1e-8
"""Adam's usual epsilon, relative to the first gradient."""


@dataclass(frozen=True)
class Moments:
    """Adam's two moments of the gradient, the number of gradients in them, and their unit."""

    first: Tensor
    second: Tensor
    count: Tensor
    unit: Tensor


@dataclass(frozen=True)
class Adam(FirstOrder[Moments]):
    """Adam (Kingma and Ba 2015): moments per coordinate, bias correction per item, then the prox of H for its step lengths.

    Where H is not separable, its prox is known only for one step per item; the second moment is then averaged over the
    item's coordinates. (With a step per coordinate and a Euclidean prox, the fixed points would not be stationary.)

    ``step_size`` is the length of a move per coordinate; without it, 10% of the latent distribution's spread. ``beta1`` and
    ``beta2``, in [0, 1), are the memory of the two moments; ``epsilon`` is added to the root of the second; omitted: 1e-8
    times the length of the item's first gradient, so that the units of the problem do not matter.
    """

    step_size: float | None = None
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float | None = None

    def __post_init__(self) -> None:
        _check_step(self.step_size)
        for name in ("beta1", "beta2"):
            if not 0 <= _validate.number(name, getattr(self, name)) < 1:
                raise ValueError(f"{name} must lie in [0, 1), got {getattr(self, name)}")
        if self.epsilon is not None:
            _validate.number("epsilon", self.epsilon, least=0)

    @property
    def description(self) -> str:
        """In words."""
        length = "10% of the latent spread" if self.step_size is None else f"{self.step_size:g}"
        return f"Adam steps of length {length} per coordinate"

    def start(self, problem: Problem, z: Tensor) -> Moments:
        """Both moments and the count zero."""
        zero = z.new_zeros(z.shape[0])
        return Moments(torch.zeros_like(z), torch.zeros_like(z), zero, zero + 1)

    def __call__(self, move: Move, memory: Moments) -> tuple[Tensor, Moments]:
        """One Adam step."""
        idle = move.idle
        new = memory.count == 0
        # The unit of the first gradient: squares of gradients in the problem's units may vanish or overflow.
        unit = torch.where(new & ~idle, _batch.binary_unit(_batch.norm(move.gradient)), memory.unit)
        g = move.gradient / _batch.spread(unit, move.gradient)
        small = _SMALL if self.epsilon is None else _batch.spread(self.epsilon / unit, g)
        first = torch.lerp(g, memory.first, self.beta1)
        second = (self.beta2 * memory.second).addcmul_(g, g, value=1 - self.beta2)
        count = memory.count + ~idle
        length = (0.1 * move.spread if self.step_size is None else self.step_size) * move.shrink
        length = torch.where(idle, 0.0, length)
        size = second if move.term.separable else _mean(second)
        scale = (size / _batch.spread((1 - self.beta2**count).clamp_min(1e-12), g)).sqrt_().add_(small)
        lengths = _batch.spread(length, g) / scale
        corrected = first / _batch.spread((1 - self.beta1**count).clamp_min(1e-12), g)
        own = lengths / _batch.spread(unit, lengths)  # of gradients as they are
        step = own if move.term.separable else _batch.flat(own)[:, 0]
        z = _prox(move.term, torch.addcmul(move.z, lengths, corrected, value=-1), step)
        return z, Moments(first, second, count, unit)


def _check_step(step_size: float | None) -> None:
    if step_size is not None:
        _validate.number("step_size", step_size, above=0)


def _length_in_words(step_size: float | None) -> str:
    return "of a length estimated from the curvature" if step_size is None else f"of length {step_size:g}"


def _length(step_size: float | None, move: Move) -> Tensor:
    if step_size is not None:
        return step_size * move.shrink
    return move.shrink / move.lipschitz * move.kappa.sign()  # idle ones stay: see Move.idle


def _prox(term: Term, v: Tensor, step: Tensor) -> Tensor:
    return v if isinstance(term, Zero) else term.prox(v, step)


def _mean(x: Tensor) -> Tensor:
    """The mean over each item's coordinates, in a shape that broadcasts."""
    return x.mean(dim=tuple(range(1, x.ndim)), keepdim=True)
