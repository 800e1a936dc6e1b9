"""A look at a person's generator before it is used: the contract, the range, the conditioning, the speed, what to type."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from genprior._files import add_folder, make_folder, write_atomically
from genprior.checks import check_generator
from genprior.checks.report import Finding, Report
from genprior.generators import Generator
from genprior.generators.jacobian import OnlyGradients
from genprior.generators.spectrum import MOST_BYTES, jacobian_bytes, singular_values
from genprior.items.pictures import encode
from genprior.networks.ranges import Range, makes_pictures
from genprior.report.sheets import contact_sheet, stretched
from genprior.report.signals import signal_sheet
from genprior.tasks.settings import Source

_LARGEST = 512
"""Most latent numbers for which whole Jacobians are taken."""
_POINTS = 4
_FLAT = 1e-3
"""Directions whose stretch is below this part of the largest count as flat."""
_SLACK = 0.25
_FOLDER = "samples"


@dataclass(frozen=True)
class Inspection:
    """What was found out about a generator."""

    report: Report
    notes: tuple[str, ...] = ()
    latent_shape: tuple[int, ...] | None = None
    signal_shape: tuple[int, ...] | None = None
    conditioning: dict[str, float] | None = None
    """Singular values of DG at samples: medians of the largest, the smallest, their ratio; the share of flat directions."""
    no_conditioning: str = ""
    """Why there is none, where the generator is sound."""
    speed: dict[str, float] | None = None
    """Forward and backward passes per second, for one item and for 16 at once."""
    command: str = ""
    """A command line to begin with."""

    def numbers(self) -> dict[str, Any]:
        """Everything as plain values."""
        findings = [
            {"law": f.law, "holds": f.holds, "measured": f.measured, "advice": "" if f.holds else f.advice}
            for f in self.report.findings
        ]
        return {
            "ok": self.report.ok,
            "findings": findings,
            "notes": list(self.notes),
            "latent_shape": self.latent_shape,
            "signal_shape": self.signal_shape,
            "conditioning": self.conditioning,
            "no_conditioning": self.no_conditioning,
            "passes_per_second": self.speed,
            "command": self.command,
        }


def inspect_generator(source: Source, *, device: str = "cpu", seed: int = 0, samples: Path | None = None) -> Inspection:
    """Open a generator and look at it; what cannot even be opened is a finding too.

    ``samples`` is the folder for which :func:`write_samples` is meant: the suggested command then takes what is there.
    """
    try:
        opened = source.open(device)
    except (ValueError, TypeError, OSError) as problem:
        return Inspection(Report(source.generator, (Finding("opens", False, str(problem)),)))
    generator = opened.generator
    report = check_generator(generator, seed=seed)
    findings = (
        Finding("opens", True, "; ".join(opened.notes) or "as it is"),
        *report.findings,
        _pictures(generator, seed, kept=source.signal_range == "keep"),
    )
    report = Report(report.subject, findings)
    found = Inspection(report, opened.notes, generator.latent_shape, generator.signal_shape)
    if not report.ok:
        return found
    conditioning, why_not = _conditioning(generator, seed)
    command = _command(source, generator, samples)
    return replace(found, conditioning=conditioning, no_conditioning=why_not, speed=_speed(generator), command=command)


def write_samples(source: Source, out: Path, *, count: int = 16, device: str = "cpu", seed: int = 0) -> Path:
    """What the generator makes, in ``samples/``, and all of it on one sheet, whose path is given.

    Pictures are ``00.png`` and so on; other signals, and values that a picture cannot hold, one array ``signals.npy``.
    """
    generator = source.open(device).generator
    make_folder(out)
    add_folder(out / _FOLDER)
    sheet = out / f"{_FOLDER}.png"
    with torch.no_grad():
        signals = torch.cat([generator(z[None]) for z in generator.sample_latent(count, seed)])
    pictures = makes_pictures(generator.signal_shape)
    if pictures and _in_unit_range(signals):
        for number, picture in enumerate(signals):
            encode(picture, out / _FOLDER / f"{number:02d}.png")
        contact_sheet(signals, sheet)
        return sheet
    _save_array(signals, out / _FOLDER / "signals.npy")
    if pictures:
        contact_sheet(stretched(signals), sheet)
    else:
        signal_sheet(signals, sheet)
    return sheet


def _save_array(signals: Tensor, path: Path) -> None:
    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.save(file, signals.cpu().numpy())

    write_atomically(path, write)


def _in_unit_range(signals: Tensor) -> bool:
    return float(signals.min()) >= -_SLACK and float(signals.max()) <= 1 + _SLACK


def _pictures(generator: Generator, seed: int, *, kept: bool) -> Finding:
    """Picture-shaped signals should have values that picture files can hold, unless a person wants them as they are."""
    law = "values fit pictures in [0, 1]"
    if not makes_pictures(generator.signal_shape):
        return Finding(law, True, f"signals of shape {generator.signal_shape} are no pictures")
    try:
        with torch.no_grad():
            x = generator(generator.sample_latent(16, seed))
    except (ValueError, TypeError) as problem:
        return Finding(law, False, str(problem), "see the message")
    advice = "tell the range of the module's values, for example --range 0 255, or scale them in build()"
    return Finding(law, kept or _in_unit_range(x), f"[{float(x.min()):.3g}, {float(x.max()):.3g}]", advice)


def _conditioning(generator: Generator, seed: int) -> tuple[dict[str, float] | None, str]:
    """The numbers, or why there are none."""
    size, signal = math.prod(generator.latent_shape), math.prod(generator.signal_shape)
    if size > _LARGEST:
        return None, f"not computed for more than {_LARGEST} latent numbers, here {size}"
    if jacobian_bytes(generator) > MOST_BYTES:
        needed = jacobian_bytes(generator) / 2**30
        return None, f"not computed: {signal} x {size} numbers need {needed:.1f} GB of memory, more than 1"
    z = generator.sample_latent(_POINTS, seed)
    try:
        values = torch.stack([singular_values(generator, point[None]) for point in z])
    except OnlyGradients as problem:
        return None, f"not computed: the module has gradients only ({problem.why})"
    largest, smallest = values[:, 0], values[:, -1]
    flat = (values < _FLAT * largest[:, None]).double().mean()
    return {
        "largest": float(largest.median()),
        "smallest": float(smallest.median()),
        "condition": float((largest / smallest.clamp_min(1e-300)).median()),
        "flat_share": float(flat),
    }, ""


def _speed(generator: Generator, seconds: float = 0.15) -> dict[str, float]:
    found = {}
    for count in (1, 16):
        z = generator.sample_latent(count)
        found[f"forward_{count}"] = _rate(lambda z=z: generator.evaluate(z, graph=False), seconds)  # type: ignore[misc]
        found[f"both_{count}"] = _rate(lambda z=z: _both(generator, z), seconds)  # type: ignore[misc]
    return found


def _both(generator: Generator, z: Tensor) -> None:
    at = generator.evaluate(z)
    at.pull(at.x)


def _rate(call: Callable[[], object], seconds: float) -> float:
    call()  # the first is slow
    start, calls = time.perf_counter(), 0
    while time.perf_counter() - start < seconds or calls < 2:
        call()
        calls += 1
    return calls / (time.perf_counter() - start)


def _command(source: Source, generator: Generator, samples: Path | None) -> str:
    """It begins with undamaged signals, which everybody has: they are measured first, and the true error is told."""
    own = "pictures/" if makes_pictures(generator.signal_shape) else "signals.npy"
    inputs = own if samples is None else str(samples / _FOLDER)
    words = ["genprior", "recover", inputs, "--generator", source.generator]
    words += [] if source.weights is None else ["--weights", source.weights]
    words += [] if source.latent_shape is None else ["--latent-shape", *map(str, source.latent_shape)]
    words += [] if source.signal_range is None else ["--range", *_range_words(source.signal_range)]
    words += [] if source.label is None else ["--label", str(source.label)]
    words += ["--operator", _operator(generator.signal_shape), "--simulate", "--restarts", "4", "--out", "recovered"]
    return shlex.join(words)


def _range_words(told: Range) -> list[str]:
    return [told] if told == "keep" else [f"{bound:g}" for bound in told]


def _operator(shape: tuple[int, ...]) -> str:
    """Smaller pictures where the size allows it, else random measurements."""
    if len(shape) == 3 and shape[1] % 4 == 0 and shape[2] % 4 == 0:
        return "downsample:4"
    return f"gaussian:m={max(1, math.prod(shape) // 2)}"
