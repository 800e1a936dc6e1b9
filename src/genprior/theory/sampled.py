"""Sampled constants of G: at random points of the ball and at points moved towards the extremes.

Each figure is attained somewhere: ``kappa`` and ``nu`` are never above the truth, ``iota`` is never below it. They
describe the generator and prove nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior.generators import Generator, Passes

Announce = Callable[[str], None]

_LARGE = 400_000
"""Entries of a Jacobian beyond which fewer Jacobians are computed."""
_NEAR = 1e-2
"""Share of the largest distance below which a pair of points is left out."""
_COMPARED = 6
"""Points whose Jacobians are compared with each other."""
_NARROW = 1e-2
"""Width of differences of DG, in units of the latent standard deviation."""


@dataclass(frozen=True)
class Sampled:
    """The samples."""

    iota: float
    kappa: float
    nu: float
    points: Tensor
    """Where DG was computed, ``(N, *latent_shape)``."""
    spectra: Tensor
    """Singular values of DG there, ``(N, s)``, falling."""
    pairs: int
    """Pairs of points whose secants ``|G(z) - G(z')| / |z - z'|`` were computed."""
    secants: tuple[float, float]
    """Smallest and largest of these."""
    blur: float
    """Round-off of these, from that of the values of G."""
    curved: int
    """Points at which the second derivative was searched."""
    radius: float


def sample_constants(
    generator: Generator,
    radius: float,
    *,
    points: int | None = None,
    moves: int | None = None,
    seed: int = 0,
    announce: Announce | None = None,
) -> Sampled:
    """Look for the extreme values of ``|DG|``, its smallest singular value and its rate of change on ``|z| <= radius``.

    Parameters
    ----------
    generator
        the generator.
    radius
        of the ball.
    points
        random points at which all singular values of DG are computed; secants use 16 times as many. By default 16, or 6 for
        large generators.
    moves
        steps that a quarter of the points are moved, towards larger ``|DG|`` and towards smaller least singular values; by
        default 8, or 4 for large generators.
    seed
        of the samples.
    announce
        callback that receives progress messages.
    """
    small = math.prod(generator.latent_shape) * math.prod(generator.signal_shape) <= _LARGE
    points = (16 if small else 6) if points is None else _validate.whole("points", points)
    moves = (8 if small else 4) if moves is None else _validate.whole("moves", moves, 0)
    radius = _validate.number("radius", radius, above=0)
    say, random = announce or (lambda _: None), _validate.seed(seed)
    generator = generator.counting(Passes())
    say("secants")
    many = ball_points(generator, 16 * points, radius, random)
    secants, pairs, blur = _secants(generator, many)
    say(f"singular values at {points} points")
    seen = [_spectra(generator, many[:points])]
    few = max(1, points // 4)
    for goal in ("largest", "smallest") if moves else ():
        say(f"moving {few} points towards the {goal} singular values")
        seen.append(_moved(generator, seen[0], few, radius, moves, goal))
    say("second derivatives")
    count = min(len(many), 2 * points)
    nu = max(_curvature(generator, many[:count], radius, moves, random), _turning(generator, seen[0]))
    places, spectra = torch.cat([part.points for part in seen]), torch.cat([part.values for part in seen])
    narrows = math.prod(generator.latent_shape) > math.prod(generator.signal_shape)  # DG has a kernel everywhere
    return Sampled(
        iota=0.0 if narrows else min(float(spectra[:, -1].min()), secants[0]),
        kappa=max(float(spectra[:, 0].max()), secants[1]),
        nu=nu,
        points=places,
        spectra=spectra,
        pairs=pairs,
        secants=secants,
        blur=blur,
        curved=count,
        radius=radius,
    )


def ball_points(generator: Generator, count: int, radius: float, random: torch.Generator) -> Tensor:
    """Random points of the ball: the centre; draws of latents, scaled into the ball; points of random length."""
    drawn = generator.draw(count, random)
    longest = _batch.norm(drawn).clamp_min(_tiny(drawn))
    drawn = drawn * _batch.spread((radius / longest).clamp(max=1.0), drawn)
    way = torch.randn(drawn.shape, generator=random, dtype=torch.float64, device="cpu")
    level = torch.rand(count, generator=random, dtype=torch.float64, device="cpu")
    spread = _batch.spread(radius * level / _batch.norm(way), way) * way
    mixed = torch.where(_batch.spread(torch.arange(count, device="cpu") % 2 == 0, way), drawn.cpu().double(), spread)
    mixed[0] = 0
    return mixed.to(generator.device, generator.dtype)


@dataclass(frozen=True)
class _Seen:
    points: Tensor
    values: Tensor
    left: tuple[Tensor, Tensor]
    """Unit signals of the largest and the smallest singular value."""
    right: tuple[Tensor, Tensor]
    slopes: tuple[Tensor, ...] = ()
    """DG at the first points."""


def _spectra(generator: Generator, z: Tensor) -> _Seen:
    """All singular values of DG, and the extreme vectors, from the Jacobian in float64."""
    parts, slopes = [], list[Tensor]()
    for one in _batch.pieces(z, 1):
        slope = generator.jacobian(one)[0].cpu().double()  # not every device has float64
        slopes += [slope] if len(slopes) < _COMPARED else []
        u, s, v = torch.linalg.svd(slope, full_matrices=False)
        parts.append((s, u[:, 0], u[:, -1], v[0], v[-1]))
    values, *vectors = (torch.stack(column) for column in zip(*parts, strict=True))
    first, last, v_first, v_last = (vector.to(z) for vector in vectors)
    signals = tuple(x.reshape(len(z), *generator.signal_shape) for x in (first, last))
    latents = tuple(x.reshape(len(z), *generator.latent_shape) for x in (v_first, v_last))
    return _Seen(z, values.cpu(), (signals[0], signals[1]), (latents[0], latents[1]), tuple(slopes))


def _moved(generator: Generator, start: _Seen, few: int, radius: float, moves: int, goal: str) -> _Seen:
    """Move the most extreme points along the gradient of their extreme singular value, ``u^T DG(z) v``, in the ball."""
    upward = goal == "largest"
    place = 0 if upward else -1
    order = start.values[:, place].argsort(descending=upward)[:few]
    here = best = _picked(start, order)
    length = 0.1 * radius
    for _ in range(moves):
        slope = _slope_of_pairing(generator, here.points, here.left[place], here.right[place])
        way = slope / _batch.spread(_batch.norm(slope).clamp_min(_tiny(slope)), slope)
        here = _spectra(generator, project(here.points + (length if upward else -length) * way, radius))
        better = (here.values[:, place] > best.values[:, place]) == upward
        best = _merged(best, here, better)
        here, length = best, 0.7 * length
    return best


def project(z: Tensor, radius: float) -> Tensor:
    """On the ball."""
    return z * _batch.spread((radius / _batch.norm(z).clamp_min(_tiny(z))).clamp(max=1.0), z)


def _picked(seen: _Seen, index: Tensor) -> _Seen:
    at = index.to(seen.points.device)
    left, right = (tuple(vector[at] for vector in pair) for pair in (seen.left, seen.right))
    return _Seen(seen.points[at], seen.values[index], (left[0], left[1]), (right[0], right[1]))


def _merged(old: _Seen, new: _Seen, where: Tensor) -> _Seen:
    def pick(first: Tensor, second: Tensor) -> Tensor:
        return torch.where(_batch.spread(where.to(first.device), first), second, first)

    left = pick(old.left[0], new.left[0]), pick(old.left[1], new.left[1])
    right = pick(old.right[0], new.right[0]), pick(old.right[1], new.right[1])
    return _Seen(pick(old.points, new.points), pick(old.values, new.values), left, right)


def _slope_of_pairing(generator: Generator, z: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """``grad_z u^T DG(z) v``, by differentiating the vjp: ``D^2 G(z)`` with u contracted, times v."""
    with torch.enable_grad():
        leaf = z.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(generator(leaf), leaf, u, create_graph=True)
        if not gradient.requires_grad:  # an affine generator
            return torch.zeros_like(z)
        (slope,) = torch.autograd.grad(gradient, leaf, v, allow_unused=True)
    return torch.zeros_like(z) if slope is None else slope.detach()


def _secants(generator: Generator, z: Tensor) -> tuple[tuple[float, float], int, float]:
    with torch.no_grad():
        x = torch.cat([_batch.flat(generator(part)) for part in _batch.pieces(z, 64)]).cpu().double()
    index = torch.triu_indices(len(z), len(z), 1, device="cpu")
    apart = torch.pdist(_batch.flat(z).cpu().double())
    moved = (x[index[0]] - x[index[1]]).norm(dim=1) if len(x) * x.shape[1] < 10**5 else torch.pdist(x)
    far = apart > _NEAR * apart.max()  # the secant of two neighbours is round-off
    ratios = (moved / apart)[far]
    if len(ratios) == 0:
        return (math.inf, 0.0), 0, 0.0
    blur = 4 * torch.finfo(generator.dtype).eps * float(x.norm(dim=1).max()) / float(apart[far].min())
    return (float(ratios.min()), float(ratios.max())), len(ratios), blur


def _curvature(generator: Generator, z: Tensor, radius: float, moves: int, random: torch.Generator) -> float:
    """The largest ``|D^2G(z)[u, .]^T y|`` over unit u and y found by alternating, at points that move where it grows.

    For a unit signal y the matrix ``H_y`` of second derivatives of ``<y, G>`` is symmetric, and ``|H_y u| <= |H_y|`` is at
    most the local Lipschitz constant of DG. Alternate ``y ~ D^2G[u, u]`` (a difference of two pushes) and ``u ~ H_y u``.
    """
    way = torch.randn(z.shape, generator=random, dtype=torch.float64, device="cpu").to(z)
    u, best = _unit(way), torch.zeros(len(z), dtype=z.dtype, device=z.device)
    h = _NARROW * generator.spread
    for turn in range(moves + 4):
        trial = project(z + 0.1 * radius * _unit(_way(z, random)), radius) if turn % 4 == 3 else z
        ahead, behind = (generator.jvp(trial + side * h * u, u[None])[0] for side in (1, -1))
        y = _unit(ahead - behind)
        image = _slope_of_pairing(generator, trial, y, u)
        size = _batch.norm(image)
        better = size > best
        best = torch.maximum(best, size)
        z = torch.where(_batch.spread(better, z), trial, z)
        u = torch.where(_batch.spread(better & (size > 0), u), _unit(image), u)
    return float(best.max())


def _turning(generator: Generator, seen: _Seen) -> float:
    """The largest ``|DG(z) - DG(z')| / |z - z'|``, less round-off: detects jumps of slopes, which second derivatives miss."""
    places = _batch.flat(seen.points).cpu().double()
    blur = 100 * torch.finfo(generator.dtype).eps * max(float(slope.norm()) for slope in seen.slopes)
    found = 0.0
    for (a, here), (b, there) in itertools.combinations(enumerate(seen.slopes), 2):
        change, apart = here - there, float((places[a] - places[b]).norm())
        size = math.sqrt(max(0.0, float(torch.linalg.eigvalsh(change.T @ change)[-1])))
        found = max(found, (size - blur) / apart) if apart > 0 else found
    return found


def _way(z: Tensor, random: torch.Generator) -> Tensor:
    """A random direction for each item, whatever torch's default device and dtype are."""
    return torch.randn(z.shape, generator=random, dtype=torch.float32, device="cpu").to(z)


def _unit(x: Tensor) -> Tensor:
    return x / _batch.spread(_batch.norm(x).clamp_min(_tiny(x)), x)


def _tiny(x: Tensor) -> float:
    """The least normal number of its dtype, to divide by in place of zero."""
    return torch.finfo(x.dtype).tiny
