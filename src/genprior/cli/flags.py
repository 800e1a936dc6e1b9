"""Turns argument names in texts of the library, which are in backticks, into flags of the command."""

from __future__ import annotations

import dataclasses
import re
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from genprior.assessment import Words

_OTHER_NAMES = {"signal_range": "range", "allowed": "allow_host"}
"""Arguments whose option has another name."""
_ARGUMENT = re.compile(r"`(\w+)(?:=([^`]*))?`")
_options: ContextVar[frozenset[str]] = ContextVar("options", default=frozenset())


def remember_options(command: object) -> None:
    """Store the options of the running command."""
    _options.set(frozenset(_options_of(command)))


def as_flags(text: str) -> str:
    """A text of the library for the user of the command.

    ``batch_size must be ...`` becomes ``--batch-size must be ...``; ``latent_shape=(100, 1)``, in backticks, becomes
    ``--latent-shape 100 1``, and ``skip=True`` becomes ``--skip``; anything that is not an option of the command is unchanged.
    """
    name, _, rest = text.partition(" ")
    if rest.startswith("must ") and (flag := _flag(name)):
        text = f"{flag} {rest}"
    return _ARGUMENT.sub(lambda found: _option(found[0], found[1], found[2]), text)


def words_of_recover() -> Words:
    """Names of the options of ``genprior recover``, for advice."""
    from genprior.assessment import Words  # noqa: PLC0415 - slow to import

    return Words(
        restarts="--restarts 8",
        steps="--steps",
        time="--time",
        patience="--patience",
        prior="--latent-ball",
        check="genprior check",
        translate=as_flags,
    )


def _flag(name: str) -> str | None:
    name = _OTHER_NAMES.get(name, name)
    return f"--{name.replace('_', '-')}" if name in _options.get() else None


def _option(whole: str, name: str, value: str | None) -> str:
    flag = _flag(name)
    if flag is None or value in {None, "True"}:
        return flag or whole
    return f"{flag} {str(value).strip('()').replace(',', ' ').strip()}".replace("  ", " ")


def _options_of(command: Any) -> set[str]:
    """Names of the options; a group of settings stands for its members."""
    names = {field.name for field in dataclasses.fields(command)}
    return names | (_options_of(command.settings) if "settings" in names else set())
