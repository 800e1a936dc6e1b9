"""What commands print: errors, tables, JSON."""

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
"""As errors name it."""
_words: ContextVar[tuple[str, ...]] = ContextVar("words", default=())


def remember_command(words: list[str]) -> None:
    """Note what was typed, for reports and cards."""
    _words.set(tuple(words))


def typed_command() -> str:
    """What was typed, as one would type it again."""
    return shlex.join(["genprior", *_words.get()])


def settle_streams() -> None:
    """Make the streams of the process safe to use, whatever it was started with.

    Where one is closed (``>&-``) the next file that is opened would take its number, and get what a library prints. Names
    of files may hold bytes that are no text: these are shown escaped, as the error stream does.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def flush_output() -> None:
    """Hand over what was printed: what goes wrong with that is found out now, not when Python ends."""
    with writing(_OUTPUT):
        sys.stdout.flush()


def drop_output() -> None:
    """Nobody reads what was printed: let Python end without trying again."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


class Output(Console):
    """The output stream; where it is closed nothing is shown."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Errors, such as a full disk, say that it is about this stream."""
        with writing(_OUTPUT):
            super().print(*objects, **options)


def say_error(message: str) -> None:
    """One line on the error stream."""
    Console(stderr=True).print(Text.assemble(("genprior: ", "bold red"), message), soft_wrap=True)


def check_device(device: str) -> None:
    """Refuse a device that torch does not know or does not have here; it answers with errors of several kinds."""
    import torch  # noqa: PLC0415 - slow to import

    try:
        torch.empty(1, device=device)
    except Exception as problem:
        reason = str(problem).partition("\n")[0].partition(". ")[0]
        raise ValueError(
            f"device {device!r} cannot be used here ({reason}): give cpu, or another one that is there"
        ) from None


def as_json(document: object) -> str:
    """One JSON document as text."""
    return json.dumps(_plain(document), indent=2, default=str, allow_nan=False) + "\n"


def print_json(document: object) -> None:
    """One JSON document on the output stream."""
    print_text([as_json(document)])


def print_text(parts: Iterable[str]) -> None:
    """Text on the output stream, which was asked for: it is an error where that is closed."""
    if (
        getattr(sys.stdout, "name", "") == os.devnull
    ):  # see settle_streams; a stream that was redirected has another name
        raise OSError("standard output is closed, so that the JSON document cannot be printed: leave out --json")
    with writing(_OUTPUT):
        for part in parts:
            sys.stdout.write(part)


def _plain(value: object) -> object:
    """Without NaN and infinity, which JSON does not have: null in their place; arguments as flags."""
    if isinstance(value, str):
        return as_flags(value)
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
