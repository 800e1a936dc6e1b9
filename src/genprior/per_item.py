"""Arithmetic per item, for parts of your own: the first axis is the batch, and its rows never mix.

A *per-item number* is a Python number (the same for all), a tensor of shape ``()``, or a tensor of shape ``(B,)``.
"""

from genprior._batch import column, dot, flat, norm, ratio, spread, square

__all__ = ["column", "dot", "flat", "norm", "ratio", "spread", "square"]
