"""Items from users' files, a few at a time, and back into files of the same layout: images and arrays."""

from genprior.files.outputs import Outputs
from genprior.files.stream import Items, Loaded, open_items

__all__ = ["Items", "Loaded", "Outputs", "open_items"]
