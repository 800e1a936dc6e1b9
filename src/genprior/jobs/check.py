"""Checks a user's generator before it is used: the contract, the range, the conditioning, the speed; suggests a command."""

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
from genprior.checks.budget import Budget
from genprior.checks.generator import check_within
from genprior.checks.report import Finding, Report
from genprior.files.images import encode
from genprior.generators import Generator
from genprior.generators.derivatives import OnlyGradients
from genprior.generators.spectrum import MOST_BYTES, jacobian_bytes, singular_values
from genprior.jobs.settings import Source
from genprior.models.ranges import Range, makes_images
from genprior.report.sheets import contact_sheet, stretched
from genprior.report.signals import signal_sheet

_LARGEST = 512
"""Largest latent dimension for which full Jacobians are computed."""
_POINTS = 4
_FLAT = 1e-3
"""Directions with a singular value below this fraction of the largest count as flat."""
_SLACK = 0.25
_OPENING = 0.25
"""Share of the time in which samples are drawn to find the range of the values."""
_CHEAP = 0.1
"""Share of the time left in which the columns of DG are timed."""
_COLUMNS = 8
_MATRIX = 2**26
"""Bytes of the largest matrix that is suggested; factorising it takes ten times as much memory."""
STAGES = (
    "opens",
    "runs forward and backward",
    "same latent, same signal",
    "items do not influence each other",
    "gradient equals differences",
    "values fit images in [0, 1]",
    "DG",
    "passes per second",
)
"""Names of the checks, in the order in which they are announced; DG once per point."""
_FOLDER = "samples"


@dataclass(frozen=True)
class Inspection:
    """Results of the checks of a generator."""

    report: Report
    notes: tuple[str, ...] = ()
    latent_shape: tuple[int, ...] | None = None
    signal_shape: tuple[int, ...] | None = None
    conditioning: dict[str, float] | None = None
    """Singular values of DG at samples: medians of the largest, the smallest, their ratio; the share of flat directions."""
    no_conditioning: str = ""
    """Why there is none, if no check failed."""
    speed: dict[str, float] | None = None
    """Forward and backward passes per second, for one item and for 16 at once, as far as time allowed."""
    command: str = ""
    """A command line to begin with."""
    generator: Generator | None = None
    """The generator, if it could be opened."""

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


def inspect_generator(
    source: Source,
    *,
    device: str = "cpu",
    seed: int = 0,
    samples: Path | None = None,
    seconds: float | None = None,
    announce: Callable[[str], None] | None = None,
) -> Inspection:
    """Open a generator and check it; a failure to open it is a finding too.

    ``samples`` is the folder given to :func:`write_samples`; the suggested command then reads it. If ``seconds`` are short,
    each check examines less, or is reported as not run; the limit is exceeded by one pass at most. ``announce`` is called
    with the name of each check when it begins.
    """
    budget = Budget(seconds, announce)
    budget.begin(STAGES[0])
    try:
        opened = source.open(device, None if seconds is None else _OPENING * seconds)
    except (ValueError, TypeError, OSError) as problem:
        return Inspection(Report(source.generator, (Finding("opens", False, str(problem)),)))
    generator = opened.generator
    report = check_within(generator, budget, seed=seed)
    findings = (
        Finding("opens", True, "; ".join(opened.notes) or "as it is"),
        *report.findings,
        _image_values(generator, seed, budget, kept=source.signal_range == "keep"),
    )
    report = Report(report.subject, findings)
    found = Inspection(report, opened.notes, generator.latent_shape, generator.signal_shape, generator=generator)
    if report.failures:
        return found
    command = _command(source, generator, samples)
    conditioning, why_not = _conditioning(generator, seed, budget)
    speed = _speed(generator, budget)
    return replace(found, conditioning=conditioning, no_conditioning=why_not, speed=speed, command=command)


def write_samples(
    source: Source | Generator,
    out: Path,
    *,
    count: int = 16,
    device: str = "cpu",
    seed: int = 0,
    seconds: float | None = None,
) -> Path:
    """Write samples of the generator to ``samples/`` and a sheet of them; returns the path of the sheet.

    Writes fewer than ``count``, but at least one, if ``seconds`` are short. Images are ``00.png`` and so on; other signals,
    and values that image files cannot hold, go into one array ``signals.npy``.
    """
    generator = source if isinstance(source, Generator) else source.open(device).generator
    make_folder(out)
    add_folder(out / _FOLDER)
    sheet = out / f"{_FOLDER}.png"
    signals = _drawn(generator, count, seed, Budget(seconds))
    images = makes_images(generator.signal_shape)
    if images and _in_unit_range(signals):
        for number, image in enumerate(signals):
            encode(image, out / _FOLDER / f"{number:02d}.png")
        contact_sheet(signals, sheet)
        return sheet
    _save_array(signals, out / _FOLDER / "signals.npy")
    if images:
        contact_sheet(stretched(signals), sheet)
    else:
        signal_sheet(signals, sheet)
    return sheet


def _drawn(generator: Generator, count: int, seed: int, budget: Budget) -> Tensor:
    """Signals, one at a time while there is time, at least one."""
    signals: list[Tensor] = []
    with torch.no_grad():
        for z in generator.sample_latent(count, seed):
            if signals and budget.left == 0:
                break
            signals.append(generator(z[None]))
    return torch.cat(signals)


def _save_array(signals: Tensor, path: Path) -> None:
    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.save(file, signals.cpu().numpy())

    write_atomically(path, write)


def _in_unit_range(signals: Tensor) -> bool:
    return float(signals.min()) >= -_SLACK and float(signals.max()) <= 1 + _SLACK


def _image_values(generator: Generator, seed: int, budget: Budget, *, kept: bool) -> Finding:
    """Image-shaped signals should have values that image files can hold, unless the range is ``keep``."""
    law = "values fit images in [0, 1]"
    if not makes_images(generator.signal_shape):
        return Finding(law, True, f"signals of shape {generator.signal_shape} are not images")

    def examine() -> Finding:
        try:
            x = _drawn(generator, 16, seed, budget)
        except (ValueError, TypeError) as problem:
            return Finding(law, False, str(problem), "see the message")
        advice = "give the range of the module's values, for example `signal_range=(0, 255)`, or scale them in build()"
        measured = f"[{float(x.min()):.3g}, {float(x.max()):.3g}] in {len(x)} samples"
        return Finding(law, kept or _in_unit_range(x), measured, advice)

    return budget.within(law, examine)


def _conditioning(generator: Generator, seed: int, budget: Budget) -> tuple[dict[str, float] | None, str]:
    """Singular values of DG, or why there are none."""
    budget.begin("DG")
    size, signal = math.prod(generator.latent_shape), math.prod(generator.signal_shape)
    if size > _LARGEST:
        return None, f"not computed for more than {_LARGEST} latent dimensions, here {size}"
    if jacobian_bytes(generator) > MOST_BYTES:
        needed = jacobian_bytes(generator) / 2**30
        return None, f"not computed: {signal} x {size} numbers need {needed:.1f} GB of memory, more than 1"
    if lack := budget.lacks(0.0):
        return None, lack
    z = generator.sample_latent(_POINTS, seed)
    try:
        cost = size * _column_seconds(generator, z[:1], budget)
        points = budget.fits(cost, _POINTS, 0.8)
        if points == 0:
            return None, budget.lacks(cost / 0.8)
        values = torch.stack([_announced(generator, point, budget) for point in z[:points]])
    except OnlyGradients as problem:
        return None, f"not computed: the module has gradients only ({problem.why})"
    return _summary(values), ""


def _announced(generator: Generator, point: Tensor, budget: Budget) -> Tensor:
    budget.begin("DG")
    return singular_values(generator, point[None])


def _column_seconds(generator: Generator, z: Tensor, budget: Budget) -> float:
    """Time of one column of DG: three forward passes, or measured on several columns if there is time."""
    started = time.perf_counter()
    generator.evaluate(z, graph=False)
    estimate = 3 * (time.perf_counter() - started)
    if (1 + _COLUMNS) * estimate > _CHEAP * budget.left:
        return estimate
    tangents = torch.ones((_COLUMNS, *z.shape), device=z.device, dtype=z.dtype)
    generator.jvp(z, tangents[:1])  # the first is slow
    started = time.perf_counter()
    generator.jvp(z, tangents)
    return (time.perf_counter() - started) / _COLUMNS


def _summary(values: Tensor) -> dict[str, float]:
    """Medians over the points; ``values`` is ``(n, s)``, descending in each row."""
    largest, smallest = values[:, 0], values[:, -1]
    flat = (values < _FLAT * largest[:, None]).double().mean()
    return {
        "largest": float(largest.median()),
        "smallest": float(smallest.median()),
        "condition": float((largest / smallest.clamp_min(1e-300)).median()),
        "flat_share": float(flat),
        "points": float(len(values)),
    }


def _speed(generator: Generator, budget: Budget, seconds: float = 0.15) -> dict[str, float]:
    """Passes per second, as far as time allows."""
    budget.begin("passes per second")
    found: dict[str, float] = {}
    for count in (1, 16):
        z = generator.sample_latent(count)
        calls: dict[str, Callable[[], object]] = {
            f"forward_{count}": lambda z=z: generator.evaluate(z, graph=False),  # type: ignore[misc]
            f"both_{count}": lambda z=z: _both(generator, z),  # type: ignore[misc]
        }
        for name, call in calls.items():
            slowest = max((1 / rate for rate in found.values()), default=0.0)
            if not budget.lacks(slowest * count):
                found[name] = _rate(call, seconds)
    return found


def _both(generator: Generator, z: Tensor) -> None:
    at = generator.evaluate(z)
    at.vjp(at.x)


def _rate(call: Callable[[], object], seconds: float) -> float:
    start = time.perf_counter()
    call()  # the first call is slow, which does not matter if it alone takes long
    first = time.perf_counter() - start
    if first > 10 * seconds:
        return 1 / first
    start, calls = time.perf_counter(), 0
    while time.perf_counter() - start < seconds or calls < 2:
        call()
        calls += 1
    return calls / (time.perf_counter() - start)


def _command(source: Source, generator: Generator, samples: Path | None) -> str:
    """The suggested command takes undamaged signals and simulates measurements, so that it reports the true error."""
    own = "pictures/" if makes_images(generator.signal_shape) else "signals.npy"
    inputs = own if samples is None else str(samples / _FOLDER)
    words = ["genprior", "recover", inputs, "--generator", source.generator]
    words += [] if source.weights is None else ["--weights", source.weights]
    words += [] if source.latent_shape is None else ["--latent-shape", *map(str, source.latent_shape)]
    words += [] if source.signal_range is None else ["--range", *_range_words(source.signal_range)]
    words += [] if source.label is None else ["--label", str(source.label)]
    words += ["--operator", _operator(generator.signal_shape), "--simulate", "--out", "recovered"]
    return shlex.join(words)


def _range_words(given: Range) -> list[str]:
    return [given] if given == "keep" else [f"{bound:g}" for bound in given]


def _operator(shape: tuple[int, ...]) -> str:
    """Downsampling if the size allows it, otherwise random measurements (by a dense matrix only if it is small)."""
    if len(shape) == 3 and shape[1] % 4 == 0 and shape[2] % 4 == 0:
        return "downsample:4"
    d = math.prod(shape)
    m = max(1, d // 2)
    return f"gaussian:m={m}" if 4 * m * d <= _MATRIX else f"hadamard:m={m}"
