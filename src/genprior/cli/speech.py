"""Output of commands: errors, tables, JSON."""

from __future__ import annotations

import io
import json
import math
import os
import shlex
import sys
from collections.abc import Iterable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from genprior._files import writing
from genprior.cli.flags import as_flags

_OUTPUT = Path("standard output")
"""Its name in errors."""
_words: ContextVar[tuple[str, ...]] = ContextVar("words", default=())


def remember_command(words: list[str]) -> None:
    """Store the command line, for reports and model cards."""
    _words.set(tuple(words))


def typed_command() -> str:
    """The command line, quoted for a shell."""
    return shlex.join(["genprior", *_words.get()])


def settle_streams() -> None:
    """Make the standard streams safe to use.

    If one is closed (``>&-``), the next file that is opened would take its descriptor and receive what libraries print. File
    names may contain bytes that are not text: these are printed escaped, as on the error stream.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def flush_output() -> None:
    """Flush the output, so that errors appear now and not when Python exits."""
    with writing(_OUTPUT):
        sys.stdout.flush()


def drop_output() -> None:
    """Discard unread output, so that Python exits without trying to write it again."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


class Output(Console):
    """The output stream; prints nothing if it is closed."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; errors, such as a full disk, name this stream."""
        with writing(_OUTPUT):
            super().print(*objects, **options)


def say_error(message: str) -> None:
    """One line on the error stream."""
    Console(stderr=True).print(Text.assemble(("genprior: ", "bold red"), message), soft_wrap=True)


def check_device(device: str) -> None:
    """Refuse a device that torch does not know or that is missing; torch raises errors of several types."""
    import torch  # noqa: PLC0415 - slow to import

    try:
        torch.empty(1, device=device)
    except Exception as problem:
        reason = str(problem).partition("\n")[0].partition(". ")[0]
        raise ValueError(
            f"device {device!r} cannot be used here ({reason}): give cpu or another available device"
        ) from None


def as_json(document: object) -> str:
    """One JSON document as text."""
    return json.dumps(_plain(document), indent=2, default=str, allow_nan=False) + "\n"


def print_lines(lines: Iterable[tuple[str, str]]) -> None:
    """A summary on the output stream: name and text."""
    console = Output()
    for name, text in lines:
        console.print(Text.assemble((f"{name}: ", "bold"), text), soft_wrap=True)


def print_json(document: object) -> None:
    """One JSON document on the output stream."""
    print_text([as_json(document)])


def print_text(parts: Iterable[str]) -> None:
    """Print requested text on the output stream; a closed stream is an error."""
    if getattr(sys.stdout, "name", "") == os.devnull:  # see settle_streams; a redirected stream has another name
        raise OSError("standard output is closed, so the JSON document cannot be printed: leave out --json")
    with writing(_OUTPUT):
        for part in parts:
            sys.stdout.write(part)


def _plain(value: object) -> object:
    """Replace NaN and infinity, which JSON does not have, by null, and argument names by flags."""
    if isinstance(value, str):
        return as_flags(value)
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
