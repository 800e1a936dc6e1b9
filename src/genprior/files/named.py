"""Resolves the user's inputs: files, folders, and single arrays of a file, ``arrays.npz:key``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from genprior.files.arrays import ARRAY_ENDINGS
from genprior.files.images import WRITTEN_AS


@dataclass(frozen=True)
class Named:
    """A file, and the name of its output relative to the folder of outputs."""

    path: Path
    output: str
    keys: tuple[str, ...] | None = None
    """The named arrays in it; None means all that fit."""


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


def find_files(inputs: Sequence[str | Path], without: Path | None) -> list[Named]:
    """The files in the order given, those of a folder by name.

    The files of a single folder are written directly into the output folder, those of several into
    subfolders. Arrays of one file stay together.
    """
    found: list[Named] = []
    for given in inputs:
        path, key = split_key(Path(given))
        if path.is_dir():
            found += _inside(path, "" if len(inputs) == 1 else f"{path.resolve().name}/", without)
            continue
        _check_file(path, key)
        _add(found, Named(path, path.name, None if key is None else (key,)))
    _refuse_twice(found)
    return found


def _inside(folder: Path, prefix: str, without: Path | None) -> list[Named]:
    there = [file for file in folder.rglob("*") if _wanted(file, folder)]
    files = sorted(file for file in there if not _within(file, without))
    if there and not files:
        raise ValueError(f"{folder} is also `out`, or lies in it, and its files are not read: give another `out`")
    if not files:
        raise ValueError(f"{folder} holds no file that can be read ({_endings()})")
    return [Named(file, prefix + file.relative_to(folder).as_posix()) for file in files]


def _check_file(path: Path, key: str | None) -> None:
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder {path}")
    ending = path.suffix.lower()
    if ending not in (*WRITTEN_AS, *ARRAY_ENDINGS):
        raise ValueError(f"{path} has an unknown type: give {_endings()}")
    if key is not None and ending in WRITTEN_AS:
        raise ValueError(f"{path} is an image, which has no named arrays: leave out :{key}")


def _add(found: list[Named], new: Named) -> None:
    """Group the arrays of a file, because they are written to one file again."""
    for number, old in enumerate(found if new.keys is not None else ()):
        if old.keys is not None and new.keys is not None and _same(old.path, new.path):
            found[number] = replace(old, keys=(*old.keys, *new.keys))
            return
    found.append(new)


def _same(one: Path, other: Path) -> bool:
    return os.path.abspath(one) == os.path.abspath(other)


def _refuse_twice(found: list[Named]) -> None:
    seen: set[str] = set()
    for file in found:
        place = os.path.abspath(file.path)  # links are not resolved: a folder of links to one file is allowed
        if place in seen:
            raise ValueError(f"{file.path} was given twice: give every file once")
        seen.add(place)


def _wanted(file: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
    return not hidden and file.suffix.lower() in (*WRITTEN_AS, *ARRAY_ENDINGS) and file.is_file()


def _within(file: Path, folder: Path | None) -> bool:
    return folder is not None and folder.resolve() in file.resolve().parents


def _endings() -> str:
    return ", ".join((*WRITTEN_AS, *ARRAY_ENDINGS))
