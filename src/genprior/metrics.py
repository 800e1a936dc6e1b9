"""How far recovered signals are from the truth, where it is known."""

from __future__ import annotations

from torch import Tensor

from genprior import _batch

__all__ = ["relative_error"]


def relative_error(signal: Tensor, truth: Tensor) -> Tensor:
    """``|signal - truth| / |truth|`` of each item, ``(B,)``.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> gp.metrics.relative_error(torch.tensor([[3.0, 4.0], [0.0, 1.5]]), torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    tensor([0.0000, 0.5000])
    """
    if signal.shape != truth.shape:
        raise ValueError(
            f"signal has shape {tuple(signal.shape)}, but truth has {tuple(truth.shape)}: give one truth for each item"
        )
    return _batch.norm(signal - truth) / _batch.norm(truth)
