"""Isotropic total variation of images, and its prox by accelerated projected gradient on the dual."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from genprior import _validate
from genprior._batch import PerItem, dot, flat, spread, square
from genprior.terms.base import Term
from genprior.terms.parameters import step_per_item

CHECK_EVERY = 10
RESTART_EVERY = 4
STEP = 1 / 8  # |D|^2 <= 8 for forward differences on two axes


@dataclass(frozen=True, kw_only=True)
class TotalVariation(Term):
    """``sum over pixels of sqrt(dx^2 + dy^2)``, forward differences over the last two axes, 0 at the far border.

    A weight is a factor: ``0.1 * TotalVariation()``.

    Leading axes (channels) are summed. The prox solves the dual of ``t TV(x) + 1/2 |x - v|^2``,

        minimise  1/2 |v - D'q|^2   subject to   |q_pixel| <= t,        x = v - D'q,

    by the fast gradient projection of Beck and Teboulle (IEEE Trans. Image Processing 18, 2009, section IV) with
    the momentum restarted where it points uphill (O'Donoghue and Candes 2015). The mean of each channel is set aside,
    so neither an offset nor the scale of v matters. The duality gap bounds the error: ``1/2 |x - x*|^2 <= gap``.
    Each item stops by itself when ``gap <= tolerance * 1/2 |v - mean(v)|^2``, which guarantees

        |x - x*| <= sqrt(tolerance) |v - mean(v)|,

    or when the gap has sunk to its rounding error, about ``2 eps (1/2 |v - mean(v)|^2 + t |v - mean(v)|_1)``: near
    1e-6 in float32, so a smaller tolerance gains nothing there. After ``max_iterations`` the last iterate is given.
    The prox is not differentiated by autograd.

    Parameters
    ----------
    tolerance: relative duality gap at which an item is finished.
    max_iterations: bound on the work for one prox.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> (0.1 * gp.TotalVariation())(torch.eye(2)[None, None])  # a pixel with slopes (-1, -1), one with 1, one with 1
    tensor([0.3414])
    """

    tolerance: float = 1e-6
    max_iterations: int = 1000

    def __post_init__(self) -> None:
        _validate.number("tolerance", self.tolerance, above=0.0)
        _validate.whole("max_iterations", self.max_iterations)

    def __call__(self, x: Tensor) -> Tensor:
        """``sum sqrt(dx^2 + dy^2)``."""
        _require_image("x", tuple(x.shape[1:]))
        if x.requires_grad and torch.is_grad_enabled():
            return flat(torch.linalg.vector_norm(_recorded_differences(x), dim=1)).sum(dim=1)
        return flat(_length(_differences(x))).sum(dim=1)

    def subgradient(self, x: Tensor) -> Tensor:
        """``D'(Dx / |Dx|)`` with 0 for pixels where Dx = 0."""
        _require_image("x", tuple(x.shape[1:]))
        slope = _differences(x)
        size = _length(slope)
        return _minus_adjoint(torch.zeros_like(x), slope / torch.where(size == 0, 1.0, size)).neg_()

    @torch.no_grad()
    def prox(self, v: Tensor, t: PerItem) -> Tensor:
        """``argmin_x t TV(x) + 1/2 |x - v|^2`` up to the tolerance."""
        _require_image("v", tuple(v.shape[1:]))
        mean = v.mean(dim=(-2, -1), keepdim=True)
        return mean + _solve_dual(v - mean, step_per_item(t, v), self.tolerance, self.max_iterations)

    def check(self, name: str, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
        """Check also that the signal is an image."""
        super().check(name, shape, device, dtype)
        _require_image(name, shape)


def _solve_dual(v: Tensor, t: Tensor, tolerance: float, max_iterations: int) -> Tensor:
    """Run the iteration on the items that are not finished; each one leaves with its answer and is then left alone."""
    answer = torch.empty_like(v)
    active = torch.arange(v.shape[0], device=v.device)
    q = y = v.new_zeros(v.shape[0], 2, *v.shape[1:])
    momentum = v.new_ones(v.shape[0])
    for k in range(max_iterations + 1):
        if k % CHECK_EVERY == 0 or k == max_iterations:
            x, finished = _primal(v, t, q, tolerance)
            if k == max_iterations:
                finished = torch.ones_like(finished)
            if bool(finished.any()):
                answer[active[finished]] = x[finished]
                active, v, t, q, y, momentum = (part[~finished] for part in (active, v, t, q, y, momentum))
            if active.numel() == 0:
                break
        q, y, momentum = _iterate(v, t, q, y, momentum, watch=k % RESTART_EVERY == 0)
    return answer


def _iterate(
    v: Tensor, t: Tensor, q: Tensor, y: Tensor, momentum: Tensor, *, watch: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """``q+ = P(y + D(v - D'y) / 8)``, ``y+ = q+ + (m - 1)/m+ (q+ - q)``; m is set back to 1 if watched and uphill."""
    new = _clip(torch.add(y, _differences(_minus_adjoint(v, y)), alpha=STEP), t)
    move = new - q
    if watch:
        momentum = torch.where(dot(y - new, move) > 0, 1.0, momentum)
    following = (1 + torch.sqrt(1 + 4 * momentum.square())) / 2
    inertia = spread((momentum - 1) / following, new)
    return new, torch.addcmul(new, move, inertia), following


def _primal(v: Tensor, t: Tensor, q: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """Answer that belongs to q, and which items are finished.

    The gap of ``x = v - D'q`` is ``sum (t |Dx| - <Dx, q>)``. The constant image has the gap ``1/2 |x|^2``: it is the
    answer for large t, where the first one drowns in rounding times t. Both bound ``1/2 |x - x*|^2``.
    """
    x = _minus_adjoint(v, q)
    slope = _differences(x)
    gap = t * flat(_length(slope)).sum(dim=1) - dot(slope, q)
    gap_constant = square(x) / 2
    energy = square(v) / 2
    rounding = 2 * torch.finfo(v.dtype).eps * (energy + t * flat(v).abs().sum(dim=1))
    constant = gap_constant < gap
    finished = ~(torch.where(constant, gap_constant, gap) > tolerance * energy + rounding)  # NaN is finished too
    return torch.where(spread(constant, x), 0.0, x), finished


def _differences(x: Tensor) -> Tensor:
    """``Dx``, shape ``(B, 2, *shape)``: forward differences down and to the right, 0 at the far border."""
    slope = x.new_empty(x.shape[0], 2, *x.shape[1:])
    torch.sub(x[..., 1:, :], x[..., :-1, :], out=slope[:, 0, ..., :-1, :])
    torch.sub(x[..., 1:], x[..., :-1], out=slope[:, 1, ..., :-1])
    slope[:, 0, ..., -1, :] = 0
    slope[:, 1, ..., -1] = 0
    return slope


def _recorded_differences(x: Tensor) -> Tensor:
    """The same as :func:`_differences` in operations that autograd follows."""
    down = torch.nn.functional.pad(x[..., 1:, :] - x[..., :-1, :], (0, 0, 0, 1))
    right = torch.nn.functional.pad(x[..., 1:] - x[..., :-1], (0, 1))
    return torch.stack([down, right], dim=1)


def _minus_adjoint(v: Tensor, q: Tensor) -> Tensor:
    """``v - D'q`` for a field q that is 0 at the far border."""
    down, right = q[:, 0], q[:, 1]
    x = torch.add(v, down).add_(right)
    x[..., 1:, :] -= down[..., :-1, :]
    x[..., 1:] -= right[..., :-1]
    return x


def _length(q: Tensor) -> Tensor:
    """Length of the two-vector of each pixel, shape ``(B, 1, *shape)``."""
    down, right = q[:, :1], q[:, 1:]
    return torch.addcmul(down.square(), right, right).sqrt_()


def _clip(q: Tensor, t: Tensor) -> Tensor:
    """Shorten, in place, the two-vector of each pixel to at most t."""
    radius = spread(t, q)
    return q.mul_((radius / _length(q)).clamp_(max=1))


def _require_image(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) < 2:
        raise ValueError(f"{name} has shape {shape}, but total variation needs images (..., height, width)")
