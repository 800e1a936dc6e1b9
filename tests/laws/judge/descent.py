"""Descent in float64 from an iterate: does what was called converged go lower nearby?"""

from __future__ import annotations

import cvxpy as cp
import numpy as np

from tests.laws.judge.functions import Function, minimise, size
from tests.laws.judge.oracle import Item


def descend(item: Item, z: np.ndarray, *, radius: float, steps: int = 20) -> tuple[float, np.ndarray]:
    """The objective and the latent that damped Gauss-Newton steps on the exact model reach within ``radius`` of ``z``."""
    start, value, damping = z, _value(item, z), 1e-3
    for _ in range(steps):
        x, jacobian = item.signal(z), item.jacobian(z)
        trial = _step(item, (x, z), jacobian, (damping, radius))
        there = _value(item, trial)
        if np.isfinite(there) and there < value and size(trial - start) <= radius:
            done = value - there <= 1e-12 * abs(value)
            z, value, damping = trial, there, max(damping / 5, 1e-9)
            if done:
                break
        else:
            damping *= 10
            if damping > 1e9:
                break
    return value, z


def _value(item: Item, z: np.ndarray) -> float:
    with np.errstate(all="ignore"):
        return item.value(z)


def _step(item: Item, at: tuple[np.ndarray, np.ndarray], jacobian: np.ndarray, kept: tuple[float, float]) -> np.ndarray:
    """``argmin_d`` of the objective with G linear and L quadratic, plus a damping relative to its curvature."""
    (x, z), (damping, radius) = at, kept
    gradient, hessian = item.gradient(x), item.hessian(x)
    curvature = jacobian.T @ hessian @ jacobian
    curvature = 0.5 * (curvature + curvature.T)
    slope = jacobian.T @ gradient + item.on_latent.gradient(z)
    scale = max(np.linalg.norm(curvature, 2), size(slope) / radius)
    if not 1e-200 < scale < 1e200:
        return z
    curvature = curvature + (damping * scale + item.on_latent.hessian()) * np.eye(z.size)
    kinds = [f for f in (item.on_signal, item.on_latent) if f.kind != "squared"]
    if not kinds:
        return z - np.linalg.solve(curvature / scale, slope / scale)
    length = max(min(radius, size(slope) / scale), 1e-9 * radius)  # the unit of d
    d, worth = cp.Variable(z.size), scale * length**2
    root = np.linalg.cholesky(curvature / scale)
    cost = (slope * length / worth) @ d + 0.5 * cp.sum_squares(root.T @ d)
    limits: list[cp.Constraint] = []
    for f, point, change in ((item.on_signal, x, length * jacobian @ d), (item.on_latent, z, length * d)):
        extra, more = _expression(f, point, change)
        cost, limits = cost + extra / worth, limits + more
    minimise(cost, limits)
    return z if d.value is None else z + length * d.value


def _expression(f: Function, at: np.ndarray, change: cp.Expression) -> tuple[cp.Expression, list[cp.Constraint]]:
    """``f(at + change)``."""
    d = (at - f.centre) + change
    if f.kind == "squared":
        return cp.Constant(0.0), []
    if f.is_set:
        inside = max(f.violation(at), 0.0)  # no further out than now
        if f.kind == "box":
            return cp.Constant(0.0), [d <= f.high + inside, d >= f.low - inside]
        return cp.Constant(0.0), [cp.norm(d, 2 if f.kind == "ball" else 1) <= f.high + inside * np.sqrt(at.size)]
    if f.kind == "tv":
        down, right = f.differences()
        return f.factor * cp.sum(cp.norm(cp.vstack([down @ d, right @ d]), 2, axis=0)), []
    return f.factor * cp.norm(d, {"l1": 1, "l2": 2, "linf": "inf"}[f.kind]), []
