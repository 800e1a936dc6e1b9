"""The report in files: one self-contained page, the same as a document for the docs, figures, traces."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from genprior._files import add_folder, write_atomically, write_text
from genprior.lab.reports.reproduction.layout import Section
from genprior.lab.reports.reproduction.sections import sections
from genprior.lab.reports.reproduction.theory import defence_keys
from genprior.lab.reproduce.claims import FAILS, HOLDS, NOT_JUDGED, PARTLY, UNDECIDED, Claim
from genprior.lab.reproduce.judging_defence import accuracy_curve
from genprior.lab.reproduce.parts import Array, Found
from genprior.lab.reproduce.run import Reproduction
from genprior.report import page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "The paper's experiments, reproduced"
_FIGURES = "reproduction"
_COUNTS = ("seconds", "passes")
_AGAIN = (
    "```sh",
    "genprior reproduce all --out run            # killed and started again, it redoes nothing that was finished",
    "genprior reproduce all --quick --out quick  # a few minutes",
    "genprior reproduce defence --out run        # or compressive-sensing, linf-denoising, tuning, plateau alone",
    "```",
)
_WORDS = (
    'A comparison with a 95% interval is undecided where the interval includes "no difference", whichever way the mean '
    "points; it holds partly where most images contradict the mean. A claim of several parts has their verdict "
    "if all agree; it does not hold if some parts do not and the others are undecided; otherwise it holds partly. Rows marked "
    "(ours) are questions and checks that are not the paper's; they are not counted."
)


def write_report(done: Reproduction) -> list[Path]:
    """Figures (SVG and PNG), CSV traces, ``reproduction.md``, ``index.html``; returns the files to open first."""
    found = sections(done)
    add_folder(done.folder / _FIGURES)
    add_folder(done.folder / "traces")
    drawn = {
        name: _drawn(figure, done.folder / _FIGURES / name)
        for one in found
        for name, (_, figure) in one.figures.items()
    }
    for name, text in _traces(done):
        write_text(done.folder / "traces" / f"{name}.csv", text)
    write_text(done.folder / "reproduction.md", document(done, found))
    write_text(done.folder / "index.html", html(done, found, drawn))
    return [done.folder / "index.html", done.folder / "reproduction.md"]


def html(done: Reproduction, found: list[Section], drawn: dict[str, str]) -> str:
    """The page, with the figures as they were drawn."""
    counts = page.table(("", "claims"), _counts(done.claims), prose=True)
    parts = [("Verdicts", counts + page.paragraph(_WORDS))]
    for section in found:
        content = page.paragraph(section.text) + _claims_table(section.claims)
        for name, (caption, _) in section.figures.items():
            content += page.plot(drawn[name]) + page.paragraph(caption)
        content += "".join(page.paragraph(note) for note in section.notes)
        for sheet in section.sheets:
            content += page.paragraph(sheet.caption) + page.table(sheet.head, sheet.rows)
        parts.append((section.title, content))
    return page.page(TITLE, lead(done), parts, _footer(done))


def _drawn(figure: Figure, path: Path) -> str:
    """Write both formats; return the text of the SVG."""
    text = page.vector(figure)
    figure.set_layout_engine("none")  # laid out already
    write_text(path.with_suffix(".svg"), text)
    write_atomically(path.with_suffix(".png"), lambda temporary: figure.savefig(temporary, dpi=110, format="png"))
    return text


def document(done: Reproduction, found: list[Section]) -> str:
    """The same in Markdown, with links to the figures."""
    lines = [f"# {TITLE}", "", lead(done), "", *_AGAIN, "", _WORDS, ""]
    lines += _markdown_table(("verdict", "claims"), _counts(done.claims))
    for section in found:
        lines += [f"## {section.title}", "", section.text, ""]
        lines += _markdown_table(("the paper", "here", "verdict"), [claim_row(claim) for claim in section.claims])
        for name, (caption, _) in section.figures.items():
            lines += [f"![{caption}]({_FIGURES}/{name}.png)", "", caption + ".", ""]
        lines += [line for note in section.notes for line in (note, "")]
        for sheet in section.sheets:
            lines += [sheet.caption + ".", "", *_markdown_table(sheet.head, sheet.rows)]
    lines += [_footer(done), ""]
    return "\n".join(lines)


def lead(done: Reproduction) -> str:
    """The introduction; a quick run is marked as such first."""
    quick = (
        ""
        if done.setting.size.name == "full"
        else (
            "A quick run with few images, iterations and settings: it shows that everything works; its verdicts "
            "mean little. "
        )
    )
    minutes = sum(found.times["part_seconds"] for found in done.parts.values()) / 60
    return (
        f"{quick}Latorre, Eftekhari and Cevher, Fast and Provable ADMM for Learning with Generative Priors, NeurIPS "
        "2019: what it claims, in our words, and whether it holds here. Verdicts are computed from the numbers: "
        "same start for all, same tuning budget, the best iterate by objective and never by the truth, by passes "
        f"through the generator and not by the clock, which is also shown. This run took {minutes:.1f} minutes of "
        "computing."
    )


def _footer(done: Reproduction) -> str:
    environment = done.document()["environment"]
    facts = ", ".join(f"{name} {value}" for name, value in environment.items())
    settings = done.document()["settings"]
    return f"genprior {settings['genprior']}, size {settings['size']}, seed {settings['seed']}; {facts}."


def _counts(claims: list[Claim]) -> list[tuple[str, str]]:
    """How many of the paper's claims hold; our own questions are not counted."""
    papers = [claim for claim in claims if not claim.ours]
    counts = {
        verdict: sum(claim.verdict == verdict for claim in papers)
        for verdict in (HOLDS, PARTLY, FAILS, UNDECIDED, NOT_JUDGED)
    }
    always = (HOLDS, PARTLY, FAILS)
    return [(verdict, str(count)) for verdict, count in counts.items() if count or verdict in always]


def claim_row(claim: Claim) -> tuple[str, str, str]:
    """The paper's claim, or our own question, marked; the finding; the verdict."""
    return ("(ours) " if claim.ours else "") + claim.paper, claim.finding, claim.verdict


def _claims_table(claims: list[Claim]) -> str:
    return page.table(("the paper", "here", "verdict"), [claim_row(claim) for claim in claims], prose=True)


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(head), "|" + "---|" * len(head), *(line(row) for row in rows), ""]


def _traces(done: Reproduction) -> Iterator[tuple[str, str]]:
    """Every curve: medians and quartiles over the images."""
    for name, found in done.parts.items():
        if "passes" in found.arrays:
            yield name, _race_csv(found)
        elif "gap" in found.arrays:
            columns = {key: found.arrays[key] for key in ("step", "gap", "distance", "dual")}
            yield name, _csv(columns)
    for key in defence_keys(done):
        curve = accuracy_curve(done.setting, done.parts, key)
        yield f"defence.run.{key}", _csv({column: np.asarray(values) for column, values in curve.items()})


def _race_csv(found: Found) -> str:
    steps = len(found.arrays["passes"])
    columns = {"step": np.arange(steps), **{name: found.arrays[name] for name in _COUNTS}}
    for name, values in found.arrays.items():
        if values.ndim == 2:
            # the last step of a run is not observed: its entries stay empty
            missing = np.full((3, steps - len(values)), np.nan)
            low, middle, high = np.hstack([np.quantile(values, (0.25, 0.5, 0.75), axis=1), missing])
            columns |= {f"{name}_q25": low, f"{name}_median": middle, f"{name}_q75": high}
    return _csv(columns)


def _csv(columns: dict[str, Array]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    rows = zip(*columns.values(), strict=True)
    writer.writerows(["" if np.isnan(value) else f"{value:.6g}" for value in row] for row in rows)
    return text.getvalue()
