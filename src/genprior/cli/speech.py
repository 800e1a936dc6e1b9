"""How commands speak: errors, JSON, a line that says what is going on."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rich.console import Console
from rich.text import Text

_words: ContextVar[tuple[str, ...]] = ContextVar("words", default=())


def remember_command(words: list[str]) -> None:
    """Note what was typed, for reports and cards."""
    _words.set(tuple(words))


def typed_command() -> str:
    """What was typed, as one would type it again."""
    return shlex.join(["genprior", *_words.get()])


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
    sys.stdout.write(as_json(document))


def _plain(value: object) -> object:
    """Without NaN and infinity, which JSON does not have: null in their place."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def status(visible: bool) -> Iterator[Callable[[str], None]]:
    """A line that says what is going on, on a terminal only."""
    console = Console(stderr=True)
    if not visible or not console.is_terminal:
        yield lambda _: None
        return
    with console.status("starting") as status:
        yield status.update
