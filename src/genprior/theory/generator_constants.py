"""The constants of G on a ball, each with its justification."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from genprior import _validate
from genprior._fingerprint import fingerprint
from genprior.generators import Generator, Passes, TruncatedNormal
from genprior.theory.proved.activations import slope_jumps
from genprior.theory.proved.layers import HOOKS, Layer, every_layer, layers_of
from genprior.theory.proved.recursion import LOST, NOT_INJECTIVE, Proved, proved_constants
from genprior.theory.sampled import Sampled, sample_constants


@dataclass(frozen=True)
class Constant:
    """One constant: its sampled and its proved value."""

    name: str
    sampled: float
    rigorous: float | None
    samples: str
    """How the sampled value was found."""
    side: str
    """On which side of the true value the sampled one lies, up to round-off."""
    reason: str = ""
    """How the rigorous value was found, or why there is none."""
    refuted: str = ""
    """Why no finite (for iota: positive) constant may exist, whatever samples show; empty if there is no reason."""

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "sampled": self.sampled,
            "rigorous": self.rigorous,
            "samples": self.samples,
            "side": self.side,
            "reason": self.reason,
            "refuted": self.refuted,
        }


@dataclass(frozen=True)
class GeneratorConstants:
    """``iota``, ``kappa`` and ``nu_G`` on the ball ``|z| <= radius``."""

    radius: float
    iota: Constant
    kappa: Constant
    nu_G: Constant
    everywhere: bool
    """The generator is an affine map, so that the constants hold for every latent."""
    vouched: str
    """Layers whose sums a user-defined module declares without proof; empty if there are none."""
    resolution: float
    """Singular values below this are round-off of the generator's dtype."""
    seen: Sampled
    chain: tuple[Layer, ...]
    weights: str
    """A digest of the generator that they belong to."""
    values: Tensor
    """Its signals at the first sampled points, to recognise it."""

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        document: dict[str, object] = {name: getattr(self, name).to_dict() for name in ("iota", "kappa", "nu_G")}
        return document | {name: getattr(self, name) for name in ("radius", "everywhere", "vouched", "resolution")}


def constants(
    generator: Generator,
    radius: float | None = None,
    *,
    points: int | None = None,
    moves: int | None = None,
    rigorous: bool = True,
    seed: int = 0,
    announce: Callable[[str], None] | None = None,
) -> GeneratorConstants:
    """The constants of a generator on a ball around zero, sampled and (where the layers allow) rigorous.

    Parameters
    ----------
    generator
        the generator.
    radius
        of the ball; by default that of the latent distribution if it has one, else 10.
    points, moves
        random points at which all singular values of the Jacobian are computed, steps by which some are moved to the worst;
        by default fewer for large generators.
    rigorous
        whether to compute the proved bounds too.
    seed
        of the samples.
    announce
        callback that receives progress messages.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> layer = torch.nn.Linear(2, 3, bias=False)
    >>> _ = layer.weight.data.copy_(torch.tensor([[3.0, 0.0], [0.0, 2.0], [0.0, 0.0]]))
    >>> found = gp.theory.constants(gp.Generator(layer, (2,), (3,)), radius=1.0)
    >>> [round(c.rigorous, 6) for c in (found.iota, found.kappa, found.nu_G)]
    [2.0, 3.0, 0.0]
    """
    radius = default_radius(generator) if radius is None else _validate.number("radius", radius, above=0)
    say = announce or (lambda _: None)
    seen = sample_constants(generator, radius, points=points, moves=moves, seed=seed, announce=announce)
    say("proved bounds, layer by layer")
    chain = layers_of(generator)
    proved = proved_constants(chain, radius) if rigorous else Proved(math.inf, math.inf, math.inf, 0.0, _NOT_ASKED)
    wrong = _contradiction(generator, seen, proved)
    if wrong:  # a layer does not do what its type implies, so nothing is proved
        proved = Proved(math.inf, math.inf, math.inf, 0.0, dict.fromkeys(_NOT_ASKED, wrong))
    everywhere = rigorous and not wrong and all(layer.is_linear for layer in chain)
    return _labelled(generator, radius, seen, proved, everywhere, chain)


_KEPT = 4
"""Points whose signals are kept."""
_NOT_ASKED = dict.fromkeys(("iota", "kappa", "nu_G"), "not asked for")


def _contradiction(generator: Generator, seen: Sampled, proved: Proved) -> str:
    """A contradiction of samples and proved bounds beyond round-off; empty if there is none."""
    share = max(1e-6, 1e4 * torch.finfo(generator.dtype).eps)
    pairs = {
        "kappa": (seen.kappa - seen.blur, proved.kappa * (1 + share)),
        "nu_G": (seen.nu, proved.nu * (1 + share) + share * seen.kappa / seen.radius),
        "iota": (proved.iota * (1 - share), seen.iota + seen.blur + share * seen.kappa),
    }
    for name, (least, most) in pairs.items():
        if least > most:
            return f"samples contradict the proved bounds ({name}: {least:.4g} > {most:.4g}): a layer does not match its type"
    return ""


def default_radius(generator: Generator) -> float:
    """The radius of the latent distribution if it has one, else 10."""
    return generator.latent.radius if isinstance(generator.latent, TruncatedNormal) else 10.0


def _labelled(
    generator: Generator, radius: float, seen: Sampled, proved: Proved, everywhere: bool, chain: tuple[Layer, ...]
) -> GeneratorConstants:
    points = f"singular values of DG at {len(seen.points)} points, secants of {seen.pairs} pairs"
    why = proved.reasons
    word = "singular values of the affine map" if everywhere else "product of proved layer norms"
    no_iota, no_nu = _refuted(generator, proved, chain)
    vouched = ", ".join(layer.label for layer in every_layer(chain) if layer.vouched)
    word += f"; vouched for by the module: the sum in {vouched}" if vouched else ""
    return GeneratorConstants(
        radius=radius,
        iota=Constant(
            "iota", seen.iota, proved.iota or None, points, "not below the truth", why.get("iota", word), no_iota
        ),
        kappa=Constant(
            "kappa", seen.kappa, _finite(proved.kappa), points, "not above the truth", why.get("kappa", word)
        ),
        nu_G=Constant(
            "nu_G",
            seen.nu,
            _finite(proved.nu),
            f"second derivatives at {seen.curved} points, differences of DG",
            "not above the truth",
            why.get("nu_G", "the map is affine" if everywhere else "layer recursion with the activations' curvature"),
            no_nu,
        ),
        everywhere=everywhere,
        vouched=vouched,
        resolution=torch.finfo(generator.dtype).eps * seen.kappa * math.sqrt(len(seen.spectra[0])),
        seen=seen,
        chain=chain,
        weights=weights_mark(generator),
        values=known_values(generator, seen.points),
    )


def weights_mark(generator: Generator) -> str:
    """The same for the same architecture with the same numbers, options and counts of hooks."""
    module = generator.module
    hooks = [len(getattr(part, name)) for part in module.modules() for name in HOOKS]
    return fingerprint(repr(module), module, generator.latent_shape, generator.signal_shape, hooks)


def known_values(generator: Generator, points: Tensor) -> Tensor:
    """The signals of the first points."""
    with torch.no_grad():
        return generator.counting(Passes())(points[:_KEPT].to(generator.device)).cpu()


def _refuted(generator: Generator, proved: Proved, chain: tuple[Layer, ...]) -> tuple[str, str]:
    """Why iota is zero, and why nu_G is infinite, if the architecture implies it."""
    inside, outside = math.prod(generator.latent_shape), math.prod(generator.signal_shape)
    affine = proved.reasons.get("iota", "")
    no_iota = affine if affine in (NOT_INJECTIVE, LOST) else ""
    if inside > outside:
        no_iota = f"{inside} latents and only {outside} signal values: no map with a derivative is injective"
    kinks = (layer for layer in every_layer(chain) if layer.kind == "activation" and not layer.activation.smooth)
    first = next(kinks, None) if math.isinf(proved.nu) else None
    if first is None and any(layer.kind == "unknown" for layer in every_layer(chain)):
        return no_iota, _kink_inside(generator)
    return no_iota, "" if first is None else f"the slope of {first.label} jumps"


def _kink_inside(generator: Generator) -> str:
    """For a user-defined module the parts are known, but not their order."""
    for name, part in generator.module.named_modules():
        if slope_jumps(part) and "forward" not in vars(part):
            return f"the generator contains {name} ({type(part).__name__}), whose slope jumps"
    return ""


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
