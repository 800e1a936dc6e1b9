"""Default weights of the baselines, from the noise level, or from the data where that is not known.

A coefficient of ``A^T noise`` along a unit vector of the basis has the standard deviation ``sigma a``, where ``a`` is the root
mean square of the column norms of A. The largest of d such coefficients is about ``sigma a sqrt(2 log d)``: the universal
threshold of Donoho and Johnstone (1994), which no noise passes. It shrinks more than is best for the mean squared error; the
shares below are of it. Of complex measurements sigma is that of the real and of the imaginary part.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from genprior._batch import PerItem, square
from genprior.operators import Operator

LASSO_SHARE = 0.3
"""Of the universal threshold. For 20 real digits, five operators, noise of 0.05, 0.1 and 0.3, cosines and Haar wavelets the
best of weights in steps of two was half of the threshold in 14 of 30 cases, a quarter in 13."""
VARIATION_SHARE = 0.2
"""Of the universal threshold: in the same 15 cases the best was an eighth of it in 8, a quarter in 7."""
WITHOUT_NOISE = 1e-3
"""Of the weight from which on the lasso's answer is zero, ``|Psi^T A^T y|_inf``: the least default weight, and that without a
noise level."""
_PROBES = 8
"""Random signals from which the column norms are estimated: to a few percent for operators that are alike everywhere."""


def column_norm(operator: Operator, like: Tensor) -> Tensor:
    """Root mean square of the norms of A's columns, ``(B,)``: ``E |A s|^2 = |A|_F^2`` for random signs s.

    ``like`` is a batch of signals.
    """
    random = torch.Generator().manual_seed(0)
    shape = like.shape[1:]
    total = like.new_zeros(len(like))
    for _ in range(_PROBES):
        signs = (torch.randint(0, 2, shape, generator=random, device="cpu") * 2.0 - 1.0).to(like)
        total = total + square(operator(signs.expand(len(like), *shape).contiguous()))
    return (total / (_PROBES * math.prod(shape))).sqrt()


def default_weight(operator: Operator, like: Tensor, largest: Tensor, noise: PerItem | None, share: float) -> Tensor:
    """``share`` of the universal threshold, and at least a small share of ``largest``, which is ``|Psi^T A^T y|_inf``."""
    least = WITHOUT_NOISE * largest
    if noise is None:
        return least
    threshold = math.sqrt(2 * math.log(max(2, math.prod(like.shape[1:]))))
    return torch.maximum(share * threshold * noise * column_norm(operator, like), least)
