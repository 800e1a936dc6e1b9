"""``genprior bench race``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from genprior._progress import Bar
from genprior.cli.flags import as_flags
from genprior.cli.speech import Output, print_json
from genprior.cli.workers import Workers


@dataclass(frozen=True)
class BenchRace(Workers):
    """Race our solvers without options to 90% solved images, against tuned baselines and methods as published.

    The baselines' settings and numbers of starts are tuned for each problem, on other images. Solvers take turns; medians over
    the rounds are reported. Takes about three quarters of an hour on one thread, or less than three minutes with --quick. With
    --out a race that was cut short continues when the same command is given again.

    Example:
        genprior bench race --out race
        genprior bench race --download --out race
        genprior bench race --problems ac --quick --json
    """

    problems: str | None = None
    """Letters of the problems: a, b Gaussian; c l_inf, d l1 denoising; e deblurring; f inpainting; g, h faces; i faces,
    j glitches, k ECG, l terrain of third-party packages; m decoder and n flow with large latents. By default all;
    with --quick those that need no download."""
    download: bool = False
    """Fetch the third-party packages with pip, for i to l; problems whose package is not there are left out."""
    repeats: int = 2
    """Rounds."""
    quick: bool = False
    """Few images, little time, few settings: only to see that it works, not to compare."""
    out: Path | None = None
    """Folder for race.json and race.png; in its folder parts is what a repeated command need not race again."""
    seed: int = 0
    """Seed of images, noise and starts."""
    workers: int | None = None
    """Problems raced at a time, each by a process of its own, with one thread unless --threads says more; or with --engine
    ray on a cluster, there by default as many as fit. Workers on one machine disturb each other's times (memory bandwidth,
    clock rate): for machines with idle cores, or a cluster. The solvers of a problem always take turns on one worker."""
    batch_time: float | None = None
    """Seconds after which a worker counts as hung, is stopped, and its problem raced again; by default 20 times the longest
    problem so far, and at least 10 minutes."""

    def run(self) -> None:
        """Run the command."""
        from genprior._files import make_folder, write_text  # noqa: PLC0415
        from genprior.cli.speech import as_json  # noqa: PLC0415
        from genprior.lab.race import run_race  # noqa: PLC0415
        from genprior.lab.reports.race import (  # noqa: PLC0415
            draw_race,
            notes_on,
            race_numbers,
            race_table,
            speedup_table,
        )

        self.settle()
        engine = self.chosen()
        if engine is None:
            self.choose_threads()
        if self.out is not None:
            make_folder(self.out)
        repeats = 1 if self.quick else self.repeats
        with Bar("racing", None) as bar:
            race = run_race(
                keys=self.problems,
                repeats=repeats,
                quick=self.quick,
                seed=self.seed,
                device=self.device,
                download=self.download,
                keep=None if self.out is None else self.out / "parts",
                announce=bar.stage,
                engine=engine,
            )
        numbers = race_numbers(race)
        if self.out is not None:
            write_text(self.out / "race.json", as_json(numbers))
            draw_race(race, self.out / "race.png")
        if self.json:
            print_json(numbers)
            return
        console = Output()
        console.print(race_table(race))
        console.print(speedup_table(race))
        for note in notes_on(race):
            console.print(Text(as_flags(note)), soft_wrap=True)
        if self.out is not None:
            console.print(Text.assemble(("figure: ", "bold"), str(self.out / "race.png")), soft_wrap=True)
