"""The command line: ``genprior ...``."""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from importlib.metadata import version
from typing import Protocol

import tyro
from rich.table import Table
from rich.text import Text

from genprior.cli.bench import BenchTraining, Overhead, Scaling
from genprior.cli.certify import Certify
from genprior.cli.check import Check
from genprior.cli.defend import Defend
from genprior.cli.demo import Demo
from genprior.cli.flags import as_flags, remember_options
from genprior.cli.gather import Gather
from genprior.cli.race import BenchRace
from genprior.cli.recover import Denoise, Recover
from genprior.cli.reproduce import (
    ReproduceAll,
    ReproduceDefence,
    ReproduceDenoising,
    ReproducePlateau,
    ReproduceSensing,
    ReproduceTuning,
)
from genprior.cli.serve import Serve
from genprior.cli.speech import Output, drop_output, flush_output, remember_command, say_error, settle_streams
from genprior.cli.train import (
    TrainCeleba,
    TrainClassifier,
    TrainEncoder,
    TrainFashion,
    TrainFolder,
    TrainImageEncoder,
    TrainMnist,
)


class Command(Protocol):
    """A frozen dataclass whose fields are the options and whose docstring is the help text."""

    def run(self) -> None:
        """Run the command."""


COMMANDS: dict[tuple[str, ...], type[Command]] = {
    ("demo",): Demo,
    ("recover",): Recover,
    ("denoise",): Denoise,
    ("gather",): Gather,
    ("check",): Check,
    ("defend",): Defend,
    ("train", "mnist"): TrainMnist,
    ("train", "fashion-mnist"): TrainFashion,
    ("train", "celeba"): TrainCeleba,
    ("train", "folder"): TrainFolder,
    ("train", "classifier"): TrainClassifier,
    ("train", "encoder"): TrainEncoder,
    ("train", "image-encoder"): TrainImageEncoder,
    ("reproduce", "all"): ReproduceAll,
    ("reproduce", "compressive-sensing"): ReproduceSensing,
    ("reproduce", "linf-denoising"): ReproduceDenoising,
    ("reproduce", "defence"): ReproduceDefence,
    ("reproduce", "tuning"): ReproduceTuning,
    ("reproduce", "plateau"): ReproducePlateau,
    ("certify",): Certify,
    ("bench", "race"): BenchRace,
    ("bench", "overhead"): Overhead,
    ("bench", "training"): BenchTraining,
    ("bench", "scaling"): Scaling,
    ("serve",): Serve,
}


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return the exit code: 0 only on success."""
    words = sys.argv[1:] if arguments is None else arguments
    remember_command(words)
    settle_streams()
    try:
        code = _run(words)
        flush_output()
    except BrokenPipeError:  # the reader of our output, such as head, has closed it
        drop_output()
        return 1
    except OSError as problem:  # the output cannot be written, for example because the disk is full
        drop_output()
        say_error(str(problem) if problem.filename else f"standard output cannot be written: {problem}")
        return 1
    return code


def _run(words: list[str]) -> int:
    path = next((path for path in COMMANDS if tuple(words[: len(path)]) == path), None)
    if path is None:
        return _overview(words)
    command_type = COMMANDS[path]
    description = inspect.cleandoc(command_type.__doc__ or "")
    try:
        command = tyro.cli(
            command_type, prog=" ".join(("genprior", *path)), description=description, args=words[len(path) :]
        )
    except (ValueError, TypeError) as problem:  # settings that check themselves
        say_error(_message(problem))
        return 1
    remember_options(command)
    try:
        command.run()
    except KeyboardInterrupt:
        say_error("interrupted")
        return 130
    except BrokenPipeError:
        raise
    except Exception as problem:
        say_error(as_flags(_message(problem)))
        return 1
    return 0


def _message(problem: Exception) -> str:
    """The error in one line; with GENPRIOR_DEBUG=1 also prints the traceback."""
    if os.environ.get("GENPRIOR_DEBUG") == "1":
        traceback.print_exception(problem)
    if isinstance(problem, ValueError | TypeError | OSError | RuntimeError):
        return str(problem)
    words = " ".join(str(problem).split())
    return f"{type(problem).__name__}{': ' if words else ''}{words} (set GENPRIOR_DEBUG=1 to see the traceback)"


def _overview(words: list[str]) -> int:
    """List the commands, on request or because the words name none."""
    asked = not words or words[0] in {"-h", "--help"}
    helped = asked or words[-1] in {"-h", "--help"}
    if words and words[0] in {"-V", "--version"}:
        Output().print(f"genprior {version('genprior')}", highlight=False)
        return 0
    named = {path: command for path, command in COMMANDS.items() if not asked and path[0] == words[0]}
    if not asked and not named:
        say_error(f"there is no command {words[0]!r}")
    console = Output(stderr=not (asked or (named and helped)))
    usage = "usage: genprior COMMAND [options]      genprior COMMAND --help shows options and an example\n"
    console.print(Text(usage), soft_wrap=True)
    table = Table(box=None, show_header=False, padding=(0, 2))
    for path, command in (named or COMMANDS).items():
        table.add_row(" ".join(path), (command.__doc__ or "").strip().splitlines()[0])
    console.print(table)
    return 0 if asked or (named and helped) else 2
