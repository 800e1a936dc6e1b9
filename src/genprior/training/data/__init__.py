"""Pictures to train on: MNIST and Fashion-MNIST by name, and any folder, tar or zip of image files."""

from genprior.training.data.digits import fashion_mnist, mnist
from genprior.training.data.images import image_files
from genprior.training.data.pictures import Pictures

__all__ = ["Pictures", "fashion_mnist", "image_files", "mnist"]
