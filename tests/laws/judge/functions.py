"""Losses and terms of one flattened item, written from their definitions: values, gradients, all subgradients."""

from __future__ import annotations

import contextlib
import math
import warnings
from dataclasses import dataclass

import cvxpy as cp
import numpy as np

Subgradients = tuple[cp.Expression, list[cp.Constraint]]
"""An expression of free variables, and what limits them."""


@dataclass(frozen=True)
class Squares:
    """``weight |M x - y|^2``."""

    matrix: np.ndarray
    y: np.ndarray
    weight: float = 0.5

    def value(self, x: np.ndarray) -> float:
        return self.weight * float(np.sum(self._residual(x) ** 2))

    def gradient(self, x: np.ndarray) -> np.ndarray:
        """Computed in the dtype of ``x``, which may be float32."""
        residual = self._residual(x)
        return (2 * self.weight * (self.matrix.T.astype(x.dtype) @ residual)).astype(x.dtype)

    def hessian(self, x: np.ndarray) -> np.ndarray:
        return 2 * self.weight * self.matrix.T @ self.matrix

    def unit(self, x: np.ndarray) -> float:
        """The larger of the two parts that cancel at a perfect fit."""
        parts = (self.matrix.T @ self.y, self.matrix.T @ (self.matrix @ x))
        return 2 * self.weight * max(size(part) for part in parts)

    def _residual(self, x: np.ndarray) -> np.ndarray:
        return self.matrix.astype(x.dtype) @ x - self.y.astype(x.dtype)


@dataclass(frozen=True)
class Logistic:
    """``mean_i log(1 + exp(-label_i <a_i, x>))``; the rows of ``signed`` are ``label_i a_i``."""

    signed: np.ndarray

    def value(self, x: np.ndarray) -> float:
        return float(np.logaddexp(0, -(self.signed @ x.astype(float))).mean())

    def gradient(self, x: np.ndarray) -> np.ndarray:
        return -(self._pulls(x)[:, None] * self.signed).mean(axis=0).astype(x.dtype)

    def hessian(self, x: np.ndarray) -> np.ndarray:
        pull = self._pulls(x)
        return (self.signed.T * (pull * (1 - pull))) @ self.signed / len(pull)

    def unit(self, x: np.ndarray) -> float:
        """The length of the parts, here or at zero: far out, where all samples are told apart, nothing is left of them."""
        return float((np.maximum(self._pulls(x), 0.5) * np.linalg.norm(self.signed, axis=1)).mean())

    def _pulls(self, x: np.ndarray) -> np.ndarray:
        return 0.5 * (1 - np.tanh(0.5 * (self.signed @ x.astype(float))))


@dataclass(frozen=True)
class Function:
    """``factor f(v - centre)`` for the f named by ``kind``; ``low`` and ``high`` are bounds, or ``high`` a radius."""

    kind: str
    factor: float = 1.0
    centre: np.ndarray | float = 0.0
    low: float = 0.0
    high: float = 0.0
    shape: tuple[int, ...] = ()

    SETS = ("box", "ball", "l1ball")

    @property
    def is_set(self) -> bool:
        return self.kind in self.SETS

    def value(self, v: np.ndarray) -> float:
        """Zero for sets: see :meth:`violation`."""
        d = v - self.centre
        if self.kind == "tv":
            return self.factor * float(np.linalg.norm(self._slopes(d), axis=0).sum())
        values = {
            "l1": lambda: np.abs(d).sum(),
            "l2": lambda: size(d),
            "linf": lambda: np.abs(d).max(),
            "squared": lambda: 0.5 * np.float64(size(d)) ** 2,
        }
        return 0.0 if self.is_set else self.factor * float(values[self.kind]())

    def violation(self, v: np.ndarray) -> float:
        """Distance to the set (for the l1 ball a bound on it from below)."""
        d = v - self.centre
        if self.kind == "box":
            return size(d - np.clip(d, self.low, self.high))
        if self.kind == "ball":
            return max(0.0, size(d) - self.high)
        if self.kind == "l1ball":
            return max(0.0, np.abs(d).sum() - self.high) / math.sqrt(len(d))
        return 0.0

    def gradient(self, v: np.ndarray) -> np.ndarray:
        """Of the smooth kind, zero for the others."""
        return self.factor * (v - self.centre) if self.kind == "squared" else np.zeros_like(v)

    def hessian(self) -> float:
        return self.factor if self.kind == "squared" else 0.0

    @property
    def steepness(self) -> float:
        """The length of its longest subgradients, in the largest entry, where that does not depend on the point."""
        return self.factor if self.kind in ("l1", "l2", "linf", "tv") else 0.0

    def unit(self, v: np.ndarray) -> float:
        both = max(size(v), size(np.broadcast_to(self.centre, v.shape)))
        return self.factor * both if self.kind == "squared" else 0.0

    def subgradients(self, v: np.ndarray, near: float, scale: float) -> Subgradients | None:
        """``scale`` times those at the points within ``near`` of v; None where there is nothing but the gradient."""
        rules = {"l1": self._of_l1, "l2": self._of_l2, "linf": self._of_linf, "tv": self._of_tv}
        normals = {"box": self._of_box, "ball": self._of_ball, "l1ball": self._of_l1_ball}
        d = v - self.centre
        if self.kind in normals:
            return normals[self.kind](d, near)
        if self.kind == "squared":
            return None
        s, limits = rules[self.kind](d, near)
        return self.factor * scale * s, limits

    def _of_l1(self, d: np.ndarray, near: float) -> Subgradients:
        s = cp.Variable(len(d))
        return s, [cp.abs(s) <= 1, *_fixed(s, np.abs(d) > near, np.sign(d))]

    def _of_l2(self, d: np.ndarray, near: float) -> Subgradients:
        s = cp.Variable(len(d))
        return s, [cp.norm(s) <= 1, *_turned(s, d, near)]

    def _of_linf(self, d: np.ndarray, near: float) -> Subgradients:
        s, largest = cp.Variable(len(d)), np.abs(d).max()
        if largest <= near:
            return s, [cp.norm1(s) <= 1]
        limits = [s >= 0, cp.sum(s) == 1, *_fixed(s, np.abs(d) < largest - 2 * near, np.zeros(len(d)))]
        return cp.multiply(np.sign(d), s), limits

    def _of_tv(self, d: np.ndarray, near: float) -> Subgradients:
        slopes, (down, right) = self._slopes(d), self.differences()
        q = cp.Variable(slopes.shape)
        limits: list[cp.Constraint] = [cp.norm(q, 2, axis=0) <= 1]
        for j in range(slopes.shape[1]):
            limits += _turned(q[:, j], slopes[:, j], near)
        return down.T @ q[0] + right.T @ q[1], limits

    def _of_box(self, d: np.ndarray, near: float) -> Subgradients:
        s, up, down = cp.Variable(len(d)), d >= self.high - near, d <= self.low + near
        limits = _fixed(s, ~up & ~down, np.zeros(len(d)))
        limits += [s[j] >= 0 for j in np.flatnonzero(up & ~down)] + [s[j] <= 0 for j in np.flatnonzero(down & ~up)]
        return s, limits

    def _of_ball(self, d: np.ndarray, near: float) -> Subgradients:
        outward = cp.Variable(nonneg=True)
        return outward * (d / max(size(d), 1e-300)), [outward == 0] if size(d) < self.high - near else []

    def _of_l1_ball(self, d: np.ndarray, near: float) -> Subgradients:
        if np.abs(d).sum() < self.high - near * math.sqrt(len(d)):
            return cp.Constant(np.zeros(len(d))), []
        s, outward = cp.Variable(len(d)), cp.Variable(nonneg=True)
        return s, [cp.abs(s) <= outward, *(s[j] == np.sign(d[j]) * outward for j in np.flatnonzero(np.abs(d) > near))]

    def _slopes(self, d: np.ndarray) -> np.ndarray:
        down, right = self.differences()
        return np.stack([down @ d, right @ d])

    def differences(self) -> tuple[np.ndarray, np.ndarray]:
        """Forward differences over the last two axes as matrices, zero at the far border."""
        *lead, rows, columns = self.shape
        step = [np.eye(n, k=1) - np.diag([1.0] * (n - 1) + [0.0]) for n in (rows, columns)]
        channels = np.eye(math.prod(lead))
        return (
            np.kron(channels, np.kron(step[0], np.eye(columns))),
            np.kron(channels, np.kron(np.eye(rows), step[1])),
        )


NOTHING = Function("squared", 0.0)


def minimise(cost: cp.Expression, limits: list[cp.Constraint]) -> None:
    """Solve the convex program, perhaps not to the last digit; the values stay None where that fails."""
    with warnings.catch_warnings(), contextlib.suppress(cp.SolverError, ValueError):
        warnings.simplefilter("ignore")
        cp.Problem(cp.Minimize(cost), limits).solve(solver=cp.CLARABEL)


def size(v: np.ndarray) -> float:
    """Euclidean norm that neither underflows nor overflows."""
    largest = float(np.max(np.abs(v), initial=0.0))
    return largest * float(np.linalg.norm(np.asarray(v, dtype=float) / largest)) if 0 < largest < math.inf else largest


def _fixed(s: cp.Variable, where: np.ndarray, values: np.ndarray) -> list[cp.Constraint]:
    chosen = np.flatnonzero(where)
    return [s[chosen] == values[chosen]] if len(chosen) else []


def _turned(s: cp.Expression, d: np.ndarray, near: float) -> list[cp.Constraint]:
    """``s`` is the direction of a point within ``near`` of ``d``."""
    length = size(d)
    return [cp.norm(s - d / length) <= near / length] if length > near else []
