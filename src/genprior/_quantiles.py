"""Medians and spreads of any number of values, in constant memory."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from typing import Any

import numpy as np

EXACT = 100_000
"""So many values are kept as they are."""
ERROR = 1e-3
"""Relative error of a value among more of them."""
_WIDTH = 2 * math.log1p(ERROR)
"""Of a bin, in the logarithm."""
_SMALL = 1e-300
"""Values below count as zero."""
_ZERO = -(10**9)
"""The bin of zero, far enough down for its middle to be zero."""

_Values = np.ndarray[Any, np.dtype[np.float64]]
_Counts = np.ndarray[Any, np.dtype[np.int64]]


class Quantiles:
    """Order statistics of finite values of at least 0, the same in whatever order they are added.

    They are exact for up to 100,000 values. More are counted in bins, evenly spaced in the logarithm, and each value is
    replaced by the middle of its bin, which is off by a factor of 1.001 at most. There are less than 700,000 bins; values
    that span six orders of magnitude fill 7,000.
    """

    def __init__(self) -> None:
        self._values = array("d")
        self._bins: Counter[int] = Counter()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, value: float) -> None:
        """Count a value."""
        if not 0 <= value < math.inf:
            raise ValueError(f"value must be a finite number of at least 0, got {value}")
        self._count += 1
        if self._count <= EXACT:
            self._values.append(value)
            return
        for kept in self._values:
            self._bins[_bin(kept)] += 1
        del self._values[:]
        self._bins[_bin(value)] += 1

    def median(self) -> float:
        """The middle value, or the mean of the two in the middle; NaN without values."""
        return _median(*self._sorted()) if self._count else math.nan

    def ranked(self, rank: int) -> float:
        """The value that has ``rank`` smaller ones before it in the order."""
        return _ranked(*self._sorted(), rank)

    def log_spread(self) -> float:
        """A robust standard deviation of the logarithm: 1.4826 times the median distance from its median."""
        if not self._count:
            return math.nan
        values, counts = self._sorted()
        logs = np.log(np.maximum(values, _SMALL))
        distances = np.abs(logs - _median(logs, counts))
        order = np.argsort(distances, kind="stable")
        return 1.4826 * _median(distances[order], counts[order])

    def _sorted(self) -> tuple[_Values, _Counts]:
        """The values in order, and how often each occurs."""
        if self._values:
            return np.sort(np.array(self._values)), np.ones(self._count, np.int64)
        bins = sorted(self._bins)
        return np.array([math.exp(number * _WIDTH) for number in bins]), np.array(
            [self._bins[number] for number in bins], np.int64
        )


def _bin(value: float) -> int:
    return round(math.log(value) / _WIDTH) if value >= _SMALL else _ZERO


def _ranked(values: _Values, counts: _Counts, rank: int) -> float:
    return float(values[np.searchsorted(np.cumsum(counts), rank, side="right")])


def _median(values: _Values, counts: _Counts) -> float:
    total = int(counts.sum())
    return (_ranked(values, counts, (total - 1) // 2) + _ranked(values, counts, total // 2)) / 2
