"""Random streams that are independent of those that users draw from plain seeds.

Data come from plain seeds: ``G.sample_latent(n, seed)``, ``Gaussian(m, shape, seed)``, ``torch.manual_seed(seed)``. If starts
did too, a search with the seed of the data would begin at the solution. So a stream is named by its purpose and by numbers,
and its seed is a hash of both.
"""

from __future__ import annotations

import hashlib

import torch

from genprior import _validate


def stream(purpose: str, seed: int, *numbers: int) -> torch.Generator:
    """A random generator on the CPU for one purpose, such as ``"starts"``: the same on every device and machine.

    torch uses 32 bits of a seed, so one hash in four billion meets a given plain seed. Even then the draws differ: one word of
    32 bits is left out, and numbers in float64, made of two words each, are made of other pairs.
    """
    _validate.seed(seed)
    digest = hashlib.sha256(repr((purpose, int(seed), *map(int, numbers))).encode()).digest()
    random = torch.Generator(device="cpu").manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    torch.randint(2, (1,), generator=random, device="cpu")
    return random
