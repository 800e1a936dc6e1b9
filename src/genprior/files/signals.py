"""Signals in time: sound files (.wav) and tables of numbers with a column for each channel (.csv)."""

from __future__ import annotations

import math
import warnings
import wave
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from genprior.files.guard import Unreadable
from genprior.files.handle import Handle
from genprior.files.limits import LARGEST_PIECE, readable

_LARGEST_TABLE = 2**25
"""Bytes of a table, which is read at once: 34 MB, more than two million numbers."""
_MOST_CHANNELS = 4096
_DELIMITERS = ",;\t"
_WRITTEN_WIDTH = 2
"""Bytes of a written sample: 16-bit, which every player reads."""


class _Whole(ABC):
    """An array that is read at once, whatever rows are wanted."""

    key = ""
    shape: tuple[int, ...]
    dtype = "float32"

    def __init__(self, path: Path, key: str, file: Handle[Any]) -> None:
        self.file = file
        self.shape = self._shape()

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows of the first axis: channels."""
        return self.whole()[start:stop]

    def whole(self) -> Tensor:
        """All of it."""
        values = self._values()
        return torch.from_numpy(np.ascontiguousarray(values[:, 0] if values.shape[1] == 1 else values.T))

    def close(self) -> None:
        """The file is not kept open."""
        return

    @abstractmethod
    def _shape(self) -> tuple[int, ...]:
        """``(n,)`` for one channel, else ``(channels, n)``."""

    @abstractmethod
    def _values(self) -> np.ndarray[Any, Any]:
        """``(n, channels)``."""


class WavArray(_Whole):
    """A .wav file with PCM samples of 8, 16, 24 or 32 bits, scaled to [-1, 1]: ``(n,)``, or ``(channels, n)``."""

    rate: int
    """Samples per second."""

    def _shape(self) -> tuple[int, ...]:
        with self._open() as sound:
            channels, frames, self.rate = sound.getnchannels(), sound.getnframes(), sound.getframerate()
            size = channels * frames * sound.getsampwidth()
        stored = self.file.path.stat().st_size
        if size > stored or not 0 < channels <= _MOST_CHANNELS:
            raise Unreadable(
                f"{self.file.path} declares {channels} channels of {frames} samples, {readable(size)}, but has "
                f"{readable(stored)}: it is damaged, or forged"
            )
        if size > LARGEST_PIECE:
            raise Unreadable(
                f"{self.file.path} holds {readable(size)}, at most {readable(LARGEST_PIECE)} are read at once: cut it, or "
                "save the signals as .npy, (N, ...)"
            )
        return (frames,) if channels == 1 else (channels, frames)

    def _values(self) -> np.ndarray[Any, Any]:
        with self._open() as sound:
            width, channels = sound.getsampwidth(), sound.getnchannels()
            content = np.frombuffer(sound.readframes(sound.getnframes()), np.uint8)
        if len(content) != math.prod(self.shape) * width:
            raise Unreadable(f"{self.file.path} ends too early: it is truncated")
        return _samples(content.reshape(-1, width)).reshape(-1, channels)

    def _open(self) -> wave.Wave_read:
        return wave.open(str(self.file.path), "rb")


class CsvArray(_Whole):
    """A .csv file: a column for each channel, or each item, a row for each point in time; one line of names may stand above.

    Columns are divided by commas, semicolons, tabs or blanks.
    """

    def _shape(self) -> tuple[int, ...]:
        rows, columns = self._values().shape
        return (rows,) if columns == 1 else (columns, rows)

    def _values(self) -> np.ndarray[Any, Any]:
        path = self.file.path
        size = path.stat().st_size
        if size > _LARGEST_TABLE:
            raise Unreadable(
                f"{path} holds {readable(size)}, at most {readable(_LARGEST_TABLE)} of a table are read: save it as .npy"
            )
        with path.open(encoding="utf-8-sig") as file:
            head = file.readline()
            delimiter = next((mark for mark in _DELIMITERS if mark in head), None)
            lines = file if _is_names(head, delimiter) else _again(head, file)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of an empty table
                table = np.loadtxt(lines, dtype=np.float32, delimiter=delimiter, ndmin=2)
        if table.shape[1] > _MOST_CHANNELS:
            raise Unreadable(
                f"{path} has {table.shape[1]} columns: a column is a channel, so transpose it, or save it as .npy"
            )
        if not len(table):
            raise Unreadable(f"{path} holds no row of numbers: nothing to do")
        return table


def open_signals(path: Path) -> Handle[Any]:
    """Nothing is kept open."""
    return Handle(nullcontext, path)


def write_csv(path: Path, signals: np.ndarray[Any, Any]) -> None:
    """A column for each channel, or for each item."""
    columns = np.atleast_2d(signals if signals.ndim < 3 else signals.reshape(len(signals), -1)).T
    np.savetxt(path, columns, fmt="%.8g", delimiter=",")


def write_wav(path: Path, signals: np.ndarray[Any, Any], rate: int) -> None:
    """16-bit samples; values beyond [-1, 1] are clipped, missing ones are silent."""
    channels = np.nan_to_num(signals.reshape(-1, signals.shape[-1]))
    largest = 2 ** (8 * _WRITTEN_WIDTH - 1)
    samples = np.clip(np.round(channels * largest), -largest, largest - 1).astype("<i2")
    with wave.open(str(path), "wb") as sound:
        sound.setnchannels(len(channels))
        sound.setsampwidth(_WRITTEN_WIDTH)
        sound.setframerate(rate)
        sound.writeframes(np.ascontiguousarray(samples.T).tobytes())


def _samples(content: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Bytes of samples, ``(count, width)``, little-endian, as numbers in [-1, 1]; those of one byte have no sign."""
    width = content.shape[1]
    if width == 1:
        return (content[:, 0].astype(np.float32) - 128) / 128
    whole = np.zeros((len(content), 4), np.uint8)
    whole[:, 4 - width :] = content  # in the highest bytes, so that the sign is right
    return (whole.view("<i4")[:, 0].astype(np.float64) / 2**31).astype(np.float32)


def _is_names(line: str, delimiter: str | None) -> bool:
    """Whether a line holds names of columns: nothing in it is a number."""
    return all(not _is_number(part) for part in line.split(delimiter)) and bool(line.strip())


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _again(head: str, file: IO[str]) -> Iterator[str]:
    yield head
    yield from file
