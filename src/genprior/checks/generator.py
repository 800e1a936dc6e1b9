"""Laws of a generator: shape, finiteness, determinism, independence of items, derivative, range."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from genprior import _validate
from genprior.checks.budget import Budget
from genprior.checks.gradient import gradient_finding
from genprior.checks.report import Finding, Report, small
from genprior.generators import Generator

_CHEAP = 0.25
"""Share of the time for all checks except that of the gradient."""


def check_generator(generator: Generator, *, samples: int = 4, seed: int = 0, seconds: float | None = None) -> Report:
    """Check that a generator keeps the contract that the solvers rely on.

    Parameters
    ----------
    generator
        the generator to check.
    samples
        number of latents drawn from its distribution.
    seed
        seed of the draws.
    seconds
        time limit, overrun by one pass at most: fewer latents are checked, and what does not fit is reported as not run.

    The derivative is compared with differences along random directions, in float64. A generator that does not run at all is
    reported as a failure; nothing is raised.
    """
    if not isinstance(generator, Generator):
        raise TypeError(f"generator must be a genprior Generator, got {type(generator).__name__}: wrap it first")
    return check_within(generator, Budget(seconds), _validate.whole("samples", samples, 2), seed)


def check_within(generator: Generator, budget: Budget, samples: int = 4, seed: int = 0) -> Report:
    """The findings of :func:`check_generator`, within the time limit of the caller."""
    subject = repr(generator)
    z = generator.sample_latent(samples, seed)
    try:
        findings = _findings(generator, z, seed, budget)
    except Exception as problem:
        findings = [Finding("runs forward and backward", False, str(problem), "see the message")]
    return Report(subject, tuple(findings))


def _findings(generator: Generator, z: Tensor, seed: int, budget: Budget) -> list[Finding]:
    law = "runs forward and backward"
    budget.begin(law)
    if lack := budget.lacks(0.0):
        return [Finding(law, None, lack, "allow more time")]
    started = time.perf_counter()
    x, pulled = _passed(generator, z[:2])
    item = (time.perf_counter() - started) / 2
    z = z[: max(2, budget.fits(3 * item, len(z), _CHEAP))]
    if len(z) > 2:
        x, pulled = _passed(generator, z)
    findings = [Finding(law, True, f"{len(z)} latents to signals {tuple(x.shape[1:])}"), _finite(x, pulled)]
    if all(finding.holds for finding in findings):
        findings += _behaviour(generator, z, x, seed, budget, item)
    return findings


def _passed(generator: Generator, z: Tensor) -> tuple[Tensor, Tensor]:
    """Signals, and a gradient."""
    at = generator.evaluate(z)
    return at.x, at.vjp(torch.ones_like(at.x))


def _finite(x: Tensor, pulled: Tensor) -> Finding:
    bad = int((~torch.isfinite(x)).sum()) + int((~torch.isfinite(pulled)).sum())
    return Finding("finite values and gradients", bad == 0, f"{bad} non-finite numbers", "check the weights for NaN")


def _behaviour(generator: Generator, z: Tensor, x: Tensor, seed: int, budget: Budget, item: float) -> list[Finding]:
    size = float(x.abs().max()) or 1.0
    cost = item * len(z)
    same = budget.within("same latent, same signal", lambda: _same(generator, z, x, size), cost)
    if same.holds is False:  # the other laws would fail for the same reason, with a misleading message
        return [same]
    limit = torch.finfo(x.dtype).eps ** 0.5 * size
    alone = budget.within("items do not influence each other", lambda: _independent(generator, z, x, limit), cost)
    moves = _depends(x)
    findings = [same, alone, moves]
    if alone.holds is not False and moves.holds:
        findings.append(gradient_finding(generator, z, seed, budget, item))
    return [*findings, _range(generator, x)]


def _same(generator: Generator, z: Tensor, x: Tensor, size: float) -> Finding:
    with torch.no_grad():
        again = float((generator(z) - x).abs().max()) / size
    advice = "the module is random: switch its noise off, or fix it"
    return small("same latent, same signal", again, 1e-6, advice)


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
