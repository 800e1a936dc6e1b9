"""The largest eigenvalue of a symmetric operator that can only be applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from genprior import _clock
from genprior._batch import dot, norm, spread

STEPS = 60
SAFETY = 1.01
_MOST_OF_TIME = 0.15
"""The share of what is left of a limited run that an estimate may take."""


class Estimate(NamedTuple):
    """The largest eigenvalue per item, and whether all steps were made for it: else time was short."""

    value: Tensor
    whole: bool


def largest_eigenvalue(apply: Callable[[Tensor], Tensor], start: Tensor) -> Estimate:
    """Estimate the largest eigenvalue of a positive semidefinite ``M`` from above, per item, shape ``(B,)``.

    Lanczos without reorthogonalisation (three signals of memory): ``beta_k q_{k+1} = M q_k - alpha_k q_k -
    beta_{k-1} q_{k-1}``. The largest eigenvalue ``theta`` of the tridiagonal matrix, with last component ``s`` of its
    eigenvector, lies within ``beta |s|`` of an eigenvalue of ``M``. The estimate is ``1.01 (theta + beta |s|)``.
    In a run whose time is limited, fewer steps are made where they take long; the estimate is then rougher, and may be too
    small. Plain power iteration needs far more steps and may settle on the second eigenvalue without any sign of it.
    """
    q, before, beta = _unit(start, norm(start)), torch.zeros_like(start), torch.zeros_like(norm(start))
    alphas, betas = [], []
    over = _clock.allowance(_MOST_OF_TIME)
    for _ in range(STEPS):
        image = apply(q)
        alpha = dot(q, image)
        rest = image - spread(alpha, q) * q - spread(beta, q) * before
        beta = _unless_exhausted(norm(rest), norm(image))
        alphas.append(alpha)
        betas.append(beta)
        q, before = _unit(rest, beta), q
        if over():
            break
    alpha, beta = (torch.stack(column, dim=1).cpu().double() for column in (alphas, betas))
    inner = beta[:, :-1]
    values, vectors = torch.linalg.eigh(alpha.diag_embed() + inner.diag_embed(1) + inner.diag_embed(-1))
    upper: Tensor = SAFETY * (values[:, -1] + beta[:, -1] * vectors[:, -1, -1].abs())
    return Estimate(upper.clamp(min=0).to(start), len(alphas) == STEPS)


def _unless_exhausted(beta: Tensor, scale: Tensor) -> Tensor:
    """Zero where the remainder is rounding error: the item's Krylov space is exhausted."""
    return torch.where(beta > 10 * torch.finfo(beta.dtype).eps * scale, beta, 0)


def _unit(x: Tensor, size: Tensor) -> Tensor:
    """Scale each item by its ``size``; an item of size zero becomes zero and adds only zeros from then on."""
    inverse = torch.where(size > 0, 1 / size, 0)
    return spread(inverse, x) * x
