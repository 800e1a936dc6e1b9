"""``genprior demo``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.text import Text

from genprior._progress import Bar
from genprior.cli.machine import Machine
from genprior.cli.speech import Output, print_json


@dataclass(frozen=True, kw_only=True)
class Demo(Machine):
    """Recover handwritten digits from half as many random measurements as pixels, with six solvers in equal time.

    Prints a table and writes one self-contained HTML page. Needs no download.

    Example:
        genprior demo --out demo
    """

    out: Path = Path("demo")
    """Folder for demo.html."""
    pictures: int = 16
    """Number of digits."""
    measurements: int = 392
    """Random measurements per digit of 784 pixels."""
    time: float = 6.0
    """Seconds per solver."""
    restarts: int = 1
    """Starts per digit; the worse ones are dropped early."""
    truth: Literal["test", "range"] = "test"
    """test: real test digits; range: digits that the generator made itself."""
    seed: int = 0
    """Seed of measurements and starts."""

    def run(self) -> None:
        """Run the command."""
        import torch  # noqa: PLC0415 - slow to import, as the rest here

        from genprior import _validate  # noqa: PLC0415
        from genprior._files import make_folder  # noqa: PLC0415
        from genprior.lab.demo import run_demo  # noqa: PLC0415
        from genprior.lab.reports.demo import demo_rows, demo_table, write_page  # noqa: PLC0415

        self.settle()
        self.choose_threads()
        _validate.number("time", self.time, above=0)
        make_folder(self.out)
        with Bar("demo", None, visible=False if self.json else None) as bar:
            demo = run_demo(
                pictures=self.pictures,
                measurements=self.measurements,
                seconds=self.time,
                restarts=self.restarts,
                truth=self.truth,
                seed=self.seed,
                device=self.device,
                announce=bar.stage,
            )
        report = self.out / "demo.html"
        write_page(demo, report)
        if self.json:
            print_json({"report": str(report), "threads": torch.get_num_threads(), "solvers": demo_rows(demo)})
            return
        console = Output()
        console.print(demo_table(demo))
        console.print(Text.assemble(("report: ", "bold"), str(report)), soft_wrap=True)
