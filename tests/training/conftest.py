"""Small data and one process to train on."""

import pytest
import torch

from genprior.training.data import ImageSet
from genprior.training.task import Devices


@pytest.fixture(scope="session")
def devices():
    return Devices("cpu")


@pytest.fixture(scope="session")
def pictures():
    """Random pictures of 28 x 28 with ten labels."""
    random = torch.Generator().manual_seed(0)
    content = torch.randint(256, (40, 1, 28, 28), generator=random, dtype=torch.uint8)
    return ImageSet("noise", content, torch.arange(40) % 10, "ours")


@pytest.fixture(scope="session")
def colours():
    random = torch.Generator().manual_seed(0)
    return ImageSet("colours", torch.randint(256, (20, 3, 64, 64), generator=random, dtype=torch.uint8))
