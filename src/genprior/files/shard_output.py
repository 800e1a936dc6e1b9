"""Recovered shards: the same keys in the same order, with what is carried along; the same bytes for the same results."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from genprior.files.expected import Expected
from genprior.files.guard import Unreadable
from genprior.files.images import as_png
from genprior.files.layout import Layout
from genprior.files.parts import Part
from genprior.files.shards import Shard, is_image, item_of, written_ending
from genprior.files.tars import Member, samples

_STEP = 2**20
_END = 2 * tarfile.BLOCKSIZE
Signals = np.ndarray[Any, Any]
Entry = tuple[tarfile.TarInfo, Iterator[bytes]]


def write_shard(path: Path, signals: Signals, part: Part, expected: Expected) -> None:
    """Write the signals of a shard, NaN for a key without a result, which is left out.

    Its other members are copied, unless the file has changed since it was read.
    """
    shard = part.array
    assert isinstance(shard, Shard), "a shard"
    same = part.is_here()
    if same:
        try:
            _write(path, _copied(signals, shard, expected))
            same = part.is_here()
        except Unreadable:
            same = False
        finally:
            shard.file.close()
    if not same:
        _write(path, _alone(signals, shard))


def _write(path: Path, entries: Iterator[Entry]) -> None:
    with path.open("wb") as file:
        for entry, content in entries:
            entry.mtime, entry.mode = 0, 0o644
            file.write(entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
            for piece in content:
                file.write(piece)
            file.write(bytes(-entry.size % tarfile.BLOCKSIZE))
        file.write(bytes(_END + -(file.tell() + _END) % tarfile.RECORDSIZE))


def _copied(signals: Signals, shard: Shard, expected: Expected) -> Iterator[Entry]:
    with shard.path.open("rb") as file:
        for row, sample in enumerate(samples(shard.path)):
            if np.isnan(signals[row]).all():
                continue
            item = item_of(sample, shard.path, shard.chosen)
            for member in sample.members:
                if member is item:
                    yield _result(signals[row], item, *shard.form(row, expected))
                else:
                    yield _entry(member.name, member.size), _pieces(file, member)


def _alone(signals: Signals, shard: Shard) -> Iterator[Entry]:
    for row in range(len(shard)):
        if not np.isnan(signals[row]).all():
            yield _result(signals[row], shard.member(row), False, None)


def _result(signal: Signals, member: Member, deep: bool, layout: Layout | None) -> Entry:
    values = torch.from_numpy(np.array(signal, np.float32))
    if is_image(member) and values.ndim == 3 and len(values) in {1, 3}:
        content, ending = as_png(values, deep=deep), written_ending(member)
    else:
        content, ending = _npy(values if layout is None else layout.from_items(values[None])[0]), _array_ending(member)
    return _entry(f"{member.key}.{ending}", len(content)), iter([content])


def _array_ending(member: Member) -> str:
    """An image gives an array where the generator's signals are no images."""
    before, dot, _ = member.ending.rpartition(".")
    return f"{before}{dot}npy"


def _npy(values: Tensor) -> bytes:
    store = io.BytesIO()
    np.save(store, np.ascontiguousarray(values.numpy()))
    return store.getvalue()


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size = size
    return entry


def _pieces(file: IO[bytes], member: Member) -> Iterator[bytes]:
    file.seek(member.place)
    for start in range(0, member.size, _STEP):
        size = min(_STEP, member.size - start)
        piece = file.read(size)
        if len(piece) != size:
            raise Unreadable(f"{file.name} ends too early: it has changed")
        yield piece
