"""``min_w 1/2 |A w - y|^2 + weight h(K w)`` by the primal-dual method of Chambolle and Pock (2011), algorithm 1.

With step lengths ``tau sigma |K|^2 = 1`` one iteration is

    w+ = (A^T A + I/tau)^-1 (A^T y + w/tau - K^T q)
    q+ = P(q + sigma K (2 w+ - w)),

where P is the projection onto the domain of ``(weight h)*``. The first line is the operator's resolvent: a closed form for
most operators, warm-started conjugate gradients for others. The residuals

    p = (w - w+)/tau - K^T (q - q+),        d = (q - q+)/sigma - K (w - w+)

are what is missing from optimality of (w+, q+): p in ``A^T (A w - y) + K^T q = 0``, d in ``K w`` being a subgradient of
``(weight h)*`` at q. p is judged relative to ``|A^T y|``; d relative to ``|K w|``, or to a tenth of ``|K| |A^T y| / |A|^2``
where that is more, because the answer may be zero. While one is larger than the other by more than half, tau grows or
shrinks, by ever smaller factors (Goldstein, Li, Yuan 2015), so that convergence is that of fixed steps.
Every item has its own steps and stops by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from genprior import _clock
from genprior._batch import column, norm, ratio, spread, square
from genprior.baselines.penalties import Penalty
from genprior.operators import Operator

CHECK_EVERY = 10
"""Iterations between two tests of the residuals."""
_FIRST_CHANGE = 0.5
"""Share by which tau is changed first."""
_FADING = 0.95
"""Factor on that share after each change: tau moves by a factor of 1e5 at most, and steps become constant."""
_UNBALANCED = 1.5
"""Ratio of the residuals from which tau changes."""
_LEAST = 0.1
"""Share of ``|K| |A^T y| / |A|^2``, the size that ``K w`` may have, to which d is relative at least."""
_MOST_OF_TIME = 0.5
"""Share of the rest of a limited run that one baseline may take."""


class Point(NamedTuple):
    """Where the iteration stands, one row per item; a later one may begin here."""

    w: Tensor
    q: Tensor
    tau: Tensor


@dataclass(frozen=True)
class Baseline:
    """An answer without a generator."""

    signal: Tensor
    """``(B, *signal_shape)``."""
    weight: Tensor
    """The weight used, ``(B,)``."""
    objective: Tensor
    """``1/2 |A w - y|^2 + weight h(w)`` per item."""
    converged: Tensor
    """Whether the residuals are below the tolerance, ``(B,)``."""
    residual: Tensor
    """The larger of the two relative residuals, ``(B,)``."""
    steps: Tensor
    """Iterations of each item."""
    point: Point
    """For ``start=`` of another call, with another weight say."""


class Scale(NamedTuple):
    """What the residuals are relative to, per item."""

    primal: Tensor
    dual: Tensor

    @classmethod
    def of(cls, operator: Operator, back: Tensor, penalty: Penalty) -> Scale:
        """For ``back = A^T y``."""
        size = norm(back)
        return cls(size, _LEAST * penalty.norm_squared**0.5 * ratio(size, column(operator.gram_bounds()[1], back)))


class Solution(NamedTuple):
    """What the iteration ends with."""

    point: Point
    residual: Tensor
    steps: Tensor


@torch.no_grad()
def minimise(
    operator: Operator,
    y: Tensor,
    penalty: Penalty,
    weight: Tensor,
    start: Point,
    tolerance: float,
    max_iterations: int,
) -> Solution:
    """Iterate until both relative residuals of every item are below the tolerance, each item on its own."""
    first = Point(*(part.clone() for part in start))
    found = Solution(first, torch.full_like(weight, torch.inf), torch.zeros_like(weight, dtype=torch.int64))
    back = operator.adjoint(y)
    scale = Scale.of(operator, back, penalty)
    active = torch.arange(len(weight), device=weight.device)
    at, change = start, torch.full_like(weight, _FIRST_CHANGE)
    over = _clock.allowance(_MOST_OF_TIME)
    for k in range(1, max_iterations + 1):
        at, primal, dual = _iterate(operator, back, penalty, weight, at, scale)
        last = k == max_iterations or over()
        if k % CHECK_EVERY == 0 or last:
            residual = torch.maximum(primal, dual)
            done = ~(residual > tolerance) | last  # NaN is finished too
            for whole, part in zip(found.point, at, strict=True):
                whole[active] = part
            found.residual[active], found.steps[active] = residual, k
            if bool(done.all()):
                break
            if bool(done.any()):
                keep = torch.nonzero(~done)[:, 0]
                active, back, weight, scale = (
                    active[keep],
                    back[keep],
                    weight[keep],
                    Scale(*(part[keep] for part in scale)),
                )
                at, change, primal, dual = Point(*(part[keep] for part in at)), change[keep], primal[keep], dual[keep]
                operator, penalty = operator.rows(keep), penalty.rows(keep)
        tau, change = _balanced(at.tau, change, primal, dual)
        at = at._replace(tau=tau)
    return found


def _iterate(
    operator: Operator, back: Tensor, penalty: Penalty, weight: Tensor, at: Point, scale: Scale
) -> tuple[Point, Tensor, Tensor]:
    w, q, tau = at
    wide = spread(1 / tau, w)
    pulled = penalty.adjoint(q)
    w_new = operator.resolvent(back + wide * w - pulled, 1 / tau, start=w)
    move = w_new - w
    image = penalty.forward(w_new)
    moved = penalty.forward(move)
    inverse = tau * penalty.norm_squared  # 1 / sigma
    q_new = penalty.project(q + (image + moved) / spread(inverse, q), weight)
    turned = q - q_new
    primal = -wide * move - penalty.adjoint(turned)
    dual = spread(inverse, q) * turned + moved
    size = torch.maximum(norm(image), scale.dual)
    return Point(w_new, q_new, tau), ratio(norm(primal), scale.primal), ratio(norm(dual), size)


def _balanced(tau: Tensor, change: Tensor, primal: Tensor, dual: Tensor) -> tuple[Tensor, Tensor]:
    """Longer steps in w where its residual is the larger one, shorter ones where it is the smaller one."""
    longer, shorter = primal > _UNBALANCED * dual, dual > _UNBALANCED * primal
    factor = torch.where(longer, 1 / (1 - change), torch.where(shorter, 1 - change, 1.0))
    return tau * factor, torch.where(longer | shorter, _FADING * change, change)


def objective(operator: Operator, y: Tensor, penalty: Penalty, weight: Tensor, w: Tensor) -> Tensor:
    """``1/2 |A w - y|^2 + weight h(K w)`` per item."""
    return square(operator(w) - y) / 2 + weight * penalty.value(penalty.forward(w))
