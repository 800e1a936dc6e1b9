"""``genprior bench ...``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table

from genprior._progress import Bar
from genprior.cli.machine import Machine
from genprior.cli.speech import Output, print_json

if TYPE_CHECKING:
    from genprior.lab.scaling import Point


@dataclass(frozen=True)
class Overhead(Machine):
    """Time an iteration of exact ADMM against one bare forward and backward pass of the same generator.

    Measurements are interleaved; medians are reported. The main result is the ratio for the generator of DCGAN size; the small
    MLP shows the cost of bookkeeping.

    Example:
        genprior bench overhead --json
    """

    repeats: int = 15
    """Interleaved repeats."""
    seed: int = 0
    """Seed of weights, measurements and starts."""

    def run(self) -> None:
        """Run the command."""
        from genprior.lab.overhead import overhead_cases  # noqa: PLC0415

        self.settle()
        self.choose_threads()
        with Bar("measuring", None, visible=False if self.json else None):
            cases = overhead_cases(self.repeats, seed=self.seed, device=self.device)
        if self.json:
            print_json({"ratio": cases[0].ratio, "cases": [dataclasses.asdict(case) for case in cases]})
            return
        table = Table(title="one iteration of exact ADMM relative to one bare forward + backward pass")
        for name in ("generator", "bare ms", "iteration ms", "ratio", "quartiles", "passes"):
            table.add_column(name, justify="right")
        for case in cases:
            table.add_row(
                case.generator,
                f"{1e3 * case.bare_seconds:.2f}",
                f"{1e3 * case.step_seconds:.2f}",
                f"{case.ratio:.3f}",
                f"{case.ratio_quartiles[0]:.3f} to {case.ratio_quartiles[1]:.3f}",
                f"{case.passes[0]:g} + {case.passes[1]:g}",
            )
        Output().print(table)


@dataclass(frozen=True)
class BenchTraining:
    """Time a step of the MNIST training, from the simplest variant to the default one, one change at a time.

    Measurements are interleaved; medians are reported.

    Example:
        genprior bench training
    """

    repeats: int = 7
    """Interleaved repeats."""
    width: int = 64
    """Width of the generator."""
    threads: int | None = None
    """Threads for all variants except the first, which uses one; by default torch chooses."""
    json: bool = False
    """Print one JSON document instead of the table."""

    def run(self) -> None:
        """Run the command."""
        from genprior.lab.throughput import measure_throughput  # noqa: PLC0415

        with Bar("measuring", None, visible=False if self.json else None):
            found = measure_throughput(self.repeats, width=self.width, threads=self.threads)
        if self.json:
            print_json({"variants": [dataclasses.asdict(one) for one in found]})
            return
        table = Table(title="one generator step of WGAN-GP on 28 x 28 images, with its critic steps")
        for name in ("variant", "seconds", "images/s", "speed-up"):
            table.add_column(name, justify="left" if name == "variant" else "right")
        for one in found:
            cells = f"{one.step_seconds:.3f}", f"{one.pictures_per_second:.0f}", f"{one.speedup:.2f}"
            table.add_row(one.variant.name, *cells)
        Output().print(table)


@dataclass(frozen=True)
class Scaling(Machine):
    """Time and memory of an iteration as the batch, the latent and the signal grow.

    Measurements are interleaved; medians are reported. Takes some minutes.

    Example:
        genprior bench scaling --threads 2
    """

    repeats: int = 3
    """Interleaved repeats."""
    quick: bool = False
    """Only three sizes each, to see that it works."""

    def run(self) -> None:
        """Run the command."""
        from genprior.lab import scaling  # noqa: PLC0415

        self.settle()
        self.choose_threads()
        families = {
            "batch": (scaling.batch_sizes, scaling.BATCHES),
            "latent": (scaling.latent_sizes, scaling.LATENTS),
            "signal": (scaling.signal_sizes, scaling.SIDES),
        }
        found = {}
        with Bar("measuring", None, visible=False if self.json else None) as bar:
            for name, (measure, sizes) in families.items():
                bar.stage(f"sizes of the {name}")
                found[name] = measure(sizes[:3] if self.quick else sizes, repeats=self.repeats, device=self.device)
        if self.json:
            print_json({name: [dataclasses.asdict(point) for point in points] for name, points in found.items()})
            return
        for name, points in found.items():
            Output().print(_scaling_table(name, points))


def _scaling_table(name: str, points: list[Point]) -> Table:
    table = Table(title=f"milliseconds per iteration and kilobytes of state per item, by {name}")
    for column in (name, "bare pass", *(f"{solver}" for solver in points[0].step_seconds)):
        table.add_column(column, justify="right")
    for point in points:
        cells = [
            f"{1e3 * seconds:.2f} ms, {point.state_bytes[solver] / 1024:.0f} kB"
            for solver, seconds in point.step_seconds.items()
        ]
        table.add_row(str(getattr(point, name)), f"{1e3 * point.pass_seconds:.2f} ms", *cells)
    return table
