"""What is sampled depends on the seed alone, and leaves torch's global random numbers as they are."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import genprior as gp
from genprior.theory.certificate_page import examination_numbers
from genprior.theory.examination import examine


def bent() -> gp.Generator:
    """Second derivatives that differ from place to place, so that the search for the largest depends on its draws."""
    network = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 9)).double()
    random = torch.Generator().manual_seed(5)
    for parameter in network.parameters():
        nn.init.normal_(parameter, generator=random)
    return gp.Generator(network, 3, 9)


def document(global_seed: int, seed: int) -> dict[str, object]:
    generator = bent()
    torch.manual_seed(global_seed)
    before = torch.get_rng_state()
    found = examination_numbers(examine(generator, "bent", radius=2.0, points=8, moves=8, steps=5, seed=seed))
    assert torch.equal(torch.get_rng_state(), before), "the global state has moved"
    return found


@pytest.fixture(autouse=True)
def own_randomness():
    with torch.random.fork_rng(devices=[]):
        yield


def test_the_same_seed_gives_the_same_certificate_whatever_the_global_state():
    first = document(global_seed=1, seed=3)
    assert document(global_seed=2, seed=3) == first
    assert document(global_seed=1, seed=4) != first
