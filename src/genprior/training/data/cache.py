"""The user's cache of downloaded files: with checksums, written atomically."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from genprior._files import write_atomically

Fetch = Callable[[], bytes]
Source = tuple[str, Fetch]


def cached(path: Path, md5: str, sources: Iterable[Source], hint: str) -> bytes:
    """The file's content: from the cache if it is intact there, else from the first source with the right checksum."""
    if path.is_file():
        content = path.read_bytes()
        if _md5(content) == md5:
            return content
    content = first_good(path.name, md5, sources, hint)
    _keep(path, content)
    return content


def first_good(file: str, md5: str, sources: Iterable[Source], hint: str) -> bytes:
    """The first content with the right checksum; the error lists why each source failed."""
    failures = []
    for name, fetch in sources:
        try:
            content = fetch()
        except Exception as problem:  # after any failure the next source is tried
            failures.append(f"{name}: {str(problem) or type(problem).__name__}")
            continue
        if _md5(content) == md5:
            return content
        failures.append(f"{name}: wrong content, truncated or changed (md5 {_md5(content)}, expected {md5})")
    raise RuntimeError("\n  ".join([f"{file} could not be downloaded", *failures]) + f"\n{hint}")


def _keep(path: Path, content: bytes) -> None:
    """Store for the next time; a cache that cannot be written costs a download, not the job."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda temporary: temporary.write_bytes(content))
    except OSError:
        return


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
