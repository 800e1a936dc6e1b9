"""Sort-based projections of the rows of ``(B, n)`` onto the simplex and the l1 ball.

Duchi, Shalev-Shwartz, Singer, Chandra: Efficient projections onto the l1-ball, ICML 2008.
"""

from __future__ import annotations

import torch
from torch import Tensor


def threshold(u: Tensor, total: Tensor) -> Tensor:
    """Level theta of each row with ``sum_i max(u_i - theta, 0) = total``, shape ``(B,)``.

    With the entries sorted downwards, ``theta_k = (u_1 + ... + u_k - total) / k`` rises while the next entry is above
    it and falls afterwards, so theta is its maximum. One Newton step then removes the rounding of the long sums.
    """
    sums = u.sort(dim=1, descending=True).values.cumsum(dim=1)
    count = torch.arange(1, u.shape[1] + 1, dtype=u.dtype, device=u.device)
    theta = ((sums - total[:, None]) / count).amax(dim=1)
    above = (u - theta[:, None]).clamp(min=0)
    return theta + (above.sum(dim=1) - total) / (above > 0).sum(dim=1).clamp(min=1)


def project_simplex(v: Tensor, total: Tensor) -> Tensor:
    """Nearest point of each row in ``{x >= 0, sum x = total}``."""
    u = v - v.amax(dim=1, keepdim=True)  # so the rounding is at the size of total, however large v is
    return (u - threshold(u, total)[:, None]).clamp(min=0)


def project_l1_ball(v: Tensor, radius: Tensor) -> Tensor:
    """Nearest point of each row in ``{|x|_1 <= radius}``."""
    size = v.abs()
    inside = size.sum(dim=1) <= radius
    return torch.where(inside[:, None], v, project_simplex(size, radius) * v.sign())


def shrink_level(v: Tensor, radius: Tensor) -> Tensor:
    """Level by which the projection onto the l1 ball shrinks each row; not positive for rows inside the ball."""
    size = v.abs()
    top = size.amax(dim=1)
    return top + threshold(size - top[:, None], radius)
