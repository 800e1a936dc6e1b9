"""Real digits bundled with the package, so that demos and tests need no download."""

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
    >>> images, labels = samples.digits(5)
    >>> images.shape, labels.tolist()
    (torch.Size([5, 1, 28, 28]), [7, 2, 1, 0, 4])
    """
    images, labels = _stored()
    if _validate.whole("count", count) > len(images):
        raise ValueError(
            f"count must be at most {len(images)}, the number of bundled digits, got {count}: "
            "genprior.training.data.mnist('test') has all 10,000"
        )
    return images[:count].float() / 255, labels[:count].clone()


def save(folder: str | Path, count: int = 20) -> list[Path]:
    """Write the first digits as PNG files into a folder, to try commands on: ``00-7.png`` is a seven."""
    images, labels = digits(count)
    folder = Path(folder)
    add_folder(folder)
    paths = [folder / f"{number:02d}-{label}.png" for number, label in enumerate(labels.tolist())]
    for path, pixels in zip(paths, (255 * images[:, 0]).round().to(torch.uint8), strict=True):
        image = Image.fromarray(pixels.numpy())
        write_atomically(path, lambda temporary, image=image: image.save(temporary, format="png"))  # type: ignore[misc]
    return paths


@lru_cache(maxsize=1)
def _stored() -> tuple[Tensor, Tensor]:
    with np.load(Path(__file__).parent / "mnist-test-300.npz", allow_pickle=False) as file:
        return torch.from_numpy(file["pictures"])[:, None], torch.from_numpy(file["labels"]).long()
