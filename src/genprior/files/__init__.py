"""Items from people's files, a few at a time, and back into files of the same layout: pictures and arrays."""

from genprior.files.outputs import Outputs
from genprior.files.stream import Items, Loaded, open_items

__all__ = ["Items", "Loaded", "Outputs", "open_items"]
