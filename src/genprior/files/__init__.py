"""Items from users' files (images and arrays), a few at a time, and back to files of the same layout."""

from genprior.files.opening import open_items
from genprior.files.outputs import Outputs
from genprior.files.stream import Items, Loaded

__all__ = ["Items", "Loaded", "Outputs", "open_items"]
