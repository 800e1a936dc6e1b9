"""The files that a job's networks and operator are opened from, for workers that may not see them."""

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
from genprior.jobs.settings import Classifier, Source
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
    """A generator, an operator and, where there are any, a classifier and an encoder as texts, and the files behind them."""

    source: Source
    operator: str
    classifier: Classifier | None
    files: tuple[Sent, ...]
    start: str | None = None
    """The file of an encoder for starts."""
    folder: Path | None = None
    """From which a package is imported that is a network: ``package.module:build``."""
    forward: str | None = None
    """The code of a forward model."""

    @classmethod
    def of(
        cls,
        source: Source,
        operator: str = "identity",
        classifier: Classifier | None = None,
        *,
        start: str | None = None,
        forward: str | None = None,
        whole: bool,
    ) -> Shipment:
        """After the networks were opened here, so that the modules they import from their own folder are known.

        ``whole``: with the contents of the files.
        """
        networks = [(source.generator, source.weights, "generator")]
        if classifier is not None:
            networks.append((classifier.classifier, classifier.weights, "classifier"))
        if forward is not None:
            networks.append((forward, None, "forward model"))
        found = [path for network in networks for path in _behind(*network)]
        found += [Path(name) for name in (*files_of(operator), *([] if start is None else [start]))]
        files = tuple(
            Sent.of(path, whole=whole) for path in dict.fromkeys(map(_absolute, found)) if not _installed(path)
        )
        folder = Path.cwd() if any(_is_package(network) for network, _, _ in networks) else None
        return cls(source, operator, classifier, files, start, folder, forward)._moved(
            {str(path): str(_absolute(path)) for path in found}
        )

    @contextmanager
    def arrived(self) -> Iterator[Shipment]:
        """On a worker: the texts with paths that hold here, for networks to be opened within.

        Files that are not visible are unpacked, and removed afterwards: a worker that is killed later leaves none behind.
        """
        if all(file.visible() for file in self.files):
            yield self
            return
        with tempfile.TemporaryDirectory(prefix="genprior-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            for file in self.files:
                file.unpack(folder)
            if self.folder is not None:
                sys.path.insert(0, str(_below(folder, self.folder)))
            yield self._moved({str(file.path): str(_below(folder, file.path)) for file in self.files})

    def _moved(self, at: dict[str, str]) -> Shipment:
        """The texts with their files elsewhere."""
        source, classifier = self.source, self.classifier
        source = replace(
            source, generator=_moved(source.generator, at), weights=source.weights and _moved(source.weights, at)
        )
        if classifier is not None:
            weights = classifier.weights and _moved(classifier.weights, at)
            classifier = Classifier(classifier=_moved(classifier.classifier, at), weights=weights)
        start = self.start and _moved(self.start, at)
        operator = with_files(self.operator, at)
        forward = self.forward and _moved(self.forward, at)
        return replace(self, source=source, operator=operator, classifier=classifier, start=start, forward=forward)


def digest_of(file: str | None) -> str:
    """The digest of a file's content; empty without a file."""
    return "" if file is None else Sent.of(Path(file), whole=False).digest


def refuse_other_numbers(network: str, found: str, wanted: str) -> None:
    """Raise unless the digest of a network on a worker is the driver's."""
    if found != wanted:
        raise EngineError(
            f"a worker opened the {network} with other numbers than the driver: if its code draws weights at random, draw "
            "them with a seed, or store them in a file"
        )


def _behind(network: str, weights: str | None, role: str) -> list[Path]:
    """The files that a network is opened from."""
    code = origin(network, role)
    found = [] if code is None else [code]
    if is_python(network):
        found += imported_from(
            Path.cwd() if _is_package(network) else Path(network.rpartition(":")[0]).resolve().parent
        )
    return found if weights is None else [*found, split_key(Path(weights))[0]]


def _is_package(network: str) -> bool:
    """Whether this is ``package.module:build``, imported from the working folder."""
    return is_python(network) and not network.rpartition(":")[0].endswith(".py")


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
