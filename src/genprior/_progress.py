"""The progress bar of runs, jobs, trainings and commands in stages."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from typing import Self

    from rich.progress import Progress


class Bar:
    """A bar on standard error where that is a terminal; elsewhere a line now and then, or nothing."""

    def __init__(
        self,
        label: str,
        total: float | None = 1.0,
        *,
        visible: bool | None = None,
        every: float | None = None,
        counts: bool = False,
        remaining: bool = False,
    ) -> None:
        """What it shows, and where.

        Parameters
        ----------
        label
            name of the work.
        total
            amount of work; None where that is not known.
        visible
            by default on a terminal only; True draws it once, at the end, on anything else; False: neither bar nor lines.
        every
            least seconds between two lines where no bar is drawn; None: no lines.
        counts
            whether the work is counted in whole items.
        remaining
            whether to estimate the time left, which steps of very different length do not allow.
        """
        drawn = sys.stderr.isatty() if visible is None else visible
        self._every = None if drawn or visible is False else every
        self._label, self._total, self._counts, self._remaining = label, total, counts, remaining
        self._done, self._last = 0.0, time.monotonic()
        self._begun: tuple[float, float] | None = None
        self._progress = _drawn(counts, remaining) if drawn else None
        if self._progress is not None:
            self._task = self._progress.add_task(label, total=total, note="")

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, exception_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    @property
    def drawn(self) -> bool:
        """Whether a bar is drawn."""
        return self._progress is not None

    def show(self, done: float, total: float | None, note: str) -> None:
        """Show how much is done, of how much, with a note."""
        self._done, self._total = done, total
        if self._progress is not None:
            self._progress.update(self._task, completed=done, total=total, note=note)
        elif self._every is not None:
            self._line(self._every, done, total, note)

    def stage(self, note: str) -> None:
        """Begin the next stage."""
        self.show(self._done + 1, self._total, note)

    def _line(self, every: float, done: float, total: float | None, note: str) -> None:
        now = time.monotonic()
        if self._begun is None or done < self._begun[1]:
            self._begun = (now, done)
        if now - self._last < every:
            return
        self._last = now
        gone, made = now - self._begun[0], done - self._begun[1]
        left = ""
        if self._remaining and made > 0 and total is not None:
            left = f", about {duration(gone / made * (total - done))} left"
        counted = f" {done:.0f}/{total:.0f}" if self._counts and total is not None else ""
        sys.stderr.write(f"{self._label}{counted}: {note}{left}\n")


def duration(seconds: float) -> str:
    """Seconds in words."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _drawn(counts: bool, remaining: bool) -> Progress:
    """Not on a terminal rich draws once, at the end, and only what is not transient."""
    from rich import progress  # noqa: PLC0415 - only where something is drawn
    from rich.console import Console  # noqa: PLC0415

    console = Console(stderr=True)
    count = "{task.description} {task.completed:.0f}/{task.total:.0f}" if counts else "{task.description}"
    return progress.Progress(
        progress.TextColumn(count),
        progress.BarColumn(),
        progress.TextColumn("{task.fields[note]}"),
        progress.TimeElapsedColumn(),
        *([progress.TimeRemainingColumn()] if remaining else []),
        console=console,
        transient=console.is_terminal,
    )
