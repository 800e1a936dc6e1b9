"""One self-contained HTML page: text, tables, images and plots inside the file, no outside request."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from PIL import Image
from torch import Tensor

from genprior.report.sheets import grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p.lead { margin: 0 0 1rem; opacity: .8; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .35rem .7rem; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child, .prose th, .prose td { text-align: left; }
tr.best { background: var(--soft); font-weight: 600; }
.wide { overflow-x: auto; } img.pixels { image-rendering: pixelated; display: block; max-width: 100%; height: auto; }
.plot { background: #fff; border-radius: .4rem; padding: .5rem; } .plot svg { width: 100%; height: auto; display: block; }
.strip { display: grid; grid-template-columns: 11rem 1fr; gap: .2rem 1rem; align-items: center; }
@media (max-width: 40rem) { .strip { grid-template-columns: 1fr; } }
footer { margin-top: 2.5rem; opacity: .7; font-size: .85rem; }
"""


def page(title: str, lead: str, sections: Sequence[tuple[str, str]], footer: str = "") -> str:
    """A whole page; sections are (heading, HTML)."""
    parts = "\n".join(f"<section><h2>{html.escape(name)}</h2>\n{content}</section>" for name, content in sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>\n<body><h1>{html.escape(title)}</h1>"
        f'<p class="lead">{html.escape(lead)}</p>\n{parts}\n<footer>{html.escape(footer)}</footer></body></html>\n'
    )


def paragraph(text: str) -> str:
    """Plain text as a paragraph."""
    return f"<p>{html.escape(text)}</p>"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], best: int | None = None, *, prose: bool = False) -> str:
    """A table of numbers, or of ``prose``; the row numbered ``best`` is highlighted."""
    top = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    lines = []
    for number, row in enumerate(rows):
        mark = ' class="best"' if number == best else ""
        lines.append(f"<tr{mark}>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>")
    kind = "wide prose" if prose else "wide"
    return f'<div class="{kind}"><table><thead><tr>{top}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def strips(rows: Sequence[tuple[str, Tensor]], zoom: int = 2) -> str:
    """Rows of images ``(N, channels, h, w)`` in [0, 1], each with its name."""
    cells = "".join(
        f"<div>{html.escape(name)}</div><div>{image_row(images, name, zoom)}</div>" for name, images in rows
    )
    return f'<div class="strip">{cells}</div>'


def image_row(images: Tensor, name: str, zoom: int = 2) -> str:
    """Images side by side as one image inside the page."""
    content = grid(images, columns=len(images), gap=2)
    image = Image.fromarray(content.squeeze(2).numpy() if content.shape[2] == 1 else content.numpy())
    store = io.BytesIO()
    image.save(store, format="png")
    data = base64.b64encode(store.getvalue()).decode()
    size = f'width="{image.width * zoom}" height="{image.height * zoom}"'
    return f'<img class="pixels" {size} alt="{html.escape(name)}" src="data:image/png;base64,{data}">'


def vector(figure: Figure) -> str:
    """A matplotlib figure as an SVG file's text."""
    store = io.StringIO()
    figure.savefig(store, format="svg")
    return store.getvalue()


def plot(figure: Figure | str) -> str:
    """A matplotlib figure, or the text of an SVG file, inside the page."""
    text = figure if isinstance(figure, str) else vector(figure)
    return f'<div class="plot">{text[text.index("<svg") :]}</div>'
