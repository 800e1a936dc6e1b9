"""Arrays of numpy as tensors: plain numbers only."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from genprior.files.guard import Unreadable


def check_plain(dtype: np.dtype[Any]) -> None:
    """Raise unless the type is plain numbers."""
    if dtype.kind not in "biufc":
        raise Unreadable(f"an array holds {dtype}, not plain numbers")


def plain_tensor(array: np.ndarray[Any, Any]) -> Tensor:
    """A copy as a tensor; only plain numbers."""
    check_plain(array.dtype)
    native = np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
    return torch.from_numpy(native.astype(np.complex64) if native.dtype.kind == "c" else native)
