"""A worker's side, wherever it runs: check that it fits the driver, open the work, solve batches."""

from __future__ import annotations

import os
import pickle  # between our own processes, never of a file
import platform
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from genprior.engines.base import EngineError, Place, Work


@dataclass(frozen=True)
class Head:
    """What a worker is told before it opens anything."""

    versions: dict[str, str]
    """Of the packages that must agree, on the driver."""
    threads: int
    number: int | None = None
    visible: bool = True


def versions() -> dict[str, str]:
    """Of the packages that decide about the bits of a result, and of Python, whose byte code crosses."""
    from importlib.metadata import version  # noqa: PLC0415 - replaced in tests

    return {
        "genprior": version("genprior"),
        "torch": version("torch"),
        "Python": ".".join(platform.python_version_tuple()[:2]),
    }


def packed(work: Work[Any, Any]) -> bytes:
    """The work as bytes; an error says what cannot be sent.

    What was defined in a script, a notebook or a model's own file travels by its definition, everything else by its name.
    """
    import cloudpickle  # noqa: PLC0415 - only where something is sent

    try:
        content: bytes = cloudpickle.dumps(work)
    except Exception as problem:
        raise EngineError(
            f"this cannot be sent to workers ({type(problem).__name__}: {problem}): generators, operators and terms must be "
            "picklable, without TorchScript, open files, locks or connections; leave out the engine, or use genprior recover"
        ) from problem
    return content


def open_work(head: Head, work: bytes) -> Callable[[Any], Any]:
    """In a new worker: what solves its batches."""
    refuse_other_versions(head)
    import torch  # noqa: PLC0415 - after the check

    torch.set_num_threads(head.threads)
    try:
        opened: Work[Any, Any] = pickle.loads(work)
        return opened.open(Place(number=head.number, visible=head.visible))
    except Exception as problem:
        problem.add_note(f"while a worker opened the job on {platform.node()}")
        if isinstance(problem, ImportError):
            raise EngineError(
                f"a worker on {platform.node()} cannot import the job ({problem}): install the same packages there, or "
                "define the model in a file of its own folder, my_model.py:build"
            ) from problem
        raise


def refuse_other_versions(head: Head) -> None:
    """Results must not depend on which worker had a batch."""
    here = versions()
    differing = [
        f"{name} {here[name]} there, {wanted} here" for name, wanted in head.versions.items() if here[name] != wanted
    ]
    if differing:
        raise EngineError(
            f"a worker on {platform.node()} has other versions ({'; '.join(differing)}): install the same ones everywhere"
        )


def portable(error: BaseException) -> bytes:
    """An exception as it crosses to the driver, with the worker's traceback as a note."""
    trace = "".join(traceback.format_exception(error))
    for candidate in (error, EngineError(f"{type(error).__name__}: {error}")):
        try:
            candidate.add_note(f"in a worker, process {os.getpid()} on {platform.node()}:\n{trace}")
            content = pickle.dumps(candidate)
            if str(pickle.loads(content)) == str(candidate):
                return content
        except Exception:
            continue
    return pickle.dumps(EngineError("a worker failed, and its exception cannot be sent"))
