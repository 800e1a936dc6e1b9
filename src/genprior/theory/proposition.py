"""Proposition 1: when the architecture makes G smooth and stably injective on a compact domain."""

from __future__ import annotations

import math

from torch import nn

from genprior.checks.report import Finding, Report
from genprior.generators import Generator
from genprior.theory.proved.layers import Layer, every_layer, layers_of

_SMOOTH_ADVICE = "use ELU (alpha = 1), softplus, tanh or sigmoid"


def check_proposition1(
    module: nn.Module | Generator,
    latent_shape: int | tuple[int, ...] | None = None,
    *,
    ranks: bool = True,
    chain: tuple[Layer, ...] | None = None,
) -> Report:
    """Check the conditions of Proposition 1, layer by layer; each failure names the layer and what to change.

    The conditions: a chain of layers; every activation C1 and strictly increasing (here: with a Lipschitz slope that is
    nowhere zero, which the proof needs); widths that never shrink; weights of full column rank. They are sufficient, not
    necessary: a generator that fails them may still have good constants on a ball, see :func:`genprior.theory.constants`.

    Parameters
    ----------
    module
        a :class:`genprior.Generator`, or a module together with the ``latent_shape`` of one item.
    latent_shape
        of one item, with a plain module.
    ranks
        whether to check ranks, which takes a few seconds for large convolutions.
    chain
        the layers, if known already.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 16), torch.nn.Tanh())
    >>> report = gp.theory.check_proposition1(net, 4)
    >>> report.ok, report.failures[0].advice
    (False, 'use ELU (alpha = 1), softplus, tanh or sigmoid')
    """
    chain = layers_of(_as_generator(module, latent_shape)) if chain is None else chain
    findings = [_structure(chain)]
    for layer in every_layer(chain):
        findings += _activation(layer) if layer.kind == "activation" else []
        findings += _widths(layer) if layer.kind not in ("sum", "activation") else []
        findings += _rank(layer) if ranks and layer.kind in ("affine", "scale", "average") else []
    findings.append(Finding("compact domain", True, "the ball |z| <= radius on which constants are asked for"))
    return Report("Proposition 1", tuple(findings))


def _as_generator(module: nn.Module | Generator, latent_shape: int | tuple[int, ...] | None) -> Generator:
    if isinstance(module, Generator):
        return module
    if latent_shape is None:
        raise ValueError("latent_shape must be given with a plain module, for example latent_shape=128")
    return Generator(module, latent_shape, (1,))  # only the chain is used, not the signal's shape


def _structure(chain: tuple[Layer, ...]) -> Finding:
    law = "a chain of known layers"
    for layer in every_layer(chain):
        if layer.kind == "sum":
            advice = (
                "the proposition does not cover sums (residual blocks), whose terms may cancel: compute the constants"
            )
            return Finding(law, False, f"layer {layer.label} is a sum of {len(layer.branches)} chains", advice)
        if layer.kind == "unknown":
            advice = "use Sequential with layers of torch.nn, or compute the constants"
            return Finding(law, False, f"layer {layer.label} is not one of them", advice)
    return Finding(law, True, f"{len(chain)} layer{'' if len(chain) == 1 else 's'}")


def _activation(layer: Layer) -> list[Finding]:
    known = layer.activation
    smooth = Finding(f"{layer.label} is C1", known.smooth, _slope_words(known.curvature), _SMOOTH_ADVICE)
    rising = Finding(
        f"{layer.label} is strictly increasing",
        known.increasing,
        "slope above 0 everywhere" if known.increasing else "its slope is zero or negative somewhere",
        _SMOOTH_ADVICE,
    )
    return [smooth, rising]


def _slope_words(curvature: float) -> str:
    return "its slope jumps" if math.isinf(curvature) else f"its slope is Lipschitz with constant {curvature:.3g}"


def _widths(layer: Layer) -> list[Finding]:
    inside, outside = layer.widths
    if layer.kind == "shape" or inside == outside:
        return []
    advice = f"give the layer at least {inside} outputs (channels times pixels), or compute the constants"
    return [Finding(f"{layer.label} does not narrow", outside >= inside, f"{inside} to {outside} numbers", advice)]


def _rank(layer: Layer) -> list[Finding]:
    inside, outside = layer.widths
    if outside < inside:
        return []  # reported above
    floor, law = layer.facts.floor, f"{layer.label} has full column rank"
    if layer.facts.lost:
        advice = "nothing needs to change, almost every weight has full rank; that of a better conditioned layer shows"
        return [
            Finding(
                law, None, "not resolved: the smallest singular value is too small to distinguish from zero", advice
            )
        ]
    if floor is None:
        advice = "nothing needs to change, almost every weight has full rank; but this layer was not checked"
        return [Finding(law, None, "not checked: the layer is too large", advice)]
    measured = f"smallest singular value at least {floor:.2g}, norm {layer.facts.norm:.3g}"
    if floor > 0:
        return [Finding(law, True, measured)]
    advice = "train on, or perturb the weights: almost every weight has full rank"
    return [Finding(law, False, "smallest singular value is zero", advice)]
