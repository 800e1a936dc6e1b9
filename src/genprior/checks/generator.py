"""Laws of a generator: shape, finiteness, determinism, independence of items, derivative, range."""

from __future__ import annotations

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior.checks.report import Finding, Report, small
from genprior.generators import Generator


def check_generator(generator: Generator, *, samples: int = 4, seed: int = 0) -> Report:
    """Check that a generator keeps the contract that the solvers rely on.

    Parameters
    ----------
    generator
        the generator to check.
    samples
        number of latents drawn from its law.
    seed
        seed of the draws.

    The derivative is compared with differences along random directions. A generator that does not run at all is
    reported as such; nothing is raised.
    """
    if not isinstance(generator, Generator):
        raise TypeError(f"generator must be a genprior Generator, got {type(generator).__name__}: wrap it first")
    _validate.whole("samples", samples, 2)
    subject = repr(generator)
    z = generator.sample_latent(samples, seed)
    try:
        findings = _findings(generator, z, seed)
    except Exception as problem:
        findings = [Finding("runs forward and backward", False, str(problem), "see the message")]
    return Report(subject, tuple(findings))


def _findings(generator: Generator, z: Tensor, seed: int) -> list[Finding]:
    at = generator.evaluate(z)
    pulled = at.pull(torch.ones_like(at.x))
    findings = [
        Finding("runs forward and backward", True, f"{len(z)} latents to signals {tuple(at.x.shape[1:])}"),
        _finite(at.x, pulled),
    ]
    if all(finding.holds for finding in findings):
        findings += _behaviour(generator, z, at.x, seed)
    return findings


def _finite(x: Tensor, pulled: Tensor) -> Finding:
    bad = int((~torch.isfinite(x)).sum()) + int((~torch.isfinite(pulled)).sum())
    return Finding("finite values and gradients", bad == 0, f"{bad} non-finite numbers", "check the weights for NaN")


def _behaviour(generator: Generator, z: Tensor, x: Tensor, seed: int) -> list[Finding]:
    accuracy = torch.finfo(x.dtype).eps ** 0.5
    size = float(x.abs().max()) or 1.0
    with torch.no_grad():
        again = float((generator(z) - x).abs().max()) / size
    same = small("same latent, same signal", again, 1e-6, "the module is random: switch its noise off, or fix it")
    if not same.holds:  # the other laws would fail for this reason, and say something else
        return [same]
    alone = _independent(generator, z, x, accuracy * size)
    moves = _depends(x)
    findings = [same, alone, moves]
    if alone.holds and moves.holds:
        findings.append(_gradient(generator, z, seed))
    return [*findings, _range(generator, x)]


def _independent(generator: Generator, z: Tensor, x: Tensor, limit: float) -> Finding:
    law = "items do not influence each other"
    advice = "the module mixes the items of a batch (a mean over axis 0, minibatch statistics): compute per item"
    try:
        with torch.no_grad():
            alone = torch.cat([generator(z[i : i + 1]) for i in range(len(z))])
    except Exception as problem:
        return Finding(law, False, f"one item alone: {problem}", advice)
    return small(law, float((alone - x).abs().max()), limit, advice)


def _depends(x: Tensor) -> Finding:
    moved = float((x[1:] - x[:1]).abs().max())
    return Finding("signals differ between latents", moved > 0, f"largest difference {moved:.2e}", "z is ignored")


def _gradient(generator: Generator, z: Tensor, seed: int) -> Finding:
    """``<v, G(z + hd) - G(z - hd)> / 2h`` against ``<DG^T v, d>``, relative, median over the latents.

    Of several widths the best counts: rounding spoils the narrow ones in float32, kinks (many in a deep network of ReLUs)
    the wide ones. A gradient that is zero everywhere, as that of steps, would agree with the narrowest.
    """
    law = "gradient equals differences"
    random = torch.Generator().manual_seed(seed)
    direction = torch.randn(z.shape, generator=random, dtype=torch.float64, device="cpu").to(z)
    at = generator.evaluate(z)
    v = torch.randn(at.x.shape, generator=random, dtype=torch.float64, device="cpu").to(at.x)
    pulled = at.pull(v)
    if not bool(pulled.any()):
        advice = "rounding, a comparison or argmax inside? without a slope there is nothing to follow"
        return Finding(law, False, "the gradient is zero, but signals differ between latents", advice)
    slope = _batch.dot(pulled, direction)
    errors = []
    with torch.no_grad():
        for width in (1e-1, 1e-2, 1e-3, 1e-4):
            h = width * generator.spread
            change = generator(z + h * direction) - generator(z - h * direction)
            secant = _batch.dot(v, change) / (2 * h)
            errors.append(_batch.ratio((secant - slope).abs(), torch.maximum(secant.abs(), slope.abs())))
    error = float(torch.stack(errors).amin(dim=0).median())
    return small(law, error, 0.02, "a custom backward is wrong")


def _range(generator: Generator, x: Tensor) -> Finding:
    low, high = float(x.min()), float(x.max())
    measured = f"[{low:.3g}, {high:.3g}]"
    if generator.signal_range is None:
        return Finding("signal range", True, f"{measured}, none declared")
    declared = generator.signal_range
    slack = 1e-5 * (declared[1] - declared[0])
    inside = declared[0] - slack <= low and high <= declared[1] + slack
    advice = "declare the true signal_range, or map the module's output (for example from [-1, 1] to [0, 1])"
    return Finding("signal range", inside, f"{measured}, declared [{declared[0]:g}, {declared[1]:g}]", advice)
