"""The parts of a section of the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from genprior.lab.reproduce.claims import Claim

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Sheet:
    """A table."""

    caption: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


@dataclass(frozen=True)
class Section:
    """One experiment."""

    name: str
    title: str
    text: str
    claims: list[Claim]
    figures: dict[str, tuple[str, Figure]] = field(default_factory=dict)
    """By file name: caption and figure."""
    sheets: list[Sheet] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    """Paragraphs before the tables that explain them."""


def plain(solver: str) -> str:
    """A solver's settings without module names and uninformative defaults."""
    return solver.replace("w_step=Exact(inner=None), ", "").replace("w_step=Exact(), ", "")
