"""Bounds on the constants of G that are proved from its weights, layer by layer.

For a chain of layers, on the ball of radius r around a centre, the recursion keeps four numbers of the map F so far::

    kappa   Lipschitz constant from l2 to l2            peak   the same from l2 to l_inf (largest change of one coordinate)
    nu      Lipschitz constant of DF                    iota   |F(z) - F(z')| >= iota |z - z'|

    linear A     kappa' = |A| kappa,  peak' = min(|A|_{2,inf} kappa, |A|_{inf,inf} peak),  nu' = |A| nu,  iota' = floor(A) iota
    phi          kappa' = S kappa,    peak' = S peak,   nu' = S nu + C peak kappa,   iota' = I iota
    sum          kappa, peak and nu add up;   iota' = max_i (iota_i - sum of the other kappa)

with ``I <= phi' <= S`` on the intervals that the preactivations can reach (the centre's value plus and minus ``peak r``),
and C the Lipschitz constant of ``phi'``. ``nu'`` for an activation uses
``|diag(phi'(F(z)) - phi'(F(z')))| <= C |F(z) - F(z')|_inf <= C peak |z - z'|``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch.nn.utils.parametrize import is_parametrized

from genprior.theory.proved.layers import Layer, every_layer, linear_part
from genprior.theory.proved.spectrum import EPS, SLACK, round_off

NOT_INJECTIVE = "the network is affine and not injective"
LOST = "the network is affine, and its smallest singular value is too small to distinguish from zero"
_LARGEST_AFFINE = 20_000_000


@dataclass(frozen=True)
class Proved:
    """Rigorous constants of a map on a ball, each with its derivation, or why it is not known."""

    kappa: float = 1.0
    peak: float = 1.0
    nu: float = 0.0
    iota: float = 1.0
    reasons: dict[str, str] = field(default_factory=dict)
    """Why ``kappa``, ``nu`` (infinite) or ``iota`` (zero) is not known."""

    def because(self, **reasons: str) -> dict[str, str]:
        """The reasons so far and new ones; the first one stays."""
        return reasons | self.reasons


def proved_constants(chain: tuple[Layer, ...], radius: float) -> Proved:
    """The constants of a chain on the ball of this radius around the centre at which the chain was evaluated."""
    if all(layer.is_linear for layer in chain):
        exact = _affine(chain)
        if exact is not None:
            return exact
    state = Proved()
    for layer in chain:
        state = _through(layer, state, radius)
    return state


def _affine(chain: tuple[Layer, ...]) -> Proved | None:
    """An affine network is one matrix: its singular values give all constants, up to round-off of products and values."""
    inside, outside = chain[0].centre, chain[-1].image
    size = inside[0].numel()
    parts = tuple(every_layer(chain))
    if size * outside[0].numel() > _LARGEST_AFFINE or any(is_parametrized(part.module) for part in parts):
        return None
    with torch.no_grad():
        eye = torch.eye(size, dtype=torch.float64, device="cpu").reshape(size, *inside.shape[1:])
        matrix = linear_part(chain, eye).reshape(size, -1).T
        sizes = float(linear_part(chain, eye, sizes=True).norm())
    values = torch.linalg.svdvals(matrix)
    top = float(values[0])
    error = round_off(matrix, top) + sum(part.widths[0] + 2 for part in parts) * EPS * sizes
    least = max(0.0, float(values[-1]) - error) if matrix.shape[0] >= size else 0.0
    reasons = {} if least else {"iota": NOT_INJECTIVE if _loses(chain) else LOST}
    peak = float(matrix.norm(dim=1).max())
    return Proved(top * (1 + SLACK) + error, peak * (1 + SLACK) + error, 0.0, least, reasons)


def _loses(chain: tuple[Layer, ...]) -> bool:
    """Whether an affine chain is certainly not injective.

    It does where it narrows, and where its first layer does; and where a later one does, if all before it are square: these
    reach every input of it, or lose something themselves.
    """
    if chain[-1].widths[1] < chain[0].widths[0]:
        return True
    for layer in chain:
        if layer.kind == "sum" or layer.facts.floor == 0:
            return layer.kind != "sum"
        if layer.widths[0] != layer.widths[1]:
            return False
    return False


def _through(layer: Layer, state: Proved, radius: float) -> Proved:
    if layer.kind == "sum":
        return _sum(layer, state, radius)
    if layer.kind == "activation":
        return _activation(layer, state, radius)
    if layer.kind == "unknown":
        why = f"layer {layer.label} is not one whose constants are known"
        return Proved(math.inf, math.inf, math.inf, 0.0, state.because(kappa=why, nu_G=why, iota=why))
    facts = layer.facts
    peak = min(facts.rows * state.kappa, facts.sums * state.peak)
    reasons = state.reasons if facts.floor else state.because(iota=_not_injective(layer))
    if facts.floor == 0 and "slope" in state.reasons.get("iota", ""):
        reasons = reasons | {"iota": _not_injective(layer)}  # the stronger reason of the two
    return Proved(facts.norm * state.kappa, peak, facts.norm * state.nu, (facts.floor or 0.0) * state.iota, reasons)


def _not_injective(layer: Layer) -> str:
    inside, outside = layer.widths
    if outside < inside:
        return f"layer {layer.label} narrows from {inside} to {outside} numbers, so it is not injective by itself"
    if layer.facts.lost:
        return f"the smallest singular value of layer {layer.label} is too small to distinguish from zero"
    if layer.facts.floor is None:
        return f"layer {layer.label} is too large to bound its smallest singular value"
    return f"layer {layer.label} does not have full column rank"


def _activation(layer: Layer, state: Proved, radius: float) -> Proved:
    known = layer.activation
    reach = state.peak * radius
    if math.isfinite(reach):
        low, high = known.slopes(layer.centre - reach, layer.centre + reach)
    else:
        low, high = (0.0 if known.increasing else -known.steepest), known.steepest
    steep = max(abs(low), abs(high))
    if math.isfinite(known.curvature):
        nu, reasons = steep * state.nu + known.curvature * state.peak * state.kappa, state.reasons
    else:
        straight = low == high  # no value is near the kink
        nu = (steep * state.nu if steep else 0.0) if straight else math.inf
        jumps = f"the slope of {known.name} in {layer.label} jumps"
        reasons = state.reasons if straight else state.because(nu_G=jumps)
    if low <= 0:
        reasons = {"iota": f"{known.name} in {layer.label} may have a slope as small as {low:.1g}"} | reasons
    return Proved(steep * state.kappa, steep * state.peak, nu, max(low, 0.0) * state.iota, reasons)


def _sum(layer: Layer, state: Proved, radius: float) -> Proved:
    ends = []
    for branch in layer.branches:
        end = state
        for part in branch:
            end = _through(part, end, radius)
        ends.append(end)
    kappa = sum(end.kappa for end in ends)
    iota = max(end.iota - sum(other.kappa for other in ends if other is not end) for end in ends)
    reasons: dict[str, str] = dict(state.reasons)
    for end in ends:
        reasons = end.reasons | reasons
    reasons.pop("iota", None)
    if "iota" in state.reasons:
        reasons["iota"] = state.reasons["iota"]
    elif iota <= 0:
        reasons["iota"] = f"the branches of {layer.label} could cancel each other"
    return Proved(kappa, sum(end.peak for end in ends), sum(end.nu for end in ends), max(iota, 0.0), reasons)
