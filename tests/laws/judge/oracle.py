"""One item as the judge sees it, and how far from stationary a point of it is.

All in float64: signals by a float64 copy of the module, its Jacobian by autograd, the best subgradients by a convex program.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import torch
from torch import Tensor, nn

from tests.laws.judge.functions import NOTHING, Function, Logistic, Squares, minimise, size

SLACK = 10.0
"""Residuals may be this many times the tolerance: units of relative residuals differ between honest definitions."""
_TRIES = 6
"""Evaluations in the item's own dtype by which rounding is measured."""


@dataclass(frozen=True)
class Item:
    """One item: ``L(G(z)) + R(G(z)) + H(z)``; ``exact`` is the float64 copy of ``module``."""

    module: nn.Module
    exact: nn.Module
    latent_shape: tuple[int, ...]
    loss: Squares | Logistic | None
    on_signal: Function = NOTHING
    on_latent: Function = NOTHING

    @property
    def dtype(self) -> torch.dtype:
        return next(self.module.parameters()).dtype

    def signal(self, z: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return self.exact(self._latent(z)).flatten().numpy()

    def jacobian(self, z: np.ndarray) -> np.ndarray:
        def flat(z: Tensor) -> Tensor:
            return self.exact(z).flatten()

        return torch.autograd.functional.jacobian(flat, self._latent(z)).reshape(-1, z.size).numpy()

    def value(self, z: np.ndarray) -> float:
        """The objective, where it is finite."""
        return self._at(self.signal(z), z)

    def _at(self, x: np.ndarray, z: np.ndarray) -> float:
        loss = 0.0 if self.loss is None else self.loss.value(x)
        return loss + self.on_signal.value(x.astype(float)) + self.on_latent.value(z)

    def gradient(self, x: np.ndarray) -> np.ndarray:
        """Of the smooth part of L + R, in the dtype of x."""
        loss = np.zeros_like(x) if self.loss is None else self.loss.gradient(x)
        return loss + self.on_signal.gradient(x).astype(x.dtype)

    def hessian(self, x: np.ndarray) -> np.ndarray:
        curvature = np.zeros((x.size, x.size)) if self.loss is None else self.loss.hessian(x)
        return curvature + self.on_signal.hessian() * np.eye(x.size)

    def rounding(self, z: np.ndarray, normal: np.ndarray) -> tuple[float, float, float]:
        """How far signal, objective and ``DG^T (gradient + normal)`` are off when computed in the dtype of the module."""
        x, jacobian = self.signal(z), self.jacobian(z)
        gradient = self.gradient(x) + normal
        pulled, value = jacobian.T @ gradient, self._at(x, z)
        eps = torch.finfo(self.dtype).eps
        off = [
            eps * size(x),
            eps * (size(x) * size(gradient) + abs(value)),
            eps * np.linalg.norm(jacobian, 2) * size(gradient),
        ]
        for near in self._neighbours(z):
            leaf = near.requires_grad_()
            out = self.module(leaf)
            there = out.detach().flatten().numpy()
            cotangent = self.gradient(there) + normal.astype(there.dtype)
            (back,) = torch.autograd.grad(out, leaf, torch.as_tensor(cotangent).reshape(out.shape))
            found = size(there - x), abs(self._at(there, z) - value), size(back.flatten().double().numpy() - pulled)
            off = [max(pair) for pair in zip(off, found, strict=True)]
        return off[0], off[1], off[2]

    def _neighbours(self, z: np.ndarray) -> list[Tensor]:
        """The latent in the module's dtype, and others that differ from it by rounding."""
        dtype = self.dtype
        random = np.random.default_rng(0)
        factors = [1 + torch.finfo(dtype).eps * random.uniform(-1, 1, z.size) * (k > 0) for k in range(_TRIES)]
        return [torch.as_tensor(z * factor).to(dtype).reshape(1, *self.latent_shape) for factor in factors]

    def _latent(self, z: np.ndarray) -> Tensor:
        return torch.as_tensor(z, dtype=torch.float64).reshape(1, *self.latent_shape)


def exact_copy(module: nn.Module) -> nn.Module:
    """The same numbers in float64."""
    return copy.deepcopy(module).double().eval().requires_grad_(False)


@dataclass(frozen=True)
class Stationarity:
    """How far zero is from ``DG^T (grad L + dR) + dH``, in natural units."""

    ratio: float
    """The distance over the lengths that its parts can have: those of L as its Hessian sees them, ``|DG| |dR|``, ``|dH|``."""
    limit: float
    """What the tolerance and rounding allow."""
    stretch: float
    """``|DG|``."""
    residual: float
    """The distance itself."""

    @property
    def holds(self) -> bool:
        return self.ratio <= self.limit


def stationarity(item: Item, z: np.ndarray, w: np.ndarray, tolerance: float) -> Stationarity:
    """At ``z``, with the subgradients of R at points near ``w``, which is ``G(z)`` in methods that do not split."""
    x, jacobian = item.signal(z), item.jacobian(z)
    stretch, gradient = np.linalg.norm(jacobian, 2), item.gradient(x)
    unit = item.on_signal.unit(x) + (0.0 if item.loss is None else item.loss.unit(x))
    near = SLACK * tolerance * size(x), SLACK * tolerance * size(z)
    normal, pull = _best_subgradients(item, (w, z), near, (jacobian, gradient), max(unit, item.on_signal.steepness))
    whole = _loss_length(item, x, jacobian) + stretch * (item.on_signal.unit(x) + size(normal)) + size(pull)
    residual = size(jacobian.T @ (gradient + normal) + pull)
    allowed = item.rounding(z, normal)[2]
    return Stationarity(
        _ratio(residual, whole), SLACK * tolerance + 4 * _ratio(allowed, whole), float(stretch), residual
    )


def _loss_length(item: Item, x: np.ndarray, jacobian: np.ndarray) -> float:
    """What ``DG^T grad L`` would be if its parts ``H x`` and ``c = H x - grad L`` did not cancel.

    Each is at most ``|DG| |p|``, and at most ``|sqrt(H) DG| sqrt(<p, H^+ p>)``: an operator need not see what G moves most.
    """
    if item.loss is None:
        return 0.0
    gradient, hessian = item.loss.gradient(x), item.loss.hessian(x)
    scale = max(np.abs(hessian).max(), 1e-300)
    values, vectors = np.linalg.eigh(hessian / scale)
    seen = values > 1e-12 * max(values[-1], 1e-300)
    roots, basis = np.sqrt(scale) * np.sqrt(values[seen]), vectors[:, seen]
    stretch, measured = np.linalg.norm(jacobian, 2), np.linalg.norm(roots[:, None] * (basis.T @ jacobian), 2)

    def length(part: np.ndarray) -> float:
        inside = basis.T @ part
        if size(part - basis @ inside) > 1e-6 * size(part):  # H does not see all of it
            return float(stretch * size(part))
        return float(min(stretch * size(part), measured * size(inside / roots)))

    moving = hessian @ x
    return max(length(moving), length(moving - gradient)) + length(gradient)


def _best_subgradients(
    item: Item,
    at: tuple[np.ndarray, np.ndarray],
    near: tuple[float, float],
    smooth: tuple[np.ndarray, np.ndarray],
    unit: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Those of R and H that bring ``DG^T (gradient + dR) + dH`` nearest to zero."""
    (w, z), (jacobian, gradient) = at, smooth
    pull, latent = item.on_latent.gradient(z), item.on_latent
    unit = max(unit, 1e-300)
    whole = max(unit * np.linalg.norm(jacobian, 2), latent.steepness, latent.unit(z), 1e-300)
    on_signal, on_latent = item.on_signal.subgradients(w, near[0], 1 / unit), latent.subgradients(z, near[1], 1 / whole)
    if on_signal is None and on_latent is None:
        return np.zeros_like(w), pull
    s, signal_limits = (cp.Constant(np.zeros_like(w)), []) if on_signal is None else on_signal
    t, latent_limits = (cp.Constant(np.zeros_like(z)), []) if on_latent is None else on_latent
    residual = (unit / whole * jacobian.T) @ (gradient / unit + s) + t + pull / whole
    minimise(cp.norm(residual), [*signal_limits, *latent_limits])
    if s.value is None or t.value is None:
        return np.zeros_like(w), pull
    return unit * np.asarray(s.value).ravel(), pull + whole * np.asarray(t.value).ravel()


def _ratio(a: float, b: float) -> float:
    return a / b if b > 0 else (0.0 if a == 0 else math.inf)
