"""Bounds on the extreme singular values of a matrix, proved up to a stated allowance for round-off in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from genprior.operators.krylov import SAFETY, largest_eigenvalue

EPS = torch.finfo(torch.float64).eps
SLACK = 1e-9
"""Relative allowance for round-off in float64, for upper bounds."""
EIGENVALUES = 1600
"""Largest Gram matrix whose eigenvalues are all computed."""
_MARGINS = (1e-5, 1e-3, 1e-2)
_FLOORS = (1e-3, 1e-5)


@dataclass(frozen=True)
class Bound:
    """An upper bound on a norm, and its derivation."""

    value: float
    method: str
    floor: float | None = None
    """Lower bound on the smallest singular value; 0: it is shown to be zero; None: not known."""
    lost: bool = False
    """Computed, but too small to distinguish from zero."""


def smallest_by_values(matrix: Tensor, values: Tensor) -> float | None:
    """A lower bound on ``min |A x| / |x|`` from computed singular values: 0 where it is zero for certain, None where lost."""
    if matrix.shape[0] < matrix.shape[1]:
        return 0.0
    least = float(values[-1]) - round_off(matrix, float(values[0]))
    if least > 0:
        return least
    return 0.0 if has_dependent_columns(matrix) else None


def has_dependent_columns(matrix: Tensor) -> bool:
    """Whether a column is zero, or another one times plus or minus a power of two: exactly, without any round-off.

    Each column is divided by the power of two next to its first number that is not zero; then equal ones are searched for.
    """
    first = matrix.gather(0, (matrix != 0).byte().argmax(dim=0, keepdim=True))
    if bool((first == 0).any()):
        return True
    factor = torch.frexp(first).mantissa.abs() / first
    scaled = matrix * factor
    exact = bool((scaled / factor == matrix).all())  # nothing has left the range of the dtype
    return exact and len(torch.unique(scaled.T, dim=0)) < matrix.shape[1]


def round_off(matrix: Tensor, top: float) -> float:
    """Allowance for the error of a computed singular value (or eigenvalue, for a Gram): absolute, whatever its own size."""
    return 10 * max(matrix.shape) * EPS * top


def largest_by_gram(matrix: Tensor) -> Bound | None:
    """The root of the largest eigenvalue of a Gram matrix: computed, or proposed by Lanczos and proved by Cholesky."""
    if len(matrix) <= EIGENVALUES:
        return Bound(
            float(torch.linalg.eigvalsh(matrix)[-1].clamp_min(0).sqrt()) * (1 + SLACK), "eigenvalues of the Gram"
        )
    random = torch.Generator(device="cpu").manual_seed(0)
    start = torch.randn(1, len(matrix), generator=random, dtype=torch.float64, device="cpu")
    guess = float(largest_eigenvalue(lambda x: x @ matrix, start).value) / SAFETY
    for margin in _MARGINS:
        top = guess * (1 + margin)
        if is_positive_definite(-matrix, top):
            return Bound(math.sqrt(top) * (1 + SLACK), "Cholesky of the Gram")
    return None


def smallest_by_gram(matrix: Tensor, norm: float) -> float | None:
    """A lower bound on the smallest singular value, None where it is lost in the round-off of the Gram's eigenvalues."""
    error = round_off(matrix, norm**2)
    if len(matrix) <= EIGENVALUES:
        least = float(torch.linalg.eigvalsh(matrix)[0]) - error
        return math.sqrt(least) if least > 0 else None
    shifts = ((share, (share * norm) ** 2 + error) for share in _FLOORS)
    return next((share * norm for share, shift in shifts if is_positive_definite(matrix, -shift)), None)


def is_positive_definite(matrix: Tensor, shift: float) -> bool:
    """Whether ``matrix + shift I`` is, proved: Cholesky succeeds without what its round-off could hide (Rump 2006)."""
    moved = matrix.clone()
    moved.diagonal().add_(shift)
    moved.diagonal().sub_(2 * (len(moved) + 2) * EPS * float(moved.diagonal().abs().sum()))
    return int(torch.linalg.cholesky_ex(moved)[1]) == 0
