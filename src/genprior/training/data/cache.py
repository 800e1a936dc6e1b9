"""The user's cache of downloaded files: checksummed, written whole or not at all."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from genprior._files import write_atomically

Fetch = Callable[[], bytes]
Source = tuple[str, Fetch]


def cache_folder() -> Path:
    """``$GENPRIOR_CACHE``, or the place where the system keeps caches."""
    chosen = os.environ.get("GENPRIOR_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "genprior"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "genprior"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "genprior"


def cached(path: Path, md5: str, sources: Iterable[Source], hint: str) -> bytes:
    """The file's content: from the cache if it is whole there, else from the first source that gives the right bytes."""
    if path.is_file():
        content = path.read_bytes()
        if _md5(content) == md5:
            return content
    content = first_good(path.name, md5, sources, hint)
    _keep(path, content)
    return content


def first_good(file: str, md5: str, sources: Iterable[Source], hint: str) -> bytes:
    """What the first source gives whose bytes have the checksum; the error lists what was wrong with each."""
    failures = []
    for name, fetch in sources:
        try:
            content = fetch()
        except Exception as problem:  # whatever goes wrong with one source, the next is tried
            failures.append(f"{name}: {str(problem) or type(problem).__name__}")
            continue
        if _md5(content) == md5:
            return content
        failures.append(f"{name}: other bytes, truncated or changed (md5 {_md5(content)}, expected {md5})")
    raise RuntimeError("\n  ".join([f"{file} could not be had", *failures]) + f"\n{hint}")


def _keep(path: Path, content: bytes) -> None:
    """Store for the next time; a cache that cannot be written costs a download, not the job."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda temporary: temporary.write_bytes(content))
    except OSError:
        return


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
