"""The memory of a job on disk: what was asked, which batches are done, so that the same command goes on after any end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from genprior._files import make_folder, remove_unfinished, write_atomically, write_text

_JOB = "job.json"
_FORMAT = "genprior-job-2"
_AT_MOST = 4
CONTENT = "content of the "
"""Names of digests of files begin so."""
FOLDER = ".job"
"""Where the records are, in the output folder."""
LOCK = "lock"


def begun(out: Path) -> bool:
    """Whether a folder holds a job."""
    return (out / FOLDER / _JOB).is_file()


class Ledger:
    """Records in a hidden folder of the output folder: ``job.json``, and one file per finished batch."""

    def __init__(self, out: Path, asked: dict[str, Any]) -> None:
        self.folder = out / FOLDER
        make_folder(out)
        self.folder.mkdir(exist_ok=True)
        remove_unfinished(self.folder)
        self._check(out, {"format": _FORMAT, **asked})

    def chunk(self, number: int) -> dict[str, Any] | None:
        """What was recorded of a batch, None if it is not done."""
        path = self._path(number)
        if not path.is_file():
            return None
        try:
            record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            return None  # not ours, or damaged by the disk: the batch is done again
        return record

    def chunks(self) -> Iterator[dict[str, Any]]:
        """The batches that are done, from the first on."""
        number = 0
        while (record := self.chunk(number)) is not None:
            yield record
            number += 1

    def write_chunk(self, number: int, record: dict[str, Any]) -> None:
        """Record a batch as done: from now on it will not be done again."""
        write_text(self._path(number), json.dumps(record, allow_nan=False))

    def write_pictures(self, number: int, pictures: dict[str, list[Tensor]]) -> None:
        """Keep a few pictures of a batch for the report."""
        plain = {name: torch.stack(parts) for name, parts in pictures.items() if parts}
        if not plain:
            return
        path = self._path(number).with_suffix(".safetensors")
        write_atomically(path, lambda temporary: temporary.write_bytes(save(plain)))

    def forget(self, numbers: Iterable[int]) -> None:
        """These batches are to be done again."""
        for number in numbers:
            self._path(number).unlink(missing_ok=True)
            self._path(number).with_suffix(".safetensors").unlink(missing_ok=True)

    def pictures(self) -> list[dict[str, Tensor]]:
        """The pictures kept, batch by batch."""
        return [load_file(path) for path in sorted(self.folder.glob("batch-*.safetensors"))]

    def _path(self, number: int) -> Path:
        return self.folder / f"batch-{number:06d}.json"

    def _check(self, out: Path, asked: dict[str, Any]) -> None:
        path = self.folder / _JOB
        wanted = json.loads(json.dumps(asked))
        if not path.is_file():
            write_text(path, json.dumps(wanted, indent=2, allow_nan=False))
            return
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            stored = {}
        changed = [name for name in (stored | wanted) if stored.get(name) != wanted.get(name)]
        if changed:
            raise ValueError(
                f"{out} holds another job ({_told(changed, stored, wanted)}): repeat that command to go on with it, give "
                "another --out, or delete the folder"
            )


@contextmanager
def alone(out: Path) -> Iterator[tuple[str, ...]]:
    """Keep a second process out of the same folder; the lock ends with the process, however that ends.

    Gives notes for the person: some file systems have no locks.
    """
    try:
        import fcntl  # noqa: PLC0415 - not on every system
    except ModuleNotFoundError:
        yield ()
        return
    make_folder(out)
    (out / FOLDER).mkdir(exist_ok=True)
    notes: tuple[str, ...] = ()
    with (out / FOLDER / LOCK).open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another process is working in {out}: wait for it, or give another --out") from None
        except OSError as problem:
            notes = (f"{out} cannot be locked ({problem.strerror}): start no second process there",)
        yield notes


def _told(changed: list[str], stored: dict[str, Any], wanted: dict[str, Any]) -> str:
    """What differs: options by their values; contents of files, which are digests, only where all options agree."""
    options = [name for name in changed if not name.startswith(CONTENT)]
    told = [f"{name} was {_brief(stored, name)}, now {_brief(wanted, name)}" for name in options[:_AT_MOST]]
    return "; ".join(told or [f"the {name} has changed" for name in changed])


def _brief(values: dict[str, Any], name: str) -> str:
    text = str(values.get(name))
    return text if len(text) <= 60 else f"{text[:57]}..."
