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

    def __init__(self, total: int, *, quiet: bool = False, every: float = 60.0) -> None:
        self._total, self._quiet, self._every, self._last = total, quiet, every, time.monotonic()
        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("training {task.completed}/{task.total}"),
            BarColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=quiet or not console.is_terminal,
        )
        self._task = self._bar.add_task("training", total=total, note="")

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, step: int, losses: dict[str, float]) -> None:
        """Show a step."""
        note = ", ".join(f"{name} {value:.4g}" for name, value in losses.items() if not math.isnan(value))
        self._bar.update(self._task, completed=step, note=note)
        if self._bar.disable and not self._quiet and time.monotonic() - self._last > self._every:
            self._last = time.monotonic()
            sys.stderr.write(f"step {step}/{self._total}: {note}\n")


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
