"""The files that a job's generator and operator are opened from, for workers that may not see them."""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from genprior.engines import EngineError
from genprior.files.named import split_key
from genprior.jobs.settings import Source
from genprior.models.foreign import origin
from genprior.models.modules import is_python
from genprior.models.sys_path import imported_from
from genprior.operators.parse import files_of, with_files

_LARGEST = 4 * 2**30
"""Bytes of a file above which it is not sent."""


@dataclass(frozen=True)
class Sent:
    """One file: where it is for the driver, its digest, and its content unless the workers are on the same machine."""

    path: Path
    digest: str
    content: bytes | None

    @classmethod
    def of(cls, path: Path, *, whole: bool) -> Sent:
        """The file as it is now."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        sent = whole and path.stat().st_size <= _LARGEST
        return cls(path.absolute(), digest, path.read_bytes() if sent else None)

    def visible(self) -> bool:
        """Whether the same file is at the same place here."""
        if not self.path.is_file():
            return False
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == self.digest

    def unpack(self, folder: Path) -> None:
        """Write it below a folder, under its whole path."""
        if self.content is None:
            raise EngineError(
                f"a worker does not see {self.path}, or another version of it, and it is too large to be sent: put it on a "
                "disk that all machines share, at the same path"
            )
        if hashlib.sha256(self.content).hexdigest() != self.digest:
            raise EngineError(f"{self.path} was damaged on its way to a worker: start the job again")
        place = _below(folder, self.path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(self.content)


@dataclass(frozen=True)
class Shipment:
    """A generator and an operator as texts, and the files behind them."""

    source: Source
    operator: str
    files: tuple[Sent, ...]
    folder: Path | None = None
    """From which a package is imported that is the generator: ``package.module:build``."""

    @classmethod
    def of(cls, source: Source, operator: str, *, whole: bool) -> Shipment:
        """After the generator was opened here, so that the modules it imports from its own folder are known.

        ``whole``: with the contents of the files.
        """
        code = origin(source.generator)
        found: list[Path] = [] if code is None else [code]
        folder = None
        if is_python(source.generator):
            place = source.generator.rpartition(":")[0]
            folder = None if place.endswith(".py") else Path.cwd()
            found += imported_from(folder or Path(place).resolve().parent)
        if source.weights is not None:
            found.append(split_key(Path(source.weights))[0])
        found += [Path(name) for name in files_of(operator)]
        files = tuple(
            Sent.of(path, whole=whole) for path in dict.fromkeys(map(_absolute, found)) if not _installed(path)
        )
        at = {str(path): str(_absolute(path)) for path in found}
        return cls(_with_files(source, at), with_files(operator, at), files, folder)

    @contextmanager
    def arrived(self) -> Iterator[tuple[Source, str]]:
        """On a worker: source and operator with paths that hold here, to be opened within.

        Files that are not visible are unpacked, and removed afterwards: a worker that is killed later leaves none behind.
        """
        if all(file.visible() for file in self.files):
            yield self.source, self.operator
            return
        with tempfile.TemporaryDirectory(prefix="genprior-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            for file in self.files:
                file.unpack(folder)
            if self.folder is not None:
                sys.path.insert(0, str(_below(folder, self.folder)))
            at = {str(file.path): str(_below(folder, file.path)) for file in self.files}
            yield _with_files(self.source, at), with_files(self.operator, at)


def _with_files(source: Source, at: dict[str, str]) -> Source:
    """The source with its files elsewhere."""
    generator = _moved(source.generator, at)
    return replace(source, generator=generator, weights=None if source.weights is None else _moved(source.weights, at))


def _moved(text: str, at: dict[str, str]) -> str:
    """A file, or ``file:name``, with the file elsewhere."""
    for before, now in at.items():
        if text == before or text.startswith(f"{before}:"):
            return now + text.removeprefix(before)
    return text


def _absolute(path: Path) -> Path:
    return path.absolute()


def _below(folder: Path, path: Path) -> Path:
    """Its whole path, without the root, below a folder."""
    return folder.joinpath(*path.absolute().parts[1:])


def _installed(path: Path) -> bool:
    """Whether a file belongs to an installed package, which workers have installed as well."""
    return any(part in {"site-packages", "dist-packages"} for part in path.absolute().parts) or _ours(path)


def _ours(path: Path) -> bool:
    return Path(__file__).resolve().parents[1] in path.resolve().parents
