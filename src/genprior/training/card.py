"""Model cards: a page with each saved network: what it is, how it was trained, how good it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from genprior._files import write_text
from genprior.models.bundled import latent_from
from genprior.models.generators import parameter_count
from genprior.models.saved import Saved, load_network

_HIDDEN = {
    "training",
    "quality",
    "command",
    "data",
    "data_licence",
    "law",
    "signal_range",
    "earlier",
    "weights_licence",
}


def write_card(weights: Path) -> Path:
    """Write the card of a network file, next to it."""
    path = weights.with_suffix(".md")
    write_text(path, card_text(load_network(weights), weights))
    return path


def card_text(saved: Saved, weights: Path) -> str:
    """The card in Markdown."""
    facts = saved.facts
    lines = [
        f"# {weights.stem}",
        "",
        f"A `{saved.kind}` with {parameter_count(saved.module):,} numbers ({weights.stat().st_size / 1e6:.2f} MB, "
        f"{str(saved.stored).removeprefix('torch.')} on disk, float32 in memory): {_listed(saved.settings)}.",
        "",
        f"- **Data:** {facts.get('data', 'unknown')}",
        f"- **Licence of the data:** {facts.get('data_licence') or 'unknown'}",
        f"- **Licence of the weights:** {facts.get('weights_licence') or 'up to you, within that of the data'}",
        f"- **Command:** `{facts.get('command', 'unknown')}`",
    ]
    if "law" in facts:
        lines.append(f"- **Latent:** {latent_from(facts['law'])}")
    lines += [f"- **{name.replace('_', ' ').capitalize()}:** {value}" for name, value in _rest(facts)]
    for number, earlier in enumerate(facts.get("earlier", []), start=1):
        lines += ["", f"## Training, part {number}", "", *_part(earlier)]
    lines += [
        "",
        "## Training, last part" if facts.get("earlier") else "## Training",
        "",
        *_table(facts.get("training", {})),
    ]
    if facts.get("quality"):
        lines += ["", "## Measured quality", ""]
        for name, figures in facts["quality"].items():
            lines += [f"**{name}**", "", *_table(figures), ""]
    return "\n".join(lines).rstrip() + "\n"


def _part(earlier: dict[str, Any]) -> list[str]:
    earlier_parts = [f"`{earlier['command']}`" if "command" in earlier else earlier.get("note", "unknown earlier part")]
    words = {"seed": "seed {}", "hours": "{} hours", "taken": "taken at {}"}
    earlier_parts += [text.format(earlier[name]) for name, text in words.items() if name in earlier]
    return [", ".join(earlier_parts), *(["", *_table(earlier["training"])] if "training" in earlier else [])]


def _rest(facts: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in facts.items() if name not in _HIDDEN]


def _listed(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def _table(figures: dict[str, Any]) -> list[str]:
    return [
        "| | |",
        "|---|---|",
        *(f"| {name.replace('_', ' ')} | {_plain(value)} |" for name, value in figures.items()),
    ]


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return ", ".join(map(_plain, value)) if isinstance(value, list | tuple) else str(value)
