"""Where the generators of the race come from: bundled, from a third-party package, or described here."""

from __future__ import annotations

from collections.abc import Callable

import torch

from genprior.generators import Generator
from genprior.lab.race.networks import decoder, flow
from genprior.lab.third_party import PACKAGES, default_folder, download_archive, open_third_party
from genprior.models.bundled import has_bundled, load_generator

_DRAWN: dict[str, Callable[..., Generator]] = {"decoder": decoder, "flow": flow}


def open_generator(name: str, device: torch.device | str = "cpu") -> Generator:
    """The generator of a problem."""
    if name in _DRAWN:
        return _DRAWN[name](device=device)
    if name in PACKAGES:
        return open_third_party(name, device=device)
    return load_generator(name, device=device)


def needs_archive(name: str) -> bool:
    """Whether a generator comes from the archive of a third-party package."""
    return name in PACKAGES


def missing(name: str, *, download: bool, announce: Callable[[str], object]) -> str:
    """Why a generator cannot be opened, and what to do; empty where it can. Downloads only where that is asked for."""
    if name in _DRAWN:
        return ""
    if name not in PACKAGES:
        return "" if has_bundled(name, "generator") else f"this installation has no generator {name!r}"
    try:
        if download:
            download_archive(name, announce=announce)
        open_third_party(name)
    except FileNotFoundError:
        package = PACKAGES[name]
        return (
            f"its generator is in the package {package.name} {package.version} ({package.licence}), which is not part of "
            f"genprior: `download=True` fetches it with pip; or put {package.archive} into {default_folder()}"
        )
    except (ImportError, ConnectionError, ValueError) as problem:
        return str(problem)
    return ""
