"""Resolves the user's inputs: files, folders, and single arrays of a file, ``arrays.npz:key``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from genprior.files.arrays import ARRAY_ENDINGS
from genprior.files.guard import Unreadable
from genprior.files.images import WRITTEN_AS
from genprior.files.remote import expand, file_name, is_url, local_path, shown
from genprior.files.shards import ENDINGS as SHARD_ENDINGS
from genprior.files.tars import compressed

_READ = (*WRITTEN_AS, *ARRAY_ENDINGS, *SHARD_ENDINGS)
_ZARR = ".zarr"
_ZARR_HEADS = ("zarr.json", ".zarray", ".zgroup")
_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")


@dataclass(frozen=True)
class Named:
    """A file, and the name of its output relative to the folder of outputs."""

    path: Path
    output: str
    keys: tuple[str, ...] | None = None
    """The named arrays in it; None means all that fit."""
    url: str | None = None
    """Where it has to be fetched from; the path is then its name only."""

    @property
    def shown(self) -> str:
        """The file in messages."""
        return str(self.path) if self.url is None else shown(self.url)

    @property
    def identity(self) -> str:
        """Equal for two names of one file; links are not resolved, because a folder of links to one file is allowed."""
        return os.path.abspath(self.path) if self.url is None else self.url


def split_key(path: Path) -> tuple[Path, str | None]:
    r"""Split ``arrays.npz:key`` into file and key; the key may be None.

    Names of files (``C:\data.npz``) and keys may contain colons: an existing path has no key, else the longest existing
    path before a colon is the file.
    """
    text = str(path)
    if not path.exists():
        for place in reversed([place for place, letter in enumerate(text) if letter == ":"]):
            if Path(text[:place]).is_file():
                return Path(text[:place]), text[place + 1 :]
    return path, None


def find_files(inputs: Sequence[str | Path], without: Path | None) -> Iterator[Named]:
    """The files in the order given, those of a folder by name.

    The files of a single folder are written directly into the output folder, those of several into
    subfolders. Arrays of one file stay together.
    """
    found: list[Named | _Folder] = []
    given = [name for text in inputs for name in _expanded(str(text))]
    for text in given:
        if is_url(text):
            url, key = _split_url(text)
            name = file_name(url)
            _check_ending(name, shown(url), key)
            _add(found, Named(Path(name), name, None if key is None else (key,), url))
            continue
        path, key = split_key(Path(text))
        if path.is_dir() and _is_zarr(path):
            raise Unreadable(_zarr(str(path)))
        if path.is_dir():
            found.append(_inside(path, "" if len(given) == 1 else f"{path.resolve().name}/", without))
            continue
        _check_file(path, key)
        _add(found, Named(path, path.name, None if key is None else (key,)))
    if len(found) > 1:
        _refuse_twice(file for one in found for file in _files(one))
    return (file for one in found for file in _files(one))


def _expanded(text: str) -> list[str]:
    """A range of numbers as so many names, unless there is a file with this one; ``file://`` as a path."""
    names = expand(text) if is_url(text) or not Path(text).exists() else [text]
    return [str(path) if is_url(name) and (path := local_path(name)) is not None else name for name in names]


def _split_url(text: str) -> tuple[str, str | None]:
    """Split ``https://there/arrays.npz:key`` into URL and key."""
    before, colon, key = text.rpartition(":")
    if colon and "/" not in key.split("?")[0] and before.lower().endswith((*ARRAY_ENDINGS, *SHARD_ENDINGS)):
        return before, key
    return text, None


@dataclass(frozen=True)
class _Folder:
    """The files of a folder by their names in it: of a million, paths would take half a gigabyte."""

    path: Path
    prefix: str
    names: list[str]


def _files(found: Named | _Folder) -> Iterator[Named]:
    if isinstance(found, Named):
        yield found
    else:
        for name in found.names:
            yield Named(found.path / name, found.prefix + name.replace(os.sep, "/"))


def _inside(folder: Path, prefix: str, without: Path | None) -> _Folder:
    out = None if without is None else without.resolve()
    names, there = [], False
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        wanted = [path for name in files if _is_wanted(path := os.path.join(place, name))]
        there = there or bool(wanted)
        if not _within(Path(place), out):
            start = os.path.relpath(place, folder)
            kept = (path for path in wanted if not _is_link_to(path, out))
            names += [os.path.normpath(os.path.join(start, os.path.basename(path))) for path in kept]
    if there and not names:
        raise ValueError(f"{folder} is also `out`, or lies in it, and its files are not read: give another `out`")
    if not names:
        raise ValueError(f"{folder} holds no file that can be read ({_endings()})")
    names.sort(key=lambda name: name.replace(os.sep, "\0"))  # folder by folder, as paths are sorted
    return _Folder(folder, prefix, names)


def _check_file(path: Path, key: str | None) -> None:
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder {path}")
    _check_ending(path.name, str(path), key)


def _check_ending(name: str, shown: str, key: str | None) -> None:
    ending = os.path.splitext(name)[1].lower()
    if name.lower().endswith(_COMPRESSED):
        raise Unreadable(compressed(shown, ending[1:]))
    if ending == _ZARR:
        raise Unreadable(_zarr(shown))
    if ending not in _READ:
        raise ValueError(f"{shown} has an unknown type: give {_endings()}")
    if key is not None and ending in WRITTEN_AS:
        raise ValueError(f"{shown} is an image, which has no named arrays: leave out :{key}")


def _is_zarr(path: Path) -> bool:
    return path.suffix.lower() == _ZARR or any((path / name).is_file() for name in _ZARR_HEADS)


def _zarr(shown: str) -> str:
    """Why Zarr is not read: a store chooses the codecs that unpack it, pickle among them, and may unpack without bound."""
    return (
        f"{shown} is a Zarr store, which is not read: save its array as one .npy file, which is read a few rows at a time, "
        "for example block by block into numpy.lib.format.open_memmap('stack.npy', 'w+', array.dtype, array.shape)"
    )


def _add(found: list[Named | _Folder], new: Named) -> None:
    """Group the arrays of a file, because they are written to one file again."""
    for number, old in enumerate(found if new.keys is not None else ()):
        if isinstance(old, Named) and old.keys is not None and new.keys is not None and old.identity == new.identity:
            found[number] = replace(old, keys=(*old.keys, *new.keys))
            return
    found.append(new)


def _refuse_twice(files: Iterable[Named]) -> None:
    seen: set[str] = set()
    for file in files:
        identity = file.identity
        if identity in seen:
            raise ValueError(f"{file.shown} was given twice: give every file once")
        seen.add(identity)


def _is_wanted(path: str) -> bool:
    stem, ending = os.path.splitext(os.path.basename(path))
    return not stem.startswith(".") and ending.lower() in _READ and os.path.isfile(path)


def _is_link_to(path: str, folder: Path | None) -> bool:
    return folder is not None and os.path.islink(path) and folder in Path(path).resolve().parents


def _within(place: Path, folder: Path | None) -> bool:
    """Whether a folder is another one, or below it."""
    return folder is not None and folder in (place.resolve(), *place.resolve().parents)


def _endings() -> str:
    return ", ".join(_READ)
