"""``genprior defend``."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from genprior._progress import Bar
from genprior.cli.flags import as_flags
from genprior.cli.prior import INPUT, Prior
from genprior.cli.speech import print_json, print_lines
from genprior.cli.workers import Workers, set_aside

if TYPE_CHECKING:
    from genprior.jobs.defend import Record
    from genprior.jobs.settings import Defence


@dataclass(frozen=True, kw_only=True)
class Defend(Workers, Prior):
    """Classify images that may be attacked: replace each by the nearest image of a generator, then classify it.

    Writes defended/ in the layout of the input, result.json with the class of every image before and after, report.html.
    This is not a proven defence: an attacker who knows the generator can defeat it.

    Example:
        genprior defend attacked/ --classifier mnist --generator mnist --out defended
        genprior defend digits.npy --labels labels.npy --classifier my_model.py:build --out defended --workers 4
    """

    inputs: Annotated[tuple[str, ...], tyro.conf.Positional, INPUT]
    """Images (.png, .jpg, ...), arrays (.npy, .npz, .safetensors, .h5), shards of WebDataset (.tar), or folders of them;
    also by URL."""
    out: Path
    """Folder for defended/, result.json and report.html."""
    classifier: str = "mnist"
    """A bundled name, a file written by genprior train classifier, my_model.py:build, or a TorchScript file."""
    classifier_weights: Path | None = None
    """Weights for my_model.py:build: .safetensors, or .pt with a state dictionary."""
    labels: Path | None = None
    """A .npy file with the true class of every image; accuracies are then reported."""
    norm: Literal["linf", "l2"] = "linf"
    """Norm that defines the nearest image; most attacks are bounded in linf."""
    solver: Literal["admm", "auto", "adam", "gd"] = "admm"
    """Solver of the projection; admm has exact w steps and takes z steps with Adam."""
    steps: int = 300
    """Iterations."""
    restarts: int = 4
    """Starts per image; the worse ones are dropped early."""
    batch_size: int = 100
    """Images projected at once; limits the memory."""
    resize: bool = False
    """Crop and scale images of another size."""
    skip: bool = False
    """Leave out files that cannot be used, instead of refusing to start."""
    seed: int = 0
    """Seed of the starts."""
    json: bool = False
    """Print result.json instead of a summary."""

    def job(self) -> Defence:
        """As the library takes it."""
        from genprior.jobs.settings import Classifier, Defence  # noqa: PLC0415 - slow to import

        self.settle()
        weights = None if self.classifier_weights is None else str(self.classifier_weights)
        own = {field.name for field in fields(self)} - {"classifier"}
        shared = {field.name: getattr(self, field.name) for field in fields(Defence) if field.name in own}
        return Defence(
            source=self.source(), classifier=Classifier(classifier=self.classifier, weights=weights), **shared
        )

    def run(self) -> None:
        """Run the command."""
        from genprior.jobs.defence_page import write_defence  # noqa: PLC0415
        from genprior.jobs.defend import defend_files, document  # noqa: PLC0415 - slow to import

        job, engine, watch = self.job(), self.chosen(), self.watch()
        visible = False if self.json else None
        with Bar("defended", visible=visible, every=60.0, counts=True, remaining=True) as bar:
            record = defend_files(job, watch.showing(bar.show), engine=engine, on_begin=watch.begin)
        write_defence(record, job, self.out / "report.html")
        if self.json:
            print_json(document(record, job))
        else:
            self._say(record)
        if failures := self._failures(record):
            raise ValueError("; ".join(failures))

    def _failures(self, record: Record) -> list[str]:
        """Why not every item is defended."""
        found: list[str] = []
        diverged = record.numbers["diverged"]
        if record.unreadable and not (self.skip and record.items):
            skipped = "; add --skip to leave them out" if record.items else ""
            reason = record.unreadable[0]["problem"]
            found.append(f"{len(record.unreadable)} of {record.total} items could not be read ({reason}){skipped}")
        if record.poisoned:
            found.append(set_aside(len(record.poisoned), record.total, record.poisoned[0]["problem"]))
        if diverged:
            found.append(f"{diverged} of {record.total} projections diverged: run genprior check on the generator")
        return found

    def _say(self, record: Record) -> None:
        from genprior.jobs.threads import solved_by  # noqa: PLC0415 - slow to import

        lines = [
            (name.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else str(value))
            for name, value in record.numbers.items()
        ]
        lines.append(("solved by", f"{solved_by(record.run)}, in {record.run['elapsed']:.1f} s"))
        lines += [("note", as_flags(note)) for note in record.notes]
        lines += [("files", str(self.out / "defended")), ("report", str(self.out / "report.html"))]
        print_lines(lines)
