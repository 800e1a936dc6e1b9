"""The memory of a job on disk: what was asked, which batches are done, so that the same command goes on after any end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from genprior._files import add_folder, make_folder, printable, remove_unfinished
from genprior._journal import Damaged, Journal, Record, agree, differences

_JOB = "job.json"
_FORMAT = "genprior-job-4"
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

    def __init__(
        self, out: Path, asked: dict[str, Any], newer_than: Callable[[int], Iterable[Path]] = lambda time: ()
    ) -> None:
        """``newer_than`` gives the inputs that were changed after a time, to be named where a job is refused for them."""
        self.folder = out / FOLDER
        self.notes: list[str] = []
        """What the user should know of damaged records."""
        make_folder(out)
        add_folder(self.folder)
        remove_unfinished(self.folder)
        identity = {"format": _FORMAT, **asked}
        _refuse_another(out, identity, newer_than)
        self._journal = Journal.of(_FORMAT, identity)

    def chunk(self, number: int) -> dict[str, Any] | None:
        """What was recorded of a batch, None if it is not done. A damaged record is set aside: its batch is done again."""
        record = self._journal.read_or_set_aside(self._path(number), self.notes)
        return None if record is None else record.meta

    def chunks(self) -> Iterator[dict[str, Any]]:
        """The batches that are done, from the first on."""
        return (record.meta for record in self._records())

    def images(self) -> Iterator[dict[str, Tensor]]:
        """The images kept of each batch that is done."""
        return (record.tensors for record in self._records())

    def write_chunk(self, number: int, record: dict[str, Any], images: dict[str, list[Tensor]] | None = None) -> None:
        """Record a batch as done, with a few images for the report: from now on it will not be done again."""
        tensors = {name: torch.stack(parts) for name, parts in (images or {}).items() if parts}
        self._journal.write(self._path(number), record, tensors)

    def forget(self, numbers: Iterable[int]) -> None:
        """These batches are to be done again."""
        for number in numbers:
            self._path(number).unlink(missing_ok=True)

    def _records(self) -> Iterator[Record]:
        number = 0
        while (record := self._journal.read(self._path(number))) is not None:
            yield record
            number += 1

    def _path(self, number: int) -> Path:
        return self.folder / f"batch-{number:06d}.safetensors"


def _refuse_another(out: Path, identity: dict[str, Any], newer_than: Callable[[int], Iterable[Path]]) -> None:
    """Raise where a folder holds another job, or one that cannot be told."""
    path = out / FOLDER / _JOB
    try:
        changed = agree(path, identity)
    except Damaged as problem:
        raise ValueError(
            f"{problem}, so that it is not known which job {out} holds: give another `out`, or delete the folder"
        ) from None
    if changed:
        newer = [printable(str(place)) for place in newer_than(path.stat().st_mtime_ns)]
        raise ValueError(
            f"{out} holds another job ({_told(changed, newer)}): repeat that command to go on with it, "
            "give another `out`, or delete the folder"
        )


@contextmanager
def alone(out: Path) -> Iterator[tuple[str, ...]]:
    """Keep a second process out of the same folder; the lock ends with the process, however that ends.

    Gives notes for the user: some file systems have no locks.
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
            raise ValueError(f"another process is working in {out}: wait for it, or give another `out`") from None
        except OSError as problem:
            notes = (f"{out} cannot be locked ({problem.strerror}): start no second process there",)
        yield notes


def _told(changed: dict[str, tuple[Any, Any]], newer: list[str]) -> str:
    """What differs: options by their values; contents of files, which are digests, only where all options agree."""
    options = [name for name in changed if not name.startswith(CONTENT)][:_AT_MOST]
    if options:
        return differences({name: changed[name] for name in options})
    more = f" and {len(newer) - _AT_MOST} more" if len(newer) > _AT_MOST else ""
    since = f"; changed since it began: {', '.join(newer[:_AT_MOST])}{more}" if newer else ""
    return "; ".join(f"the {name} has changed" for name in changed) + since
