"""Opens the user's inputs: every header is read, and what cannot be used is refused before any work."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from genprior._files import printable
from genprior.files.arrays import ARRAY_ENDINGS, Array, as_values, open_arrays
from genprior.files.expected import Expected
from genprior.files.fetched import Cache
from genprior.files.guard import Misfit, Unreadable, reading
from genprior.files.images import check_file
from genprior.files.layout import Layout, fit
from genprior.files.named import Named, find_files
from genprior.files.parts import Part, Parts, written_name
from genprior.files.remote import open_remote
from genprior.files.shards import ENDINGS as SHARD_ENDINGS
from genprior.files.shards import Shard
from genprior.files.stream import Items
from genprior.files.version import Version

Shape = tuple[int, ...]
_SHOWN = 3


def open_items(
    inputs: Sequence[str | Path],
    expected: Expected,
    *,
    skip: bool = False,
    without: Path | None = None,
    cache: Cache = Cache(),  # noqa: B008 - it is frozen
) -> Items:
    """The items of files and folders, in the order given, folders by name.

    Only headers are read. Unusable files raise an error here, before any work; with ``skip`` they stay in the list and
    fail when they are read. ``arrays.npz:key`` means one array of a file. Files in the folder ``without`` are ignored, so
    that results may go into a folder inside the inputs. Files behind URLs are fetched into the ``cache``, and again when
    they are read if they had to make room there. ``shard-{000000..000099}.tar`` stands for a hundred names.
    """
    if not inputs:
        raise ValueError("no input: give files or folders")
    problems: list[str] = []
    parts = Parts(_opened(find_files(inputs, without), expected, cache, problems))
    if problems and not (skip and len(problems) < len(parts)):
        more = f" (and {len(problems) - _SHOWN} more)" if len(problems) > _SHOWN else ""
        hint = "" if skip else "; `skip=True` leaves such files out"
        raise ValueError(f"{'; '.join(problems[:_SHOWN])}{more}{hint if len(problems) < len(parts) else ''}")
    _refuse_collisions(parts)
    return Items(parts, expected)


def _opened(files: Iterable[Named], expected: Expected, cache: Cache, problems: list[str]) -> Iterator[Part]:
    """The parts of every file; a file that cannot be used is one, too, and adds to the problems."""
    for file in files:
        version = remote = None
        path = file.path
        try:
            if file.url is not None:
                remote = open_remote(file.url, cache)
                path = remote.path
            version = Version.of(path)
            for part in _parts(replace(file, path=path), expected):
                if part.array is not None:
                    part.array.file.remote = remote
                yield replace(part, version=version, remote=remote)
        except (Unreadable, FileNotFoundError, PermissionError) as problem:
            gone = file.url is not None and remote is None
            problems.append(str(problem) if gone else _why(path, problem).replace(str(path), file.shown))
            yield Part(str(path), file.output, 1, problem=problems[-1], version=version, remote=remote)


def _why(path: Path, problem: Exception) -> str:
    if isinstance(problem, OSError):
        reason = str(problem) if problem.errno is None else os.strerror(problem.errno)
        return printable(f"{path} cannot be opened ({reason})")
    return str(problem)


def _parts(file: Named, expected: Expected) -> list[Part]:
    path, suffix = file.path, file.path.suffix.lower()
    if suffix in ARRAY_ENDINGS:
        return _array_parts(file, expected)
    if suffix in SHARD_ENDINGS:
        return [_shard_part(file, expected)]
    spec = expected.image_for(str(path))
    return [Part(str(path), written_name(file.output), 1, deep=check_file(path, spec))]


def _shard_part(file: Named, expected: Expected) -> Part:
    if file.keys is not None and len(file.keys) > 1:
        raise ValueError(f"{file.path} was given with several endings ({', '.join(file.keys)}): give one")
    shard = Shard(file.path, None if file.keys is None else file.keys[0])
    try:
        shard.check(0, expected)
    finally:
        shard.file.close()
    return Part(str(file.path), file.output, len(shard), shard, Layout("exact", batched=True))


def _array_parts(file: Named, expected: Expected) -> list[Part]:
    """The arrays of a file that can be items; others, such as labels, are ignored unless named."""
    parts: list[Part] = []
    misfits: list[str] = []
    with open_arrays(file.path, file.keys) as arrays:
        for array in arrays:
            try:
                parts.append(_array_part(file.path, file.output, array, expected))
            except Misfit as problem:
                if file.keys is not None:
                    raise
                misfits.append(str(problem))
    if not parts:
        raise Misfit(misfits[0])
    parts[0] = replace(parts[0], ignored=tuple(misfits))
    return parts


def _flat_hint(shape: Shape, expected: Expected) -> str:
    """Advice if images are given to a generator of flat signals with as many values."""
    for image_shape in (shape, shape[1:]):
        if len(image_shape) > 1 and expected.shape == expected.signal == (math.prod(image_shape),):
            form = image_shape if len(image_shape) > 2 else (1, *image_shape)
            return (
                f" The generator makes flat signals of {expected.shape[0]} values: end it with nn.Unflatten(1, {form})"
            )
    return ""


def _array_part(path: Path, output: str, array: Array, expected: Expected) -> Part:
    name = f"{path}, {array.key}" if array.key else str(path)
    try:
        layout = fit(array.shape, expected.shape, name)
    except Misfit as problem:
        raise Misfit(f"{problem}{_flat_hint(array.shape, expected)}") from None
    with reading(path, "an array"):
        probe = array.rows(0, 1) if layout.batched else array.whole()
    array.close()
    as_values(probe, array.dtype, name, measured=expected.measured)
    expected.check_complex(name, probe.is_complex())
    return Part(str(path), output, array.shape[0] if layout.batched else 1, array, layout)


def _refuse_collisions(parts: Parts) -> None:
    """Raise if two files would be written to one; digests first, because there may be millions of names."""
    digests = np.fromiter((hash(part.output.lower()) for part in parts), np.int64, len(parts))
    order = np.argsort(digests, kind="stable")
    same = np.flatnonzero(np.diff(digests[order]) == 0)
    seen: dict[str, str] = {}
    for number in np.union1d(order[same], order[same + 1]).tolist():
        part = parts[number]
        first = seen.setdefault(part.output.lower(), part.shown)
        if first != part.shown:
            raise ValueError(
                f"{first} and {part.shown} would both be written to {part.output}: give them different names, or "
                "recover them into different folders"
            )
