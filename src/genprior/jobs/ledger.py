"""The record of a job on disk (its settings and finished batches), from which the same command resumes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from genprior._files import add_folder, make_folder, printable, remove_unfinished
from genprior._journal import Damaged, Record, agree, differences, owner_of
from genprior._segments import Log

_JOB = "job.json"
_FORMAT = "genprior-job-5"
_AT_MOST = 4
CONTENT = "content of the "
"""Prefix of the names of file digests."""
FOLDER = ".job"
"""Where the records are, in the output folder."""
LOCK = "lock"


def begun(out: Path) -> bool:
    """Whether a folder holds a job."""
    return (out / FOLDER / _JOB).is_file()


class Ledger:
    """Records in a hidden folder of the output folder: ``job.json``, and the finished batches in a few log files.

    One process writes, in any order of batches.
    """

    def __init__(
        self, out: Path, asked: dict[str, Any], newer_than: Callable[[int], Iterable[Path]] = lambda time: ()
    ) -> None:
        """``newer_than`` gives the inputs changed after a time, for the error message if they differ."""
        self.folder = out / FOLDER
        make_folder(out)
        add_folder(self.folder)
        remove_unfinished(self.folder)
        self._log = Log(self.folder, claimed(out, asked, newer_than))
        self.notes: list[str] = list(self._log.notes)
        """Notes for the user about damaged records."""

    def done(self) -> Iterator[int]:
        """The numbers of the finished batches, in order."""
        return self._log.numbers()

    def batch(self, number: int) -> dict[str, Any] | None:
        """The record of a batch; None if it is not done."""
        return next((record.meta for _, record in self._log.records([number])), None)

    def batches(self) -> Iterator[dict[str, Any]]:
        """Records of the finished batches, by number, one in memory at a time."""
        return (record.meta for _, record in self._log.records())

    def images(self, numbers: Iterable[int] | None = None) -> Iterator[dict[str, Tensor]]:
        """The images kept of each finished batch, or of these."""
        return (record.tensors for _, record in self._log.records(numbers))

    def write_batch(self, number: int, record: dict[str, Any], images: dict[str, Tensor] | None = None) -> None:
        """Record a batch as finished, with a few images for the report; on the disk when this returns."""
        self._log.append(number, Record(record, images or {}))

    def forget(self, numbers: Iterable[int]) -> None:
        """These batches are not done, so that they are repeated."""
        self._log.forget(numbers)


def asked_of(out: Path) -> dict[str, Any]:
    """What the job in a folder was asked, with the digests of its files."""
    path = out / FOLDER / _JOB
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ValueError(f"{out} holds no job: give the `out` of genprior recover or denoise") from None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.pop("format", None) != _FORMAT:
        raise ValueError(f"{path} is damaged, or of another version of genprior: repeat the command that began the job")
    return found


def claimed(out: Path, asked: dict[str, Any], newer_than: Callable[[int], Iterable[Path]] = lambda time: ()) -> str:
    """The owner of a folder's records, a digest of the job; raises if the folder holds another one."""
    make_folder(out)
    add_folder(out / FOLDER)
    identity = {"format": _FORMAT, **asked}
    _refuse_another(out, identity, newer_than)
    return owner_of(identity)


def _refuse_another(out: Path, identity: dict[str, Any], newer_than: Callable[[int], Iterable[Path]]) -> None:
    """Raise if a folder holds another job, or an unreadable record of one."""
    path = out / FOLDER / _JOB
    try:
        changed = agree(path, identity)
    except Damaged as problem:
        raise ValueError(
            f"{problem}, so the job in {out} cannot be identified: give another `out`, or delete the folder"
        ) from None
    stored = changed.get("format", ("",))[0]
    if isinstance(stored, str) and stored.startswith(_FORMAT.rstrip("0123456789")):
        raise ValueError(
            f"{out} holds a job of another version of genprior (its format is {stored}, that of this version {_FORMAT}): "
            "finish it with that version, give another `out`, or delete the folder"
        )
    if changed:
        newer = [printable(str(place)) for place in newer_than(path.stat().st_mtime_ns)]
        raise ValueError(
            f"{out} holds another job ({_changes(changed, newer)}): repeat that command to resume it, "
            "give another `out`, or delete the folder"
        )


@contextmanager
def alone(out: Path, inside: str = FOLDER) -> Iterator[tuple[str, ...]]:
    """Lock the folder, by a file ``inside`` of it, against a second process; the lock ends with the process.

    Yields notes for the user, because some file systems have no locks.
    """
    try:
        import fcntl  # noqa: PLC0415 - not on every system
    except ModuleNotFoundError:
        yield ()
        return
    make_folder(out)
    add_folder(out / inside)
    notes: tuple[str, ...] = ()
    with (out / inside / LOCK).open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another process is working in {out}: wait for it, or give another `out`") from None
        except OSError as problem:
            notes = (f"{out} cannot be locked ({problem.strerror}): do not start a second process there",)
        yield notes


def _changes(changed: dict[str, tuple[Any, Any]], newer: list[str]) -> str:
    """The differences: options by value; file contents, known by digest, only if all options agree."""
    options = [name for name in changed if not name.startswith(CONTENT)][:_AT_MOST]
    if options:
        return differences({name: changed[name] for name in options})
    more = f" and {len(newer) - _AT_MOST} more" if len(newer) > _AT_MOST else ""
    since = f"; changed since it began: {', '.join(newer[:_AT_MOST])}{more}" if newer else ""
    return "; ".join(f"the {name} has changed" for name in changed) + since
