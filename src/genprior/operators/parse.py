"""Operators as text on a command line: ``gaussian:m=392,seed=0``, ``mask:known.png``, ``downsample:4``."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from genprior._axes import is_ambiguous, spatial_dims, times
from genprior._memory import available, gigabytes
from genprior.files.images import WRITTEN_AS
from genprior.files.single import read_array, read_image
from genprior.operators import (
    Blur,
    Coils,
    Complex,
    Dense,
    Downsample,
    Fourier,
    Gaussian,
    Identity,
    Mask,
    Operator,
    Stack,
    SubsampledFourier,
    SubsampledHadamard,
)

Shape = tuple[int, ...]
_LEAST_SIGMA = 0.1
_BYTES = 40
"""For each number of a dense matrix while it is factorised in float64, measured for twice as many columns as rows."""


@dataclass(frozen=True)
class _Type:
    """One type of operator: its options and their types; which must be there, which needs no name; an example."""

    build: Callable[[dict[str, Any], Shape], Operator]
    options: dict[str, type]
    example: str
    positional: str | None = None
    required: tuple[str, ...] = ()
    either: tuple[str, ...] = ()
    """Exactly one of these must be there."""
    apart: tuple[str, ...] = ()
    """At most one of these."""


def parse_operator(
    text: str, signal_shape: Shape, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Operator:
    """The operator that a text such as ``"gaussian:m=392,seed=0"`` describes, for signals of a shape.

    ``"downsample:4 @ blur:sigma=2"`` applies the right one first; ``"downsample:4 and gaussian:m=100"`` measures both,
    an ``operators.Stack``. ``examples()`` lists what there is.

    Examples
    --------
    >>> from genprior.operators.parse import parse_operator
    >>> parse_operator("downsample:4", (1, 28, 28))
    Downsample(4, (1, 28, 28))
    """
    stacked = [_composition(part, tuple(signal_shape), device, dtype) for part in _stacked(text)]
    return stacked[0] if len(stacked) == 1 else Stack(*stacked)


def _composition(text: str, shape: Shape, device: torch.device | str, dtype: torch.dtype) -> Operator:
    """One operator, or several after each other."""
    operator: Operator | None = None
    for part in reversed(text.split(" @ ")):
        _refuse_joined(part.strip())
        name, options = parse_options(part.strip())
        try:
            inner = _TYPES[name].build(options, shape).to(device, dtype)
        except (ValueError, TypeError, OverflowError, RuntimeError) as problem:  # too large ones end in any of these
            reason = str(problem).partition("\n")[0]
            raise ValueError(f"operator {part.strip()!r}: {reason}") from problem
        operator = inner if operator is None else inner @ operator
        shape = operator.measurement_shape or shape
    assert operator is not None, "split gives at least one part"
    return operator


def _stacked(text: str) -> list[str]:
    """The parts between ``and``, where an operator follows it: ``and`` may stand in the name of a file, too."""
    return re.split(rf" and (?=\s*(?:{'|'.join(_TYPES)})(?:[:\s]|$))", text)


def digest_of_files(text: str) -> str:
    """A digest of the files that an operator's text names: with the text they determine the operator, on every device."""
    digest = hashlib.sha256()
    for name in files_of(text):
        with Path(name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def files_of(text: str) -> list[str]:
    """The files that an operator's text names."""
    parts = [part for several in _stacked(text) for part in several.split(" @ ")]
    options = [parse_options(part.strip())[1] for part in parts]
    return [found["file"] for found in options if "file" in found]


def with_files(text: str, at: dict[str, str]) -> str:
    """The text with its files elsewhere."""
    return " and ".join(" @ ".join(_with_file(part.strip(), at) for part in p.split(" @ ")) for p in _stacked(text))


def _with_file(text: str, at: dict[str, str]) -> str:
    name, options = parse_options(text)
    return describe(name, **options | {"file": at.get(options["file"], options["file"])}) if "file" in options else text


def parse_options(text: str) -> tuple[str, dict[str, Any]]:
    """Name and options of one operator; each error names the part that is wrong and lists what there is."""
    name, _, rest = text.partition(":")
    if name not in _TYPES:
        raise ValueError(f"there is no operator {name!r} (in {text!r}): give one of {', '.join(examples())}")
    entry, options = _TYPES[name], {}
    for part in filter(None, rest.split(",")):
        key, value = _named(part, name, entry)
        if key in options:
            raise ValueError(f"operator {text!r} gives {key} twice: give it once")
        options[key] = _converted(key, value, entry.options[key], text)
    _check_complete(text, entry, options)
    return name, options


def describe(name: str, **options: Any) -> str:
    """The text for an operator with these options: ``describe("gaussian", m=392)`` is ``"gaussian:m=392"``.

    The inverse of :func:`parse_options`; what it gives is checked.
    """
    positional = _TYPES[name].positional if name in _TYPES else None
    parts = [f"{value}" if key == positional else f"{key}={_text(value)}" for key, value in options.items()]
    text = f"{name}:{','.join(parts)}" if parts else name
    parse_options(text)
    return text


def examples() -> list[str]:
    """One example of every type."""
    return [entry.example for entry in _TYPES.values()]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.12g}" if isinstance(value, float) else f"{value}"


def _named(part: str, name: str, entry: _Type) -> tuple[str, str]:
    key, equals, value = part.partition("=")
    if not equals:
        if entry.positional is None:
            raise ValueError(f"operator {name!r} does not know what {part!r} is: write {entry.example}")
        _refuse_number(part, name, entry)
        return entry.positional, part
    if key not in entry.options:
        known = ", ".join(entry.options) or "none"
        raise ValueError(f"operator {name!r} has no option {key!r} (its options: {known}): write {entry.example}")
    return key, value


def _refuse_number(part: str, name: str, entry: _Type) -> None:
    """A number where a file is meant, and there is no such file: it is the other option."""
    other = next((key for key in entry.either if key != entry.positional), None)
    if other is None or Path(part).exists():
        return
    try:
        entry.options[other](part)
    except ValueError:
        return
    raise ValueError(f"operator {name!r}: there is no file {part}: for a number write {name}:{other}={part}")


def _refuse_joined(part: str) -> None:
    """Two operators without spaces between them."""
    left, at, right = part.partition("@")
    if at and right.strip().partition(":")[0] in _TYPES:
        raise ValueError(f"operator {part!r}: put spaces around @, '{left.strip()} @ {right.strip()}'")


def _converted(key: str, value: str, wanted: type, text: str) -> Any:
    if wanted is bool:
        if value.lower() not in {"true", "false"}:
            raise ValueError(f"{key} in the operator {text!r} must be true or false, got {value!r}")
        return value.lower() == "true"
    try:
        converted = wanted(value)
    except ValueError:
        what = "a whole number" if wanted is int else "a number"
        raise ValueError(f"{key} in the operator {text!r} must be {what}, got {value!r}") from None
    if isinstance(converted, float) and not math.isfinite(converted):
        raise ValueError(f"{key} in the operator {text!r} must be finite, got {value!r}")
    return converted


def _check_complete(text: str, entry: _Type, options: dict[str, Any]) -> None:
    missing = [key for key in entry.required if key not in options]
    if missing:
        raise ValueError(f"operator {text!r} lacks {', '.join(missing)}: write for example {entry.example}")
    if entry.either and sum(key in options for key in entry.either) != 1:
        raise ValueError(
            f"operator {text!r} needs one of {' or '.join(entry.either)}: write for example {entry.example}"
        )
    if sum(key in options for key in entry.apart) > 1:
        raise ValueError(f"operator {text!r} gives {' and '.join(entry.apart)}: give one, for example {entry.example}")


def _mask(options: dict[str, Any], shape: Shape) -> Operator:
    if "keep" in options:
        share, seed = options["keep"], options.get("seed", 0)
        if not 0 < share <= 1:
            raise ValueError(f"keep must be a share above 0 and at most 1, got {share:g}")
        mask = (
            torch.rand(_masked(shape, options.get("dims")), generator=torch.Generator().manual_seed(seed), device="cpu")
            < share
        )
    elif "dims" in options:
        raise ValueError("dims goes with keep: a mask from a file has the axes that it has")
    else:
        mask = _mask_file(Path(options["file"]))
    _check_size(tuple(mask.shape), shape)
    if options.get("invert", False):
        mask = 1 - mask.float() if mask.dtype != torch.bool else ~mask
    try:
        return Mask(mask, shape)
    except ValueError as problem:
        if "keeps nothing" not in str(problem):
            raise
        raise ValueError("the mask keeps nothing: bright pixels are the known ones; add invert=true") from None


def _masked(shape: Shape, dims: int | None) -> Shape:
    """The axes of space or time, alike in all channels; every value by itself where the shape does not tell."""
    return shape if dims is None and is_ambiguous(shape) else shape[-spatial_dims("the signal", shape, dims) :]


def _check_size(given: Shape, shape: Shape) -> None:
    """A mask is of the size of the images, or has one value for each of the signal's."""
    try:
        fits = np.broadcast_shapes(given, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        size = f"{shape[-2:]}, the size of the images, or " if len(shape) == 3 else ""
        raise ValueError(f"the mask has shape {given}, expected {size}{shape}: cut or scale it")


def _mask_file(path: Path) -> Tensor:
    """An image: bright is known, dark is missing; an array: as it is."""
    if path.suffix.lower() in WRITTEN_AS:
        return read_image(path, channels=1)[0] >= 0.5
    return torch.from_numpy(read_array(path, kinds="buif"))


def _blur(options: dict[str, Any], shape: Shape) -> Operator:
    dims = options.get("dims")
    if "sigma" in options:
        sigma, widest = options["sigma"], max(shape[-spatial_dims("the signal", shape, dims) :])
        if sigma > 0 and not _LEAST_SIGMA <= sigma <= widest:
            raise ValueError(
                f"sigma is in pixels, from {_LEAST_SIGMA} to the longest side of the signal, {widest}; got {sigma:g}, which "
                f"{'leaves the mean only' if sigma > widest else 'changes nothing'}: give for example sigma=2"
            )
        return Blur(sigma, shape, dims=dims)
    return Blur(torch.from_numpy(read_array(Path(options["file"]), kinds="f").astype(np.float32)), shape, dims=dims)


def _fourier(options: dict[str, Any], shape: Shape) -> Operator:
    dims = options.get("dims")
    if "m" in options:
        return SubsampledFourier(options["m"], shape, seed=options.get("seed", 0), dims=dims)
    lines = read_array(Path(options["file"]), kinds="buif")
    if lines.ndim == 1:
        lines = _frequencies(lines, shape[-spatial_dims("the signal", shape, dims) :])
    return SubsampledFourier(torch.from_numpy(lines), shape, centred=bool(options.get("centred", False)), dims=dims)


def _frequencies(lines: np.ndarray[Any, Any], size: Shape) -> np.ndarray[Any, Any]:
    """A truth value for each frequency along the first axis, or the numbers of those kept; all along the other axes."""
    count = size[0]
    if len(lines) == count and bool(np.isin(lines, (0, 1)).all()):
        kept = lines.astype(bool)
    elif lines.dtype.kind in "ui" and len(lines) and int(lines.min()) >= 0 and int(lines.max()) < count:
        kept = np.isin(np.arange(count), lines)
    else:
        whole = "" if len(size) == 1 else f", or a mask ({', '.join(map(str, size))})"
        raise ValueError(
            f"the lines must be {count} values 0 or 1, or whole numbers below {count}{whole}; "
            f"got {len(lines)} values of type {lines.dtype}"
        )
    return np.broadcast_to(kept.reshape(-1, *(1,) * (len(size) - 1)), size).copy()


def _kspace(options: dict[str, Any], shape: Shape) -> Operator:
    dims, given = options.get("dims"), {"centred", "packed"} & options.keys()
    size = shape[-spatial_dims("the signal", shape, dims) :]
    kept = None
    if "file" in options:
        mask = read_array(Path(options["file"]), kinds="buif")
        kept = torch.from_numpy(_columns(mask, size[-1]) if mask.ndim == 1 else mask)
    if "every" in options:
        kept = _comb(size[-1], options["every"], options.get("centre", 0))
        kept = kept if options.get("centred", False) else torch.fft.ifftshift(kept)
        kept = kept.expand(*(1,) * (len(size) - 1), -1)
    elif "centre" in options:
        raise ValueError("centre goes with every: every=4,centre=8 keeps every fourth column and eight in the middle")
    return Fourier(shape, kept, dims=dims, **{name: options[name] for name in given})


def _comb(width: int, every: int, centre: int) -> Tensor:
    """Columns of centred k-space: the middle one and every n-th from there, and a block around the middle."""
    if not (1 <= every <= width and 0 <= centre <= width):
        raise ValueError(f"every and centre must be at most {width}, the columns of k-space, got {every} and {centre}")
    columns, first = torch.arange(width), width // 2 - centre // 2
    return ((columns - width // 2) % every == 0) | ((columns >= first) & (columns < first + centre))


def _columns(columns: np.ndarray[Any, Any], width: int) -> np.ndarray[Any, Any]:
    """A truth value for each column of k-space, as a mask ``(1, width)``."""
    if len(columns) != width or not bool(np.isin(columns, (0, 1)).all()):
        raise ValueError(
            f"the columns must be {width} values 0 or 1, one for each column of k-space, or a mask of its size; "
            f"got {len(columns)} values of type {columns.dtype}"
        )
    return columns.astype(bool)[None]


def _coils(options: dict[str, Any], shape: Shape) -> Operator:
    maps = read_array(Path(options["file"]), kinds="fc")
    return Coils(torch.from_numpy(maps.astype(np.complex64)), shape)


def _gaussian(options: dict[str, Any], shape: Shape) -> Operator:
    m, d, free = options["m"], math.prod(shape), available()
    needed = _BYTES * m * d
    if free is not None and needed > free:
        raise ValueError(
            f"its matrix of {times((m, d))} numbers needs {gigabytes(needed)} of memory, and {gigabytes(free)} are free: "
            f"write hadamard:m={min(m, d)}, random measurements without a matrix"
        )
    return Gaussian(m, shape, seed=options.get("seed", 0))


def _dense(options: dict[str, Any], shape: Shape) -> Operator:
    matrix = read_array(Path(options["file"]), kinds="fiu").astype(np.float32)
    return Dense(torch.from_numpy(matrix), shape)


_TYPES: dict[str, _Type] = {
    "gaussian": _Type(
        _gaussian,
        {"m": int, "seed": int},
        "gaussian:m=392,seed=0",
        required=("m",),
    ),
    "hadamard": _Type(
        lambda o, shape: SubsampledHadamard(o["m"], shape, seed=o.get("seed", 0)),
        {"m": int, "seed": int},
        "hadamard:m=392,seed=0",
        required=("m",),
    ),
    "mask": _Type(
        _mask,
        {"file": str, "invert": bool, "keep": float, "seed": int, "dims": int},
        "mask:known.png",
        positional="file",
        either=("file", "keep"),
    ),
    "blur": _Type(
        _blur, {"file": str, "sigma": float, "dims": int}, "blur:sigma=2", positional="file", either=("file", "sigma")
    ),
    "downsample": _Type(
        lambda o, shape: Downsample(o["factor"], shape, dims=o.get("dims")),
        {"factor": int, "dims": int},
        "downsample:4",
        positional="factor",
        required=("factor",),
    ),
    "fourier": _Type(
        _fourier,
        {"file": str, "m": int, "seed": int, "centred": bool, "dims": int},
        "fourier:lines.npy",
        positional="file",
        either=("file", "m"),
    ),
    "kspace": _Type(
        _kspace,
        {"file": str, "every": int, "centre": int, "centred": bool, "packed": bool, "dims": int},
        "kspace:columns.npy",
        positional="file",
        apart=("file", "every"),
    ),
    "coils": _Type(_coils, {"file": str}, "coils:maps.npy", positional="file", required=("file",)),
    "complex": _Type(lambda o, shape: Complex(shape), {}, "complex"),
    "dense": _Type(_dense, {"file": str}, "dense:A.npy", positional="file", required=("file",)),
    "identity": _Type(lambda o, shape: Identity(shape), {}, "identity"),
}
