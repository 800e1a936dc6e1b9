"""``genprior gather``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from genprior._progress import Bar
from genprior.cli.flags import words_of_recover
from genprior.cli.recover import report_of


@dataclass(frozen=True, kw_only=True)
class Gather:
    """Put together what the shards of genprior recover or denoise have solved: recovered/, result.json, report.html.

    The outcome is that of one run of the same command without --shard. Interrupted, the same command goes on.

    Example:
        genprior recover scans/ --operator mask:known.png --out out --shard 1/2
        genprior recover scans/ --operator mask:known.png --out out --shard 2/2
        genprior gather out
    """

    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="(required)")]
    """The --out of the shards."""
    json: bool = False
    """Print result.json instead of a summary."""

    def run(self) -> None:
        """Run the command."""
        from genprior.jobs.shards import gather  # noqa: PLC0415 - slow to import

        visible = False if self.json else None
        with Bar("gathered", visible=visible, every=60.0, counts=True, remaining=True) as bar:
            outcome = gather(self.out, bar.show, words=words_of_recover())
        report_of(outcome, self.out, json=self.json, skip=False)
