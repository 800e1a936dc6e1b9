"""A worker's side, wherever it runs: check that it fits the driver, open the work, solve batches."""

from __future__ import annotations

import io
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


class _Pickler(pickle.Pickler):
    """Tensors on the CPU as arrays, which is many times faster, and without the rows of others where they are views."""

    def reducer_override(self, value: Any) -> Any:
        import torch  # noqa: PLC0415 - loaded by now

        if type(value) is not torch.Tensor or not _is_plain(value):
            return NotImplemented
        return torch.from_numpy, (value.numpy(),)


def _is_plain(tensor: Any) -> bool:
    odd = tensor.requires_grad or tensor.is_conj() or tensor.is_neg() or tensor.is_sparse or tensor.dim() == 0
    return tensor.device.type == "cpu" and not odd and tensor.dtype.itemsize <= 8 and "bfloat" not in str(tensor.dtype)


def dumps(value: object) -> bytes:
    """A task or an answer as bytes, for ``pickle.loads`` in another process of ours."""
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=5).dump(value)
    return buffer.getvalue()


def portable(error: BaseException) -> bytes:
    """An exception as it crosses to the driver, with the worker's traceback as a note, for :func:`arrived`."""
    trace = "".join(traceback.format_exception(error))
    note = f"in a worker, process {os.getpid()} on {platform.node()}:\n{trace}"
    whole = None
    try:
        error.add_note(note)
        content = pickle.dumps(error)
        whole = content if str(pickle.loads(content)) == str(error) else None
    except Exception:
        pass
    return pickle.dumps((whole, _described(error), note))


def arrived(content: bytes) -> BaseException:
    """The exception on the driver; one of a type that does not exist there arrives as an :class:`EngineError`."""
    whole, text, note = pickle.loads(content)
    try:
        if whole is not None:
            error: BaseException = pickle.loads(whole)
            return error
    except Exception:
        pass
    other = EngineError(text)
    other.add_note(note)
    return other


def _described(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__
