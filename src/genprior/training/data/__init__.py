"""Images to train on: MNIST and Fashion-MNIST by name, and any folder, tar or zip of image files."""

from typing import Any

from genprior._renamed import warn_renamed
from genprior.training.data.digits import fashion_mnist, mnist
from genprior.training.data.image_set import ImageSet
from genprior.training.data.images import image_files

__all__ = ["ImageSet", "fashion_mnist", "image_files", "mnist"]


def __getattr__(name: str) -> Any:
    """Deprecated names."""
    if name == "Pictures":
        warn_renamed("genprior.training.data.Pictures", "genprior.training.data.ImageSet")
        return ImageSet
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
