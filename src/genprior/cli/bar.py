"""The progress of long work: of a training, of a job in stages."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Bar:
    """A progress bar with the losses, on a terminal; on anything else a line now and then, or nothing."""

    def __init__(
        self,
        total: int,
        *,
        quiet: bool = False,
        every: float = 60.0,
        label: str = "training",
        remaining: bool = True,
    ) -> None:
        """``remaining``: whether to say how long it still takes, which steps of very different length do not tell."""
        self._total, self._quiet, self._every, self._last = total, quiet, every, time.monotonic()
        self._begun: tuple[float, float] | None = None
        self._remaining = remaining
        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn(f"{label} {{task.completed:.0f}}/{{task.total:.0f}}"),
            BarColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            *([TimeRemainingColumn()] if remaining else []),
            console=console,
            disable=quiet or not console.is_terminal,
        )
        self._task = self._bar.add_task(label, total=total, note="")

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, step: int, losses: dict[str, float]) -> None:
        """Show a step of a training."""
        note = ", ".join(f"{name} {value:.4g}" for name, value in losses.items() if not math.isnan(value))
        self._bar.update(self._task, completed=step, note=note)
        self._line(f"step {step}/{self._total}: {note}")

    def told(self, done: float, total: int, note: str) -> None:
        """Show how many items are done, of how many, and what is going on."""
        self._bar.update(self._task, completed=done, total=total, note=note)
        now = time.monotonic()
        if self._begun is None or done < self._begun[1]:
            self._begun = (now, done)
        gone, made = now - self._begun[0], done - self._begun[1]
        left = f", about {_duration(gone / made * (total - done))} left" if made > 0 and self._remaining else ""
        self._line(f"{done:.0f}/{total}: {note}{left}")

    def _line(self, text: str) -> None:
        if self._bar.disable and not self._quiet and time.monotonic() - self._last > self._every:
            self._last = time.monotonic()
            sys.stderr.write(text + "\n")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def stages(total: int, *, visible: bool = True) -> Iterator[Callable[[str], None]]:
    """A bar over about ``total`` stages of different length, on a terminal only; call what it gives at the start of each."""
    console = Console(stderr=True)
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    hidden = not visible or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("starting", total=total)

        def announce(words: str) -> None:
            bar.update(task, description=words, advance=1)

        yield announce
