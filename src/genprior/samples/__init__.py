"""A few real digits that come with the package, so that a demo and a test need no download."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from genprior import _validate
from genprior._files import add_folder, write_atomically


def digits(count: int = 300) -> tuple[Tensor, Tensor]:
    """The first ``count`` (at most 300) of MNIST's test digits, in [0, 1], and their labels.

    Examples
    --------
    >>> from genprior import samples
    >>> pictures, labels = samples.digits(5)
    >>> pictures.shape, labels.tolist()
    (torch.Size([5, 1, 28, 28]), [7, 2, 1, 0, 4])
    """
    pictures, labels = _stored()
    if _validate.whole("count", count) > len(pictures):
        raise ValueError(
            f"count must be at most {len(pictures)}, the digits that are bundled, got {count}: "
            "genprior.training.data.mnist('test') has all 10,000"
        )
    return pictures[:count].float() / 255, labels[:count].clone()


def save(folder: str | Path, count: int = 20) -> list[Path]:
    """Write the first digits as PNG files into a folder, to try commands on: ``00-7.png`` is a seven."""
    pictures, labels = digits(count)
    folder = Path(folder)
    add_folder(folder)
    paths = [folder / f"{number:02d}-{label}.png" for number, label in enumerate(labels.tolist())]
    for path, picture in zip(paths, (255 * pictures[:, 0]).round().to(torch.uint8), strict=True):
        image = Image.fromarray(picture.numpy())
        write_atomically(path, lambda temporary, image=image: image.save(temporary, format="png"))  # type: ignore[misc]
    return paths


@lru_cache(maxsize=1)
def _stored() -> tuple[Tensor, Tensor]:
    with np.load(Path(__file__).parent / "mnist-test-300.npz", allow_pickle=False) as file:
        return torch.from_numpy(file["pictures"])[:, None], torch.from_numpy(file["labels"]).long()
