"""Starting points of a job: by the seed and the item's number, whatever its batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from genprior import _random
from genprior.generators import Generator


def starts(generator: Generator, seed: int, numbers: Sequence[int], restarts: int) -> Tensor:
    """Starts ``(items, restarts, *latent_shape)`` of a job: each by the seed and the numbers of item and restart."""
    drawn = [
        torch.cat([generator.draw(1, _random.stream("starts", seed, number, restart)) for restart in range(restarts)])
        for number in numbers
    ]
    return torch.stack(drawn)
