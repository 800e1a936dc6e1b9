"""``genprior reproduce ...``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rich.table import Table
from rich.text import Text

from genprior._progress import Bar, duration
from genprior.cli.speech import Output, as_json, print_json
from genprior.cli.workers import Workers

if TYPE_CHECKING:
    from genprior.lab.reproduce.parts import Progress as Standing


@dataclass(frozen=True, kw_only=True)
class _Reproduce(Workers):
    """Options of all ``genprior reproduce ...`` commands."""

    experiments: ClassVar[tuple[str, ...]] = ()

    out: Path
    """Folder for results.json, index.html, reproduction.md, figures, traces. Give it again to resume a run."""
    quick: bool = False
    """Few images and iterations, under five minutes: only to see that it works, not to judge the claims."""
    faces: Path | None = None
    """Your own folder, tar or zip of face images, for a table on real faces; none of them is shown."""
    seed: int = 0
    """Seed of images, noise, measurements and starts."""
    workers: int | None = None
    """Parts computed at a time, each by a process of its own, with one thread unless --threads says more; or with --engine
    ray on a cluster, there by default as many as fit. The numbers are those of one process with as many --threads, but
    workers on one machine disturb each other's times (memory bandwidth, clock rate), and so the curves against seconds."""
    batch_time: float | None = None
    """Seconds after which a worker counts as hung, is stopped, and its part repeated; by default 20 times the part's
    estimate and 10 minutes more."""

    def run(self) -> None:
        """Run the command."""
        from genprior._files import make_folder, write_text  # noqa: PLC0415
        from genprior.lab.reports.reproduction import claim_row, write_report  # noqa: PLC0415
        from genprior.lab.reproduce import EXPERIMENTS, reproduce  # noqa: PLC0415
        from genprior.lab.reproduce.parts import recorded_threads  # noqa: PLC0415

        self.settle()
        engine = self.chosen()
        if engine is None:
            self.choose_threads(fixed=recorded_threads(self.out))
        make_folder(self.out)
        names = self.experiments or tuple(EXPERIMENTS)
        with Bar("reproducing", visible=False if self.json else None, every=0.0) as bar:
            done = reproduce(
                names,
                self.out,
                size="quick" if self.quick else "full",
                seed=self.seed,
                device=self.device,
                faces=self.faces,
                show=lambda at: bar.show(at.share, 1.0, _standing(at)),
                engine=engine,
            )
        document = done.document()
        write_text(self.out / "results.json", as_json(document))
        files = write_report(done)
        if self.json:
            print_json(document)
            return
        table = Table(title="what the paper says, and whether it holds here", show_lines=True)
        for name in ("the paper", "here", "verdict"):
            table.add_column(name)
        for claim in done.claims:
            table.add_row(*(Text(cell) for cell in claim_row(claim)))
        console = Output()
        console.print(table)
        console.print(Text.assemble(("report: ", "bold"), str(files[0])), soft_wrap=True)


@dataclass(frozen=True, kw_only=True)
class ReproduceAll(_Reproduce):
    """Reproduce all of the paper's experiments, and judge each of its claims by the numbers.

    Writes results.json, a self-contained page, figures and traces. If it is killed, the same command resumes it without
    repeating finished work. The digits of the defence are downloaded once, at the start (not with --quick).

    Example:
        genprior reproduce all --out reproduction
        genprior reproduce all --quick --out quick
    """


@dataclass(frozen=True, kw_only=True)
class ReproduceSensing(_Reproduce):
    """Reproduce compressive sensing: objective and error against time and passes, digits, faces, real digits.

    Example:
        genprior reproduce compressive-sensing --out reproduction
    """

    experiments: ClassVar[tuple[str, ...]] = ("compressive-sensing",)


@dataclass(frozen=True, kw_only=True)
class ReproduceDenoising(_Reproduce):
    """Reproduce denoising in the l_inf norm (and l1 and l2): the error at each iteration, and the size of the duals.

    Example:
        genprior reproduce linf-denoising --out reproduction
    """

    experiments: ClassVar[tuple[str, ...]] = ("linf-denoising",)


@dataclass(frozen=True, kw_only=True)
class ReproduceDefence(_Reproduce):
    """Reproduce the adversarial defence: attacked digits projected and classified; also under attacks that know the defence.

    Example:
        genprior reproduce defence --out reproduction
    """

    experiments: ClassVar[tuple[str, ...]] = ("defence",)


@dataclass(frozen=True, kw_only=True)
class ReproduceTuning(_Reproduce):
    """Reproduce the tuning of gradient descent: average objective against the step; all methods with the same budget.

    Example:
        genprior reproduce tuning --out reproduction
    """

    experiments: ClassVar[tuple[str, ...]] = ("tuning",)


@dataclass(frozen=True, kw_only=True)
class ReproducePlateau(_Reproduce):
    """Test the theory: plateaus against the penalty, rates against the conditioning of G, three dual rules.

    Example:
        genprior reproduce plateau --out reproduction
    """

    experiments: ClassVar[tuple[str, ...]] = ("plateau",)


def _standing(at: Standing) -> str:
    """The part that is starting, or with workers the parts that are finished; and the time left."""
    from genprior.lab.reproduce.spread import OnWorkers  # noqa: PLC0415
    from genprior.lab.workers import crew_in_words  # noqa: PLC0415

    left = "" if at.seconds_left is None else f", about {duration(at.seconds_left)} left"
    if isinstance(at, OnWorkers):
        return f"{at.number} of {at.count} parts, {crew_in_words(at.crew)}{left}"
    return f"part {at.number}/{at.count}: {at.part}{left}"
