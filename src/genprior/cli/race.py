"""``genprior bench race``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from genprior._progress import Bar
from genprior.cli.speech import Output, print_json
from genprior.cli.workers import Workers


@dataclass(frozen=True)
class BenchRace(Workers):
    """Race eight solvers on eight problems; baselines are tuned on a grid for each problem, ours use their defaults.

    All solvers have the same starts and take turns; medians over the rounds are reported. Takes about half an hour, or
    less than three minutes with --quick.

    Example:
        genprior bench race --out race
        genprior bench race --problems ac --quick --json
    """

    problems: str = "abcdefgh"
    """Letters of the problems: a, b Gaussian; c l_inf, d l1 denoising; e deblurring; f inpainting; g, h faces."""
    repeats: int = 2
    """Rounds."""
    quick: bool = False
    """Few images, little time, few settings: only to see that it works, not to compare."""
    out: Path | None = None
    """Folder for race.json and race.png."""
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
        from genprior.lab.reports.race import draw_race, race_numbers, race_table, speedup_table  # noqa: PLC0415

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
        if self.out is not None:
            console.print(Text.assemble(("figure: ", "bold"), str(self.out / "race.png")), soft_wrap=True)
