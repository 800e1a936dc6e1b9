"""Networks and layers that draw from a seed of their own and leave torch's global generators unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

Network = TypeVar("Network", bound=nn.Module)


def seeded(make: Callable[[], Network], random: torch.Generator) -> Network:
    """Make a network on the CPU whose initial weights come from ``random``."""
    with own_randomness(random, torch.device("cpu")):
        return make()


@contextmanager
def own_randomness(random: torch.Generator, device: torch.device) -> Iterator[None]:
    """Inside, torch's generators of the CPU and of ``device`` are seeded from ``random``."""
    seed = int(torch.randint(2**62, (), generator=random))
    if device.type == "cpu":
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            yield
        return
    with torch.random.fork_rng(devices=[device.index or 0], device_type=device.type):
        torch.default_generator.manual_seed(seed)
        torch.get_device_module(device).manual_seed(seed)
        yield
