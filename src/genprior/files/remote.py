"""Files behind URLs: fetched whole into a cache, of which readers see the path. Passwords and queries are never shown."""

from __future__ import annotations

import hashlib
import io
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from genprior.files.fetched import Cache
from genprior.files.guard import Unreadable
from genprior.files.limits import readable
from genprior.files.version import Version

CONNECT, ANSWER = 30.0, 60.0
"""Seconds for a connection, and between two pieces of an answer."""
MOST_URLS = 100_000
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_MARKS = (
    "etag",
    "mtime",
    "lastmodified",
    "last-modified",
    "last_modified",
    "updated",
    "generation",
    "md5hash",
    "created",
)
"""What file systems say of a file that tells its versions apart."""
_LONGEST = 150
"""Letters of a file's name that are kept."""


def is_url(text: str) -> bool:
    """Whether it names a file of another machine, ``https://...``, and not a path."""
    return _URL.match(text) is not None


def expand(text: str) -> list[str]:
    """The names that ``shard-{000000..000099}.tar`` stands for; others stand for themselves."""
    found = _RANGE.search(text)
    if found is None:
        return [text]
    first, last = int(found[1]), int(found[2])
    if first > last:
        raise ValueError(f"{shown(text)} counts from {found[1]} down to {found[2]}: give the smaller number first")
    count = last - first + 1
    rest = _RANGE.findall(text)[1:]
    if count * math.prod(max(1, int(b) - int(a) + 1) for a, b in rest) > MOST_URLS:
        raise ValueError(f"{shown(text)} stands for more than {MOST_URLS} files: give fewer at once")
    width = len(found[1])
    names = (f"{text[: found.start()]}{number:0{width}}{text[found.end() :]}" for number in range(first, last + 1))
    return [name for one in names for name in expand(one)]


def shown(text: str) -> str:
    """An input without password and query, where tokens are; paths are as they are."""
    if not is_url(text):
        return text
    start, _, rest = text.partition("://")
    place, slash, path = re.split(r"[?#]", rest, maxsplit=1)[0].partition("/")
    return f"{start}://{place.rpartition('@')[2]}{slash}{path}"


def local_path(url: str) -> Path | None:
    """The path of a ``file://`` URL; None for others."""
    parts = urlsplit(url)
    return Path(url2pathname(parts.path)) if parts.scheme.lower() in {"file", "local"} else None


@dataclass(frozen=True)
class Remote:
    """One version of a file behind a URL."""

    url: str
    version: Version
    """Its size, and a number for its version in place of a time."""
    cache: Cache
    complete: bool = True
    """Whether the URL is whole: passwords and tokens are not sent to other processes."""

    @property
    def name(self) -> str:
        """The URL in messages."""
        return shown(self.url)

    @property
    def path(self) -> Path:
        """Where it is, or will be, in the cache of this machine."""
        digest = hashlib.sha256(f"{self.name} {self.version.size} {self.version.time}".encode()).hexdigest()
        return self.cache.place / f"{digest[:24]}-{file_name(self.url)[-_LONGEST:]}"

    def ready(self) -> Path:
        """The path of the file, which is fetched if it is not there."""
        path = self.path
        if not self.cache.use(path, self.version):
            if not self.complete:
                raise FileNotFoundError(
                    f"{self.name} was given with a password or token, which this process does not have"
                )
            self.cache.keep(path, self.version, self.name, self._fetch)
        return path

    def _fetch(self, target: Path) -> None:
        system, place = _system(self.url)
        if _version(system, place, self.name) != self.version:
            raise Unreadable(f"{self.name} has changed since the job began: recover the file again, into another `out`")
        try:
            if "http" in system.protocol:
                with _Bounded(target, self.version.size) as file:
                    system.get_file(place, file)
            else:
                system.get_file(place, str(target))
        except Exception as problem:
            raise _told(problem, self.name) from None
        if target.stat().st_size != self.version.size:
            raise OSError(
                f"{self.name} arrived with {readable(target.stat().st_size)}, expected {readable(self.version.size)}: the "
                "connection was cut, or the file is being changed; try again"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "url": self.name, "complete": self.complete and self.name == self.url}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def file_name(url: str) -> str:
    """The last part of the path."""
    name = unquote(shown(url).rpartition("/")[2])
    return re.sub(r"[/\\\0]", "_", name)


def open_remote(url: str, cache: Cache) -> Remote:
    """The present version of a file, fetched."""
    system, place = _system(url)
    remote = Remote(url, _version(system, place, shown(url)), cache)
    remote.ready()
    return remote


def _system(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the place in it."""
    name, protocol = shown(url), url.partition("://")[0].lower()
    try:
        import fsspec  # type: ignore[import-untyped,unused-ignore]  # noqa: PLC0415 - optional
    except ModuleNotFoundError:
        raise Unreadable(f"{name} needs the extra 'remote': {_HOW}") from None
    options: dict[str, Any] = {}
    try:
        if protocol in {"http", "https"}:
            from aiohttp import ClientTimeout  # noqa: PLC0415 - optional

            options["client_kwargs"] = {"timeout": ClientTimeout(total=None, sock_connect=CONNECT, sock_read=ANSWER)}
        system, place = fsspec.core.url_to_fs(url, **options)
    except ImportError:
        need = _NEEDED.get(protocol)
        how = f"the extra 'remote': {_HOW}" if protocol in {"http", "https"} else f"another package{need or ''}"
        raise Unreadable(f"{name} needs {how}") from None
    except ValueError:
        raise Unreadable(
            f"{name} has the unknown protocol {protocol}://: give https://, s3://, gs:// or a path"
        ) from None
    except Exception as problem:
        raise _told(problem, name) from None
    return system, place


_HOW = "pip install 'genprior[remote]', or '.[remote]' in a copy of the repository"
_NEEDED = {"s3": ": pip install s3fs", "s3a": ": pip install s3fs", "gs": ": pip install gcsfs", "gcs": ": pip install gcsfs",
           "az": ": pip install adlfs", "abfs": ": pip install adlfs", "hf": ": pip install huggingface_hub"}  # fmt: skip


def _version(system: Any, place: str, name: str) -> Version:
    try:
        system.invalidate_cache()
        facts = system.info(place)
    except Exception as problem:
        raise _told(problem, name) from None
    if facts.get("type") == "directory":
        raise Unreadable(
            f"{name} is a folder: give its files, for example {name.rstrip('/')}/shard-{{000000..000099}}.tar"
        )
    if not isinstance(facts.get("size"), int):
        raise Unreadable(f"the server does not say how long {name} is: download it yourself, and give the file")
    marks = sorted((key.lower(), str(value)) for key, value in facts.items() if key.lower() in _MARKS)
    digest = hashlib.sha256(f"{name} {facts['size']} {marks or place}".encode()).digest()
    return Version(facts["size"], (1 + int.from_bytes(digest[:4], "big") % 10**9) * 10**9)  # whole seconds, long ago


def _told(problem: Exception, name: str) -> Exception:
    """The error to raise: messages of other libraries hold whole URLs."""
    if isinstance(problem, Unreadable):
        return problem
    causes = [problem, *([problem.__cause__] if isinstance(problem.__cause__, Exception) else [])]
    plain = len(causes) == 1 or not name.startswith("http")  # over HTTP, fsspec calls every failure "not found"
    status = next((code for one in causes if isinstance(code := getattr(one, "status", None), int)), None)
    if any(isinstance(one, TimeoutError) for one in causes):
        return TimeoutError(f"{name}: no answer within {ANSWER:g} seconds; the same command resumes the job")
    if status in {401, 403} or any(isinstance(one, PermissionError) for one in causes):
        return PermissionError(f"{name} may not be read: credentials come from the environment, or are part of the URL")
    if status in {404, 410} or (isinstance(problem, FileNotFoundError) and plain):
        return FileNotFoundError(f"there is no file {name}")
    why = f"the server answered {status}" if status is not None else type(causes[-1]).__name__
    return ConnectionError(f"{name} cannot be fetched ({why})")


class _Bounded(io.FileIO):
    """A file that takes no more than was announced."""

    def __init__(self, path: Path, size: int) -> None:
        super().__init__(path, "w")
        self._left = size

    def write(self, content: Any, /) -> int:
        self._left -= len(content)
        if self._left < 0:
            raise Unreadable(f"{self.name} would become longer than was announced")
        return super().write(content)
