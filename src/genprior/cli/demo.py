"""``genprior demo``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from genprior.cli.speech import check_device, print_json, status


@dataclass(frozen=True)
class Demo:
    """Recover a few pictures from random measurements with every solver; print a table, write a picture.

    Needs no data and no download. Example:

        genprior demo --out demo
    """

    out: Path = Path("demo")
    """Folder for demo.png."""
    pictures: int = 6
    """Number of pictures."""
    measurements: int = 102
    """Random measurements per picture of 1024 pixels."""
    steps: int = 500
    """Iterations per solver."""
    restarts: int = 8
    """Starts per picture; the worst are given up early."""
    seed: int = 0
    """Seed of pictures, measurements and starts."""
    device: str = "cpu"
    """Device for torch, for example cpu, cuda or mps."""
    json: bool = False
    """Print one JSON document instead of the table."""

    def run(self) -> None:
        """Do it."""
        from genprior.experiments.demo import run_demo  # noqa: PLC0415 - torch is slow to import
        from genprior.report.demo import demo_rows, demo_table, draw_demo  # noqa: PLC0415

        check_device(self.device)
        self.out.mkdir(parents=True, exist_ok=True)
        with status(not self.json) as announce:
            demo = run_demo(
                pictures=self.pictures,
                measurements=self.measurements,
                steps=self.steps,
                restarts=self.restarts,
                seed=self.seed,
                device=self.device,
                announce=announce,
            )
        picture = self.out / "demo.png"
        draw_demo(demo, picture)
        if self.json:
            print_json({"picture": str(picture), "solvers": demo_rows(demo)})
            return
        console = Console()
        console.print(demo_table(demo))
        for name, text in (("picture", str(picture)), ("plan of the last solver", demo.runs[-1].result.plan)):
            console.print(Text.assemble((f"{name}: ", "bold"), text), soft_wrap=True)
