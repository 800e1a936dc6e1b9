"""The report of ``genprior defend``."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from genprior._files import write_text
from genprior.jobs.defend import Record
from genprior.jobs.settings import Defence
from genprior.jobs.threads import solved_by
from genprior.report import page

_ROWS = 200
_STRIP = 12
CAVEAT = (
    "Projection onto the range of a generator removes much of an attack that does not take it into account. It is not a "
    "proven defence: an attacker who knows the generator can find images that are misclassified after projection too."
)


def write_defence(record: Record, job: Defence, path: Path) -> None:
    """Counts, images before and after, the first rows."""
    rows = [
        (
            item["name"],
            _class_of(item, "before"),
            _class_of(item, "after"),
            "yes" if item["changed"] else "",
            "-" if item["distance"] is None else f"{item['distance']:.3f}",
            item["status"],
            str(item.get("label", "")),
        )
        for item in record.items[:_ROWS]
    ]
    head = ("item", "before", "after", "changed", "l_inf distance", "status", "label")
    numbers = [
        (name.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else str(value))
        for name, value in record.numbers.items()
    ]
    numbers.append(("solved by", f"{solved_by(record.run)}, in {record.run['elapsed']:.1f} s by the clock on the wall"))
    sections = [("Result", page.table(("", ""), numbers)), ("Images", _images(record))]
    sections += [(f"The first {len(rows)} items" if len(record.items) > _ROWS else "Items", page.table(head, rows))]
    sections += [("What this is worth", page.paragraph(CAVEAT))]
    how = f"{job.norm}, {job.steps} iterations"
    lead = f"Each image was replaced by the nearest one that the generator can make ({how}), then classified."
    write_text(
        path,
        page.page(
            "Defence by projection", lead, sections, f"genprior {version('genprior')}, torch {torch.__version__}"
        ),
    )


def _class_of(item: dict[str, Any], when: str) -> str:
    """The class and its confidence."""
    return "-" if item[when] is None else f"{item[when]} ({item[f'{when}_confidence']:.0%})"


def _images(record: Record) -> str:
    shape = record.images["given"].shape if record.images else ()
    if len(shape) != 4 or shape[1] not in {1, 3}:
        return page.paragraph("The signals are not images.")
    starts = range(0, shape[0], _STRIP)
    return page.strips([(name, part[at : at + _STRIP]) for at in starts for name, part in record.images.items()])
