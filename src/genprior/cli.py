"""The command line: ``genprior ...``."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class Demo:
    """Recover a few pictures from random measurements with every solver; print a table, write a picture.

    Needs no data and no download. Example:

        genprior demo --out demo
    """

    out: Path = Path("demo")
    """Folder for demo.png."""
    pictures: int = 6
    """Number of pictures."""
    measurements: int = 102
    """Random measurements per picture of 1024 pixels."""
    steps: int = 500
    """Iterations per solver."""
    restarts: int = 8
    """Starts per picture; the worst are given up early."""
    seed: int = 0
    """Seed of pictures, measurements and starts."""
    device: str = "cpu"
    """Device for torch, for example cpu, cuda or mps."""
    json: bool = False
    """Print one JSON document instead of the table."""

    def run(self) -> None:
        """Do it."""
        from genprior.experiments.demo import run_demo  # noqa: PLC0415 - torch is slow to import
        from genprior.report.demo import demo_rows, demo_table, draw_demo  # noqa: PLC0415

        _check_device(self.device)
        self.out.mkdir(parents=True, exist_ok=True)
        with _status(not self.json) as announce:
            demo = run_demo(
                pictures=self.pictures,
                measurements=self.measurements,
                steps=self.steps,
                restarts=self.restarts,
                seed=self.seed,
                device=self.device,
                announce=announce,
            )
        picture = self.out / "demo.png"
        draw_demo(demo, picture)
        if self.json:
            _print_json({"picture": str(picture), "solvers": demo_rows(demo)})
            return
        console = Console()
        console.print(demo_table(demo))
        for name, text in (("picture", str(picture)), ("plan of the last solver", demo.runs[-1].result.plan)):
            console.print(Text.assemble((f"{name}: ", "bold"), text), soft_wrap=True)


@dataclass(frozen=True)
class Overhead:
    """Time an iteration of exact ADMM against one bare forward and backward pass of the same generator.

    Interleaved, medians. The ratio of the DCGAN-size generator is the headline; the small MLP shows the bookkeeping.

    Example:
        genprior bench overhead --json
    """

    repeats: int = 15
    """Interleaved repeats."""
    seed: int = 0
    """Seed of weights, measurements and starts."""
    device: str = "cpu"
    """Device for torch, for example cpu, cuda or mps."""
    threads: int | None = None
    """Threads for torch; its own choice by default."""
    json: bool = False
    """Print one JSON document instead of the table."""

    def run(self) -> None:
        """Do it."""
        import torch  # noqa: PLC0415 - slow to import

        from genprior import _validate  # noqa: PLC0415
        from genprior.experiments.overhead import overhead_cases  # noqa: PLC0415

        _check_device(self.device)
        if self.threads is not None:
            torch.set_num_threads(_validate.whole("threads", self.threads))
        with _status(not self.json) as announce:
            announce("measuring")
            cases = overhead_cases(self.repeats, seed=self.seed, device=self.device)
        if self.json:
            _print_json({"ratio": cases[0].ratio, "cases": [dataclasses.asdict(case) for case in cases]})
            return
        table = Table(title="one iteration of exact ADMM over one bare forward + backward")
        for name in ("generator", "bare ms", "iteration ms", "ratio", "quartiles", "passes"):
            table.add_column(name, justify="right")
        for case in cases:
            table.add_row(
                case.generator,
                f"{1e3 * case.bare_seconds:.2f}",
                f"{1e3 * case.step_seconds:.2f}",
                f"{case.ratio:.3f}",
                f"{case.ratio_quartiles[0]:.3f} to {case.ratio_quartiles[1]:.3f}",
                f"{case.passes[0]:g} + {case.passes[1]:g}",
            )
        Console().print(table)


COMMANDS: dict[tuple[str, ...], type[Demo] | type[Overhead]] = {
    ("demo",): Demo,
    ("bench", "overhead"): Overhead,
}


def main(arguments: list[str] | None = None) -> int:
    """Run one command; give the exit code: 0 only when the job was done."""
    words = sys.argv[1:] if arguments is None else arguments
    path = next((path for path in COMMANDS if tuple(words[: len(path)]) == path), None)
    if path is None:
        return _overview(words)
    kind = COMMANDS[path]
    description = inspect.cleandoc(kind.__doc__ or "")
    command = tyro.cli(kind, prog=" ".join(("genprior", *path)), description=description, args=words[len(path) :])
    try:
        command.run()
    except (ValueError, TypeError, OSError, RuntimeError) as problem:
        _say_error(str(problem))
        return 1
    except KeyboardInterrupt:
        _say_error("interrupted")
        return 130
    return 0


def _overview(words: list[str]) -> int:
    """List the commands: asked for, or because the words name none."""
    asked = not words or words[0] in {"-h", "--help"}
    helped = asked or words[-1] in {"-h", "--help"}
    if words and words[0] in {"-V", "--version"}:
        sys.stdout.write(f"genprior {version('genprior')}\n")
        return 0
    named = {path: kind for path, kind in COMMANDS.items() if not asked and path[0] == words[0]}
    if not asked and not named:
        _say_error(f"there is no command {words[0]!r}")
    console = Console(stderr=not (asked or (named and helped)))
    usage = "usage: genprior COMMAND [options]      genprior COMMAND --help shows options and an example\n"
    console.print(Text(usage), soft_wrap=True)
    table = Table(box=None, show_header=False, padding=(0, 2))
    for path, kind in (named or COMMANDS).items():
        table.add_row(" ".join(path), (kind.__doc__ or "").strip().splitlines()[0])
    console.print(table)
    return 0 if asked or (named and helped) else 2


def _say_error(message: str) -> None:
    Console(stderr=True).print(Text.assemble(("genprior: ", "bold red"), message), soft_wrap=True)


def _check_device(device: str) -> None:
    """Refuse a device that torch does not know or does not have here; it answers with errors of several kinds."""
    import torch  # noqa: PLC0415 - slow to import

    try:
        torch.empty(1, device=device)
    except Exception as problem:
        reason = str(problem).partition("\n")[0].partition(". ")[0]
        raise ValueError(
            f"device {device!r} cannot be used here ({reason}): give cpu, or another one that is there"
        ) from None


def _print_json(document: object) -> None:
    sys.stdout.write(json.dumps(_plain(document), indent=2, default=str, allow_nan=False) + "\n")


def _plain(value: object) -> object:
    """Without NaN and infinity, which JSON does not have: null in their place."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def _status(visible: bool) -> Iterator[Callable[[str], None]]:
    """A line that says what is going on, on a terminal only."""
    console = Console(stderr=True)
    if not visible or not console.is_terminal:
        yield lambda _: None
        return
    with console.status("starting") as status:
        yield status.update
