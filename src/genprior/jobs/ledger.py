"""The memory of a job on disk: what was asked, which batches are done, so that the same command goes on after any end."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from genprior._files import (
    add_folder,
    make_folder,
    printable,
    remove_unfinished,
    set_aside,
    write_atomically,
    write_text,
)

_JOB = "job.json"
_FORMAT = "genprior-job-3"
_AT_MOST = 4
CONTENT = "content of the "
"""Names of digests of files begin so."""
FOLDER = ".job"
"""Where the records are, in the output folder."""
LOCK = "lock"


def begun(out: Path) -> bool:
    """Whether a folder holds a job."""
    return (out / FOLDER / _JOB).is_file()


class Damaged(ValueError):
    """A record that is not as it was written; the same command does its batch again."""


class Ledger:
    """Records in a hidden folder of the output folder: ``job.json``, and one file per finished batch."""

    def __init__(
        self, out: Path, asked: dict[str, Any], newer_than: Callable[[int], Iterable[Path]] = lambda time: ()
    ) -> None:
        """``newer_than`` gives the inputs that were changed after a time, to be named where a job is refused for them."""
        self.folder, self._newer_than = out / FOLDER, newer_than
        self.notes: list[str] = []
        """What the user should know of damaged records."""
        make_folder(out)
        add_folder(self.folder)
        remove_unfinished(self.folder)
        self._check(out, {"format": _FORMAT, **asked})

    def chunk(self, number: int) -> dict[str, Any] | None:
        """What was recorded of a batch, None if it is not done. A damaged record is set aside: its batch is done again."""
        try:
            return self._read(number)
        except Damaged as problem:
            paths = [path for path in (self._path(number), self._images(number)) if path.is_file()]
            names = ", ".join(str(set_aside(path)) for path in paths)
            self.notes.append(f"{problem}: set aside as {names}, and its items are done again")
            return None

    def chunks(self) -> Iterator[dict[str, Any]]:
        """The batches that are done, from the first on."""
        number = 0
        while (record := self._read(number)) is not None:
            yield record
            number += 1

    def write_chunk(self, number: int, record: dict[str, Any]) -> None:
        """Record a batch as done, with its images: from now on it will not be done again."""
        images = self._images(number)
        sealed = {"record": record, "images": _digest(images.read_bytes()) if images.is_file() else None}
        text = json.dumps(sealed, allow_nan=False)
        write_text(self._path(number), json.dumps({"sha256": _digest(text.encode()), "sealed": text}))

    def write_pictures(self, number: int, pictures: dict[str, list[Tensor]]) -> None:
        """Keep a few images of a batch for the report, before it is recorded."""
        plain = {name: torch.stack(parts) for name, parts in pictures.items() if parts}
        if plain:
            content = save(plain)
            write_atomically(self._images(number), lambda temporary: temporary.write_bytes(content), sync=False)

    def forget(self, numbers: Iterable[int]) -> None:
        """These batches are to be done again."""
        for number in numbers:
            self._path(number).unlink(missing_ok=True)
            self._images(number).unlink(missing_ok=True)

    def pictures(self) -> list[dict[str, Tensor]]:
        """The images kept, batch by batch."""
        return [load_file(path) for path in sorted(self.folder.glob("batch-*.safetensors"))]

    def _read(self, number: int) -> dict[str, Any] | None:
        """The record of a batch, None if there is none; with it goes a checksum, so that no damage goes unnoticed."""
        path, images = self._path(number), self._images(number)
        if not path.is_file():
            return None
        try:
            outer = json.loads(path.read_bytes())
            text = outer["sealed"].encode()
            sound = outer["sha256"] == _digest(text)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            sound = False
        if not sound:
            raise Damaged(f"the record {path} is damaged")
        sealed = json.loads(text)
        if sealed["images"] is not None and (not images.is_file() or _digest(images.read_bytes()) != sealed["images"]):
            raise Damaged(f"the images {images} are damaged or lost")
        record: dict[str, Any] = sealed["record"]
        return record

    def _path(self, number: int) -> Path:
        return self.folder / f"batch-{number:06d}.json"

    def _images(self, number: int) -> Path:
        return self._path(number).with_suffix(".safetensors")

    def _check(self, out: Path, asked: dict[str, Any]) -> None:
        path = self.folder / _JOB
        wanted = json.loads(json.dumps(asked))
        if not path.is_file():
            write_text(path, json.dumps(wanted, indent=2, allow_nan=False))
            return
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            stored = None
        if not isinstance(stored, dict):
            raise ValueError(
                f"{path} is damaged, so that it is not known which job {out} holds: give another --out, or delete the folder"
            )
        changed = [name for name in (stored | wanted) if stored.get(name) != wanted.get(name)]
        if changed:
            newer = [printable(str(place)) for place in self._newer_than(path.stat().st_mtime_ns)]
            raise ValueError(
                f"{out} holds another job ({_told(changed, stored, wanted, newer)}): repeat that command to go on with it, "
                "give another --out, or delete the folder"
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
    add_folder(out / FOLDER)
    notes: tuple[str, ...] = ()
    with (out / FOLDER / LOCK).open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another process is working in {out}: wait for it, or give another --out") from None
        except OSError as problem:
            notes = (f"{out} cannot be locked ({problem.strerror}): start no second process there",)
        yield notes


def _told(changed: list[str], stored: dict[str, Any], wanted: dict[str, Any], newer: list[str]) -> str:
    """What differs: options by their values; contents of files, which are digests, only where all options agree."""
    options = [name for name in changed if not name.startswith(CONTENT)]
    told = [f"{name} was {_brief(stored, name)}, now {_brief(wanted, name)}" for name in options[:_AT_MOST]]
    if told:
        return "; ".join(told)
    more = f" and {len(newer) - _AT_MOST} more" if len(newer) > _AT_MOST else ""
    since = f"; changed since it began: {', '.join(newer[:_AT_MOST])}{more}" if newer else ""
    return "; ".join(f"the {name} has changed" for name in changed) + since


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _brief(values: dict[str, Any], name: str) -> str:
    text = str(values.get(name))
    return text if len(text) <= 60 else f"{text[:57]}..."
