"""Which axes of a signal are channels, and which are space or time."""

from __future__ import annotations

from genprior import _validate

_IMAGE = 2
"""Largest ratio of two axes that are read as an image."""


def spatial_dims(name: str, shape: tuple[int, ...], dims: int | None = None) -> int:
    """How many of the last axes are space or time; those before them are channels.

    ``dims`` itself if it is given. Otherwise channels come first, as in torch: ``(n,)`` has one, ``(channels, height,
    width)`` two, ``(channels, depth, height, width)`` three. ``(height, width)`` has two if neither side is more than
    twice the other; ``(8, 5000)`` may be an image or eight channels, and is refused.
    """
    if dims is not None:
        if _validate.whole("dims", dims) > len(shape):
            raise ValueError(
                f"{name} has shape {shape}, which has no {dims} axes of space or time: give a smaller dims"
            )
        return dims
    if is_ambiguous(shape):
        raise ValueError(f"{name} has shape {shape}, {_readings(shape)}: say which with dims")
    return max(1, len(shape) - 1) if len(shape) != 2 else 2


def is_ambiguous(shape: tuple[int, ...]) -> bool:
    """Whether the shape alone does not determine the axes."""
    return len(shape) > 4 or (len(shape) == 2 and max(shape) > _IMAGE * min(shape))


def axes_of(dims: int) -> tuple[int, ...]:
    """The last ``dims`` axes, counted from the end."""
    return tuple(range(-dims, 0))


def times(size: tuple[int, ...]) -> str:
    """A size in words: ``28 x 28``."""
    return " x ".join(map(str, size))


def _readings(shape: tuple[int, ...]) -> str:
    if len(shape) > 2:
        return "which does not tell channels from space"
    return f"which may be {shape[0]} channels of {shape[1]} values (dims=1) or an image of {times(shape)} (dims=2)"
