"""An examined generator on a terminal, as JSON, and as one page."""

from __future__ import annotations

import math
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from genprior._files import write_text
from genprior.report import page
from genprior.theory.certificate import CONDITIONAL, GUARANTEED
from genprior.theory.examination import Examination
from genprior.theory.loss_constants import GIVEN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CONSTANTS = ("iota", "kappa", "nu_G")
_MEANING = {
    "iota": "|G(z) - G(z')| >= iota |z - z'|",
    "kappa": "|G(z) - G(z')| <= kappa |z - z'|",
    "nu_G": "|DG(z) - DG(z')| <= nu_G |z - z'|",
}
_HOLDS = {True: "yes", False: "no", None: "not checked"}
_COLOURS = {GUARANTEED: "green", CONDITIONAL: "yellow"}
_INK, _WARM, _SOFT = "#1f4e79", "#b5482a", "#8a8a8a"


def examination_numbers(found: Examination) -> dict[str, object]:
    """Everything as plain numbers."""
    seen = found.constants.seen
    return {
        "generator": found.name,
        "operator": found.operator,
        **found.constants.to_dict(),
        "secants": list(seen.secants),
        "loss": found.certificate.loss.to_dict(),
        "proposition1": {
            "holds": found.proposition.ok or (False if found.proposition.failures else None),
            "not_checked": [finding.law for finding in found.proposition.unchecked],
            "failures": [
                {"law": finding.law, "measured": finding.measured, "advice": finding.advice}
                for finding in found.proposition.failures
            ],
        },
        "certificate": found.certificate.to_dict(),
        "measured": {
            "plan": found.measured.plan,
            "certified_steps": found.measured.certified,
            "iterations": len(found.measured.objective) - 1,
            "first_objective": float(found.measured.objective[0]),
            "best_objective": float(found.measured.objective.min()),
            "rate": found.measured.rate,
            "largest_share_of_bound": found.measured.largest_share,
        },
    }


def show_examination(found: Examination, console: Console) -> None:
    """The readable form, on a terminal."""
    console.print(Text(_title(found), style="bold"))
    table = Table(box=None, padding=(0, 2))
    for name in ("constant", "sampled", "rigorous", "about the rigorous figure"):
        table.add_column(name, justify="right" if name in ("sampled", "rigorous") else "left")
    for row in _constant_rows(found):
        table.add_row(row[0], row[2], row[3], row[4])
    console.print(table)
    console.print(Text(_resolution(found), style="dim"))
    console.print(Text("\n" + str(found.proposition).partition("\n")[0], style="bold"))
    for finding in found.proposition.failures:
        console.print(Text(f"  {finding.law}: no. {finding.measured}; {finding.advice}"))
    for finding in found.proposition.unchecked:
        console.print(Text(f"  {finding.law}: {finding.measured}"))
    style = _COLOURS.get(found.certificate.status, "red")
    console.print(Text(f"\nTheorem 1: {found.certificate.status}", style=f"bold {style}"))
    console.print(Text(f"  {found.certificate.verdict()}"))
    console.print(_condition_table(found))
    for assumption in found.certificate.assumptions:
        console.print(
            Text(f"  {'checked' if assumption.checked else 'NOT checked'}: {assumption.text} ({assumption.note})")
        )
    console.print(Text("\nAlgorithm 1, measured", style="bold"))
    console.print(Text(f"  {_measured(found)}"))


def write_page(found: Examination, path: Path, *, seed: int) -> None:
    """The report: constants, spectra, checks, certificate, a run against its bound; one file."""
    certificate = found.certificate
    head = ("constant", "meaning on the ball", "sampled", "rigorous", "about the rigorous figure", "samples")
    sections = [
        ("Verdict", page.paragraph(certificate.verdict())),
        (
            "Constants of the generator",
            page.table(head, _constant_rows(found), prose=True) + page.paragraph(_resolution(found)),
        ),
        ("Singular values of the Jacobian over the ball", page.plot(draw_spectra(found))),
        ("Constants of the loss", page.paragraph(_loss(found))),
        ("Proposition 1", page.table(("law", "holds", "measured", "advice"), _law_rows(found), prose=True)),
        (
            "Theorem 1: conditions",
            page.table(("condition", "holds", "value", "limit", "margin"), _condition_rows(found)),
        ),
        ("Theorem 1: assumptions", page.table(("assumption", "checked", "why"), _assumption_rows(found), prose=True)),
        ("Measured against the bound", page.paragraph(_measured(found)) + page.plot(draw_run(found))),
    ]
    lead = (
        f"On the ball |z| <= {found.constants.radius:g}, measured: {found.operator}. Sampled figures are attained somewhere "
        "and prove nothing; rigorous ones are bounds, proved up to round-off."
    )
    footer = f"genprior {version('genprior')}, torch {torch.__version__}, seed {seed}"
    write_text(path, page.page(_title(found), lead, sections, footer))


def draw_spectra(found: Examination) -> Figure:
    """All singular values at every point, and the extreme ones against the length of the latent."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import, needed only here

    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    seen = found.constants.seen
    numbers = range(1, seen.spectra.shape[1] + 1)
    for spectrum in seen.spectra:
        left.semilogy(numbers, spectrum.clamp_min(1e-12), color=_INK, alpha=0.4, linewidth=0.9)
    left.locator_params(axis="x", integer=True)
    left.set(xlabel="number", ylabel="singular value of DG(z)", title=f"{len(seen.points)} points")
    lengths = seen.points.flatten(1).norm(dim=1).cpu()
    right.semilogy(lengths, seen.spectra[:, 0], "o", color=_INK, label="largest", markersize=4)
    right.semilogy(lengths, seen.spectra[:, -1].clamp_min(1e-12), "s", color=_WARM, label="smallest", markersize=4)
    if found.constants.kappa.rigorous is not None:
        right.axhline(found.constants.kappa.rigorous, color=_INK, linestyle="--", label="proved kappa")
    if found.constants.iota.rigorous is not None:
        right.axhline(found.constants.iota.rigorous, color=_WARM, linestyle="--", label="proved iota")
    right.set(xlabel="|z|", title="extremes over the ball")
    for axes in (left, right):
        _finish(axes, found)
    right.legend(frameon=False)
    return figure


def _finish(axes: Axes, found: Examination) -> None:
    axes.axhline(found.constants.resolution, color=_SOFT, linestyle=":", label="round-off")
    axes.grid(alpha=0.25)


def draw_run(found: Examination) -> Figure:
    """The objective along the run, and what the certificate allows."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import, needed only here

    figure = Figure(figsize=(11, 3.6), layout="constrained")
    axes = figure.subplots()
    values = found.measured.objective.clamp_min(1e-16)
    axes.semilogy(range(len(values)), values, color=_INK, label="measured")
    if found.measured.bound is not None:
        name = "bound" if found.certificate.status == GUARANTEED else "bound, if what is not checked holds"
        axes.semilogy(range(len(found.measured.bound)), found.measured.bound, "--", color=_WARM, label=name)
    axes.set(xlabel="iteration", ylabel="L(G(z)), the optimum is 0")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    return figure


def _title(found: Examination) -> str:
    shape = " x ".join(map(str, found.generator.signal_shape))
    size = torch.Size(found.generator.latent_shape).numel()
    return f"Generator {found.name}: {size} latents to {shape}, on the ball of radius {found.constants.radius:g}"


def _constant_rows(found: Examination) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name in _CONSTANTS:
        constant = getattr(found.constants, name)
        proved = "none" if constant.rigorous is None else f"{constant.rigorous:.4g}"
        seen = f"{constant.sampled:.4g}"
        if name == "iota" and constant.sampled < found.constants.resolution:
            seen = f"below {found.constants.resolution:.1g} (round-off)"
        rows.append((name, _MEANING[name], seen, proved, constant.reason, constant.samples))
    return rows


def _resolution(found: Examination) -> str:
    dtype = str(found.generator.dtype).removeprefix("torch.")
    return (
        f"Sampled: kappa and nu_G are not above the truth, iota not below it; singular values under "
        f"{found.constants.resolution:.1g} are round-off of {dtype}."
    )


def _loss(found: Examination) -> str:
    loss = found.certificate.loss
    given_or_estimated = loss.source == GIVEN or not loss.proved  # the source says so already
    source = loss.source if given_or_estimated else f"proved: {loss.source}"
    return (
        f"mu_L = {loss.mu:.4g}, nu_L = {loss.nu:.4g} ({source}). Between points of the range of G, sampled over "
        f"{loss.samples}: {loss.restricted_mu:.4g} to {loss.restricted_nu:.4g}."
    )


def _law_rows(found: Examination) -> list[tuple[str, ...]]:
    return [(f.law, _HOLDS[f.holds], f.measured, "" if f.holds else f.advice) for f in found.proposition.findings]


def _condition_rows(found: Examination) -> list[tuple[str, ...]]:
    return [
        (c.name, "yes" if c.holds else "no", f"{c.value:.4g}", _limit(c.limit), _percent(c.margin))
        for c in found.certificate.guarantee.conditions
    ]


def _percent(margin: float) -> str:
    return "-" if math.isinf(margin) else f"{100 * margin:.3g}%"


def _limit(limit: float) -> str:
    return "-" if math.isinf(limit) else f"{limit:.4g}"


def _condition_table(found: Examination) -> Table:
    table = Table(box=None, padding=(0, 2))
    for name in ("condition", "holds", "value", "limit", "margin"):
        table.add_column(name, justify="left" if name in ("condition", "holds") else "right")
    for row in _condition_rows(found):
        table.add_row(*(Text(cell) for cell in row))
    return table


def _assumption_rows(found: Examination) -> list[tuple[str, ...]]:
    return [(a.text, "yes" if a.checked else "no", a.note) for a in found.certificate.assumptions]


def _measured(found: Examination) -> str:
    run = found.measured
    steps = (
        "the certificate's steps"
        if run.certified
        else "genprior's default step sizes, because there are no certified ones,"
    )
    text = (
        f"Algorithm 1 with {steps} took the objective from {float(run.objective[0]):.3g} to {float(run.objective.min()):.3g} "
        f"in {len(run.objective) - 1} iterations"
    )
    text += f": a factor of {run.rate:.4f} per iteration on average." if math.isfinite(run.rate) else "."
    return text + (f" {_against_bound(found)}" if run.certified else " No rate is predicted.")


def _against_bound(found: Examination) -> str:
    """Compares the curves, because the rate of the bound is not that of the run."""
    share, certificate = found.measured.largest_share, found.certificate
    assert share is not None
    start = "The" if certificate.status == GUARANTEED else "If what is not checked holds, the"
    eta = certificate.guarantee.eta
    text = f"{start} bound on the squared error contracts by 1 - {eta:.3g} per iteration, down to a plateau. "
    if share > 1:
        return text + f"The measured objective is up to {share:.3g} times the bound: one of its assumptions is false."
    return text + f"The measured objective is at most {share:.2g} of the bound."
