"""Opens a generator: a bundled name, a file of ``genprior train``, Python code, TorchScript."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from genprior import _validate
from genprior._fingerprint import fingerprint
from genprior.files.named import split_key
from genprior.generators.alias import frozen_alias
from genprior.generators.contract import Generator
from genprior.generators.latents import LatentDistribution
from genprior.models.bundled import find, load_generator
from genprior.models.labels import label_hint, of_latent
from genprior.models.modules import SCRIPT_ENDINGS, build_from_python, is_python, load_program, source_file
from genprior.models.ranges import Bounds, Range, with_range
from genprior.models.shapes import find_latent_shape, run_on
from genprior.models.weights import load_weights


@dataclass(frozen=True)
class Opened:
    """A generator, and notes on what was inferred about it."""

    generator: Generator
    notes: tuple[str, ...] = ()


def open_generator(
    spec: str | Path,
    weights: str | Path | None = None,
    *,
    latent_shape: int | Sequence[int] | None = None,
    signal_shape: int | Sequence[int] | None = None,
    signal_range: Range | None = None,
    label: int | None = None,
    device: torch.device | str = "cpu",
) -> Generator:
    """Open a generator; one of images is mapped to [0, 1].

    Parameters
    ----------
    spec
        ``"mnist"`` or another bundled name; a ``.safetensors`` file that ``genprior train`` wrote; ``my_model.py:build``,
        a function without arguments that returns a ``torch.nn.Module`` or a :class:`genprior.Generator`; a TorchScript file.
    weights
        for a function: ``.safetensors``, or ``.pt`` with a state dictionary, ``checkpoint.pt:g_ema`` for one of several.
        Files with pickled code are refused.
    latent_shape, signal_shape
        of one item; inferred from the module if not given.
    signal_range
        bounds of the module's values, which are mapped to [0, 1]; ``"keep"`` leaves the values unchanged. By default the
        range is detected from samples if the module makes images of 1 or 3 channels: values in [-1, 1], as of a tanh, are
        mapped; other ranges and signals of other shapes are left unchanged.
    label
        the class, for a conditional module ``module(z, label)``, which receives an integer for each item.
    device
        where it runs.

    Examples
    --------
    >>> from genprior.models.foreign import open_generator
    >>> open_generator("mnist").signal_shape
    (1, 28, 28)
    """
    return open_with_notes(
        spec,
        weights,
        latent_shape=latent_shape,
        signal_shape=signal_shape,
        signal_range=signal_range,
        label=label,
        device=device,
    ).generator


def open_with_notes(
    spec: str | Path,
    weights: str | Path | None = None,
    *,
    latent_shape: int | Sequence[int] | None = None,
    signal_shape: int | Sequence[int] | None = None,
    signal_range: Range | None = None,
    label: int | None = None,
    device: torch.device | str = "cpu",
    seconds: float | None = None,
) -> Opened:
    """As :func:`open_generator`, with notes on what was inferred.

    ``seconds`` bounds the time in which samples are drawn to find the range of the values.
    """
    wanted = _Wanted(
        None if latent_shape is None else _validate.shape("latent_shape", latent_shape),
        None if signal_shape is None else _validate.shape("signal_shape", signal_shape),
        signal_range,
        None if label is None else _validate.whole("label", label, 0),
        seconds,
    )
    text = str(spec)
    if is_python(text):
        built = build_from_python(text)
        if weights is not None:
            load_weights(_module_of(built, text), Path(weights))
        return wanted.adapt(built, device)
    if weights is not None:
        raise ValueError(
            f"weights go with a Python function as the generator, my_model.py:build, but {text!r} has weights of its own"
        )
    if Path(text).suffix.lower() in SCRIPT_ENDINGS:
        return wanted.adapt(load_program(Path(text)), device)
    if wanted != _Wanted(seconds=seconds):
        raise ValueError(
            f"{text!r} has its own shapes and range, and takes no label: leave out the latent shape, the signal shape, the "
            "range and the label"
        )
    if Path(text).suffix.lower() == ".py":
        raise ValueError(f"{text} names no function: write {text}:build, where build() returns the module")
    return Opened(load_generator(spec, device=device))


def source_digest(
    spec: str | Path,
    weights: str | Path | None = None,
    network: Generator | nn.Module | None = None,
    role: str = "generator",
) -> str:
    """A digest of a network's sources: code, program, weights; and of its parameters, if ``network`` is given.

    Imported code is not included.
    """
    digest = hashlib.sha256()
    for path in (origin(spec, role), None if weights is None else split_key(Path(weights))[0]):
        if path is not None and path.is_file():
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    if network is not None:
        module = network.module if isinstance(network, Generator) else network
        digest.update(fingerprint(dict(module.state_dict())).encode())
    return digest.hexdigest()


def origin(spec: str | Path, role: str = "generator") -> Path | None:
    """The file with the code, the program, or the weights; None for code without a file."""
    text = str(spec)
    if is_python(text):
        return source_file(text)
    return Path(text) if Path(text).suffix.lower() in SCRIPT_ENDINGS else find(spec, role)


_ASSUMED = "latents assumed standard normal: for another distribution let the function return a gp.Generator with it"


@dataclass(frozen=True)
class _Wanted:
    """What the user declared about the module; the rest is inferred."""

    latent_shape: tuple[int, ...] | None = None
    signal_shape: tuple[int, ...] | None = None
    signal_range: Range | None = None
    label: int | None = None
    seconds: float | None = None

    def adapt(self, built: object, device: torch.device | str) -> Opened:
        """The module as a generator."""
        if isinstance(built, Generator):
            declared = replace(self, latent_shape=built.latent_shape, signal_shape=built.signal_shape)
            return declared._generator(built.module, device, built.latent, (built.signal_range,))
        if not isinstance(built, nn.Module):
            raise ValueError(f"the function returned {type(built).__name__}, expected a torch.nn.Module")
        return self._generator(built, device, None)

    def _generator(
        self,
        original: nn.Module,
        device: torch.device | str,
        latent: LatentDistribution | None,
        known: tuple[Bounds | None] | None = None,
    ) -> Opened:
        original = original.to(device)
        module, note = of_latent(original, self.label)
        module, notes = frozen_alias(module), [note] if note else []
        latent_shape, signals = self._shapes(module, original, notes)
        shape = self.signal_shape or tuple(signals.shape[1:])
        module, bounds, note = with_range(module, (latent_shape, shape), self.signal_range, known, self.seconds)
        notes += [] if latent is not None else [_ASSUMED]
        notes.append(note)
        return Opened(Generator(module, latent_shape, shape, latent=latent, signal_range=bounds), tuple(notes))

    def _shapes(self, module: nn.Module, original: nn.Module, notes: list[str]) -> tuple[tuple[int, ...], Tensor]:
        """The latent shape, and signals for two latents; the two shapes that were given are checked."""
        hint = "" if self.label is None else f"; {label_hint(self.label)}"
        if self.latent_shape is None:
            latent_shape, signals, reason = find_latent_shape(module, original, hint)
            notes.append(f"latent shape {latent_shape}, from {reason}")
        else:
            latent_shape, found = self.latent_shape, run_on(module, self.latent_shape)
            if isinstance(found, str):
                raise ValueError(
                    f"the module does not run on latents of shape {latent_shape} ({found}): wrong shape?{hint}"
                )
            signals = found
        if self.signal_shape is not None and self.signal_shape != tuple(signals.shape[1:]):
            raise ValueError(
                f"signal_shape is {self.signal_shape}, but the module gives {tuple(signals.shape[1:])}: correct it, or "
                "leave it out"
            )
        return latent_shape, signals


def _module_of(built: object, spec: str) -> nn.Module:
    if isinstance(built, Generator):
        return built.module
    if isinstance(built, nn.Module):
        return built
    raise ValueError(f"{spec} returned {type(built).__name__}, expected a torch.nn.Module to put the weights into")
