"""All items of some files and folders, in a fixed order, read when they are needed."""

from __future__ import annotations

import bisect
import hashlib
import itertools
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from genprior._files import printable
from genprior.files.arrays import ARRAY_ENDINGS, Array, as_values, open_arrays
from genprior.files.expected import Expected
from genprior.files.guard import Misfit, Unreadable, reading
from genprior.files.images import WRITTEN_AS, check_file, decode
from genprior.files.layout import Layout, fit
from genprior.files.named import Named, find_files

Shape = tuple[int, ...]
_SHOWN = 3


@dataclass(frozen=True)
class Loaded:
    """One item: its name and value, or the reason why it has none."""

    name: str
    value: Tensor | None
    problem: str = ""


@dataclass(frozen=True)
class Part:
    """An image file, or one array of a file: a run of consecutive items."""

    path: Path
    output: str
    """Name of the output file, relative to the folder of outputs."""
    count: int
    array: Array | None = None
    layout: Layout | None = None
    deep: bool = False
    problem: str = ""
    """Why it is skipped, if it is."""
    ignored: tuple[str, ...] = ()
    """Why other arrays of the file are not items."""
    version: Version | None = None
    """Version of the file when it was opened."""

    @property
    def label(self) -> str:
        """Its name in messages."""
        key = f"/{self.array.key}" if self.array is not None and self.array.key else ""
        return printable(self.output + key)

    def name(self, row: int) -> str:
        """The name of one of its items."""
        return f"{self.label}[{row}]" if self.layout is not None and self.layout.batched else self.label


@dataclass(frozen=True)
class Version:
    """Identifies a version of a file, to detect changes."""

    size: int
    time: int
    """Time of the last change, in nanoseconds."""

    @staticmethod
    def of(path: Path) -> Version:
        """The current version."""
        facts = path.stat()
        return Version(facts.st_size, facts.st_mtime_ns)


class Items:
    """A sequence of items in files; ``read`` gives a few of them."""

    def __init__(self, parts: Sequence[Part], expected: Expected) -> None:
        self.parts, self.expected = tuple(parts), expected
        self.starts = (0, *itertools.accumulate(part.count for part in parts))
        self._reading: Array | None = None

    def __len__(self) -> int:
        return self.starts[-1]

    @property
    def notes(self) -> tuple[str, ...]:
        """The first few inputs that were ignored."""
        found = [f"ignored: {reason}" for part in self.parts for reason in part.ignored]
        more = [f"ignored: {len(found) - _SHOWN} more arrays"] if len(found) > _SHOWN else []
        return (*found[:_SHOWN], *more)

    def part_of(self, item: int) -> int:
        """The number of the part that holds an item."""
        return bisect.bisect_right(self.starts, item) - 1

    def parts_of(self, start: int, stop: int) -> list[int]:
        """The numbers of the parts that hold the items from ``start`` up to ``stop``, one for each."""
        return [self.part_of(item) for item in range(start, stop)]

    def names(self, start: int, stop: int) -> list[str]:
        """The names of the items from ``start`` up to ``stop``, without reading them."""
        parts = self.parts_of(start, stop)
        return [self.parts[part].name(item - self.starts[part]) for item, part in enumerate(parts, start)]

    def read(self, start: int, stop: int) -> list[Loaded]:
        """The items from ``start`` up to ``stop``."""
        found: list[Loaded] = []
        index = self.part_of(start)
        while start + len(found) < min(stop, len(self)):
            part, first = self.parts[index], start + len(found) - self.starts[index]
            found += self._read_part(part, first, min(part.count, first + stop - start - len(found)))
            index += 1
        if stop >= len(self):
            self._move_to(None)
        return found

    def fingerprint(self) -> str:
        """A digest of names, sizes and times of change: identifies the files of an earlier run."""
        digest = hashlib.sha256()
        for part in self.parts:
            version = part.version or Version.of(part.path)
            digest.update(f"{part.label}:{part.count}:{version.size}:{version.time}\n".encode())
        return digest.hexdigest()

    def changed(self) -> list[Path]:
        """The files that changed since they were opened."""
        versions = {part.path: part.version for part in self.parts if part.version is not None}
        return [path for path, version in versions.items() if not path.exists() or Version.of(path) != version]

    def changes(self) -> tuple[str, ...]:
        """A note on changed files for the end of a job, whose results are of the version at its start."""
        changed = self.changed()
        more = f" and {len(changed) - 1} more files" if len(changed) > 1 else ""
        return tuple(
            printable(f"{path}{more} changed during the job: the results are of the version at its start")
            for path in changed[:1]
        )

    def newer_than(self, time: int) -> list[Path]:
        """The files that were changed after a time, in nanoseconds."""
        versions = {part.path: part.version for part in self.parts}
        return [path for path, version in versions.items() if version is not None and version.time > time]

    def _read_part(self, part: Part, first: int, last: int) -> list[Loaded]:
        names = [part.name(row) for row in range(first, last)]
        try:
            _refuse_changed(part)
            values = self._values(part, first, last)
            _refuse_changed(part)
        except Unreadable as problem:  # any other error is not due to the file: stop, to resume later
            return [Loaded(name, None, str(problem)) for name in names]
        except BaseException:
            self._move_to(None)
            raise
        return [self._checked(name, value) for name, value in zip(names, self.expected.known(values), strict=True)]

    def _values(self, part: Part, first: int, last: int) -> Tensor:
        if part.problem:
            raise Unreadable(part.problem)
        if part.array is None or part.layout is None:
            spec = self.expected.image
            assert spec is not None, "checked when the file was opened"
            return decode(part.path, spec)[None]
        self._move_to(part.array)
        with reading(part.path, "an array"):
            block = part.array.rows(first, last) if part.layout.batched else part.array.whole()[None]
        values = as_values(block, part.array.dtype, part.label, measured=self.expected.measured)
        return part.layout.to_items(values, self.expected.shape)

    def _move_to(self, array: Array | None) -> None:
        """Keep at most one file open, and the position in one of its arrays."""
        left = self._reading
        if left is not None and left is not array:
            left.close()
            if array is None or left.file is not array.file:
                left.file.close()
        self._reading = array

    def _checked(self, name: str, value: Tensor) -> Loaded:
        fault = self.expected.fault(value)
        return Loaded(name, None, f"{name} {fault}") if fault else Loaded(name, value)


def open_items(
    inputs: Sequence[str | Path], expected: Expected, *, skip: bool = False, without: Path | None = None
) -> Items:
    """The items of files and folders, in the order given, folders by name.

    Only headers are read. Unusable files raise an error here, before any work; with ``skip`` they stay in the list and
    fail when they are read. ``arrays.npz:key`` means one array of a file. Files in the folder ``without`` are ignored, so
    that results may go into a folder inside the inputs.
    """
    if not inputs:
        raise ValueError("no input: give files or folders")
    parts: list[Part] = []
    problems: list[str] = []
    for file in find_files(inputs, without):
        version = None
        try:
            version = Version.of(file.path)
            parts += [replace(part, version=version) for part in _parts(file, expected)]
        except (Unreadable, FileNotFoundError, PermissionError) as problem:
            problems.append(_why(file.path, problem))
            parts.append(Part(file.path, file.output, 1, problem=problems[-1], version=version))
    if problems and not (skip and len(problems) < len(parts)):
        more = f" (and {len(problems) - _SHOWN} more)" if len(problems) > _SHOWN else ""
        hint = "" if skip else "; `skip=True` leaves such files out"
        raise ValueError(f"{'; '.join(problems[:_SHOWN])}{more}{hint if len(problems) < len(parts) else ''}")
    _refuse_collisions(parts)
    return Items(parts, expected)


def _refuse_changed(part: Part) -> None:
    """Raise if a file changed, because a result must not mix two versions."""
    if part.version is not None and Version.of(part.path) != part.version:
        raise Unreadable(
            f"{part.path} has changed since the job began, so this item may belong to another version: "
            "recover the file again, into another `out`"
        )


def _why(path: Path, problem: Exception) -> str:
    if isinstance(problem, OSError):
        reason = str(problem) if problem.errno is None else os.strerror(problem.errno)
        return printable(f"{path} cannot be opened ({reason})")
    return str(problem)


def _parts(file: Named, expected: Expected) -> list[Part]:
    path, suffix = file.path, file.path.suffix.lower()
    if suffix in ARRAY_ENDINGS:
        return _array_parts(file, expected)
    spec = expected.image
    if spec is None and len(expected.signal) == 1:
        raise Unreadable(
            f"{path} is an image, but the generator makes flat signals of {expected.signal[0]} values: end it with "
            "nn.Unflatten(1, (channels, height, width)), or give an array"
        )
    if spec is None:
        raise Unreadable(
            f"{path} is an image, but items of shape {expected.shape} are expected: give an array, or `simulate=True` to "
            "measure the image first"
        )
    return [Part(path, file.output[: -len(suffix)] + WRITTEN_AS[suffix], 1, deep=check_file(path, spec))]


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
    if probe.is_complex() and not expected.complex_too:
        raise Unreadable(f"{name} holds complex numbers, expected real ones: take the real part or the modulus")
    if expected.complex_too and not probe.is_complex():
        raise Unreadable(
            f"{name} holds real numbers, expected complex measurements: `simulate=True` measures images first"
        )
    return Part(path, output, array.shape[0] if layout.batched else 1, array, layout)


def _refuse_collisions(parts: list[Part]) -> None:
    seen: dict[str, Path] = {}
    for part in parts:
        key = part.output.lower()
        if seen.setdefault(key, part.path) != part.path:
            raise ValueError(
                f"{seen[key]} and {part.path} would both be written to {part.output}: give them different names, or "
                "recover them into different folders"
            )
