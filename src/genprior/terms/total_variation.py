"""Isotropic total variation of signals, images and volumes, and its prox by accelerated projected gradient on the dual."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from genprior import _validate
from genprior._axes import axes_of, spatial_dims
from genprior._batch import PerItem, dot, flat, spread, square
from genprior.terms.base import Term
from genprior.terms.differences import clip_lengths, differences, lengths, minus_adjoint
from genprior.terms.parameters import step_per_item

CHECK_EVERY = 10
RESTART_EVERY = 4


@dataclass(frozen=True, kw_only=True)
class TotalVariation(Term):
    """``sum over pixels of sqrt(dx^2 + dy^2)``, forward differences along space or time, 0 at the far border.

    A weight is a factor: ``0.1 * TotalVariation()``. In one dimension it is ``sum |dx|``, in three
    ``sum sqrt(dx^2 + dy^2 + dz^2)``.

    Leading axes (channels) are summed. The prox solves the dual of ``t TV(x) + 1/2 |x - v|^2``,

        minimise  1/2 |v - D'q|^2   subject to   |q_pixel| <= t,        x = v - D'q,

    by the fast gradient projection of Beck and Teboulle (IEEE Trans. Image Processing 18, 2009, section IV) with
    the momentum restarted where it points uphill (O'Donoghue and Candes 2015). The mean of each channel is set aside,
    so neither an offset nor the scale of v matters. The duality gap bounds the error: ``1/2 |x - x*|^2 <= gap``.
    Each item stops by itself when ``gap <= tolerance * 1/2 |v - mean(v)|^2``, which guarantees

        |x - x*| <= sqrt(tolerance) |v - mean(v)|,

    or when the gap has sunk to its rounding error, about ``2 eps (1/2 |v - mean(v)|^2 + t |v - mean(v)|_1)``: near
    1e-6 in float32, so a smaller tolerance gains nothing there. After ``max_iterations`` the last iterate is given;
    long one-dimensional signals with a large t need the most of them. The prox is not differentiated by autograd.

    Parameters
    ----------
    dims: how many of the last axes are space or time; the others are channels. By default 1 for ``(n,)``, 2 for
        ``(channels, height, width)``, 3 for ``(channels, depth, height, width)``. Two axes count as an image if neither side
        is more than twice the other, and must be told otherwise: 1 for channels, 2 for an image.
    tolerance: relative duality gap at which an item is finished.
    max_iterations: bound on the work for one prox.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> (0.1 * gp.TotalVariation())(torch.eye(2)[None, None])  # a pixel with slopes (-1, -1), one with 1, one with 1
    tensor([0.3414])
    """

    dims: int | None = None
    tolerance: float = 1e-6
    max_iterations: int = 1000

    def __post_init__(self) -> None:
        if self.dims is not None:
            _validate.whole("dims", self.dims)
        _validate.number("tolerance", self.tolerance, above=0.0)
        _validate.whole("max_iterations", self.max_iterations)

    def __call__(self, x: Tensor) -> Tensor:
        """``sum sqrt(dx^2 + dy^2)``."""
        dims = self._dims("x", x)
        if x.requires_grad and torch.is_grad_enabled():
            return flat(torch.linalg.vector_norm(_recorded_differences(x, dims), dim=1)).sum(dim=1)
        return flat(lengths(differences(x, dims))).sum(dim=1)

    def subgradient(self, x: Tensor) -> Tensor:
        """``D'(Dx / |Dx|)`` with 0 for pixels where Dx = 0."""
        slope = differences(x, self._dims("x", x))
        size = lengths(slope)
        return minus_adjoint(torch.zeros_like(x), slope / torch.where(size == 0, 1.0, size)).neg_()

    @torch.no_grad()
    def prox(self, v: Tensor, t: PerItem) -> Tensor:
        """``argmin_x t TV(x) + 1/2 |x - v|^2`` up to the tolerance."""
        dims = self._dims("v", v)
        mean = v.mean(dim=axes_of(dims), keepdim=True)
        return mean + _solve_dual(v - mean, step_per_item(t, v), dims, self.tolerance, self.max_iterations)

    def check(self, name: str, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
        """Check also that the axes of space or time are known."""
        super().check(name, shape, device, dtype)
        spatial_dims(name, tuple(shape), self.dims)

    def axes(self, x: Tensor) -> int:
        """How many of the last axes of ``x`` are space or time."""
        return self._dims("x", x)

    def _dims(self, name: str, x: Tensor) -> int:
        return spatial_dims(name, tuple(x.shape[1:]), self.dims)


def _solve_dual(v: Tensor, t: Tensor, dims: int, tolerance: float, max_iterations: int) -> Tensor:
    """Run the iteration on the items that are not finished; each one leaves with its answer and is then left alone."""
    answer = torch.empty_like(v)
    active = torch.arange(v.shape[0], device=v.device)
    q = y = v.new_zeros(v.shape[0], dims, *v.shape[1:])
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
    """``q+ = P(y + s D(v - D'y))``, ``y+ = q+ + (m - 1)/m+ (q+ - q)``; m is set back to 1 if watched and uphill.

    ``s = 1 / (4 dims)``, because ``|D|^2 <= 4`` for the forward differences along one axis.
    """
    dims = y.shape[1]
    new = clip_lengths(torch.add(y, differences(minus_adjoint(v, y), dims), alpha=1 / (4 * dims)), t)
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
    x = minus_adjoint(v, q)
    slope = differences(x, q.shape[1])
    gap = t * flat(lengths(slope)).sum(dim=1) - dot(slope, q)
    gap_constant = square(x) / 2
    energy = square(v) / 2
    rounding = 2 * torch.finfo(v.dtype).eps * (energy + t * flat(v).abs().sum(dim=1))
    constant = gap_constant < gap
    finished = ~(torch.where(constant, gap_constant, gap) > tolerance * energy + rounding)  # NaN is finished too
    return torch.where(spread(constant, x), 0.0, x), finished


def _recorded_differences(x: Tensor, dims: int) -> Tensor:
    """The same as :func:`differences` in operations that autograd follows."""
    return torch.stack([_recorded_difference(x, axis) for axis in axes_of(dims)], dim=1)


def _recorded_difference(x: Tensor, axis: int) -> Tensor:
    border = torch.zeros_like(x.narrow(axis, 0, 1))
    return torch.cat([x.diff(dim=axis), border], dim=axis)
