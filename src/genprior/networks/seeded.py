"""Fresh networks from a seed of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

Network = TypeVar("Network", bound=nn.Module)


def seeded(make: Callable[[], Network], random: torch.Generator) -> Network:
    """Make a network whose first weights come from ``random``; torch's global generator stays as it is."""
    seed = int(torch.randint(2**62, (), generator=random))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()
